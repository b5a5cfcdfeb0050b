"""What ends when a client of HTTP leaves before it has its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import HTTPException, Request

from gateway.admin.waiting import while_waiting


def request_of(messages: asyncio.Queue[dict[str, Any]]) -> Request:
    """A request of a client that says `messages`."""
    return Request({"type": "http", "headers": []}, messages.get)


def test_work_is_cancelled_when_the_client_leaves() -> None:
    """A search that would never end is cancelled as soon as the client's connection is gone."""

    async def leave() -> bool:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": b""})
        ended, begun = asyncio.Event(), asyncio.Event()

        async def search() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.ensure_future(while_waiting(request_of(messages), search()))
        await begun.wait()
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(HTTPException, match="left"):
            await waiting
        await asyncio.wait_for(ended.wait(), 10)
        return ended.is_set()

    assert asyncio.run(leave())


def test_a_client_that_waits_has_the_answer_or_the_error() -> None:
    """What the work returns or raises reaches the one who waits for it."""

    async def stay() -> None:
        async def answer() -> int:
            return 7

        async def refuse() -> int:
            raise ValueError("no")

        assert await while_waiting(request_of(asyncio.Queue()), answer()) == 7
        with pytest.raises(ValueError, match="no"):
            await while_waiting(request_of(asyncio.Queue()), refuse())

    asyncio.run(stay())
