"""
Connections to the administration: accepted, behind TLS if that is configured, and bounded in number and in time.

=================================  ==================================================
waited for                         at most
=================================  ==================================================
a TLS handshake                    ``HANDSHAKE_S``
the head of a request, once begun  ``HEAD_S``; the first, from the connection on
the next request                   uvicorn's keep-alive
the rest of a body, once answered  ``REST_S``: a client that is refused need not send it all
what was written to be read        ``READ_S``
=================================  ==================================================

How long a body may take that is wanted is bounded in ``gateway.admin.middleware``.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.admin.administrators import Certified
from gateway.logging.lines import PeerLines
from gateway.sockets import accepted_from, tell_refused
from gateway.tls import peer_common_name

MOST_HANDSHAKES: Final = 256
"""TLS handshakes at once: administrators, probes and scrapers are few."""

MOST_HANDSHAKES_PER_ADDRESS: Final = 128
"""Of one IP address: half of all, so that one machine cannot keep every other out."""

HANDSHAKE_S: Final = 10
"""Seconds for one: as long as clients of AMQP have by default."""


class Handshakes:
    """
    Those under way, on all sockets of the administration.

    Args:
        refused: Counts those that were refused, by the name of the bound.
    """

    def __init__(self, refused: Counter[str]) -> None:
        self._refused = refused
        self._by_address: Counter[str] = Counter()
        self._lines = PeerLines(time.monotonic)

    def begin(self, address: str, port: int) -> bool:
        """Whether a peer may begin one; ``end`` is called then."""
        limit = None
        if self._by_address.total() >= MOST_HANDSHAKES:
            limit = "admin_handshakes"
        elif self._by_address[address] >= MOST_HANDSHAKES_PER_ADDRESS:
            limit = "admin_handshakes_per_address"
        if limit is None:
            self._by_address[address] += 1
            return True
        self._refused[limit] += 1
        tell_refused(self._lines, address, port, limit)
        return False

    def end(self, address: str) -> None:
        """It is over, or given up."""
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class TlsAcceptor:
    """
    Accepts on one socket, from now on until ``close``.

    Args:
        listening: Bound, and not blocking.
        make: Makes a connection's protocol.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        handshakes: Handshakes,
        backlog: int,
    ) -> None:
        self._listening = listening
        self._make = make
        self._tls = tls
        self._handshakes = handshakes
        self._connecting: set[asyncio.Task[None]] = set()
        listening.listen(backlog)
        self._accepting = asyncio.create_task(self._accept(), name="administration")

    def close(self) -> None:
        """Accept no more, and give up handshakes under way."""
        for task in (self._accepting, *self._connecting):
            task.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        async for accepted, address, port in accepted_from(self._listening):
            if not self._handshakes.begin(address, port):
                accepted.close()
                continue
            task = asyncio.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(partial(self._connected, address))

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, asyncio.CancelledError) as error:
            accepted.close()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _connected(self, address: str, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._handshakes.end(address)


HEAD_S = 30
"""Seconds: longer than any network takes, and a peer that says nothing, or a letter a minute, does not hold a socket
for ever."""

REST_S = 5
"""Seconds that what a client still sends of a refused request is read and thrown away, so that it sees the answer."""

READ_S = 60
"""Seconds that a client may leave unread what was written to it: the answer, and its request, are held meanwhile."""

MAX_CONNECTIONS = 256
"""Open at once: administrators, probes and scrapers are few. One more takes the place of the one that has been without
a request the longest, so that who only connects keeps nobody out."""


ABORT: Final = "rewind.abort"
"""Key of a request's scope: cuts its connection, whatever is not written yet."""


class _Abortable:
    """An application whose requests can have their connection cut."""

    def __init__(self, app: ASGIApp, abort: Callable[[], None]) -> None:
        self._app = app
        self._abort = abort

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, ABORT: self._abort}, receive, send)


class _Phase(enum.Enum):
    HEAD = "a head is coming"
    IDLE = "nothing is"
    REQUEST = "a request is under way"
    REST = "it is answered, and the rest of its body is coming"


class HttpConnection(H11Protocol):
    """uvicorn's, but that it waits for nothing for ever, and tells whom the client's certificate names."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._phase = _Phase.IDLE
        self._since = self.loop.time()
        self._make_room()
        super().connection_made(transport)
        self.app = _Abortable(self.app, transport.abort)
        ssl_object = transport.get_extra_info("ssl_object")
        name = peer_common_name(ssl_object) if ssl_object is not None else None
        if name is not None:
            self.app = Certified(self.app, name)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _make_room(self) -> None:
        if len(self.connections) < MAX_CONNECTIONS:
            return
        connections: set[Any] = self.connections
        others = [other for other in connections if other._phase is not _Phase.REQUEST]
        if others:
            longest = min(others, key=lambda other: other._since)
            self.connections.discard(longest)
            longest.transport.abort()

    def _look(self) -> None:
        """Which phase has come, and until when it may last: a phase that goes on gets no more time by more bytes."""
        phase = self._now()
        if phase is self._phase and self._timer is not None:
            return
        self._phase, self._since = phase, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        seconds = {_Phase.HEAD: HEAD_S, _Phase.REST: REST_S}.get(phase)
        self._timer = self.loop.call_later(seconds, self._end) if seconds is not None else None

    def _now(self) -> _Phase:
        if self.conn.their_state is h11.IDLE:
            has_begun = not self.cycle or bool(
                self.conn.trailing_data[0]
            )  # the cycle is None until the first one
            return _Phase.HEAD if has_begun else _Phase.IDLE
        return _Phase.REST if self.cycle and self.cycle.response_complete else _Phase.REQUEST

    def _end(self) -> None:
        self.transport.close()
