"""The HTTP application of administration: all operations, and the middleware in front of them.

A new module of operations is named in ``_MODULES``, and nowhere else.
"""

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Query, Response, status
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.admin.administered_gateway import AdministeredGateway, HttpClients
from gateway.admin.administrators import Sessions, signed_in
from gateway.admin.audit import SIGN_IN, AuditLog
from gateway.admin.console.routes import is_of_console, page_routes, provider_routes, session_routes
from gateway.admin.metrics import metrics_routes
from gateway.admin.middleware import BoundedBodies, called_by_name, encoded_paths
from gateway.admin.operations import LazyRoute, openapi_document
from gateway.admin.rights import Right
from gateway.admin.semp import clients, endpoints, erasing, log, messages, replays, vpns
from gateway.admin.semp.envelope import tell_errors
from gateway.admin.semp.resources import Resources
from gateway.admin.v1 import log as v1_log
from gateway.admin.v1 import publish as v1_publish
from gateway.config import AdminListener

OPEN: Final = frozenset({"/healthz", "/readyz", "/openapi.json", SIGN_IN})
"""Paths that anybody may request, in addition to the files of the console."""

_MODULES: Final = (vpns, endpoints, log, messages, replays, erasing, clients, v1_log, v1_publish)


class Alive(BaseModel):
    """The answer of `/healthz`."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The answer of `/readyz`; it has a `reason` if the status is not `ok`."""

    status: Literal["ok", "unavailable"]
    state: Literal["waiting"] | None = None
    """Present if another gateway is active, and this one waits for a Message VPN's store."""
    active: str | None = None
    """HOST:PORT that clients of the active gateway use, if that is known."""
    reason: str | None = None
    engine: list[str] | None = None
    """The storage engines, with their versions."""


def create_app(
    gateway: AdministeredGateway, settings: Callable[[], AdminListener], clients: HttpClients
) -> FastAPI:
    """The administration of a gateway as an ASGI application, its OpenAPI document at ``/openapi.json``.

    ``settings`` returns the settings in effect; ``clients`` are the HTTP clients at present.
    """
    # No interactive pages: they make a browser load scripts from other hosts, which a gateway should not do.
    app = FastAPI(title="Rewind administration", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        # Not `async`, so it runs on a thread: the first call takes a fifth of a second.
        return JSONResponse(app.openapi())

    app.openapi = cache(partial(openapi_document, app))  # type: ignore[method-assign]
    _add_health(app, gateway)
    app.state.sessions = Sessions(gateway.users, time.monotonic, lambda: settings().console)
    app.state.resources = Resources(gateway)
    app.state.clients = clients
    # Routes are added directly: a router that is included is built again at the first request, which holds up the loop
    # for a tenth of a second.
    for routes in (metrics_routes(), _resources(), session_routes(settings), page_routes(settings)):
        app.router.routes.extend(routes)
    app.router.routes.extend(provider_routes(settings))
    tell_errors(app)
    # A request passes the middleware that is added last first.
    app.add_middleware(encoded_paths)
    app.add_middleware(BoundedBodies)
    app.add_middleware(
        signed_in, users=gateway.users, is_open=lambda path: path in OPEN or is_of_console(path)
    )
    app.add_middleware(called_by_name, settings=settings)
    app.add_middleware(AuditLog)
    return app


def _add_health(app: FastAPI, gateway: AdministeredGateway) -> None:
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
            str | None, Query(description="Only this Message VPN; by default, all of them.")
        ] = None,
    ) -> Readiness:
        reason, vpns = gateway.problem(vpn), gateway.vpns
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
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


def rights_needed() -> dict[tuple[str, str], Right]:
    """The right that each operation needs, by method and path, for the documents."""
    return {
        (method, route.path): route.right
        for route in (*metrics_routes(), *_resources())
        for method in route.methods or ()
        if route.right is not None
    }


def _resources() -> list[LazyRoute]:
    """The routes of all modules. They are made once in a process, and find the gateway by their requests."""
    return [route for module in _MODULES for route in module.ROUTES]
