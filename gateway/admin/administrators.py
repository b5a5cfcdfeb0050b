"""Who asks the administration: a user, known by name and password (HTTP Basic), by a bearer token (RFC 6750), or by a
client certificate where nothing else is said; everyone on this machine where no users are configured.
"""

import base64
from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPBase
from starlette.types import ASGIApp, Receive, Scope, Send

from amqp_ext.addresses.address import AddressKind
from gateway.admin.semp.envelope import SempError
from gateway.admin.semp.resources import resources_of
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


class Administrator:
    """Who sent a request, and what the ``administer`` rules of that user permit."""

    def __init__(self, users: Users, name: str) -> None:
        self._name = name
        self._permissions = users.permissions(name)
        self.is_anyone = not users.are_configured
        """No users are configured, and so everything is permitted."""

    def require(self, kind: AddressKind, name: str) -> None:
        """To administer a queue, or what a topic pattern or a pattern of the log matches.

        Raises:
            SempError: UNAUTHORIZED with status 403, no rule permits it.
        """
        if not self._permissions.decide(Action.ADMINISTER, kind, name).is_allowed:
            raise SempError(
                "UNAUTHORIZED", f"User {self._name!r} may not administer {kind.value}://{name[:250]}.", 403
            )


async def administrator_of(
    request: Request,
    _basic: Annotated[object, Depends(_BASIC)] = None,
    _bearer: Annotated[object, Depends(_BEARER)] = None,
) -> Administrator:
    """Who sent a request; if it is about a Message VPN, one who may enter that.

    Raises:
        SempError: UNAUTHORIZED, with status 401 for nobody we know, 403 for who may not enter the Message VPN.
    """
    users = resources_of(request).users
    if not users.are_configured:
        return Administrator(users, "")
    name = await _user_name(users, request)
    if name is None:
        raise SempError("UNAUTHORIZED", _LOG_IN, 401)
    vpn = unquote(request.path_params.get("vpn", ""))
    if vpn and not users.may_enter(name, vpn):
        raise SempError("UNAUTHORIZED", f"User {name!r} may not use the Message VPN {vpn[:80]!r}.", 403)
    return Administrator(users, name)


async def _user_name(users: Users, request: Request) -> str | None:
    header = request.headers.get("authorization", "")
    scheme, _, secret = header.partition(" ")
    if not header:
        return users.name_of_certificate(request.scope.get(_CERTIFICATE))
    if scheme.lower() == "bearer":
        return users.name_of_token(secret.strip())
    try:
        basic = secret.strip() if scheme.lower() == "basic" else ""
        name, _, password = base64.b64decode(basic, validate=True).decode().partition(":")
    except ValueError:
        name = password = ""
    return name if await users.has_password(name, password) else None
