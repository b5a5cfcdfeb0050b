"""A log and its archive that change at every read, and the list of what was published."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import structlog

from gateway.core.broker import Broker
from gateway.core.log import ArchivedRun, History, Retention
from gateway.core.message_cache import CacheBudget, MessageCache
from gateway.core.model import LogState, Row
from gateway.core.replay.search import Search
from gateway.vpn.history import LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.state import VpnState
from gateway.vpn.turns import UserTurns
from store.errors import LogTrimmed, ReadFailed
from store.ports import MAX_ID, Archive, LogPage, Reader, SearchPage, TallyPage, TopicPage
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.naive_reader import NaivePages

T = TypeVar("T")

GENERATION = 3
COUNT = 60
OWN_ROUTE, OTHER_ROUTE = 5, 6


class World:
    """
    What was published, and where it is: in the log from ``first_id`` on, in the archive up to ``archived``.

    Args:
        keeps: Nothing is trimmed that is not archived.
    """

    def __init__(self, seed: int, *, keeps: bool = True) -> None:
        self.dice = random.Random(seed)
        self.keeps = keeps
        self.state = LogState(GENERATION, 1, COUNT + 1, 0, 0)
        self.below = self.first_id = 1
        """Up to where trimming is ordered, and where the store has trimmed; ``state`` learns of it later."""
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
        """Logged messages that were trimmed, and that another endpoint still holds."""

    def change(self) -> None:
        """Archive something, order a trim, carry it out, or let it become known; several of these, or nothing."""
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

    @property
    def messages(self) -> dict[int, Row]:
        """The messages in the store."""
        logged = {i: row for i, row in self.rows.items() if i >= self.first_id}
        return logged | self.still_held | self.held

    def logged(self, position: int, end: int) -> list[Row]:
        """All messages that were ever logged, of these ids."""
        return [self.rows[i] for i in range(position, min(end, COUNT + 1)) if i in self.rows]

    def page(self, rows: list[Row], end: int) -> LogPage:
        """A page of random size."""
        count = self.dice.randint(1, 7)
        return LogPage(rows[:count], rows[count - 1][0] + 1) if len(rows) >= count else LogPage(rows, end)

    def topics(self, before: int, first: int) -> TopicPage:
        """A page of random size, the newest first."""
        stop = max(first, before - self.dice.randint(1, 9))
        return TopicPage([(row[0], row[2]) for row in reversed(self.logged(stop, before))], stop)


class _Pool:
    """Answers immediately, after something has changed."""

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


class ChangingStore(NaivePages, _Pool):
    """A store whose pages have random sizes."""

    def __init__(self, world: World) -> None:
        _Pool.__init__(self, world)
        self._store = world

    @property
    def _page_rows(self) -> int:
        return self.world.dice.randint(1, 7)

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        world = self.world
        page = world.page(world.logged(max(position, world.first_id), end), end)
        found = next((row[0] for row in page.rows if search.takes(row)), None)
        return SearchPage(found, page.position)

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        if self.world.first_id >= before:
            raise LogTrimmed(before - 1, self.world.first_id)
        return self.world.topics(before, max(first, self.world.first_id))

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        rows = self.world.logged(self.world.first_id, MAX_ID)
        return [
            max([self.world.first_id, *(row[0] + 1 for row in rows if row[1] < time_ms)])
            for time_ms in times_ms
        ]


class ChangingArchive(_Pool):
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

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        rows = self.world.logged(1, self.look().last_id + 1)
        return [max([1, *(row[0] + 1 for row in rows if row[1] < time_ms)]) for time_ms in times_ms]

    def time_of(self, message_id: int) -> int | None:
        row = self.world.rows.get(message_id) if message_id <= self.look().last_id else None
        return None if row is None else row[1]

    def last_page(self, matches: Callable[[str], bool] | None, before: int) -> tuple[int | None, int]:
        self._known(before - 1)
        first = max(before - self.world.dice.randint(1, 9), 1)
        rows = self.world.logged(first, before)
        return next((row[0] for row in reversed(rows) if matches is None or matches(row[2])), None), first


class _Broker:
    """What the broker knows of the log."""

    def __init__(self, world: World) -> None:
        self.history = History(world.state)
        self.retention = Retention(self.history)
        self.trimming = world


def state_of(world: World) -> tuple[VpnState, ChangingArchive]:
    """The state of a Message VPN with this log and archive, in the running loop."""
    archive, state = ChangingArchive(world), object.__new__(VpnState)
    state.broker = broker = cast("Broker", _Broker(world))
    state.reader = store = cast("Reader", ChangingStore(world))
    state.runtime = runtime = Runtime(asyncio.get_running_loop(), structlog.get_logger())
    state.search_turns = UserTurns()
    state.committer = state.settings = state.counters = state.tracing = cast("Any", None)
    state.cache = cache = MessageCache(CacheBudget(0), 1)
    state.history = LogHistory(broker, cache, store, cast("Archive", archive), runtime)
    return state, archive


def history_of(world: World) -> tuple[LogHistory, ChangingArchive]:
    """Log and archive as one history, in the running loop."""
    state, archive = state_of(world)
    return state.history, archive
