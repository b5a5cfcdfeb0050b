"""When messages of the log came, while log and archive change under every read; times are ids there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from amqp_ext.replay_start import parse_text
from amqp_ext.selector.selector import compile_selector
from gateway.core.model import Row
from gateway.core.replay.search import Search, search_for
from gateway.core.replay.starts import LogProbe
from gateway.vpn.history import HeldMessages, LogHistory
from gateway.vpn.log import Histogram, LoggedMessages, LogHistogram, LogListing, Wanted
from gateway.vpn.turns import UserTurns
from store.errors import LogTrimmed, ReadFailed
from store.ports import LogPage
from tests.gateway.vpn.changing_log import COUNT, OTHER_ROUTE, OWN_ROUTE, World, history_of, state_of

# --- When messages of the log came, while log and archive change under every read -----------------------------------

Test = Callable[[World], Coroutine[Any, Any, None]]


def in_worlds(*, keeps: bool = True) -> Callable[[Test], Callable[[int], None]]:
    """The test, on a loop, in each of a hundred worlds. ``keeps``: nothing is trimmed there that is not archived."""

    def decorated(test: Test) -> Callable[[int], None]:
        @pytest.mark.parametrize("seed", range(100))
        def run(seed: int) -> None:
            asyncio.run(test(World(seed, keeps=keeps)))

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorated


def histogram_of(world: World, from_ms: int | None, until_ms: int | None, most: int) -> Histogram:
    async def run() -> Histogram:
        state, _ = state_of(world)
        return await LogHistogram(state).between(from_ms, until_ms, most)

    return asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_each_message_is_in_its_bucket(seed: int) -> None:
    """Wherever it has gone at the moment of the read: it came in its bucket's time, and has an id of the bucket's."""
    world = World(seed)
    from_ms, until_ms = sorted(world.dice.sample(range(COUNT + 9), 2))
    most = world.dice.choice([1, 2, 7, 100])
    found = histogram_of(world, from_ms, until_ms, most)
    assert (found.from_ms, found.until_ms) == (from_ms, until_ms)
    assert len(found.buckets) == min(most, until_ms - from_ms)
    ends = [bucket.time_ms for bucket in found.buckets[1:]] + [until_ms]
    for bucket, end_ms in zip(found.buckets, ends, strict=True):
        assert from_ms <= bucket.time_ms < end_ms
        came = {row[0] for row in world.rows.values() if bucket.time_ms <= row[1] < end_ms}
        ids = range(bucket.first_id, bucket.first_id + bucket.ids)
        assert came == world.rows.keys() & set(ids)
    assert found.last_id - found.first_id + 1 == sum(bucket.ids for bucket in found.buckets)


def test_without_times_it_is_the_whole_log() -> None:
    """From the oldest message to the newest, which is in the last bucket."""
    world = World(0)
    world.change = lambda: None  # type: ignore[method-assign]
    found = histogram_of(world, None, None, 10)
    assert (found.first_id, found.last_id) == (min(world.rows), max(world.rows))
    assert found.oldest == (min(world.rows), min(world.rows))
    assert found.newest == (max(world.rows), max(world.rows))
    assert found.archived is None


def test_an_end_that_is_not_said_lies_behind_the_other() -> None:
    """A beginning after the newest message, and an end before the oldest one: a bucket without a message."""
    world = World(0)
    world.change = lambda: None  # type: ignore[method-assign]
    after, before = histogram_of(world, COUNT + 5, None, 10), histogram_of(world, None, 1, 10)
    assert [(b.time_ms, b.ids) for b in after.buckets] == [(COUNT + 5, 0)]
    assert [(b.time_ms, b.ids) for b in before.buckets] == [(0, 0)]


# --- Log and archive as one -----------------------------------------------------------------------------------------


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


@in_worlds()
async def test_pages_are_the_list(world: World) -> None:
    """Every id once, in order, wherever it has gone at the moment of its page."""
    history, _ = history_of(world)
    for _ in range(4):
        first = world.dice.randint(1, COUNT)
        assert await read_all(history, first) == world.logged(first, COUNT + 1)


@in_worlds()
async def test_newest_first_is_the_list_from_its_end(world: World) -> None:
    """Every id once, falling, wherever it has gone at the moment of its page."""
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


@in_worlds()
async def test_what_an_endpoint_alone_holds_has_its_place(world: World) -> None:
    """Beside what the log took, once, by the endpoint's routes; of the log, what another holds is not doubled."""
    history, _ = history_of(world)
    own = HeldMessages(lambda: [OWN_ROUTE, OTHER_ROUTE], lambda row: row[0] in world.held)
    found = await read_all(history, 1, own)
    assert found == sorted([*world.rows.values(), *world.held.values()])


@in_worlds(keeps=False)
async def test_what_is_lost_ends_the_read(world: World) -> None:
    """Where the log does not keep what is not archived, a reader has all that came before, and is told."""
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


@in_worlds()
async def test_messages_by_their_ids(world: World) -> None:
    """As many from the first on as a page holds, whoever has them; a store's own row is taken before the archive's."""
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


@in_worlds()
async def test_searches_tallies_and_probes(world: World) -> None:
    """The first message that a search takes, how much there is, and what starts are resolved by."""
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

        archive.submit = submit  # type: ignore[method-assign]
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


# --- Lists of the log, from either end, while log and archive change under every read -------------------------------

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


# --- Searches of the log take turns by user -------------------------------------------------------------------------


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
