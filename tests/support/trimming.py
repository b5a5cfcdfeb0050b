"""Trimming by order, from a test's thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from gateway.app import Gateway
from tests.support.running import RunningGateway


def trim_before(gateway: RunningGateway, message_id: int) -> None:
    """Trim on the gateway's loop, and wait for it."""
    done: Future[int] = Future()

    def order(running: Gateway) -> None:
        async def trim() -> None:
            done.set_result(await running.vpns["default"].trimmer.trim_before(message_id))

        running.task = asyncio.get_running_loop().create_task(trim())  # type: ignore[attr-defined]

    gateway.call(order)
    assert done.result(20) >= message_id
