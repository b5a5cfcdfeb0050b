"""
How the gateway ends a connection: with an error for its client, or without one, and always within seconds. The engine
writes its remaining output, the peer has a moment to answer our close, and the socket is cut if it does not.

How a client is sent to another gateway depends on how the client handles a redirect (AMQP 1.0 section 2.8.18):

===============================  ==============================================================================
a client that                    gets
===============================  ==============================================================================
follows redirects                ``amqp:connection:redirect``, with the other gateway's address
opens with other properties      ``amqp:connection:forced``, with the same entries in the error's info map
opens without properties         a closed socket, if possible before our open frame; the gateway's log says why
===============================  ==============================================================================

Clients without properties are Proton's. After our open frame, whatever follows it, they begin again with the first of
their addresses, which may be ours. After a close frame, Proton for Python waits for its heartbeat, if it has one.
Without either frame they try their next address immediately. Only a client with a single address would do better with
an error.
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
        _container_id: Our container-id.
        _deadline: The timer of the connection.
        _drop_links: Gives up all that the links hold; they get no detach.
    """

    _container_id: str
    _output: Output
    _log: ConnectionLog
    _deadline: Deadline
    _drop_links: Callable[[], None] | None
    has_begun: bool = False
    """Whether the gateway is closing the connection: nothing more begins on it."""
    _socket: asyncio.Transport | None = None
    _engine: Connection | None = None
    _input: Input | None = None
    _peer_properties: Mapping[Any, Any] | None = None

    def connect(self, socket: asyncio.Transport) -> None:
        """The connection has a socket."""
        self._socket = socket

    def begin(self, engine: Connection, input: Input) -> None:
        """The connection has an engine."""
        self._engine, self._input = engine, input

    def opened(self, properties: Mapping[Any, Any] | None) -> None:
        """The peer has opened the connection with these properties: read once, as a text in them may not be UTF-8."""
        self._peer_properties = properties

    def lost(self) -> None:
        """The connection is gone: drop the references to its parts."""
        self._socket = self._engine = self._input = self._drop_links = None

    def refuse(self, refused: Refused) -> None:
        """Close the connection with an error."""
        engine = self._engine
        if engine is None:
            self.close_socket()
            return
        if self.has_begun:
            return
        refused = as_followed(refused, self._peer_properties)
        self._log.refused(refused)
        if self._drop_links is not None:
            self._drop_links()
        if engine.state & Connection.LOCAL_UNINIT:
            # The engine writes no close before it has the peer's open frame, which has not come.
            engine.container = self._container_id
            engine.open()
            error = CloseError(refused.code.condition, refused.text)
            self._output.rewrite(lambda output: output + error.frame)
        engine.condition = condition_of(refused)
        engine.close()
        self.end()

    def stop(self, refused: Refused) -> None:
        """
        The gateway stops. The links end with the connection and get no detach of their own: clients that reconnect by
        themselves (rhea, Qpid JMS, proton's Container) take a detached link for one that has ended, and would come back
        without it. ``amqp:connection:forced`` is a connection's error (AMQP 1.0 section 2.8.16).
        """
        self.refuse(refused)
        self._output.flush()

    def redirect(self, refused: Refused) -> None:
        """Send the client of an open connection to the gateway that does what it asks, as is done before the open."""
        engine = self._engine
        if engine is not None and not self.has_begun and is_better_untold(refused, self._peer_properties):
            if self._drop_links is not None:
                self._drop_links()
            self.leave_untold(refused)
        else:
            self.refuse(refused)

    def leave_untold(self, refused: Refused) -> None:
        """Close the socket without an error: the client goes on to its next address, where an error would delay it."""
        self._log.refused(refused)
        self._output.flush()
        self._begin()
        self.close_socket()

    def close_socket(self) -> None:
        """Close the socket without another word; it is cut if the peer does not take or answer what was said before."""
        if self._socket is not None:
            self._socket.close()
            self._deadline.set(CLOSE_SECONDS, self._cut)

    def end(self) -> None:
        """Begin nothing more: the engine writes its remaining output, and the peer has a moment to answer our close."""
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
            # If it were closed while the peer still sends, the kernel would reset it, and our last frame would be lost.
            socket.write_eof()

    def _cut(self) -> None:
        if self._socket is not None:
            self._socket.abort()


FOLLOWERS: Final = frozenset({"QpidJMS"})
"""The ``product`` in the open frames of clients that follow a redirect: Qpid JMS
(``FailoverProvider.handleProviderFailure``). ProtonJ2 does not: it tells its application and tries its next address."""

WHERE: Final = "network-host"
"""The entry of the info map without which there is no redirect."""


def is_better_untold(refused: Refused, properties: Mapping[Any, Any] | None) -> bool:
    """
    Whether a redirected client is better off without an error, and finds its next address by itself.

    Args:
        properties: The properties of its open frame.
    """
    return refused.code is ErrorCode.REDIRECT and not properties


def as_followed(refused: Refused, properties: Mapping[Any, Any] | None) -> Refused:
    """The error for a client: a redirect becomes ``forced`` unless the client follows it and an address is known."""
    if refused.code is not ErrorCode.REDIRECT:
        return refused
    if WHERE in refused.info and (properties or {}).get("product") in FOLLOWERS:
        return refused
    return Refused(ErrorCode.CONNECTION_FORCED, refused.text, **refused.info)


SENT_AWAY_SECONDS: Final = 30.0
"""How long a client that was sent away is not let in again."""

MOST_SENT_AWAY: Final = 1_000
"""How many such clients are remembered; the oldest are forgotten first."""


class SentAway:
    """
    Clients that a gateway which serves only readers has sent away, because of what they asked on an open connection.
    Proton's clients then come back to their first address: this time their connection is better not opened.
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
        """Whether a client was sent away less than ``SENT_AWAY_SECONDS`` ago."""
        return self._until.get(_key(peer, container), 0.0) > self._monotonic()


def _key(peer: str, container: str) -> tuple[str, str]:
    return peer.rpartition(":")[0], container


class Deadline:
    """
    The one timer of a connection, for what it waits for next: the open, a heartbeat, the answer to our close. Setting
    it replaces the wait before.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, passed: Callable[[], None]) -> None:
        """Call ``passed`` after so many seconds, unless the timer is set again or cleared before."""
        self.clear()
        self._timer = self._loop.call_later(seconds, passed)

    def clear(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
