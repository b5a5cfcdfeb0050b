"""One connection of a client of HTTP: what it is waited for, and how many there are, is bounded.

=================================  ==================================================
waited for                         at most
=================================  ==================================================
the head of a request, once begun  ``HEAD_S``; the first, from the connection on
the next request                   uvicorn's keep-alive
the rest of a body, once answered  ``REST_S``: who is refused need not send it all
what was written to be read        ``READ_S``
=================================  ==================================================

Reading a body that is wanted is bounded in ``gateway.admin.semp.body_bound``.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.admin.administrators import Certified
from gateway.tls import peer_common_name

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
