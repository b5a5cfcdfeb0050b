"""``/session``: who has signed in with this browser, and what he may see; to sign in, and out."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.addresses.address import AddressKind
from gateway.admin.administrators import Administrator, name_if_known, sessions_of, settled
from gateway.admin.audit import asked_of
from gateway.admin.console.pages import HEADERS
from gateway.admin.console.sessions import Session, cookie_of, token_of
from gateway.admin.lazy_route import LazyRoute, LazyRouter
from gateway.admin.semp.documented import one, resource
from gateway.admin.semp.envelope import REFUSALS, SESSION, Answer, SempError, answer
from gateway.admin.semp.resources import Resources, resources_of
from gateway.config import AdminListener
from gateway.config.settings import GlobalAccess
from gateway.core.permissions import Action

_WRONG: Final = "The name or the password is wrong, or the token."
_DISTRIBUTION: Final = "rewind-gateway"


_Known: TypeAlias = Annotated[str | None, Depends(name_if_known)]
"""The user who asks; None for nobody who is known."""


class Credentials(BaseModel):
    """Who signs in: by name and password, or by a bearer token."""

    model_config = ConfigDict(extra="forbid", strict=True)

    userName: str | None = Field(None, max_length=250)
    password: str | None = Field(None, max_length=1_000)
    token: str | None = Field(None, max_length=1_000)


class _SeenVpn(TypedDict):
    msgVpnName: str
    state: Literal["up", "down", "standby"]
    mayAdministerLog: bool


class _Session(TypedDict):
    userName: str
    isSignedIn: bool
    isSignInNeeded: bool
    csrfToken: str
    globalAccess: GlobalAccess
    msgVpns: list[_SeenVpn]
    version: str


STATE: Final = resource("Session", _Session)


def session_routes(settings: Callable[[], AdminListener]) -> list[LazyRoute]:
    """
    The routes, which anybody may ask.

    Args:
        settings: Those in effect; without `console` in them there is nothing.
    """

    async def there(response: Response) -> None:
        if not settings().console:
            raise SempError("NOT_FOUND", "The console is turned off: `[admin] console`.", 404)
        response.headers.update(HEADERS)
        response.headers["Cache-Control"] = "no-store"

    router = LazyRouter(SESSION, tags=["session"], answers=REFUSALS, dependencies=[Depends(there)])

    @router.operation("GET", "", summary="Who has signed in, and what he may see", responses=one(STATE))
    async def show(request: Request, name: _Known) -> Answer:
        is_by_cookie = "authorization" not in request.headers
        return _shown(request, name, sessions_of(request).find(token_of(request)) if is_by_cookie else None)

    @router.operation("POST", "", summary="Sign in: a session, and its cookie", responses=one(STATE))
    async def sign_in(request: Request, response: Response, body: Credentials) -> Answer:
        users, sessions = resources_of(request).users, sessions_of(request)
        if not users.are_configured:
            raise SempError("NOT_ALLOWED", "No users are configured: nobody needs to sign in.")
        asked_of(request.scope).user = body.userName or ""
        address = request.client.host if request.client is not None else ""

        async def name_of() -> str | None:
            if body.token is not None and body.userName is None and body.password is None:
                return users.name_of_token(body.token.strip())
            if body.token is not None or body.userName is None or body.password is None:
                raise SempError("MISSING_PARAMETER", "Give `userName` and `password`, or `token` alone.")
            is_right = await users.has_password(body.userName, body.password, address)
            return body.userName if is_right else None

        name, _ = await settled(users, name_of)
        if name is None:
            raise SempError("UNAUTHORIZED", _WRONG, 401)
        asked_of(request.scope).user = name
        # A new one, whatever the browser had: what somebody else put there is nobody's session.
        sessions.end(token_of(request))
        token, session = sessions.begin(name)
        response.set_cookie(value=token, **_cookie(request))
        return _shown(request, name, session)

    @router.operation("DELETE", "", summary="Sign out", responses=one(STATE))
    async def sign_out(request: Request, response: Response, name: _Known) -> Answer:
        sessions_of(request).end(token_of(request))
        response.delete_cookie(**_cookie(request))
        return _shown(request, None, None)

    return router.routes


def _cookie(request: Request) -> dict[str, Any]:
    """The session's cookie but for what it holds: a browser forgets the one that is described as it was set."""
    return {
        "key": cookie_of(request),
        "path": "/",
        "httponly": True,
        "samesite": "strict",
        "secure": _is_secure(request),
    }


def _is_secure(request: Request) -> bool:
    """
    Whether the browser came by TLS: to here, or to a proxy that says so. Whoever says it untruly is sent a cookie that
    his own browser does not bring back.
    """
    forwarded, _, _ = request.headers.get("x-forwarded-proto", "").partition(",")
    return "https" in (request.url.scheme, forwarded.strip().lower())


def _shown(request: Request, name: str | None, session: Session | None) -> Answer:
    resources = resources_of(request)
    is_needed = resources.users.are_configured
    shown: _Session = {
        "userName": "",
        "isSignedIn": False,
        "isSignInNeeded": is_needed,
        "csrfToken": "",
        "globalAccess": "none",
        "msgVpns": [],
        "version": "",
    }
    if name is None and is_needed:
        return answer(request, shown)
    administrator = Administrator(resources.users, name or "")
    shown["userName"] = administrator.name
    shown["isSignedIn"] = True
    shown["csrfToken"] = "" if session is None else session.csrf_token
    shown["globalAccess"] = administrator.global_access
    shown["msgVpns"] = _vpns(resources, administrator)
    shown["version"] = _version()
    return answer(request, shown)


def _vpns(resources: Resources, administrator: Administrator) -> list[_SeenVpn]:
    """Those that the user may enter."""
    found: list[_SeenVpn] = []
    for name in sorted({*resources.names, *resources.waiting}):
        if not administrator.may_enter(name):
            continue
        is_up = name in resources.vpns and resources.vpns[name].settings.enabled
        found.append(
            {
                "msgVpnName": name,
                "state": "standby" if name in resources.waiting else "up" if is_up else "down",
                "mayAdministerLog": administrator.may(Action.ADMINISTER, AddressKind.LOG, ">"),
            }
        )
    return found


def _version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return ""
