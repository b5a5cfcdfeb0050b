"""Requests to sign in are read before anybody is known: how many at once, how large, and how long, is bounded apart.

Whoever has no password, and sends the rest of such a request never, holds neither the connections nor the memory that
administrators need.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.semp.envelope import SESSION, SempError, told

MOST_BYTES: Final = 8_192
"""Bytes of a body: a name and a password, or a token, have some hundred."""

BODY_S = 5.0
"""Seconds that a body may take to come: it fits into one packet."""

MOST_PER_ADDRESS: Final = 8
"""Bodies that are waited for from one IP address."""

MOST: Final = 64
"""The same in all: a quarter of the connections that there may be."""


class BoundedSignIns:
    """Reads the bodies of requests to sign in, and refuses what is too much."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._by_address: Counter[str] = Counter()
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != SESSION or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        try:
            body = await self._read(client[0] if client else "", receive)
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

    async def _read(self, address: str, receive: Receive) -> bytes | None:
        """
        The whole body; None of a client that has left.

        Raises:
            SempError: It is too much, or too slow.
        """
        if self._count >= MOST or self._by_address[address] >= MOST_PER_ADDRESS:
            raise SempError("NOT_ALLOWED", "Too many sign in at once; try again in a moment.", 429)
        self._count += 1
        self._by_address[address] += 1
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > MOST_BYTES:
                        raise SempError(
                            "INVALID_PARAMETER",
                            f"The body is too large; it may have {MOST_BYTES:,} bytes.",
                            413,
                        )
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise SempError("INVALID_PARAMETER", f"The body has not come within {BODY_S:g} s.", 408) from None
        finally:
            self._count -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
