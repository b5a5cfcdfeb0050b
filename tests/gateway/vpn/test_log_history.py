"""Log and archive as one: against the list of what was published, while both change under every read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from amqp_ext.replay_start import parse_text
from gateway.core.model import Row
from gateway.core.replay.search import search_for
from gateway.core.replay.starts import LogProbe
from gateway.vpn.history import HeldMessages, LogHistory
from store.errors import LogTrimmed, ReadFailed
from store.ports import LogPage
from tests.gateway.vpn.changing_log import COUNT, OTHER_ROUTE, OWN_ROUTE, World, history_of


async def read_all(history: LogHistory, position: int, held: HeldMessages | None = None) -> list[Row]:
    """Everything from an id on, page by page."""
    found: list[Row] = []
    while position <= COUNT:
        page, _ = await asyncio.wrap_future(history.page(position, COUNT + 1, (), "ann", held))
        assert position < page.position <= COUNT + 1
        assert all(position <= row[0] < page.position for row in page.rows)
        found += page.rows
        position = page.position
    return found


@pytest.mark.parametrize("seed", range(100))
def test_pages_are_the_list(seed: int) -> None:
    """Every id once, in order, wherever it has gone at the moment of its page."""
    world = World(seed)

    async def run() -> None:
        history, _ = history_of(world)
        for _ in range(4):
            first = world.dice.randint(1, COUNT)
            assert await read_all(history, first) == world.logged(first, COUNT + 1)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_newest_first_is_the_list_from_its_end(seed: int) -> None:
    """Every id once, falling, wherever it has gone at the moment of its page."""
    world = World(seed)

    async def run() -> None:
        history, _ = history_of(world)
        for _ in range(4):
            first, before = world.dice.randint(1, COUNT), COUNT + 1
            found: list[tuple[int, str]] = []
            while before > first:
                page = await history.topics_below(before, first, (), "ann")
                assert first <= page.position < before
                found += page.found
                before = page.position
            assert found == [(row[0], row[2]) for row in reversed(world.logged(first, COUNT + 1))]

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_what_an_endpoint_alone_holds_has_its_place(seed: int) -> None:
    """Beside what the log took, once, by the endpoint's routes; of the log, what another holds is not doubled."""
    world = World(seed)

    async def run() -> None:
        history, _ = history_of(world)
        own = HeldMessages(lambda: [OWN_ROUTE, OTHER_ROUTE], lambda row: row[0] in world.held)
        found = await read_all(history, 1, own)
        assert found == sorted([*world.rows.values(), *world.held.values()])

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_what_is_lost_ends_the_read(seed: int) -> None:
    """Where the log does not keep what is not archived, a reader has all that came before, and is told."""
    world = World(seed, keeps=False)

    async def run() -> None:
        history, _ = history_of(world)
        position, found = 1, list[Row]()
        try:
            while position <= COUNT:
                page, _ = await asyncio.wrap_future(history.page(position, COUNT + 1, ()))
                found += page.rows
                position = page.position
        except LogTrimmed:
            # What was looked for is in neither.
            assert world.archived < position < world.below
        assert found == world.logged(1, position)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_messages_by_their_ids(seed: int) -> None:
    """As many from the first on as a page holds, whoever has them; a store's own row is taken before the archive's."""
    world = World(seed)

    async def run() -> None:
        history, _ = history_of(world)
        for _ in range(5):
            rest = sorted(world.dice.sample(sorted(world.rows), 20))
            while rest:
                found = await asyncio.wrap_future(history.messages(rest))
                if not found:
                    # It was trimmed behind the store's answer, and is asked for again.
                    continue
                assert [row[0] for row in found] == rest[: len(found)]
                assert [row[6] for row in found] == [world.rows[i][6] for i in rest[: len(found)]]
                rest = rest[len(found) :]

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_searches_tallies_and_probes(seed: int) -> None:
    """The first message that a search takes, how much there is, and what starts are resolved by."""
    world = World(seed)

    async def run() -> None:
        history, _ = history_of(world)
        for _ in range(3):
            number = world.dice.randint(1, COUNT)
            search = search_for(parse_text(f"match:n >= {number}"), None)
            assert search is not None
            position, found = 1, None
            while found is None and position <= COUNT:
                page = await history.search_page(search, (), position, COUNT + 1, "ann")
                position, found = page.position, page.found
            assert found == next((i for i in sorted(world.rows) if i >= number), None)
            position, count = 1, 0
            while position <= COUNT:
                tally = await history.tally(position, min(position + 9, COUNT + 1), (), "ann")
                count += sum(messages for _, messages, _ in tally.found)
                position = tally.position
            assert count == len(world.rows)
            there = world.dice.choice(sorted(world.rows))
            assert await history.time_of(there, "ann") == there
            last = await history.last_matching("a".__eq__, "ann")
            assert last == max((i for i, row in world.rows.items() if row[2] == "a"), default=None)

            if world.archived:
                found_by = partial(_ask, there)
                assert await history.ask(found_by, "a".__eq__, "ann", last=True) == (there, there, last)

    asyncio.run(run())


def _ask(there: int, probe: LogProbe) -> tuple[int | None, int | None, int | None]:
    return probe.time_of(there), probe.first_since(there), probe.last_matching("a".__eq__)


def test_an_archive_that_is_away_is_no_part_of_the_history() -> None:
    """Until it is back; what the log has is read all the same."""
    world = World(1)
    world.archived, world.below, world.first_id, world.state.first_id = 40, 31, 31, 31
    world.change = lambda: None  # type: ignore[method-assign]

    async def run() -> None:
        history, archive = history_of(world)
        archive.is_away = True
        with pytest.raises(ReadFailed):
            await history.look()
        assert history.first_id == 31
        assert await read_all(history, 31) == world.logged(31, COUNT + 1)
        archive.is_away = False
        await history.look()
        assert history.first_id == 1
        assert await read_all(history, 1) == world.logged(1, COUNT + 1)

    asyncio.run(run())


def test_who_waits_no_more_is_not_read_for() -> None:
    """A page that is given up before its turn is not read; the others are."""
    world = World(1)
    world.archived, world.below, world.first_id, world.state.first_id = 60, 61, 61, 61
    world.change = lambda: None  # type: ignore[method-assign]

    async def run() -> None:
        history, archive = history_of(world)
        waiting: list[Future[Any]] = []
        asked: list[int] = []

        def submit(read: Callable[[], Any]) -> Future[Any]:
            asked.append(1)
            waiting.append(Future())
            return waiting[-1]

        archive.submit = submit  # type: ignore[method-assign,assignment]
        pages = [history.page(1, COUNT + 1, (), "ann") for _ in range(6)]
        await asyncio.sleep(0)
        assert len(asked) == 2
        for page in pages[2:5]:
            page.cancel()
        waiting[0].set_result((LogPage([], 9), 0.0))
        waiting[1].set_result((LogPage([], 9), 0.0))
        while len(asked) < 3:
            await asyncio.sleep(0)
        waiting[2].set_result((LogPage([], 9), 0.0))
        for page in (pages[0], pages[1], pages[5]):
            assert (await asyncio.wrap_future(page))[0].position == 9
        assert len(asked) == 3
        history.close()

    asyncio.run(run())
