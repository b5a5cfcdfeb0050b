"""
The console over HTTP: the page at ``/``, its files under ``/console/``, and ``/session``, where its user signs in and
out, with a password or token, or at an identity provider (OpenID Connect Core 1.0 section 3.1, RFC 7636).

A browser that goes to an identity provider gets a secret in a cookie, which lasts ten minutes. State, nonce and
verifier of that sign-in are derived from the secret, so the gateway keeps nothing for a browser that never comes back.

The files are read and compressed once, when the administration is loaded. The page names its files by a folder with
their version, ``/console/~VERSION/``: a browser caches those for good, and requests only the page each time.

Headers bound what a page may do (Content Security Policy Level 3, W3C): it runs scripts of this address only and no
inline scripts, connects to this address only, and is shown in no frame.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import html
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from fastapi import Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import BaseRoute, Route
from typing_extensions import TypedDict

from amqp_ext.addresses.address import AddressKind
from gateway import version
from gateway.admin.administrators import (
    Administrator,
    Session,
    cookie_of,
    sessions_of,
    settled,
    token_of,
    who_if_known,
)
from gateway.admin.audit import SIGN_IN, SIGN_IN_RETURN, asked_of
from gateway.admin.operations import LazyRoute, LazyRouter
from gateway.admin.semp.envelope import REFUSALS, Answer, SempError, answer, one, resource
from gateway.admin.semp.resources import Resources, resources_of
from gateway.config import AdminListener
from gateway.config.settings import GlobalAccess
from gateway.core.errors import Refused
from gateway.core.permissions import Action
from gateway.identity_providers import FlowSecrets, Provider
from gateway.users import Who

STATIC: Final = Path(__file__).parent / "static"

INDEX: Final = "index.html"

FILES: Final = "/console/"

SIGN_IN_BEGIN: Final = "/session/begin"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""On every answer of the console."""

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""By the suffix of a file's name; files with other suffixes are not served."""

_ALWAYS_ASKED: Final = "no-cache"
_KEPT: Final = "public, max-age=31536000, immutable"


class _Page(NamedTuple):
    """A file as it is served."""

    media_type: str
    etag: str
    compressed: bytes
    """By gzip."""


def is_of_console(path: str) -> bool:
    """Whether a path belongs to the console, which anybody may load: its data come from other paths."""
    return path in ("/", SIGN_IN_BEGIN, SIGN_IN_RETURN) or path.startswith(FILES)


def page_routes(settings: Callable[[], AdminListener]) -> list[BaseRoute]:
    """
    The routes of the console's files.

    Args:
        settings: Returns the settings in effect; without `console` in them, the routes answer 404.
    """
    pages()  # read now, on the thread that loads the administration, and not in the loop

    async def index(request: Request) -> Response:
        _check(settings())
        return _file_answer(request, pages()[INDEX], _ALWAYS_ASKED)

    async def file(request: Request) -> Response:
        _check(settings())
        path = request.path_params["path"]
        version, _, rest = path.partition("/")
        is_kept = version == f"~{_version_of_files()}"
        page = pages().get(rest if is_kept else path)
        if page is None:
            raise HTTPException(404)
        return _file_answer(request, page, _KEPT if is_kept else _ALWAYS_ASKED)

    return [
        Route("/", index, methods=["GET"], include_in_schema=False),
        Route(FILES + "{path:path}", file, methods=["GET"], include_in_schema=False),
    ]


def _check(settings: AdminListener) -> None:
    if not settings.console:
        raise HTTPException(404)


@cache
def _sources() -> dict[str, bytes]:
    """The files by their paths under ``STATIC``."""
    return {
        path.relative_to(STATIC).as_posix(): path.read_bytes()
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in _MEDIA_TYPES
    }


@cache
def _version_of_files() -> str:
    """A hash of all files."""
    digest = hashlib.sha256()
    for path, source in _sources().items():
        digest.update(f"{path}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[:16]


@cache
def pages() -> Mapping[str, _Page]:
    """The files as they are served, by path."""
    version = _version_of_files()
    found = {}
    for path, source in _sources().items():
        text = source
        if path == INDEX:
            text = source.replace(FILES.encode(), f"{FILES}~{version}/".encode())
        found[path] = _Page(
            _MEDIA_TYPES[Path(path).suffix],
            # Weak, because it is the same for the compressed file and the plain one.
            f'W/"{hashlib.sha256(text).hexdigest()[:32]}"',
            gzip.compress(text, mtime=0),
        )
    _sources.cache_clear()
    return found


def _file_answer(request: Request, page: _Page, caching: str) -> Response:
    headers = {**HEADERS, "Cache-Control": caching, "ETag": page.etag, "Vary": "Accept-Encoding"}
    known = request.headers.get("if-none-match", "")
    if page.etag in (tag.strip() for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    content = page.compressed
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
    else:
        content = gzip.decompress(content)
    return Response(content, headers=headers, media_type=page.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether a client accepts gzip (RFC 9110 section 12.5.3); a weight of zero refuses it."""
    for offered in accepted.split(","):
        coding, _, weight = offered.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


_WRONG: Final = "The name, the password or the token is wrong."


_Known: TypeAlias = Annotated[Who | None, Depends(who_if_known)]
"""The user of the request; None where it names no user."""


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
    identityProviders: list[str]


STATE: Final = resource("Session", _Session)


def session_routes(settings: Callable[[], AdminListener]) -> list[LazyRoute]:
    """
    The routes of ``/session``, which anybody may request.

    Args:
        settings: Returns the settings in effect; without `console` in them, the routes answer 404.
    """

    async def there(response: Response) -> None:
        if not settings().console:
            raise SempError("NOT_FOUND", "The console is turned off: `[admin] console`.", 404)
        response.headers.update(HEADERS)
        response.headers["Cache-Control"] = "no-store"

    router = LazyRouter(SIGN_IN, tags=["session"], answers=REFUSALS, dependencies=[Depends(there)])

    @router.operation("GET", "", None, responses=one(STATE))
    async def show(request: Request, who: _Known) -> Answer:
        """The user who has signed in, and what the user may see."""
        is_by_cookie = "authorization" not in request.headers
        return _shown(request, who, sessions_of(request).find(token_of(request)) if is_by_cookie else None)

    @router.operation("POST", "", None, responses=one(STATE))
    async def sign_in(request: Request, response: Response, body: Credentials) -> Answer:
        """Sign in: begin a session, and get its cookie."""
        users = resources_of(request).gateway.users
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
        session = _begin(request, response, name)
        asked_of(request.scope).user = session.user
        return _shown(request, name, session)

    @router.operation("DELETE", "", None, responses=one(STATE))
    async def sign_out(request: Request, response: Response, who: _Known) -> Answer:
        """Sign out."""
        sessions_of(request).end(token_of(request))
        response.delete_cookie(**_cookie(request))
        return _shown(request, None, None)

    return router.routes


def _begin(request: Request, response: Response, who: Who) -> Session:
    """Begin a new session, and end the session of the browser's cookie, which somebody else may have put there."""
    sessions = sessions_of(request)
    sessions.end(token_of(request))
    token, session = sessions.begin(who)
    response.set_cookie(value=token, **_cookie(request))
    return session


def _cookie(request: Request) -> dict[str, Any]:
    """The attributes of the session's cookie. A browser deletes a cookie only by the attributes it was set with."""
    return {
        "key": cookie_of(request),
        "path": "/",
        "httponly": True,
        "samesite": "strict",
        "secure": _is_secure(request),
    }


def _is_secure(request: Request) -> bool:
    """
    Whether the browser connected by TLS, to the gateway or to a proxy that says so. A client that lies about this gets
    a cookie that its own browser does not send back.
    """
    forwarded, _, _ = request.headers.get("x-forwarded-proto", "").partition(",")
    return "https" in (request.url.scheme, forwarded.strip().lower())


_FLOW_COOKIE: Final = "rewind-sign-in"
_FLOW_S: Final = 600
"""Seconds that a person may take to sign in at an identity provider."""
_ELSEWHERE: Final = """<!doctype html><meta charset="utf-8"><title>Not signed in</title>
<h1>Not signed in</h1><p>{}</p><p><a href="/">Back to the console</a></p>
"""


def provider_routes(settings: Callable[[], AdminListener]) -> list[BaseRoute]:
    """
    The routes by which a browser goes to an identity provider and comes back. Links lead there, so errors are answered
    as pages for people.

    Args:
        settings: Returns the settings in effect; without `console` in them, the routes answer 404.
    """
    uncached = {**HEADERS, "Cache-Control": "no-store"}

    def refused(request: Request, text: str, status: int) -> Response:
        asked_of(request.scope).reason = text
        return HTMLResponse(_ELSEWHERE.format(html.escape(text)), status, uncached)

    async def begin(request: Request) -> Response:
        _check(settings())
        wanted = request.query_params.get("issuer")
        provider = next((one for one in _providers(request) if one.settings.issuer == wanted), None)
        if provider is None:
            raise HTTPException(404)
        secret = secrets.token_urlsafe(32)
        try:
            found = FlowSecrets.of(secret, provider.settings.issuer)
            url = await provider.authorization_url(_return_url(request, provider), found)
        except Refused as problem:
            return refused(request, problem.text, 503)
        response = RedirectResponse(url, 303, uncached)
        response.set_cookie(value=secret, max_age=_FLOW_S, **_flow_cookie(request))
        return response

    async def come_back(request: Request) -> Response:
        _check(settings())
        said, secret = request.query_params, token_of(request, _FLOW_COOKIE)
        # Without the cookie there is no secret, and what is derived of none is known to anybody.
        for provider in _providers(request) if secret else ():
            issuer = provider.settings.issuer
            found = FlowSecrets.of(secret or "", issuer)
            if hmac.compare_digest(found.state.encode(), said.get("state", "").encode()):
                break
        else:
            text = "This sign-in was not begun in this browser, or too long ago. Begin again."
            return refused(request, text, 401)
        if said.get("iss", issuer) != issuer:  # RFC 9207
            return refused(request, "Another identity provider has answered. Begin again.", 401)
        if "error" in said:
            return refused(request, f"The identity provider says {said['error'][:80]!r}.", 401)
        return_url = _return_url(request, provider)
        users = resources_of(request).gateway.users
        try:
            who, _ = await settled(
                users, lambda: provider.user_of_code(said.get("code", ""), return_url, found)
            )
        except SempError as problem:
            return refused(request, problem.text, problem.http_status)
        assert who is not None
        response = RedirectResponse("/", 303, uncached)
        asked_of(request.scope).user = _begin(request, response, who).user
        response.delete_cookie(**_flow_cookie(request))
        return response

    return [
        Route(SIGN_IN_BEGIN, begin, methods=["GET"], include_in_schema=False),
        Route(SIGN_IN_RETURN, come_back, methods=["GET"], include_in_schema=False),
    ]


def _providers(request: Request) -> list[Provider]:
    """The identity providers at which people can sign in to the console."""
    return [
        one for one in resources_of(request).gateway.users.providers if one.settings.client_id is not None
    ]


def _return_url(request: Request, provider: Provider) -> str:
    """Where the provider sends the browser back to; this URL has to be registered there."""
    url = provider.settings.console_url
    if url is None:
        url = f"{'https' if _is_secure(request) else 'http'}://{request.headers.get('host', '')}"
    return url.rstrip("/") + SIGN_IN_RETURN


def _flow_cookie(request: Request) -> dict[str, Any]:
    """The attributes of the sign-in's cookie: lax, as the browser returns from another site, without strict cookies."""
    cookie = {**_cookie(request), "samesite": "lax", "path": SIGN_IN_RETURN}
    return {**cookie, "key": cookie_of(request, _FLOW_COOKIE)}


def _shown(request: Request, who: Who | None, session: Session | None) -> Answer:
    resources = resources_of(request)
    users = resources.gateway.users
    known = None if who is None and users.are_configured else Administrator(users, who or "")
    shown: _Session = {
        "userName": known.name if known else "",
        "isSignedIn": known is not None,
        "isSignInNeeded": users.are_configured,
        "csrfToken": session.csrf_token if session and known else "",
        "globalAccess": known.global_access if known else "none",
        "msgVpns": _vpns(resources, known) if known else [],
        "version": (version() or "") if known else "",
        "identityProviders": [provider.settings.issuer for provider in _providers(request)],
    }
    return answer(request, shown)


def _vpns(resources: Resources, administrator: Administrator) -> list[_SeenVpn]:
    """The Message VPNs that the user may enter."""
    found: list[_SeenVpn] = []
    for name in sorted({*resources.gateway.vpns, *resources.waiting}):
        if not administrator.may_enter(name):
            continue
        is_up = name in resources.gateway.vpns and resources.gateway.vpns[name].settings.enabled
        found.append(
            {
                "msgVpnName": name,
                "state": "standby" if name in resources.waiting else "up" if is_up else "down",
                "mayAdministerLog": administrator.may(Action.ADMINISTER, AddressKind.LOG, ">"),
            }
        )
    return found
