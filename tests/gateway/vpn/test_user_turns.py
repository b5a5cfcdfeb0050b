"""Searches of the log take turns by user."""

from __future__ import annotations

import asyncio

from gateway.vpn.turns import UserTurns


def order_of(searches: list[str], pages: int, cancelled: frozenset[int] = frozenset()) -> list[str]:
    """Whose pages are read, in which order, where each search reads so many; some are given up while they wait."""
    read: list[str] = []

    async def search(turns: UserTurns, user: str) -> None:
        for _ in range(pages):
            async with turns.turn(user):
                read.append(user)
                await asyncio.sleep(0)

    async def run() -> None:
        turns = UserTurns()
        tasks = [asyncio.create_task(search(turns, user)) for user in searches]
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    asyncio.run(run())
    return read


def test_as_many_have_a_turn_as_may() -> None:
    """With two turns at once there are two readers at a time, never more, and none is left without one."""

    async def run() -> tuple[int, int]:
        turns, under_way, most, read = UserTurns(2), 0, 0, 0

        async def reads(user: str) -> None:
            nonlocal under_way, most, read
            async with turns.turn(user):
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0)
                under_way -= 1
                read += 1

        await asyncio.wait_for(asyncio.gather(*(reads(user) for user in "aaabbc")), 10)
        return most, read

    assert asyncio.run(run()) == (2, 6)


def test_one_user_with_many_searches_starves_no_other() -> None:
    """Beside twenty searches of one user, another's single one reads every other page."""
    read = order_of(["greedy"] * 20 + ["modest"], pages=10)
    places = [place for place, user in enumerate(read) if user == "modest"]
    assert len(read) == 210
    assert places[-1] <= 2 * 10 + 1


def test_searches_of_one_user_take_turns_too() -> None:
    """Among themselves a user's searches go page by page, in their order."""
    assert order_of(["a", "a", "b"], pages=2) == ["a", "b", "a", "b", "a", "a"]


def test_a_search_that_is_given_up_leaves_the_turn_to_others() -> None:
    """Whether it waits or was just given the turn: nobody waits for it."""
    for number in range(4):
        read = order_of(["a", "b", "a", "c"], pages=3, cancelled=frozenset({number}))
        assert len(read) >= 9
