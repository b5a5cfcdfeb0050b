"""
How the gateway ends a connection: with an error that its client is told, or without a word, and within seconds in any
case. The engine writes what it still has to, the peer has a moment to answer our close, and the socket is cut if it
does not.

How a client is sent to another gateway depends on what the client makes of it (AMQP 1.0 section 2.8.18):

===============================  ==============================================================================
a client that                    gets
===============================  ==============================================================================
follows redirects                ``amqp:connection:redirect``, with where to
says anything about itself       ``amqp:connection:forced``, with the same entries in the error's info map
says nothing about itself        the end of its connection, before our open frame if may be; the gateway's log says why
===============================  ==============================================================================

The last are Proton's: an open frame has them begin anew with the first of their addresses, which may be ours, whatever
follows it; and a close frame has Proton for Python wait for its heartbeat, if it has one. Without either, they go on
with the next address at once, as all do that have several. For whoever has one only, an error would be kinder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proton import Connection

from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.conditions import CloseError, condition_of
from gateway.amqp.engine.input import Input
from gateway.amqp.engine.output import Output
from gateway.core.errors import ErrorCode, Refused

CLOSE_SECONDS: Final = 2.0
"""How long a connection that we close may take to answer before it is cut."""


@dataclass(eq=False)
class Closing:
    """
    The end of one connection.

    Args:
        _container_id: Ours.
        _deadline: What the connection waits for.
        _drop_links: Has what its links hold be given up; they get no detach.
    """

    _container_id: str
    _output: Output
    _log: ConnectionLog
    _deadline: Deadline
    _drop_links: Callable[[], None] | None
    has_begun: bool = False
    """We have said our last, or are about to: nothing more begins on the connection."""
    _socket: asyncio.Transport | None = None
    _engine: Connection | None = None
    _input: Input | None = None
    _peer_properties: Mapping[Any, Any] | None = None

    def connect(self, socket: asyncio.Transport) -> None:
        """The connection has a socket."""
        self._socket = socket

    def begin(self, engine: Connection, input: Input) -> None:
        """The engine is there."""
        self._engine, self._input = engine, input

    def opened(self, properties: Mapping[Any, Any] | None) -> None:
        """The peer has opened the connection, and says this of itself: read once, as a text in it may be none."""
        self._peer_properties = properties

    def lost(self) -> None:
        """The connection is gone: nothing of it is held."""
        self._socket = self._engine = self._input = self._drop_links = None

    def refuse(self, refused: Refused) -> None:
        """Close the connection with an error."""
        engine = self._engine
        if engine is None:
            if self._socket is not None:
                self._socket.close()
            return
        if self.has_begun:
            return
        refused = as_followed(refused, self._peer_properties)
        self._log.refused(refused)
        if self._drop_links is not None:
            self._drop_links()
        if engine.state & Connection.LOCAL_UNINIT:
            # The engine writes no close before the peer's open, which it was not given.
            engine.container = self._container_id
            engine.open()
            error = CloseError(refused.code.condition, refused.text)
            self._output.rewrite(lambda output: output + error.frame)
        engine.condition = condition_of(refused)
        engine.close()
        self.end()

    def stop(self, refused: Refused) -> None:
        """
        The gateway stops. Its links end with the connection and get no detach of their own: clients that reconnect by
        themselves (rhea, Qpid JMS, proton's Container) take a detached link for one that is over, and would come back
        without it. ``amqp:connection:forced`` is a connection's error (AMQP 1.0 section 2.8.16).
        """
        self.refuse(refused)
        self._output.flush()

    def redirect(self, refused: Refused) -> None:
        """Another gateway does what is asked for: the same as where that is so of all, though it is open already."""
        engine = self._engine
        if engine is not None and not self.has_begun and is_better_untold(refused, self._peer_properties):
            if self._drop_links is not None:
                self._drop_links()
            self.leave_untold(refused)
        else:
            self.refuse(refused)

    def leave_untold(self, refused: Refused) -> None:
        """End the connection without a word: its client does better with its next address than with a reason."""
        self._log.refused(refused)
        self._output.flush()
        self._begin()
        if self._socket is not None:
            self._socket.close()

    def end(self) -> None:
        """Nothing more begins here: the engine writes what it still has to, and the peer has a moment to answer it."""
        self._output.schedule_flush()
        if self.has_begun:
            return
        self._begin()
        self._output.end(self._all_written)
        # Cut, not closed: a peer that reads nothing would hold what is buffered for it for ever.
        self._deadline.set(CLOSE_SECONDS, self._cut)

    def _begin(self) -> None:
        self.has_begun = True
        if self._input is not None:
            self._input.drop()

    def _all_written(self) -> None:
        """The engine will write no more."""
        socket, engine = self._socket, self._engine
        if socket is None or engine is None or socket.is_closing():
            return
        if engine.state & engine.REMOTE_CLOSED:
            socket.close()
        elif socket.can_write_eof():
            # Were it closed while the peer still sends, the kernel would reset it, and our last frame be lost.
            socket.write_eof()

    def _cut(self) -> None:
        if self._socket is not None:
            self._socket.abort()


FOLLOWERS: Final = frozenset({"QpidJMS"})
"""What clients that follow a redirect call themselves, by ``product`` in the properties of their open frames: Qpid JMS
(``FailoverProvider.handleProviderFailure``). ProtonJ2 tells its application, and goes on with its next address."""

WHERE: Final = "network-host"
"""The entry of the info map without which there is no redirect."""


def is_better_untold(refused: Refused, properties: Mapping[Any, Any] | None) -> bool:
    """
    Whether a client is best told nothing, and finds its next address by itself.

    Args:
        properties: Of its open frame.
    """
    return refused.code is ErrorCode.REDIRECT and not properties


def as_followed(refused: Refused, properties: Mapping[Any, Any] | None) -> Refused:
    """What a client is told in place of a redirect, unless it follows one and there is somewhere to go."""
    if refused.code is not ErrorCode.REDIRECT:
        return refused
    if WHERE in refused.info and (properties or {}).get("product") in FOLLOWERS:
        return refused
    return Refused(ErrorCode.CONNECTION_FORCED, refused.text, **refused.info)


SENT_AWAY_SECONDS: Final = 30.0
"""For which a client that was sent away is not let in again."""

MOST_SENT_AWAY: Final = 1_000
"""Clients that are remembered; the first ones are forgotten."""


class SentAway:
    """
    Clients that were sent away from a gateway that serves readers alone, once it was seen what they wanted. Those of
    Proton come back to their first address, as their connection was open: when they do, they are better left unopened.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[tuple[str, str], float] = {}

    def note(self, peer: str, container: str) -> None:
        """
        A client is sent away.

        Args:
            peer: HOST:PORT it comes from.
            container: Its container-id.
        """
        key = _key(peer, container)
        self._until.pop(key, None)
        self._until[key] = self._monotonic() + SENT_AWAY_SECONDS
        while len(self._until) > MOST_SENT_AWAY:
            del self._until[next(iter(self._until))]

    def has(self, peer: str, container: str) -> bool:
        """Whether a client was, a moment ago."""
        return self._until.get(_key(peer, container), 0.0) > self._monotonic()


def _key(peer: str, container: str) -> tuple[str, str]:
    return peer.rpartition(":")[0], container


class Deadline:
    """
    What a connection waits for next, and no longer than so many seconds: its open, a heartbeat, the answer to our
    close. There is one at a time: a new one replaces the one before.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, passed: Callable[[], None]) -> None:
        """Call ``passed`` then, unless something else is set, or nothing, before."""
        self.clear()
        self._timer = self._loop.call_later(seconds, passed)

    def clear(self) -> None:
        """There is nothing to wait for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
