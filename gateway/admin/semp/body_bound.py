"""How large a request may be, how long it may take to come, and how much of all is held: administrators make mistakes,
too, and where no users are configured everyone on this machine is one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        if scope["type"] != "http" or scope["path"] == STREAMED:
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
