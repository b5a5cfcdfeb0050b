"""Who may administer: everyone on this machine where no users are configured, else a user by name and password.

A user needs `administer` rules: for a queue its own or one that covers it, for a topic endpoint one that covers its
topics, and for all that is of the whole Message VPN (its log, its clients, its points, lists) `log://>`.

Invariant: a wrong name costs as long as a wrong password, and neither is told from the other.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPBasic

from amqp_ext.addresses import AddressKind
from amqp_ext.passwords import StoredPassword, decoy, parse
from gateway.admin.semp.envelope import SempError
from gateway.admin.semp.resources import resources_of
from gateway.config import Settings, password_hash
from gateway.core.endpoint import EndpointKind
from gateway.core.permissions import NOTHING, Action, Permissions

REMEMBERED: Final = 1_000
"""Passwords that were right and need not be hashed again; beyond, it starts over."""

# What the OpenAPI document says of it; the answer to a wrong one is ours.
_BASIC: Final = HTTPBasic(auto_error=False, realm="rewind", description="A user with `administer` rules.")


class Access:
    """The rules of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self._users = settings.users
        self._permissions = {
            name: Permissions({Action(key): rules for key, rules in user.permissions().items()})
            for name, user in settings.users.items()
        }
        self._passwords: dict[str, StoredPassword] = {}
        for name, user in settings.users.items():
            text = password_hash(user)
            if text is not None:
                self._passwords[name] = parse(text)
        self._key = secrets.token_bytes(32)
        self._decoy = decoy("nobody", self._key)
        self._right: set[bytes] = set()

    async def require(self, request: Request) -> None:
        """Raises SempError: nobody, or somebody who may not."""
        if not self._users:
            return
        user = await self._user(request.headers.get("authorization", ""))
        vpn = unquote(request.path_params.get("vpn", ""))
        if vpn and vpn not in self._users[user].vpns:
            raise SempError("UNAUTHORIZED", f"User {user!r} may not use the Message VPN {vpn[:80]!r}.", 403)
        permissions = self._permissions.get(user, NOTHING)
        for kind, name in await _subjects(request, vpn):
            if not permissions.decide(Action.ADMINISTER, kind, name).is_allowed:
                raise SempError(
                    "UNAUTHORIZED", f"User {user!r} may not administer {kind.value}://{name[:250]}.", 403
                )

    async def _user(self, header: str) -> str:
        scheme, _, encoded = header.partition(" ")
        name = password = ""
        if scheme.lower() == "basic":
            try:
                name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
            except ValueError:
                name = ""
        digest = hmac.digest(self._key, f"{name}\0{password}".encode(), hashlib.sha256)
        if digest not in self._right:
            stored = self._passwords.get(name)
            verify = (stored or self._decoy).verify
            loop = asyncio.get_running_loop()
            is_right = bool(header) and await loop.run_in_executor(None, verify, password)
            if not is_right or stored is None:
                raise SempError("UNAUTHORIZED", "Give the name and password of a user (HTTP Basic).", 401)
            if len(self._right) >= REMEMBERED:
                self._right.clear()
            self._right.add(digest)
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
            return [(AddressKind.TOPIC, topic) for topic in topics] or everything
    return everything


async def require(request: Request, _basic: Annotated[object, Depends(_BASIC)] = None) -> None:
    """Raises SempError unless who asks may administer this."""
    access: Access = request.app.state.access
    await access.require(request)
