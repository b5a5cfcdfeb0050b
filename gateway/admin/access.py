"""Who may administer: everyone on this machine where no users are configured, else a user, known by name and password
(HTTP Basic), by a bearer token (RFC 6750), or by a client certificate where nothing else is said.

A user needs `administer` rules: for a queue its own or one that covers it, for a topic endpoint one that covers its
topics, and for all that is of the whole Message VPN (its log, its clients, its points, lists) `log://>`.
"""

import base64
from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPBase
from starlette.types import ASGIApp, Receive, Scope, Send

from amqp_ext.addresses import AddressKind
from gateway.admin.semp.envelope import SempError
from gateway.admin.semp.resources import resources_of
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.permissions import Action
from gateway.users import Users

_LOG_IN: Final = "Give the name and password of a user (HTTP Basic), or a user's bearer token."

# What the OpenAPI document says of it; the answer to a wrong one is ours.
_BASIC: Final = HTTPBase(scheme="basic", auto_error=False, description="A user with `administer` rules.")
_BEARER: Final = HTTPBearer(auto_error=False, description="The token of such a user.")

_CERTIFICATE: Final = "rewind.certificate"
"""Key of a request's scope: the common name of the client's verified certificate."""


class Certified:
    """An application as a client with a certificate reaches it."""

    def __init__(self, app: ASGIApp, common_name: str) -> None:
        self._app = app
        self._common_name = common_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, _CERTIFICATE: self._common_name}, receive, send)


class Access:
    """The rules of one gateway."""

    def __init__(self, users: Users) -> None:
        self._users = users

    async def require(self, request: Request) -> None:
        """Raises SempError: nobody, or somebody who may not."""
        if not self._users.are_configured:
            return
        user = await self._user(request)
        vpn = unquote(request.path_params.get("vpn", ""))
        if vpn and not self._users.may_enter(user, vpn):
            raise SempError("UNAUTHORIZED", f"User {user!r} may not use the Message VPN {vpn[:80]!r}.", 403)
        permissions = self._users.permissions(user)
        for kind, name in await _subjects(request, vpn):
            if not permissions.decide(Action.ADMINISTER, kind, name).is_allowed:
                raise SempError(
                    "UNAUTHORIZED", f"User {user!r} may not administer {kind.value}://{name[:250]}.", 403
                )

    async def _user(self, request: Request) -> str:
        header = request.headers.get("authorization", "")
        scheme, _, secret = header.partition(" ")
        if not header:
            found = self._users.name_of_certificate(request.scope.get(_CERTIFICATE))
        elif scheme.lower() == "bearer":
            found = self._users.name_of_token(secret.strip())
        else:
            found = await self._of_password(secret.strip() if scheme.lower() == "basic" else "")
        if found is None:
            raise SempError("UNAUTHORIZED", _LOG_IN, 401)
        return found

    async def _of_password(self, encoded: str) -> str | None:
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            name = password = ""
        return name if await self._users.has_password(name, password) else None


async def _subjects(request: Request, vpn: str) -> list[tuple[AddressKind, str]]:
    """What has to be permitted for a request."""
    everything = [(AddressKind.LOG, ">")]
    route = getattr(request.scope.get("route"), "path", "")
    name = unquote(request.path_params.get("name", ""))
    if "/queues/{name}" in route:
        return [(AddressKind.QUEUE, name)]
    if route.endswith("/queues") and request.method == "POST":
        body = await request.json()
        return [(AddressKind.QUEUE, str(body.get("queueName", "")))] if isinstance(body, dict) else everything
    if "/topicEndpoints/{name}" in route:
        found = resources_of(request).administration(vpn).vpn.broker.find(name)
        if found is not None and found.kind is EndpointKind.TOPIC_ENDPOINT:
            topics = [topic for topic in found.subscriptions if not topic.startswith("!")]
            if request.method == "PATCH":
                body = await request.json()
                topics += [str(body["topic"])] if isinstance(body, dict) and body.get("topic") else []
            return [(AddressKind.TOPIC, topic) for topic in topics] or everything
    return everything


async def require(
    request: Request,
    _basic: Annotated[object, Depends(_BASIC)] = None,
    _bearer: Annotated[object, Depends(_BEARER)] = None,
) -> None:
    """Raises SempError unless who asks may administer this."""
    access: Access = request.app.state.access
    await access.require(request)
