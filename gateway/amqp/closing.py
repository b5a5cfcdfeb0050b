"""
How a connection ends that we end: with an error its client is told, or without a word, and within seconds in any case.

The engine writes what it still has to, the peer has a moment to answer our close, and the socket is cut if it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from proton import Connection

from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.deadline import Deadline
from gateway.amqp.engine.close_errors import CloseError
from gateway.amqp.engine.conditions import condition_of
from gateway.amqp.engine.input import Input
from gateway.amqp.engine.output import Output
from gateway.amqp.redirects import as_followed, is_better_untold
from gateway.core.errors import Refused

CLOSE_SECONDS: Final = 2.0
"""How long a connection that we close may take to answer before it is cut."""


class Named(Protocol):
    """Whose connection it is on our side."""

    @property
    def container_id(self) -> str:
        """Ours."""


class Closing:
    """
    The end of one connection.

    Args:
        deadline: What the connection waits for.
        drop_links: Has what its links hold be given up; they get no detach.
    """

    def __init__(
        self,
        container: Named,
        output: Output,
        log: ConnectionLog,
        deadline: Deadline,
        drop_links: Callable[[], None],
    ) -> None:
        self.has_begun = False
        """We have said our last, or are about to: nothing more begins on the connection."""
        self._container = container
        self._output = output
        self._log = log
        self._deadline = deadline
        self._drop_links: Callable[[], None] | None = drop_links
        self._socket: asyncio.Transport | None = None
        self._engine: Connection | None = None
        self._input: Input | None = None
        self._peer_properties: Mapping[Any, Any] | None = None

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
            engine.container = self._container.container_id
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
