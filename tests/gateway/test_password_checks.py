"""Passwords that are checked: whose turn it is, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from gateway.users import THREADS, WAITING_PER_ADDRESS, PasswordChecks, TooManyChecks

SECONDS = 30


def run(test: Callable[[PasswordChecks], Awaitable[None]]) -> None:
    async def whole() -> None:
        checks = PasswordChecks()
        try:
            await asyncio.wait_for(test(checks), SECONDS)
        finally:
            checks.close()

    asyncio.run(whole())


def test_what_the_check_says_comes_back() -> None:
    """Right is right, wrong is wrong, and a check that fails says how."""

    async def test(checks: PasswordChecks) -> None:
        assert await checks.check("a", lambda: True) is True
        assert await checks.check("a", lambda: False) is False
        with pytest.raises(ZeroDivisionError):
            await checks.check("a", lambda: bool(1 // 0))
        assert await checks.check("a", lambda: True) is True

    run(test)


def test_an_address_has_one_check_at_a_time_and_others_go_on() -> None:
    """While one address's first check does not end, none of its others begins, and another address's is done."""

    async def test(checks: PasswordChecks) -> None:
        go, begun = threading.Event(), []

        def slow() -> bool:
            begun.append(1)
            return go.wait(SECONDS)

        flood = [asyncio.ensure_future(checks.check("flood", slow)) for _ in range(10)]
        await asyncio.sleep(0)
        assert await checks.check("other", lambda: True)
        assert len(begun) == 1
        go.set()
        assert await asyncio.gather(*flood) == [True] * 10

    run(test)


def test_addresses_take_turns() -> None:
    """Of two addresses that both have checks waiting, each gets every second one."""

    async def test(checks: PasswordChecks) -> None:
        go, order = threading.Event(), []

        def held() -> bool:
            return go.wait(SECONDS)

        def noted(name: str) -> Callable[[], bool]:
            return lambda: order.append(name) is None

        # All threads are taken by addresses of their own.
        taken = [asyncio.ensure_future(checks.check(f"taken {n}", held)) for n in range(THREADS - 1)]
        first = asyncio.ensure_future(checks.check("a", held))
        await asyncio.sleep(0)
        rest = [asyncio.ensure_future(checks.check(name, noted(name))) for name in "aaab"]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *taken, *rest)
        assert "b" in order[:2]

    run(test)


def test_more_than_may_wait_are_refused() -> None:
    """Past the bound of its address a check is refused at once; the password of who has left is not hashed."""

    async def test(checks: PasswordChecks) -> None:
        go = threading.Event()
        begun: list[int] = []
        first = asyncio.ensure_future(checks.check("a", lambda: go.wait(SECONDS)))
        await asyncio.sleep(0)
        waiting = [
            asyncio.ensure_future(checks.check("a", lambda: begun.append(1) is None))
            for _ in range(WAITING_PER_ADDRESS)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyChecks):
            await checks.check("a", lambda: True)
        for each in waiting[1:]:
            each.cancel()
        go.set()
        assert await first
        assert await waiting[0]
        assert await checks.check("a", lambda: True)
        assert begun == [1]

    run(test)
