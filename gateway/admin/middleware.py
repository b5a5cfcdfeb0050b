"""
Checks that each request passes before its operation is looked up: the name in ``Host``, and the size of the body. Every
scope is an HTTP request: the server has neither WebSockets nor ASGI's lifespan.

Any web page can make a browser send requests to this machine. If the page's own name resolves to this machine (DNS
rebinding), the browser even lets the page read the answers. But the browser says in ``Host`` which name it called, and
in ``Origin`` which page's script sends the request. Programs other than browsers send no ``Origin``.

Bodies are bounded in bytes and in time, each of them and all together: administrators make mistakes, too, and where no
users are configured everyone on this machine is an administrator. Requests to sign in are read before the user is
known, so they have lower bounds of their own: a client without a password cannot use up the connections and the memory
that administrators need.

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
    Refuses requests that call the administration by a wrong name, and requests of foreign pages.

    Args:
        settings: Returns the settings in effect.
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
                f"{host[:80]!r} is not a host name of the administration; add it to `[admin] hosts` or use an address.",
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
    """Whether a host is a name of the administration. Any IP address is: nobody can make a foreign one lead here."""
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
"""Bytes of a request's body; the largest useful one has some thousands."""

MOST_HELD_BYTES = 16 * MOST_BYTES
"""Bytes of the bodies of all requests under way."""

BODY_S = 30.0
"""Seconds that a body may take to arrive, from the request's head on."""


STREAMED: Final = "/v1/publish"
"""The path whose bodies have any length: they are read, and bounded, a line at a time (``gateway.admin.v1``)."""


MOST_SIGN_IN_BYTES: Final = 8_192
"""Bytes of a sign-in's body: a name and a password, or a token, have some hundred."""

SIGN_IN_BODY_S = 5.0
"""Seconds that a sign-in's body may take to arrive: it fits into one packet."""

MOST_SIGN_INS_PER_ADDRESS: Final = 8
"""Sign-ins of one IP address that wait for their body, or for the answer of an identity provider."""

MOST_SIGN_INS: Final = 64
"""The same of all IP addresses: a quarter of the connections that there may be."""


class BoundedBodies:
    """
    Refuses a body that is too large, as soon as its Content-Length says so or too much has arrived, and a body that
    takes too long. A browser that returns from an identity provider counts as a sign-in: the provider is asked then,
    and anybody can send such a request.
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
                        "NOT_ALLOWED", "Too many users are signing in; try again in a moment.", 429
                    )
                    await told(Request(scope), refused)(scope, receive, send)
                    return
                counted.callback(self._has_signed_in, address)
            await self._pass(scope, receive, send, counted.close if signs_in else None)

    def _may_sign_in(self, address: str) -> bool:
        """Whether one more may sign in from this address; if so, it is counted until ``_has_signed_in``."""
        counts = self._signing_in
        if counts.total() >= MOST_SIGN_INS or counts[address] >= MOST_SIGN_INS_PER_ADDRESS:
            return False
        counts[address] += 1
        return True

    def _has_signed_in(self, address: str) -> None:
        self._signing_in -= Counter([address])  # `-=` also removes an address whose count is zero

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, signed_in: Callable[[], None] | None
    ) -> None:
        """
        Pass the request on, with a bound on its body.

        Args:
            signed_in: Of a sign-in: called when its body has arrived.
        """
        most, seconds = (MOST_BYTES, BODY_S) if signed_in is None else (MOST_SIGN_IN_BYTES, SIGN_IN_BODY_S)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        deadline = asyncio.get_running_loop().time() + seconds
        size, is_whole = 0, False

        async def bounded() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()  # only the disconnect can follow, at any time
            # FastAPI answers any other exception that reading the body raises with 400.
            if int(announced) > most:
                raise _too_large(most)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body has not arrived within {seconds:g} s.") from None
            is_whole = not message.get("more_body", False)
            if is_whole and signed_in is not None:
                signed_in()
            count = len(message.get("body", b""))
            size += count
            self._held += count
            if size > most:
                raise _too_large(most)
            if self._held > MOST_HELD_BYTES:
                raise HTTPException(503, "Too many request bodies are being received; try again.")
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held -= size


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"The body is too large; it may have at most {most:,} bytes.")


def encoded_paths(app: ASGIApp) -> ASGIApp:
    """Keeps the names in a path percent-encoded, so that a ``/`` in a name does not split the path."""

    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        path = raw.partition(b"?")[0].decode("ascii", "replace")
        if scope["path"].startswith(ROOT) and path.startswith(ROOT):
            scope = {**scope, "path": path}
        await app(scope, receive, send)

    return passed
