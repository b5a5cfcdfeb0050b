"""
The HTTP application of administration, and the server that it runs in: FastAPI under uvicorn, in the gateway's own
event loop.

``create_app`` puts all resources and all middleware together. Invariant: the process belongs to the gateway. Nothing
here takes signals, configures logging or ends the process; a request that fails is answered with 500 and logged.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Annotated, Any, Final, Literal, cast

import uvicorn
from fastapi import FastAPI, Query, Response, status
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.admin import rights
from gateway.admin.administered_gateway import AdministeredGateway, Health, HttpClients
from gateway.admin.administrators import Sessions, SignIn
from gateway.admin.audit import AuditLog
from gateway.admin.console.routes import is_of_console, page_routes, session_routes
from gateway.admin.http_connection import Handshakes, HttpConnection, TlsAcceptor
from gateway.admin.lazy_route import LazyRoute, openapi_document
from gateway.admin.metrics import metrics_routes
from gateway.admin.middleware import BoundedBodies, BoundedSignIns, CalledBy
from gateway.admin.semp.clients import client_routes, user_routes
from gateway.admin.semp.endpoints import config_routes, topic_match_routes
from gateway.admin.semp.envelope import SESSION, tell_errors
from gateway.admin.semp.erasing import erasing_routes
from gateway.admin.semp.log import histogram_routes, log_routes, plan_routes, point_routes
from gateway.admin.semp.messages import endpoint_message_routes, live_routes, message_routes
from gateway.admin.semp.replays import action_routes, dead_letter_routes, job_routes, replay_routes
from gateway.admin.semp.resources import EncodedPaths, Resources
from gateway.admin.semp.vpns import (
    alarm_routes,
    configuration_routes,
    monitor_routes,
    reload_routes,
    trend_routes,
    vpn_routes,
)
from gateway.admin.v1.log import log_read_routes
from gateway.admin.v1.publish import publish_routes
from gateway.config import AdminListener

OPEN: Final = frozenset({"/healthz", "/readyz", "/openapi.json", SESSION})
"""What anybody may ask for, beside the files of the console."""


def add_semp(app: FastAPI, administered: AdministeredGateway, settings: Callable[[], AdminListener]) -> None:
    """Have ``app`` administer a gateway, with the settings in effect."""
    app.state.sessions = Sessions(administered.users, time.monotonic, lambda: settings().console)
    app.state.resources = Resources(administered)
    app.add_middleware(EncodedPaths)
    app.add_middleware(BoundedBodies)
    app.add_middleware(SignIn, users=administered.users, is_open=_is_open)
    app.add_middleware(BoundedSignIns)
    tell_errors(app)
    # As they are: an included router is built once more, at the first request, and the loop waits a tenth of a second
    # for that.
    app.router.routes.extend(metrics_routes())
    app.router.routes.extend(_resources())
    app.router.routes.extend(session_routes(settings))
    app.router.routes.extend(page_routes(settings))


def _is_open(path: str) -> bool:
    return path in OPEN or is_of_console(path)


def rights_needed() -> dict[tuple[str, str], rights.Right]:
    """What each operation needs to be permitted, by method and path, for the documents."""
    return {
        (method, route.path): right
        for route in (*metrics_routes(), *_resources())
        for method in route.methods or ()
        if (right := rights.right_of(route)) is not None
    }


@cache
def _resources() -> list[LazyRoute]:
    """The routes, which know of no gateway but by their requests: made once in a process."""
    declared = (
        vpn_routes(),
        reload_routes(),
        log_routes(),
        point_routes(),
        replay_routes(),
        config_routes(),
        action_routes(),
        job_routes(),
        dead_letter_routes(),
        erasing_routes(),
        monitor_routes(),
        message_routes(),
        live_routes(),
        client_routes(),
        trend_routes(),
        endpoint_message_routes(),
        topic_match_routes(),
        user_routes(),
        configuration_routes(),
        histogram_routes(),
        alarm_routes(),
        plan_routes(),
        log_read_routes(),
        publish_routes(),
    )
    return [route for routes in declared for route in routes]


_GRACE_S = 2
"""Seconds a request may go on after ``stop``: none of ours takes long, and a client must not hold up the
shutdown."""

_KEEP_ALIVE_S = 75
"""Seconds an idle connection is kept, longer than the 15 to 60 between two scrapes or probes."""


class Alive(BaseModel):
    """The answer of `/healthz`."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The answer of `/readyz`; `reason` is there when the status is not `ok`."""

    status: Literal["ok", "unavailable"]
    state: Literal["waiting"] | None = None
    """There where another gateway is active, and this one waits for a Message VPN's store."""
    active: str | None = None
    """HOST:PORT that clients of the active gateway use, if that is known."""
    reason: str | None = None
    engine: list[str] | None = None
    """What keeps the data, with its version."""


def create_app(
    health: Health,
    administered: AdministeredGateway | None = None,
    settings: Callable[[], AdminListener] = lambda: AdminListener(port=0),
    clients: HttpClients | None = None,
) -> FastAPI:
    """The administration as an ASGI application, its OpenAPI document at ``/openapi.json``.

    Without ``administered`` there are the checks of health alone. ``settings`` are those in effect; ``clients``, those
    without AMQP, are kept there.
    """
    # The interactive pages load scripts from elsewhere, which a gateway's port should not make a browser do.
    app = FastAPI(title="Rewind administration", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        # Not `async`: on a thread, as the first one to ask has to wait a fifth of a second for it.
        return JSONResponse(app.openapi())

    app.openapi = cache(partial(openapi_document, app))  # type: ignore[method-assign]

    # Load balancers ask with HEAD, too.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Does the event loop live?", tags=["health"])
    async def healthz() -> Alive:
        return Alive()

    @app.head("/readyz", include_in_schema=False)
    @app.get(
        "/readyz",
        summary="Can clients be served?",
        tags=["health"],
        response_model_exclude_none=True,
        responses={
            status.HTTP_404_NOT_FOUND: {"model": Readiness, "description": "There is no such Message VPN"},
            status.HTTP_503_SERVICE_UNAVAILABLE: {"model": Readiness, "description": "Not now"},
        },
    )
    async def readyz(
        response: Response,
        vpn: Annotated[
            str | None, Query(description="Clients of this Message VPN; of any, if none is named.")
        ] = None,
    ) -> Readiness:
        reason, engine = health.problem(vpn), None
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
        if administered is not None:
            vpns = administered.vpns
            engine = sorted({found.engine for found in vpns.values()})
            for name, waiting in vpns.waiting.items():
                if vpn in (None, name):
                    return Readiness(
                        status="unavailable",
                        state="waiting",
                        active=waiting.active,
                        reason=waiting.sentence,
                        engine=engine,
                    )
            if vpn is not None and vpn not in vpns:
                response.status_code = status.HTTP_404_NOT_FOUND
                reason = "there is no such Message VPN"
        if reason is None:
            response.status_code = status.HTTP_200_OK
            return Readiness(status="ok", engine=engine)
        return Readiness(status="unavailable", reason=reason, engine=engine)

    if administered is not None:
        add_semp(app, administered, settings)
        app.state.clients = HttpClients(administered) if clients is None else clients
    app.add_middleware(CalledBy, settings=settings)
    app.add_middleware(AuditLog)
    return app


class HttpServer:
    """FastAPI under uvicorn, on sockets that listen already, from ``start`` to ``stop``; it starts once."""

    def __init__(
        self,
        health: Health,
        administered: AdministeredGateway | None,
        settings: Callable[[], AdminListener],
        *,
        tls: ssl.SSLContext | None,
        refused: Counter[str],
        clients: HttpClients | None = None,
    ) -> None:
        """Nothing here belongs to an event loop yet: it may be made on another thread."""
        self._server = _Server(
            uvicorn.Config(
                create_app(health, administered, settings, clients),
                http=HttpConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
                timeout_keep_alive=_KEEP_ALIVE_S,
            ),
            Handshakes(refused),
        )
        self._server.config.load()
        self._server.config.ssl = tls
        self._serving: asyncio.Task[None] | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections; returns when it does."""
        self._serving = asyncio.create_task(self._server.serve(list(sockets)), name="administration")
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self._serving

    async def stop(self) -> None:
        """Stop accepting, let requests under way finish within two seconds, close all connections."""
        self._server.leave()
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process, and waiting where uvicorn looks ten times a second."""

    def __init__(self, config: uvicorn.Config, handshakes: Handshakes) -> None:
        super().__init__(config)
        self._handshakes = handshakes
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()
        self._connections = _Connections()
        self.server_state.connections = self._connections

    def leave(self) -> None:
        """Have ``serve`` shut down and return."""
        self.should_exit = True
        self._leaving.set()

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
        self.listening.set()

    def _connection(self) -> asyncio.Protocol:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # which sets the Date of the answers, to the second
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), timeout=1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self._connections):
            connection.shutdown()
        tasks = self.server_state.tasks
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._connections.gone.wait()
                await asyncio.gather(*tasks, return_exceptions=True)
        except TimeoutError:
            for task in tasks:
                task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would take SIGTERM and SIGINT for itself here; they are the gateway's.
        yield


class _Connections(set[Any]):
    """uvicorn's set of open connections, with a way to wait until there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = asyncio.Event()
        self.gone.set()

    def add(self, connection: Any, /) -> None:
        super().add(connection)
        self.gone.clear()

    def discard(self, connection: Any, /) -> None:
        super().discard(connection)
        if not self:
            self.gone.set()
