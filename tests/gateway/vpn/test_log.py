"""The log of a running Message VPN, and its committer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from amqp_ext.replay_start import parse_text
from amqp_ext.selector.selector import compile_selector
from gateway.core.effects import CountedUpTo, Effect, Publication
from gateway.core.errors import Refused
from gateway.core.model import Row
from gateway.core.replay.search import Search, search_for
from gateway.core.replay.starts import LogProbe
from gateway.vpn.committer import LINGER_SECONDS, LINGERING_EFFECTS, Committer
from gateway.vpn.history import HeldMessages, LogHistory
from gateway.vpn.log import Histogram, LoggedMessages, LogHistogram, LogListing, Wanted
from gateway.vpn.runtime import Counters, Runtime
from gateway.vpn.turns import UserTurns
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import Batch, LogPage, OnCommit
from tests.gateway.core.machines.step_loop import StepLoop
from tests.gateway.vpn.changing_log import COUNT, OTHER_ROUTE, OWN_ROUTE, World, history_of, state_of
from tests.store.effects import publication
from tests.support.chance import times

# --- The histogram of the log, while log and archive change at every read -------------------------------------------

WORLDS = times(60, 1_000)

Test = Callable[[World], Coroutine[Any, Any, None]]


def in_worlds(*, keeps: bool = True) -> Callable[[Test], Callable[[int], None]]:
    """Run the test on a loop in each of many worlds. ``keeps``: nothing is trimmed that is not archived."""

    def decorated(test: Test) -> Callable[[int], None]:
        @pytest.mark.parametrize("seed", range(WORLDS))
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


@pytest.mark.parametrize("seed", range(WORLDS))
def test_each_message_is_in_its_bucket(seed: int) -> None:
    """Wherever a message is at the moment of the read, its time and its id are those of its bucket."""
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
    """A start after the newest message, or an end before the oldest, gives one empty bucket."""
    world = World(0)
    world.change = lambda: None  # type: ignore[method-assign]
    after, before = histogram_of(world, COUNT + 5, None, 10), histogram_of(world, None, 1, 10)
    assert [(b.time_ms, b.ids) for b in after.buckets] == [(COUNT + 5, 0)]
    assert [(b.time_ms, b.ids) for b in before.buckets] == [(0, 0)]


# --- Log and archive as one history ---------------------------------------------------------------------------------


async def read_all(history: LogHistory, position: int, held: HeldMessages | None = None) -> list[Row]:
    """Read everything from an id on, page by page."""
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
    """Every id once, in order, wherever its message is when its page is read."""
    history, _ = history_of(world)
    for _ in range(4):
        first = world.dice.randint(1, COUNT)
        assert await read_all(history, first) == world.logged(first, COUNT + 1)


@in_worlds()
async def test_newest_first_is_the_list_from_its_end(world: World) -> None:
    """Every id once, in falling order, wherever its message is when its page is read."""
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
    """Messages that only this endpoint holds come in place; logged ones that another holds come once."""
    history, _ = history_of(world)
    own = HeldMessages(lambda: [OWN_ROUTE, OTHER_ROUTE], lambda row: row[0] in world.held)
    found = await read_all(history, 1, own)
    assert found == sorted([*world.rows.values(), *world.held.values()])


@in_worlds(keeps=False)
async def test_what_is_lost_ends_the_read(world: World) -> None:
    """If the log does not keep what is not archived, a reader gets everything before the gap, and is then told."""
    history, _ = history_of(world)
    position, found = 1, list[Row]()
    try:
        while position <= COUNT:
            page, _ = await asyncio.wrap_future(history.page(position, COUNT + 1, ()))
            found += page.rows
            position = page.position
    except LogTrimmed:
        # What was to be read is in neither.
        assert world.archived < position < world.below
    assert found == world.logged(1, position)


@in_worlds()
async def test_messages_by_their_ids(world: World) -> None:
    """A page of them, from the first on; a row of the store has precedence over one of the archive."""
    history, _ = history_of(world)
    for _ in range(5):
        rest = sorted(world.dice.sample(sorted(world.rows), 20))
        while rest:
            found = await asyncio.wrap_future(history.messages(rest))
            if not found:
                # It was trimmed after the store's answer, and is requested again.
                continue
            assert [row[0] for row in found] == rest[: len(found)]
            assert [row[6] for row in found] == [world.rows[i][6] for i in rest[: len(found)]]
            rest = rest[len(found) :]


@in_worlds()
async def test_searches_tallies_and_probes(world: World) -> None:
    """The first message that a search finds, how many messages there are, and the look-ups that resolve starts."""
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
            tally = await history.tally(position, min(position + 9, COUNT + 1), ())
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
    """Until it is available again; meanwhile the log's messages are read."""
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
    """A page that is cancelled before its turn is not read; the others are."""
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


# --- Lists of the log, from either end, while log and archive change at every read ----------------------------------

ALL = Wanted((), lambda topic: True)
SOME = Wanted(("a",), "a".__eq__, Search(compile_selector("n > 7 and n < 55")))


@pytest.mark.parametrize("seed", range(WORLDS))
@pytest.mark.parametrize("wanted", [ALL, SOME], ids=["all", "some"])
def test_a_list_has_each_message_once(seed: int, wanted: Wanted) -> None:
    """Page by page, from either end: all wanted messages in order, however small the pages that are read."""
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
    """The order in which users' pages are read; some searches are cancelled while they wait."""
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
    """With two turns there are two readers at a time, never more, and everyone gets a turn."""

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
    """Next to twenty searches of one user, another user's single search reads every second page."""
    read = order_of(["greedy"] * 20 + ["modest"], pages=10)
    places = [place for place, user in enumerate(read) if user == "modest"]
    assert len(read) == 210
    assert places[-1] <= 2 * 10 + 1


def test_searches_of_one_user_take_turns_too() -> None:
    """The searches of one user take turns page by page, in order."""
    assert order_of(["a", "a", "b"], pages=2) == ["a", "b", "a", "b", "a", "a"]


def test_a_search_that_is_given_up_leaves_the_turn_to_others() -> None:
    """Whether it waits or has just been given the turn, others do not wait for it."""
    for number in range(4):
        read = order_of(["a", "b", "a", "c"], pages=3, cancelled=frozenset({number}))
        assert len(read) >= 9


# --- Effects that linger before they are committed, and what takes them along -----------------------------------------


class Store:
    """A store and its writer, which commits when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[Batch] = []
        self.is_closed = False
        self.on_commit: OnCommit
        self.now: tuple[bool, WriteFailed | None] = (False, None)
        """The result of an immediate commit."""

    confirmed_at = None

    def start_writer(self, on_commit: OnCommit) -> Store:
        self.on_commit = on_commit
        return self

    def submit(self, batch: Batch) -> None:
        self.submitted.append(batch)

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        is_done, error = self.now
        if is_done and error is None:
            answer()
        return self.now

    def close(self) -> None:
        self.is_closed = True

    @property
    def effects(self) -> list[list[Effect]]:
        """The effects of each batch."""
        return [list(batch.effects) for batch in self.submitted]


class Loop(StepLoop):
    """A loop whose threads finish immediately."""

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        done.set_result(function(*args))
        return done


class Commits:
    """A committer on a loop that the test drives."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.store = Store()
        runtime = Runtime(self.loop, SimpleNamespace(error=lambda *_, **__: None))
        self.told: list[str] = []
        publications = SimpleNamespace(
            committed=lambda _: self.told.append("broker") or (), failed=lambda _: None
        )
        broker: Any = SimpleNamespace(publications=publications)
        cache: Any = SimpleNamespace(extend=lambda *_: None, skip=lambda _: None)
        store: Any = self.store
        self.committer = Committer(store, broker, cache, Counters(), runtime)

    def tell(self, what: str, error: WriteFailed | None) -> None:
        assert error is None
        self.told.append(what)


def published(number: int, publisher: Any, delivery: int) -> Publication:
    """A publication of one message, whose publisher waits."""
    found = publication(number, [b"x"], time_ms=1)
    found.receipt = (publisher, [delivery])
    return found


def effect(number: int) -> CountedUpTo:
    """An effect that nobody waits for."""
    return CountedUpTo(number)


@pytest.fixture
def commits() -> Iterator[Commits]:
    found = Commits()
    yield found
    found.loop.close()


def test_what_nobody_waits_for_is_gathered(commits: Commits) -> None:
    """Such effects go to the writer together, in order, ``LINGER_SECONDS`` after the first."""
    first, second = effect(1), effect(2)
    commits.committer.commit_when_convenient(first)
    commits.loop.advance(LINGER_SECONDS / 2)
    commits.committer.commit_when_convenient(second)
    commits.loop.advance(LINGER_SECONDS / 4)
    assert commits.store.effects == []
    commits.loop.advance(LINGER_SECONDS / 4)
    assert commits.store.effects == [[first, second]]


def test_what_is_waited_for_takes_along_what_was_ordered_before_it(commits: Commits) -> None:
    """
    A commit that somebody waits for goes immediately, after the lingering effects and together with them, and is
    reported when all are durable. Those are not submitted again later; a later effect lingers anew.
    """
    first, second, third = effect(1), effect(2), effect(3)
    commits.committer.commit_when_convenient(first)
    commits.committer.commit([second], partial(commits.tell, "second"))
    commits.loop.run()
    assert commits.store.effects == [[first, second]]
    assert commits.told == []
    commits.store.on_commit(commits.store.submitted, None)
    commits.loop.run()
    assert commits.told == ["second"]
    commits.committer.commit_when_convenient(third)
    for _ in range(2):
        commits.loop.advance(LINGER_SECONDS)
        assert commits.store.effects == [[first, second], [third]]
    assert not commits.loop.has_timers


def test_news_of_what_was_ordered_takes_it_along(commits: Commits) -> None:
    """A commit without effects, which is told when all before is durable, takes lingering effects along."""
    before = effect(1)
    commits.committer.commit_when_convenient(before)
    commits.committer.commit((), partial(commits.tell, "before"))
    commits.loop.run()
    assert commits.store.effects == [[before]]
    assert len(commits.store.submitted[0].then) == 1


def test_a_stop_waits_for_no_company(commits: Commits) -> None:
    """Lingering effects are with the writer before the store is closed."""
    last = effect(1)
    commits.committer.commit_when_convenient(last)
    with commits.loop.running():
        commits.loop.create_task(commits.committer.close())
    commits.loop.run()
    assert commits.store.effects == [[last]]
    assert commits.store.is_closed


def test_what_lingers_is_bounded(commits: Commits) -> None:
    """With ``LINGERING_EFFECTS`` of them, none lingers any longer."""
    effects = [effect(number) for number in range(LINGERING_EFFECTS)]
    for one in effects[:-1]:
        commits.committer.commit_when_convenient(one)
    commits.loop.run()
    assert commits.store.effects == []
    commits.committer.commit_when_convenient(effects[-1])
    commits.loop.run()
    assert commits.store.effects == [effects]


class Watching:
    """A publisher, and listeners to commits: notes what each is told, in order."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        self._told.append(f"accepted {deliveries}{' at once' if at_once else ''}")

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        self._told.append(f"not stored {deliveries}")

    def watch(self, committer: Committer) -> None:
        committer.when_committed.append(lambda endpoints, news: self._told.append("listeners"))
        committer.when_not_committed.append(lambda: self._told.append("listeners"))


def test_who_waits_for_one_message_is_answered_before_all_else(commits: Commits) -> None:
    """After an immediate commit the publisher is told first, and once."""
    watching = Watching(commits.told)
    watching.watch(commits.committer)
    commits.store.now = (True, None)
    commits.committer.add(published(1, watching, 7))
    commits.loop.run()
    assert commits.told == ["accepted [7] at once", "broker", "listeners"]


def test_publishers_of_many_are_answered_with_what_else_their_connections_write(commits: Commits) -> None:
    """Commits in the writer's thread are reported in their order."""
    watching = Watching(commits.told)
    watching.watch(commits.committer)
    commits.committer.add(published(1, watching, 7))
    commits.committer.add(published(2, watching, 8))
    commits.loop.run()
    assert commits.told == []
    commits.store.on_commit(commits.store.submitted, None)
    commits.loop.run()
    assert commits.told == ["broker", "accepted [7]", "broker", "accepted [8]", "listeners"]


def test_nobody_is_told_that_a_message_is_durable_which_is_not(commits: Commits) -> None:
    """An immediate commit that fails is reported like any other."""
    watching = Watching(commits.told)
    watching.watch(commits.committer)
    commits.store.now = (True, WriteFailed("the disk is full"))
    commits.committer.add(published(1, watching, 7))
    commits.loop.run()
    assert commits.told == ["not stored [7]", "listeners"]


class Mistaken(Watching):
    """A publisher, or another waiter, that raises an exception."""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        raise ValueError("a mistake")

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        raise ValueError("a mistake")

    def then(self, error: WriteFailed | None) -> None:
        raise ValueError("a mistake")


@pytest.mark.parametrize("is_on_the_spot", [True, False])
@pytest.mark.parametrize("error", [None, WriteFailed("the disk is full")])
def test_who_cannot_be_told_keeps_nobody_from_being_told(
    commits: Commits, error: WriteFailed | None, is_on_the_spot: bool
) -> None:
    """An exception in one link stops no other: the rest are told, pending bytes are freed, and listeners are called."""
    watching, mistaken = Watching(commits.told), Mistaken(commits.told)
    committer = commits.committer
    watching.watch(committer)
    commits.store.now = (is_on_the_spot, error)
    committer.add(published(1, mistaken, 7))
    committer.add(published(2, watching, 8))
    committer.commit([], mistaken.then)
    committer.commit([], lambda _: commits.told.append("then"))
    assert committer.pending_bytes > 0
    commits.loop.run()
    if commits.store.submitted:
        commits.store.on_commit(commits.store.submitted, error)
        commits.loop.run()
    answer = "accepted [8]" if error is None else "not stored [8]"
    assert [told.removesuffix(" at once") for told in commits.told if told != "broker"] == [
        answer,
        "then",
        "listeners",
    ]
    assert committer.pending_bytes == 0


def test_a_publisher_that_waits_for_room_is_remembered_once(commits: Commits) -> None:
    """However often it asks, and not any more after it has left: the store may be away for long."""
    committer, resumed = commits.committer, list[str]()

    class Waiting:
        def resume(self) -> None:
            resumed.append("resumed")

    staying, leaving = Waiting(), Waiting()
    committer.hold(committer._most_pending_bytes)
    for waiting in (staying, leaving, staying, leaving):
        assert committer.wait_for_room(waiting.resume)
    committer.forget(leaving.resume)
    committer.let_go(committer._most_pending_bytes)
    assert resumed == ["resumed"]
    assert not committer.wait_for_room(staying.resume)
