"""What is done for a client of HTTP only as long as it waits: a search of a long log has to end with its request."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import HTTPException, Request

T = TypeVar("T")

LEFT: Final = 499
"""What nginx writes into its log for a client that closed its request."""


async def while_waiting(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """
    Do ``work``, and cancel it when the client leaves. For requests without a body, or whose body was read.

    Raises:
        HTTPException: The client left, and nobody is there to read this; it keeps the server's log quiet.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise HTTPException(LEFT, "the client left")
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
