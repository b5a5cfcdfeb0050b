"""How large a request may be: it is read before it is known who asks, and must not fill the memory."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES: Final = 1_048_576
"""Bytes of a request's body: the largest that means anything here has some thousands."""


class BoundedBodies:
    """Refuses a request with more, as soon as it says so or has sent so much."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        left = MOST_BYTES

        async def bounded() -> Message:
            nonlocal left
            if int(announced) > MOST_BYTES:
                raise _too_large()
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _too_large()
            return message

        await self._app(scope, bounded, send)


def _too_large() -> HTTPException:
    # The framework takes any other error in reading a body for a mistake in it.
    return HTTPException(413, f"The body is too large; it may have {MOST_BYTES:,} bytes.")
