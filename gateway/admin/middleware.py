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
from collections.abc import Callable
from contextlib import ExitStack
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


MOST_SIGN_IN_BYTES: Final = 8_192
"""Bytes of a body: a name and a password, or a token, have some hundred."""

SIGN_IN_BODY_S = 5.0
"""Seconds that a body may take to come: it fits into one packet."""

MOST_SIGN_INS_PER_ADDRESS: Final = 8
"""Bodies that are waited for from one IP address, and answers of identity providers for it."""

MOST_SIGN_INS: Final = 64
"""The same in all: a quarter of the connections that there may be."""


class BoundedBodies:
    """
    Refuses a request with more, as soon as it says so or has sent so much, and one that takes longer. Who comes back
    from an identity provider, which is asked then, counts among those who sign in: anybody can say to do so.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0
        self._signing_in: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == STREAMED:
            await self._app(scope, receive, send)
            return
        signs_in = path == SIGN_IN and scope["method"] == "POST"
        with ExitStack() as counted:
            if signs_in or path == SIGN_IN_RETURN:
                address = (scope.get("client") or ("",))[0]
                if not self._may_sign_in(address):
                    refused = SempError(
                        "NOT_ALLOWED", "Too many sign in at once; try again in a moment.", 429
                    )
                    await told(Request(scope), refused)(scope, receive, send)
                    return
                counted.callback(self._has_signed_in, address)
            await self._pass(scope, receive, send, counted.close if signs_in else None)

    def _may_sign_in(self, address: str) -> bool:
        """Whether there is room for one more, who is counted then."""
        counts = self._signing_in
        if counts.total() >= MOST_SIGN_INS or counts[address] >= MOST_SIGN_INS_PER_ADDRESS:
            return False
        counts[address] += 1
        return True

    def _has_signed_in(self, address: str) -> None:
        self._signing_in -= Counter([address])  # and forgets who has none

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, signed_in: Callable[[], None] | None
    ) -> None:
        """
        Args:
            signed_in: Of who signs in: the body is there.
        """
        most, seconds = (MOST_BYTES, BODY_S) if signed_in is None else (MOST_SIGN_IN_BYTES, SIGN_IN_BODY_S)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        deadline = asyncio.get_running_loop().time() + seconds
        size, is_whole = 0, False

        async def bounded() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()  # that the client has left, which may be late
            # The framework takes any other error in reading a body for a mistake in it.
            if int(announced) > most:
                raise _too_large(most)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body has not come within {seconds:g} s.") from None
            is_whole = not message.get("more_body", False)
            if is_whole and signed_in is not None:
                signed_in()
            count = len(message.get("body", b""))
            size += count
            self._held += count
            if size > most:
                raise _too_large(most)
            if self._held > MOST_HELD_BYTES:
                raise HTTPException(503, "Too much is being sent at once; try again.")
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held -= size


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"The body is too large; it may have {most:,} bytes.")


def encoded_paths(app: ASGIApp) -> ASGIApp:
    """Leaves the names in a path as they were sent, so that a ``/`` in one does not part it."""

    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        path = raw.partition(b"?")[0].decode("ascii", "replace")
        if scope["path"].startswith(ROOT) and path.startswith(ROOT):
            scope = {**scope, "path": path}
        await app(scope, receive, send)

    return passed
