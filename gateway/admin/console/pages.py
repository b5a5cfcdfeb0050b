"""The files of the console over HTTP: the page at ``/``, what it loads under ``/console/``.

They are read and compressed once, when the administration is loaded. The page names its files by a folder that says
which version they are, ``/console/~VERSION/``: a browser keeps those for good, and asks for the page alone each time.

What a page may do is bounded by the headers (Content Security Policy Level 3, W3C): it runs scripts of this address
only, none that stand in the page, talks to this address only, and is shown in no frame.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.config import AdminListener

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
        return _answer(request, pages()[INDEX], _ALWAYS_ASKED)

    async def file(request: Request) -> Response:
        _check(settings())
        path = request.path_params["path"]
        version, _, rest = path.partition("/")
        is_kept = version == f"~{_version()}"
        page = pages().get(rest if is_kept else path)
        if page is None:
            raise HTTPException(404)
        return _answer(request, page, _KEPT if is_kept else _ALWAYS_ASKED)

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
def _version() -> str:
    """Of the files together."""
    digest = hashlib.sha256()
    for path, source in _sources().items():
        digest.update(f"{path}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[:16]


@cache
def pages() -> Mapping[str, _Page]:
    """The files as they are served, by path."""
    version = _version()
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


def _answer(request: Request, page: _Page, caching: str) -> Response:
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
    for one in accepted.split(","):
        coding, _, weight = one.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
