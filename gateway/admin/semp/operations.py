"""All resources under ``/SEMP/v2``, and ``/metrics``, put on the application."""

import time
from collections.abc import Callable
from functools import cache
from typing import Final

from fastapi import FastAPI

from gateway.admin import rights
from gateway.admin.administered_gateway import AdministeredGateway
from gateway.admin.administrators import SignIn
from gateway.admin.console.pages import is_of_console, page_routes
from gateway.admin.console.session_routes import session_routes
from gateway.admin.console.sessions import Sessions
from gateway.admin.console.sign_in_bounds import BoundedSignIns
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.metrics import metrics_routes
from gateway.admin.semp.body_bound import BoundedBodies
from gateway.admin.semp.envelope import SESSION, tell_errors
from gateway.admin.semp.resources import EncodedPaths, Resources
from gateway.admin.semp.routes.actions import action_routes
from gateway.admin.semp.routes.alarms import alarm_routes
from gateway.admin.semp.routes.clients import client_routes
from gateway.admin.semp.routes.configuration import configuration_routes
from gateway.admin.semp.routes.endpoint_messages import endpoint_message_routes
from gateway.admin.semp.routes.endpoints import config_routes
from gateway.admin.semp.routes.erasing import erasing_routes
from gateway.admin.semp.routes.histogram import histogram_routes
from gateway.admin.semp.routes.jobs import dead_letter_routes, job_routes
from gateway.admin.semp.routes.live import live_routes
from gateway.admin.semp.routes.log_plan import plan_routes
from gateway.admin.semp.routes.messages import message_routes
from gateway.admin.semp.routes.monitor import monitor_routes
from gateway.admin.semp.routes.replay_log import log_routes
from gateway.admin.semp.routes.replay_points import point_routes
from gateway.admin.semp.routes.replays import replay_routes
from gateway.admin.semp.routes.topic_matches import topic_match_routes
from gateway.admin.semp.routes.trends import trend_routes
from gateway.admin.semp.routes.users import user_routes
from gateway.admin.semp.routes.vpns import reload_routes, vpn_routes
from gateway.admin.v1.log_routes import log_read_routes
from gateway.admin.v1.publish_routes import publish_routes
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
