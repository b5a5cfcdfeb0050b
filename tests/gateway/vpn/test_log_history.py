"""Log and archive as one: against the list of what was published, while both change under every read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, cast

import pytest
import structlog

from amqp_ext.replay_start import parse_text
from gateway.core.log.history import ArchivedRun, History
from gateway.core.model import LogState, Row
from gateway.core.replay.search import Search, search_for
from gateway.core.replay.starts import LogProbe
from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from store.errors import LogTrimmed, ReadFailed
from store.ports import MAX_ID, Archive, LogPage, Reader, RoutedPage, SearchPage, TallyPage, TopicPage
from tests.support.messages import APPLICATION_PROPERTIES, data, section

T = TypeVar("T")

GENERATION = 3
COUNT = 60
OWN_ROUTE, OTHER_ROUTE = 5, 6


class World:
    """
    What was published, and who has it: the log from ``first_id`` on, the archive what is ``archived``.

    Args:
        keeps: Nothing is trimmed that is not archived.
    """

    def __init__(self, seed: int, *, keeps: bool = True) -> None:
        self.dice = random.Random(seed)
        self.keeps = keeps
        self.state = LogState(GENERATION, 1, COUNT + 1, 0, 0)
        self.below = self.first_id = 1
        """What is to be trimmed, and what the store has trimmed since; what is known of that outside follows later."""
        self.archived = 0
        self.rows: dict[int, Row] = {}
        self.held: dict[int, Row] = {}
        for i in range(1, COUNT + 1):
            content = section(APPLICATION_PROPERTIES, {"n": i}) + data(i)
            if self.dice.random() < 0.15:
                self.held[i] = (i, i, "held", 0, OWN_ROUTE, 1, content)
            elif self.dice.random() < 0.9:
                self.rows[i] = (i, i, self.dice.choice("ab"), 0, 0, None, content)
        self.still_held: dict[int, Row] = {}
        """Logged messages that were trimmed, and that another endpoint needs still."""

    def change(self) -> None:
        """Somebody archives, or orders a trim; it is carried out, or becomes known."""
        for _ in range(self.dice.randrange(4)):
            match self.dice.randrange(4):
                case 0:
                    self.archived = self.dice.randint(self.archived, COUNT)
                case 1:
                    most = self.archived + 1 if self.keeps else COUNT + 1
                    self.below = self.dice.randint(self.below, max(most, self.below))
                case 2:
                    for i in range(self.first_id, self.below):
                        if i in self.rows and self.dice.random() < 0.3:
                            self.still_held[i] = (*self.rows[i][:4], OTHER_ROUTE, 1, self.rows[i][6])
                    self.first_id = self.below
                case 3:
                    self.state.first_id = self.first_id

    def logged(self, position: int, end: int) -> list[Row]:
        """Messages that the log had, of these ids."""
        return [self.rows[i] for i in range(position, min(end, COUNT + 1)) if i in self.rows]

    def page(self, rows: list[Row], end: int) -> LogPage:
        """As many as a page happens to have room for."""
        count = self.dice.randint(1, 7)
        return LogPage(rows[:count], rows[count - 1][0] + 1) if len(rows) >= count else LogPage(rows, end)

    def topics(self, before: int, first: int) -> TopicPage:
        """The newest ones, as many as a page happens to have room for."""
        stop = max(first, before - self.dice.randint(1, 9))
        return TopicPage([(row[0], row[2]) for row in reversed(self.logged(stop, before))], stop)


class _Pool:
    """Answers at once, after something has changed."""

    def __init__(self, world: World) -> None:
        self.world = world

    def submit(self, read: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()
        self.world.change()
        try:
            done.set_result(read())
        except Exception as error:
            done.set_exception(error)
        return done


class _Store(_Pool):
    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        world = self.world
        if position < world.first_id:
            raise LogTrimmed(position, world.first_id)
        rows = world.logged(position, end)
        if held:
            rows = sorted([*rows, *(row for i, row in world.held.items() if position <= i < end)])
        return world.page(rows, end)

    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> RoutedPage:
        held = {**self.world.still_held, **self.world.held}
        rows = [held[i] for i in sorted(held) if after < i < end and held[i][4] in routes]
        return RoutedPage(*self.world.page(rows, end))

    def messages(self, ids: Sequence[int]) -> list[Row]:
        world = self.world
        found = [world.rows.get(i) if i >= world.first_id else world.still_held.get(i) for i in ids]
        return [row for row in found if row is not None][: world.dice.randint(1, 9)]

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        world = self.world
        page = world.page(world.logged(max(position, world.first_id), end), end)
        found = next((row[0] for row in page.rows if search.takes(row)), None)
        return SearchPage(found, page.position)

    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        return [
            (row[2], 1, len(row[6])) for row in self.world.logged(max(position, self.world.first_id), end)
        ]

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        if self.world.first_id >= before:
            raise LogTrimmed(before - 1, self.world.first_id)
        return self.world.topics(before, max(first, self.world.first_id))

    def first_since(self, time_ms: int) -> int | None:
        return next(
            (row[0] for row in self.world.logged(self.world.first_id, MAX_ID) if row[1] >= time_ms), None
        )

    def time_of(self, message_id: int) -> int | None:
        row = self.world.rows.get(message_id)
        return row[1] if row is not None and message_id >= self.world.first_id else None

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        rows = self.world.logged(self.world.first_id, MAX_ID)
        return next((row[0] for row in reversed(rows) if matches is None or matches(row[2])), None)


class _Archive(_Pool):
    place, problem = "there", None

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.run: ArchivedRun | None = None
        self.is_away = False

    def close(self) -> None: ...

    def look(self) -> ArchivedRun:
        if self.is_away:
            raise ReadFailed("the archive is away")
        last = self.world.archived
        self.run = ArchivedRun(GENERATION if last else None, 1, last, 1)
        return self.run

    def _known(self, position: int) -> int:
        if position > self.look().last_id:
            raise LogTrimmed(position, self.world.archived + 1)
        return self.world.archived + 1

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        stop = min(self._known(position), end)
        return self.world.page(self.world.logged(position, stop), stop)

    def search_page(self, search: Search, position: int, end: int) -> SearchPage:
        page = self.log_page(position, end, ())
        found = next((row[0] for row in page.rows if search.takes(row)), None)
        return SearchPage(found, page.position if found is None else found + 1)

    def tally(self, position: int, end: int) -> TallyPage:
        page = self.log_page(position, end, ())
        return TallyPage([(row[2], 1, len(row[6])) for row in page.rows], page.position)

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        self._known(before - 1)
        return self.world.topics(before, first)

    def messages(self, ids: Sequence[int]) -> list[Row]:
        self._known(ids[0])
        rows = [self.world.rows[i] for i in ids if i in self.world.rows and i <= self.world.archived]
        return rows[: self.world.dice.randint(1, 9)]

    def first_since(self, time_ms: int) -> int | None:
        rows = self.world.logged(1, self.look().last_id + 1)
        return next((row[0] for row in rows if row[1] >= time_ms), None)

    def time_of(self, message_id: int) -> int | None:
        row = self.world.rows.get(message_id) if message_id <= self.look().last_id else None
        return None if row is None else row[1]

    def last_page(self, matches: Callable[[str], bool] | None, before: int) -> tuple[int | None, int]:
        self._known(before - 1)
        first = max(before - self.world.dice.randint(1, 9), 1)
        rows = self.world.logged(first, before)
        return next((row[0] for row in reversed(rows) if matches is None or matches(row[2])), None), first


def history_of(world: World) -> tuple[LogHistory, _Archive]:
    """Both as one, in the running loop."""
    archive = _Archive(world)
    runtime = Runtime(asyncio.get_running_loop(), structlog.get_logger())
    store = cast("Reader", _Store(world))
    history = History(world.state)
    return LogHistory(history, lambda: world.below, store, cast("Archive", archive), runtime), archive


async def read_all(history: LogHistory, position: int, routes: Any = None) -> list[Row]:
    """Everything from an id on, page by page."""
    found: list[Row] = []
    while position <= COUNT:
        page, _ = await asyncio.wrap_future(history.page(position, COUNT + 1, (), "ann", routes))
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
        found = await read_all(history, 1, lambda: [OWN_ROUTE, OTHER_ROUTE])
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
