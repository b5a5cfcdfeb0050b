"""
What each request passes before its operation is looked for: by which name it calls, and how large its body is. Requests
are all of HTTP: the server has neither WebSockets nor ASGI's lifespan.

A page from anywhere can have a browser send requests to this machine. Where its name was made to lead here (DNS
rebinding), the browser takes the answers for the page's own; but it says in ``Host`` by which name it called, and in
``Origin`` which page's script asks. Programs that are no browsers say no ``Origin``.

Bodies are bounded in bytes and in time, all of them together as well: administrators make mistakes, too, and where no
users are configured everyone on this machine is one. Requests to sign in are read before anybody is known, so they are
bounded apart: a client without a password holds neither the connections nor the memory that administrators need.

Source: RFC 9110 section 7.2 (Host), RFC 6454 section 7 (Origin).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.audit import SIGN_IN, SIGN_IN_RETURN
from gateway.admin.semp.envelope import ROOT, SempError, told
from gateway.config import AdminListener


def called_by_name(app: ASGIApp, settings: Callable[[], AdminListener]) -> ASGIApp:
    """
    Refuses requests that call the administration by a name that is none of its, and those of foreign pages.

    Args:
        settings: Those in effect.
    """

    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        refused = _refusal(scope, settings())
        await (app if refused is None else told(Request(scope), refused))(scope, receive, send)

    return passed


def _refusal(scope: Scope, settings: AdminListener) -> SempError | None:
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
    for host in hosts:
        if not _is_name_of(settings, _without_port(host)):
            return SempError(
                "NOT_ALLOWED",
                f"The administration is not called {host[:80]!r}; name it in `[admin] hosts`, or use an address.",
                421,
            )
    for origin in origins:
        if not hosts or origin.partition("://")[2].lower() != hosts[0].lower():
            return SempError(
                "UNAUTHORIZED", f"The page {origin[:80]!r} is not the administration's own.", 403
            )
    return None


_ALWAYS: Final = "localhost"


def _is_name_of(settings: AdminListener, host: str) -> bool:
    """Addresses are no names: nobody can make one of another machine lead here."""
    name = host.lower().removesuffix(".")
    if name in (_ALWAYS, settings.host.lower(), *(known.lower() for known in settings.hosts)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority.partition("]")[0].removeprefix("[")
    return authority.partition(":")[0]


MOST_BYTES: Final = 1_048_576
"""Bytes of a request's body: the largest that means anything here has some thousands."""

MOST_HELD_BYTES = 16 * MOST_BYTES
"""Bytes of the bodies of all requests under way."""

BODY_S = 30.0
"""Seconds a body may take to come, from the request's head on."""


STREAMED: Final = "/v1/publish"
"""The path whose bodies are of any length: they are read, and bounded, a line at a time (``gateway.admin.v1``)."""


class BoundedBodies:
    """Refuses a request with more, as soon as it says so or has sent so much, and one that takes longer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == STREAMED:
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        deadline = asyncio.get_running_loop().time() + BODY_S
        size, is_whole = 0, False

        async def bounded() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()  # that the client has left, which may be late
            # The framework takes any other error in reading a body for a mistake in it.
            if int(announced) > MOST_BYTES:
                raise _too_large()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body has not come within {BODY_S:g} s.") from None
            is_whole = not message.get("more_body", False)
            count = len(message.get("body", b""))
            size += count
            self._held += count
            if size > MOST_BYTES:
                raise _too_large()
            if self._held > MOST_HELD_BYTES:
                raise HTTPException(503, "Too much is being sent at once; try again.")
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held -= size


def _too_large() -> HTTPException:
    return HTTPException(413, f"The body is too large; it may have {MOST_BYTES:,} bytes.")


MOST_SIGN_IN_BYTES: Final = 8_192
"""Bytes of a body: a name and a password, or a token, have some hundred."""

SIGN_IN_BODY_S = 5.0
"""Seconds that a body may take to come: it fits into one packet."""

MOST_SIGN_INS_PER_ADDRESS: Final = 8
"""Bodies that are waited for from one IP address, and answers of identity providers for it."""

MOST_SIGN_INS: Final = 64
"""The same in all: a quarter of the connections that there may be."""


class BoundedSignIns:
    """
    Reads the bodies of requests to sign in, and refuses what is too much. Who comes back from an identity provider,
    which is asked then, counts as well: anybody can say to do so.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._by_address: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        comes_back = scope["path"] == SIGN_IN_RETURN
        if not comes_back and (scope["path"] != SIGN_IN or scope["method"] != "POST"):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        try:
            with self._counted(client[0] if client else ""):
                if comes_back:
                    await self._app(scope, receive, send)
                    return
                body = await self._read(receive)
        except SempError as refused:
            await told(Request(scope), refused)(scope, receive, send)
            return
        if body is None:
            return  # the client has left
        is_given = False

        async def given() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, given, send)

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        counts = self._by_address
        if counts.total() >= MOST_SIGN_INS or counts[address] >= MOST_SIGN_INS_PER_ADDRESS:
            raise SempError("NOT_ALLOWED", "Too many sign in at once; try again in a moment.", 429)
        counts[address] += 1
        try:
            yield
        finally:
            self._by_address -= Counter([address])  # and forgets who has none

    async def _read(self, receive: Receive) -> bytes | None:
        """
        The whole body; None of a client that has left.

        Raises:
            SempError: It is too much, or too slow.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(SIGN_IN_BODY_S):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > MOST_SIGN_IN_BYTES:
                        raise SempError(
                            "INVALID_PARAMETER",
                            f"The body is too large; it may have {MOST_SIGN_IN_BYTES:,} bytes.",
                            413,
                        )
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise SempError(
                "INVALID_PARAMETER", f"The body has not come within {SIGN_IN_BODY_S:g} s.", 408
            ) from None


def encoded_paths(app: ASGIApp) -> ASGIApp:
    """Leaves the names in a path as they were sent, so that a ``/`` in one does not part it."""

    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        path = raw.partition(b"?")[0].decode("ascii", "replace")
        if scope["path"].startswith(ROOT) and path.startswith(ROOT):
            scope = {**scope, "path": path}
        await app(scope, receive, send)

    return passed
