"""Which right each operation of the administration declares."""

from __future__ import annotations

import pytest
from fastapi.routing import APIRoute

from gateway.admin import rights
from gateway.admin.administered_gateway import HttpClients
from gateway.admin.application import create_app, rights_needed
from gateway.admin.operations import LazyRoute
from gateway.config import AdminListener
from tests.gateway.admin.conftest import EmptyGateway

OPEN = {"/healthz", "/readyz", "/openapi.json", "/session"}
"""What anybody may ask."""

RIGHTS = [right for right in vars(rights).values() if isinstance(right, rights.Right)]
"""All there are."""


def operations() -> list[APIRoute | LazyRoute]:
    """All routes of the application."""
    gateway = EmptyGateway()
    app = create_app(gateway, AdminListener, HttpClients(gateway))
    return [route for route in app.routes if isinstance(route, APIRoute | LazyRoute)]


def test_the_documents_are_told_every_right() -> None:
    """What is generated for the reference has each operation with its right."""
    needed = rights_needed()
    found = {
        (method, route.path): route.right
        for route in operations()
        if isinstance(route, LazyRoute) and route.right is not None
        for method in route.methods
    }
    assert needed == found
    assert all(right.demands for right in needed.values())


def declared(route: APIRoute | LazyRoute) -> list[rights.Right]:
    """The rights that a route needs."""
    checks = [depends.dependency for depends in route.dependencies]
    return [right for right in RIGHTS if right.check in checks]


def expected(method: str, path: str) -> rights.Right:
    """What an operation is about, told by its path: an oracle beside the declarations."""
    if path.startswith("/v1/"):
        return rights.LOG_READ if path == "/v1/log" else rights.PUBLISHED
    if path.endswith("/subscriptions") and method == "POST":
        return rights.SUBSCRIBED_QUEUE
    if path.endswith("/subscriptions/{topic}"):
        return rights.UNSUBSCRIBED_QUEUE
    if path.endswith("/replays/{name}"):
        return rights.SEEN_REPLAY
    if path.endswith("/returnDead"):
        return rights.RETURNED
    if path.endswith("/startCopy"):
        return rights.COPIED
    if path.startswith("/SEMP/v2/action") and path.endswith(
        ("{log}/pauseReplay", "{log}/resumeReplay", "{log}/cancelReplay")
    ):
        return rights.OWN_REPLAY
    if "/queues/{name}" in path:
        return rights.CHANGED_QUEUE if method == "PATCH" else rights.QUEUE
    if "/topicEndpoints/{name}" in path:
        return rights.CHANGED_TOPIC_ENDPOINT if method == "PATCH" else rights.TOPIC_ENDPOINT
    if method == "POST" and path.endswith("/queues"):
        return rights.NEW_QUEUE
    if method == "POST" and path.endswith("/topicEndpoints"):
        return rights.NEW_TOPIC_ENDPOINT
    if path.endswith("/reload") or (method in ("POST", "DELETE") and path.endswith(("/msgVpns", "/{vpn}"))):
        return rights.GATEWAY_CHANGED
    if path.startswith(("/SEMP/v2/monitor/users", "/SEMP/v2/monitor/configuration")):
        return rights.GATEWAY_SEEN
    return rights.GATEWAY_SEEN if path.endswith(("/msgVpns", "/metrics")) else rights.WHOLE_VPN


@pytest.mark.parametrize("route", operations(), ids=lambda route: f"{min(route.methods)} {route.path}")
def test_every_operation_declares_its_right(route: APIRoute | LazyRoute) -> None:
    """One right each, that to what it is about; nothing else is open to everybody."""
    if route.path in OPEN:
        assert declared(route) == []
        return
    (method,) = route.methods
    assert declared(route) == [expected(method, route.path)]


def test_there_are_operations_and_each_right_is_needed_by_one() -> None:
    """The walk saw them all."""
    found = [right for route in operations() for right in declared(route)]
    assert len(found) > 50
    assert set(map(id, found)) == set(map(id, RIGHTS))
