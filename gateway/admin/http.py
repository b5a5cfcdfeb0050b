"""The HTTP server of administration: uvicorn in the gateway's own event loop, with bounds on the number of connections
and on every wait.

Invariant: the process belongs to the gateway. Nothing here takes signals, configures logging or ends the process; a
request that fails is answered with 500 and logged.

=================================  ==================================================
waited for                         at most
=================================  ==================================================
a TLS handshake                    ``HANDSHAKE_S``
the head of a request, once begun  ``HEAD_S``; the first, from the connection on
the next request                   uvicorn's keep-alive
the rest of a body, once answered  ``REST_S``: a client that is refused need not send it all
the client to read what was sent   ``READ_S``
=================================  ==================================================

``gateway.admin.middleware`` bounds the time of a body that an operation reads.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.admin.administrators import CERTIFICATE
from gateway.logging.lines import PeerLines
from gateway.sockets import accepted_from, tell_refused
from gateway.tls import peer_common_name
from gateway.vpn.runtime import keep

# --- the server ---------------------------------------------------------------------------------------------------

_GRACE_S = 2
"""Seconds that a request may go on after ``stop``: ours are short, and a client must not hold up the shutdown."""

_LOOK_S = 0.01
"""Seconds between two checks whether the last connection has closed."""

_KEEP_ALIVE_S = 75
"""Seconds that an idle connection is kept: longer than the 15 to 60 seconds between two scrapes or probes."""


class HttpServer(uvicorn.Server):
    """
    An application under uvicorn, on a bound socket, from ``start`` to ``stop``; it can be started once. Unlike
    uvicorn's own server it handles no signals, and waits for events instead of polling ten times a second.
    """

    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None, refused: Counter[str]) -> None:
        """
        Nothing here belongs to an event loop yet, so another thread may run this.

        Args:
            refused: Counts the connections that are refused, by the name of the limit.
        """
        config = uvicorn.Config(
            app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)
        self._handshakes = Handshakes(refused)
        self._listening = asyncio.Event()
        self._leaving = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Begin to accept connections, then return."""
        self._serving = asyncio.create_task(self.serve([bound]), name="administration")
        listening = asyncio.ensure_future(self._listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self._serving

    async def stop(self) -> None:
        """Stop accepting, let requests under way finish within two seconds, close all connections."""
        self.should_exit = True
        self._leaving.set()
        if self._serving is not None:
            await self._serving

    # --- what uvicorn calls ---------------------------------------------------------------------------------------

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        tls = self.config.ssl
        if tls is None:
            await super().startup(sockets)
        else:
            # asyncio's own servers take any number of connections into their handshakes, and keep them for a minute.
            acceptors = [
                TlsAcceptor(bound, self._connection, tls, self._handshakes, self.config.backlog)
                for bound in sockets or ()
            ]
            self.servers = cast("list[asyncio.Server]", acceptors)
            self.started = True
        self._listening.set()

    def _connection(self) -> asyncio.Protocol:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the Date header of the answers, once a second
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), timeout=1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = self.server_state.tasks
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections:
                    await asyncio.sleep(_LOOK_S)
                await asyncio.gather(*tasks, return_exceptions=True)
        except TimeoutError:
            for task in tasks:
                task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would take SIGTERM and SIGINT for itself here; they are the gateway's.
        yield


# --- TLS ----------------------------------------------------------------------------------------------------------

MOST_HANDSHAKES: Final = 256
"""TLS handshakes at the same time: administrators, probes and scrapers are few."""

MOST_HANDSHAKES_PER_ADDRESS: Final = 128
"""The same of one IP address: half of all, so that one machine cannot keep the others out."""

HANDSHAKE_S: Final = 10
"""Seconds for one handshake: as long as AMQP clients have by default."""


class Handshakes:
    """
    The TLS handshakes under way, on all sockets of the administration.

    Args:
        refused: Counts the handshakes that were refused, by the name of the limit.
    """

    def __init__(self, refused: Counter[str]) -> None:
        self._refused = refused
        self._by_address: Counter[str] = Counter()
        self._lines = PeerLines(time.monotonic)

    def begin(self, address: str, port: int) -> bool:
        """Whether a peer may begin a handshake; if so, ``end`` has to be called after it."""
        if self._by_address.total() >= MOST_HANDSHAKES:
            limit = "admin_handshakes"
        elif self._by_address[address] >= MOST_HANDSHAKES_PER_ADDRESS:
            limit = "admin_handshakes_per_address"
        else:
            self._by_address[address] += 1
            return True
        self._refused[limit] += 1
        tell_refused(self._lines, address, port, limit)
        return False

    def end(self, address: str) -> None:
        """The handshake is over, or was given up."""
        self._by_address -= Counter([address])  # `-=` also removes an address whose count is zero


class TlsAcceptor:
    """
    Accepts TLS connections on one socket, from its construction until ``close``.

    Args:
        listening: A bound socket that does not block.
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
            task = keep(asyncio.create_task(self._connect(accepted)), self._connecting)
            task.add_done_callback(partial(self._ended, address))

    def _ended(self, address: str, _connecting: object) -> None:
        self._handshakes.end(address)

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


# --- one connection -----------------------------------------------------------------------------------------------

HEAD_S = 30
"""Seconds for the head of a request: longer than any network needs. A peer that sends nothing, or a byte a minute, does
not hold a socket for ever."""

REST_S = 5
"""Seconds for which the rest of a refused request is read and discarded, so that the client sees the answer."""

READ_S = 60
"""Seconds for which a client may leave written bytes unread: the answer, and its request, stay in memory meanwhile."""

MAX_CONNECTIONS = 256
"""Open connections: administrators, probes and scrapers are few. One more replaces the connection that has been without
a request the longest, so that a peer that only connects keeps nobody out."""


ABORT: Final = "rewind.abort"
"""Key of a request's scope: the function that cuts its connection and discards what is not written yet."""


class _Phase(enum.Enum):
    HEAD = "a head is coming"
    IDLE = "nothing is"
    REQUEST = "a request is under way"
    REST = "it is answered, and the rest of its body is coming"


class HttpConnection(H11Protocol):
    """uvicorn's connection, with a bound on every wait, and with the client certificate's name in each scope."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._phase = _Phase.IDLE
        self._since = self.loop.time()
        self._make_room()
        super().connection_made(transport)
        ssl_object = transport.get_extra_info("ssl_object")
        name = peer_common_name(ssl_object) if ssl_object is not None else None
        # The scope of each request has these facts of its connection.
        app, known = self.app, {ABORT: transport.abort, CERTIFICATE: name}
        self.app = lambda scope, receive, send: app({**scope, **known}, receive, send)
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
        """Note a change of phase, and start its timer. More bytes of the same phase do not extend its time."""
        phase = self._now()
        if phase is self._phase and self._timer is not None:
            return
        self._phase, self._since = phase, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        seconds = {_Phase.HEAD: HEAD_S, _Phase.REST: REST_S}.get(phase)
        self._timer = self.loop.call_later(seconds, self.transport.close) if seconds is not None else None

    def _now(self) -> _Phase:
        if self.conn.their_state is h11.IDLE:
            # The cycle is None until the first request.
            has_begun = not self.cycle or bool(self.conn.trailing_data[0])
            return _Phase.HEAD if has_begun else _Phase.IDLE
        return _Phase.REST if self.cycle and self.cycle.response_complete else _Phase.REQUEST
