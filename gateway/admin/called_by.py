"""By which names the administration may be called, and from which web pages: what a browser says with each request.

A page from anywhere can have a browser send requests to this machine. Where its name was made to lead here (DNS
rebinding), the browser takes the answers for the page's own; but it says in ``Host`` by which name it called, and in
``Origin`` which page's script asks. Programs that are no browsers say no ``Origin``.

Source: RFC 9110 section 7.2 (Host), RFC 6454 section 7 (Origin).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.semp.envelope import SempError, told
from gateway.config import AdminListener


class CalledBy:
    """
    Refuses requests that call the administration by a name that is none of its, and those of foreign pages.

    Args:
        settings: Those in effect.
    """

    def __init__(self, app: ASGIApp, settings: Callable[[], AdminListener]) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = _refusal(scope, self._settings())
            if refused is not None:
                await told(Request(scope), refused)(scope, receive, send)
                return
        await self._app(scope, receive, send)


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
