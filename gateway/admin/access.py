"""Who may administer: everyone on this machine where no users are configured, else a user, known by name and password
(HTTP Basic), by a bearer token (RFC 6750), or by a client certificate where nothing else is said.

A user needs `administer` rules: for a queue its own or one that covers it, for a topic endpoint one that covers its
topics, and for all that is of the whole Message VPN (its log, its clients, its points, lists) `log://>`.

Invariant: a wrong name costs as long as a wrong password, and neither is told from the other. A token is compared with
every user's, whichever it is.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPBase
from starlette.types import ASGIApp, Receive, Scope, Send

from amqp_ext.addresses import AddressKind
from amqp_ext.sasl.passwords import StoredPassword, decoy, parse
from gateway.admin.semp.envelope import SempError
from gateway.admin.semp.resources import Administered, resources_of
from gateway.config import User, hash_of_token, password_hash, token_hash
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.permissions import NOTHING, Action, Permissions

_LOG_IN: Final = "Give the name and password of a user (HTTP Basic), or a user's bearer token."

REMEMBERED: Final = 1_000
"""Passwords that were right and need not be hashed again; beyond, it starts over."""

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

    def __init__(self, administered: Administered) -> None:
        self._administered = administered
        self._key = secrets.token_bytes(32)
        self._decoy = decoy("nobody", self._key)
        self._know(administered.settings.users)

    def _know(self, users: Mapping[str, User]) -> None:
        self._users = users
        self._permissions = {
            name: Permissions({Action(key): rules for key, rules in user.permissions().items()})
            for name, user in users.items()
        }
        self._passwords: dict[str, StoredPassword] = {}
        self._tokens: dict[str, str] = {}
        for name, user in users.items():
            text = password_hash(user)
            if text is not None:
                self._passwords[name] = parse(text)
            token = hash_of_token(user)
            if token is not None:
                self._tokens[name] = token
        self._by_certificate = {
            common: name for name, user in users.items() for common in user.certificate_names
        }
        self._right: set[bytes] = set()

    async def require(self, request: Request) -> None:
        """Raises SempError: nobody, or somebody who may not."""
        users = self._administered.settings.users
        if users is not self._users:
            self._know(users)
        if not users:
            return
        user = await self._user(request)
        vpn = unquote(request.path_params.get("vpn", ""))
        if vpn and vpn not in self._users[user].vpns:
            raise SempError("UNAUTHORIZED", f"User {user!r} may not use the Message VPN {vpn[:80]!r}.", 403)
        permissions = self._permissions.get(user, NOTHING)
        for kind, name in await _subjects(request, vpn):
            if not permissions.decide(Action.ADMINISTER, kind, name).is_allowed:
                raise SempError(
                    "UNAUTHORIZED", f"User {user!r} may not administer {kind.value}://{name[:250]}.", 403
                )

    async def _user(self, request: Request) -> str:
        header = request.headers.get("authorization", "")
        scheme, _, secret = header.partition(" ")
        if not header:
            name = self._by_certificate.get(request.scope.get(_CERTIFICATE, ""), "")
        elif scheme.lower() == "bearer":
            name = self._of_token(secret.strip())
        else:
            return await self._of_password(secret.strip() if scheme.lower() == "basic" else "")
        if not name:
            raise SempError("UNAUTHORIZED", _LOG_IN, 401)
        return name

    def _of_token(self, token: str) -> str:
        """The user whose token it is; empty for nobody's."""
        asked = token_hash(token)
        found = ""
        for name, stored in self._tokens.items():
            if hmac.compare_digest(asked, stored):
                found = name
        return found

    async def _of_password(self, encoded: str) -> str:
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            name = password = ""
        digest = hmac.digest(self._key, f"{name}\0{password}".encode(), hashlib.sha256)
        if digest not in self._right:
            stored, right = self._passwords.get(name), self._right
            verify = (stored or self._decoy).verify
            is_right = await asyncio.get_running_loop().run_in_executor(None, verify, password)
            if not is_right or stored is None:
                raise SempError("UNAUTHORIZED", _LOG_IN, 401)
            if len(right) >= REMEMBERED:
                right.clear()
            right.add(digest)
        return name


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
