"""
The console over HTTP: the page at ``/``, what it loads under ``/console/``, and ``/session``, where its user signs in
and out.

The files are read and compressed once, when the administration is loaded. The page names its files by a folder that
says which version they are, ``/console/~VERSION/``: a browser keeps those for good, and asks for the page alone each
time.

What a page may do is bounded by the headers (Content Security Policy Level 3, W3C): it runs scripts of this address
only, none that stand in the page, talks to this address only, and is shown in no frame.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from fastapi import Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from typing_extensions import TypedDict

from amqp_ext.addresses.address import AddressKind
from gateway.admin.administrators import (
    Administrator,
    Session,
    cookie_of,
    name_if_known,
    sessions_of,
    settled,
    token_of,
)
from gateway.admin.audit import asked_of
from gateway.admin.operations import LazyRoute, LazyRouter
from gateway.admin.semp.envelope import REFUSALS, SESSION, Answer, SempError, answer, one, resource
from gateway.admin.semp.resources import Resources, resources_of
from gateway.config import AdminListener
from gateway.config.settings import GlobalAccess
from gateway.core.permissions import Action

STATIC: Final = Path(__file__).parent / "static"

INDEX: Final = "index.html"

FILES: Final = "/console/"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of whatever the console serves."""

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Of the files that are served, by how their names end; others are not."""

_ALWAYS_ASKED: Final = "no-cache"
_KEPT: Final = "public, max-age=31536000, immutable"


class _Page(NamedTuple):
    """A file as it is served."""

    media_type: str
    etag: str
    compressed: bytes
    """By gzip."""


def is_of_console(path: str) -> bool:
    """Whether a path is the console's, for anybody to load: what it shows is asked for elsewhere."""
    return path == "/" or path.startswith(FILES)


def page_routes(settings: Callable[[], AdminListener]) -> list[BaseRoute]:
    """
    The routes of the console's files.

    Args:
        settings: Those in effect; without `console` in them there is nothing.
    """
    pages()  # now, on the thread that loads the administration, and not in the loop

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
    """Of the files together."""
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
            # Weak, for it is the same compressed or not.
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
    """RFC 9110 section 12.5.3; a weight of nothing refuses."""
    for offered in accepted.split(","):
        coding, _, weight = offered.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


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

    @router.operation("GET", "", None, responses=one(STATE))
    async def show(request: Request, name: _Known) -> Answer:
        """Who has signed in, and what he may see."""
        is_by_cookie = "authorization" not in request.headers
        return _shown(request, name, sessions_of(request).find(token_of(request)) if is_by_cookie else None)

    @router.operation("POST", "", None, responses=one(STATE))
    async def sign_in(request: Request, response: Response, body: Credentials) -> Answer:
        """Sign in: a session, and its cookie."""
        users, sessions = resources_of(request).gateway.users, sessions_of(request)
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

    @router.operation("DELETE", "", None, responses=one(STATE))
    async def sign_out(request: Request, response: Response, name: _Known) -> Answer:
        """Sign out."""
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
    is_needed = resources.gateway.users.are_configured
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
    administrator = Administrator(resources.gateway.users, name or "")
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


def _version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return ""
