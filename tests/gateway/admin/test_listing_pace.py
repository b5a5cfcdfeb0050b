"""Lists wait for live traffic, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.admin.semp.paging import LONGEST_TURN_S, PAUSE, WINDOW_S, ListingPace


class World:
    """A clock that sleeps move, and traffic beside them."""

    def __init__(self, live: Callable[[float], bool]) -> None:
        self.now = 0.0
        self.activity = 0
        self._live = live
        self.pace = ListingPace(lambda: self.activity, lambda: self.now, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        self.activity += self._live(self.now)
        self.now += seconds

    async def page(self, seconds: float) -> float:
        """A page that takes so long; how long it was waited for after it."""
        async with self.pace.page():
            self.pass_by(seconds)
            ended = self.now
        return self.now - ended


def test_where_nothing_is_live_nobody_waits() -> None:
    """Page after page."""
    world = World(lambda now: False)
    assert [asyncio.run(world.page(0.01)) for _ in range(5)] == [0.0] * 5


def test_beside_live_traffic_a_page_is_followed_by_a_pause() -> None:
    """A multiple of what it took; of one that was interrupted, no more than of the longest."""
    world = World(lambda now: True)
    assert asyncio.run(world.page(0.004)) == pytest.approx(0.004 * PAUSE)
    assert asyncio.run(world.page(3.0)) == pytest.approx(LONGEST_TURN_S * PAUSE)


def test_the_pauses_of_all_lists_follow_each_other() -> None:
    """Many who list at once get no more of the loop than one."""
    world = World(lambda now: True)

    async def both() -> list[float]:
        first, second = world.pace.page(), world.pace.page()
        await first.__aenter__()
        await second.__aenter__()
        world.pass_by(0.004)
        await first.__aexit__(None, None, None)
        began = world.now
        await second.__aexit__(None, None, None)
        return [began, world.now]

    began, ended = asyncio.run(both())
    assert began == pytest.approx(0.004 * (1 + PAUSE))
    assert ended >= began + 0.004 * PAUSE - 1e-9


def test_a_pause_ends_with_live_traffic() -> None:
    """Within a window."""
    world = World(lambda now: now < 0.1)
    assert asyncio.run(world.page(LONGEST_TURN_S)) <= 0.1 - LONGEST_TURN_S + 2 * WINDOW_S + 1e-9
    assert asyncio.run(world.page(LONGEST_TURN_S)) == 0.0
