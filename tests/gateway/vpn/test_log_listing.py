"""Lists of the log, from either end, while log and archive change under every read."""

from __future__ import annotations

import asyncio

import pytest

from amqp_ext.selector.selector import compile_selector
from gateway.core.replay.search import Search
from gateway.vpn.log import LoggedMessages, LogListing, Wanted
from tests.gateway.vpn.changing_log import COUNT, World, state_of

ALL = Wanted((), lambda topic: True)
SOME = Wanted(("a",), "a".__eq__, Search(compile_selector("n > 7 and n < 55").matches))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("wanted", [ALL, SOME], ids=["all", "some"])
def test_a_list_has_each_message_once(seed: int, wanted: Wanted) -> None:
    """Page by page, from either end: what was published and is wanted, in its order, however little a read brings."""
    world = World(seed)

    def is_wanted(number: int, topic: str) -> bool:
        return wanted is ALL or (topic == "a" and 7 < number < 55)

    async def run() -> None:
        state, _ = state_of(world)
        listing = LogListing(state)
        first, end = sorted(world.dice.sample(range(1, COUNT + 2), 2))
        count = world.dice.choice([1, 2, 5, 100])
        expected = [i for i, row in sorted(world.rows.items()) if first <= i < end and is_wanted(i, row[2])]
        found: list[int] = []
        position: int | None = first
        while position is not None:
            page = await listing.oldest_first(wanted, position, end, count)
            position = taken(page, found, count)
        assert found == expected
        found, position = [], end
        while position is not None:
            page = await listing.newest_first(wanted, position, first, count)
            position = taken(page, found, count)
        assert found == expected[::-1]

    asyncio.run(run())


def taken(page: LoggedMessages, found: list[int], count: int) -> int | None:
    assert len(page.messages) <= count
    found += [message.message_id for message in page.messages]
    return page.position
