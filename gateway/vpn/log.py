"""
What clients and administrators ask of a Message VPN's replay log: where a replay starts, points, lists of messages, and
when messages arrived.

The log is read off the loop, page by page. At most one reader thread of a Message VPN searches or lists, however many
users ask: they take turns, a page each. During live traffic a search pauses after each page for as long as the page
took. A long search logs its progress every few seconds; its attach waits meanwhile, and it ends with its connection.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from amqp_ext.message.fields import DEFAULT as DEFAULT_PRIORITY
from amqp_ext.message.fields import priority_of
from amqp_ext.message.json_rows import brief, is_erased
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import HELD, ID, ListedPoint, Point, Row
from gateway.core.replay import starts
from gateway.core.replay.reading import topic_matcher
from gateway.core.replay.search import PageWork, Search, search_for
from gateway.logging import log_keys
from gateway.vpn.state import VpnPart, VpnState
from gateway.vpn.turns import ADMINISTRATION
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import Reader

CHUNK: Final = 256
"""Messages that are read in one call, if they are small."""

T = TypeVar("T")


class MessageLog(VpnPart):
    def __init__(self, state: VpnState) -> None:
        super().__init__(state)
        self.listing = LogListing(state)
        """Lists of the log's messages, for people."""
        self.histogram = LogHistogram(state)
        """When the log's messages arrived, for people."""

    async def resolve_start(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        user: str = ADMINISTRATION,
        *,
        with_archive: bool = True,
    ) -> starts.Resolved:
        """
        Resolve the requested start of a replay of these topics.

        Args:
            user: Who asks: users take turns at searches.
            with_archive: Whether to look in the archive for what was before the log.

        Raises:
            Refused: It cannot start there.
        """
        search = StartSearch(self._state, start, patterns, topic_matcher(patterns), user)
        return await search.run(with_archive=with_archive)

    async def resolve_start_on(
        self, endpoint: Endpoint, start: ReplayStart, user: str = ADMINISTRATION
    ) -> starts.Resolved:
        """The same for an endpoint's subscriptions, with their exceptions, and for the part that a stream shows."""
        topics = endpoint.topics
        return await StartSearch(self._state, start, topics.patterns, topics.matches, user, endpoint).run()

    # --- points ---------------------------------------------------------------------------------------------------

    async def create_point(self, name: str, start: ReplayStart | None = None) -> Point:
        """
        Name a place in the log; returns when that is durable.

        Args:
            start: The place, in any form of a replay start; None (or live) for now.

        Raises:
            Refused: The name is taken or bad, the log has no such place, or the store could not write.
        """
        broker, now_ms = self._broker, self._state.runtime.clock.now_ms()
        broker.points.check(name)
        position = time_ms = None
        if start is not None and start.kind is not StartKind.LIVE:
            resolved = await self.resolve_start(start, (">",))
            position, time_ms = resolved.first, resolved.time_ms
        point, effects = broker.points.create(name, position, time_ms, now_ms)

        def written(error: WriteFailed | None) -> None:
            if error is not None:
                broker.points.deleted(point)

        await self._committer.committed(effects, written)
        return point

    async def delete_point(self, name: str) -> None:
        """
        Delete a point; returns when that is durable.

        Raises:
            Refused: There is no point of this name, or the store could not write.
        """
        points = self._broker.points
        point, effects = points.delete(name)

        def written(error: WriteFailed | None) -> None:
            if error is None:
                points.deleted(point)

        await self._committer.committed(effects, written)

    def points(self) -> list[ListedPoint]:
        """All points, in the order of the log."""
        points = self._broker.points
        in_order = sorted(points.values(), key=lambda point: (point.position, point.name))
        return [ListedPoint(point, points.is_trimmed(point)) for point in in_order]


@dataclass(eq=False)
class StartSearch:
    """
    Finds the place where a replay starts.

    If the start is a message-id or a selector, it searches what the log holds at that moment. If the start is a number
    of newest messages, it counts these.
    """

    state: VpnState
    start: ReplayStart
    patterns: Sequence[str]
    """The topics to be replayed."""
    matches: Callable[[str], bool] | None
    """Whether a topic is one of them; None when every topic is."""
    user: str
    """Who asks: users take turns at searches."""
    _endpoint: Endpoint | None = None
    """The endpoint that is replayed or read; None for the log itself. A stream may show only a part of the log."""

    def __post_init__(self) -> None:
        self._now_ms = self.state.runtime.clock.now_ms()

    async def run(self, *, with_archive: bool = True) -> starts.Resolved:
        """
        Args:
            with_archive: Whether to look in the archive for what was before the log.

        Raises:
            Refused: It cannot start there.
        """
        # Before a search that may take minutes, refuse what can be refused without it.
        facts = self._facts()
        starts.check_start(self.start, facts)
        with_archive = with_archive and self.state.history.archive is not None
        if with_archive and starts.is_before_log(self.start, facts, self._now_ms):
            resolved = await self._before_log()
        else:
            found = await self._look_for(facts)
            resolved = await self.state.read(self._resolve, self._facts(), found, self.state.reader)
            if with_archive and self.state.broker.trimming.below > facts.log_first_id:
                # Some messages may have been trimmed before they were looked at.
                resolved = await self._before_log()
        if self.state.told_anew is not None and self.start.kind is not StartKind.LIVE:
            # On a standby a rule's messages are gone a moment before this gateway knows which ones.
            await self.state.told_anew()
        # Retention rules may have removed messages from the log during the search.
        taken_out = self._facts().taken_out
        starts.check_is_whole(self.start, resolved.first, taken_out, self._now_ms)
        return replace(resolved, without_below=taken_out.below)

    def _facts(self) -> starts.LogFacts:
        return self.state.broker.log_facts(self._endpoint, self.patterns)

    def _resolve(self, facts: starts.LogFacts, found: int | None, probe: starts.LogProbe) -> starts.Resolved:
        return starts.resolve(self.start, facts, probe, self._now_ms, self.matches, found)

    async def _before_log(self) -> starts.Resolved:
        """The same for a start that may be in the archive: the caller waits for a look at the archive."""
        history, is_last = self.state.history, self.start.kind is StartKind.LAST
        try:
            await history.look(self.user)
            found = await self._look_for(self._facts())
            question = partial(self._resolve, self._facts(), found)
            return await history.ask(question, self.matches, self.user, last=is_last)
        except (LogTrimmed, ReadFailed) as error:
            self.state.runtime.report("archive_read_failed", error)
            raise Refused(
                ErrorCode.INTERNAL,
                f"the start may be before the replay log, which {self._facts().holds}, and its archive cannot "
                "be read now; the gateway's log says why; try again later",
            ) from None

    async def _look_for(self, facts: starts.LogFacts) -> int | None:
        """Search for the message of the start; None if there is none, or if this start needs no search."""
        search = search_for(self.start, self.matches)
        if search is not None:
            return await LogSearch(self, facts, search).run()
        if self.start.kind is not StartKind.NEWEST:
            return None
        last = await self._last_of(facts)
        if last is not None:
            facts = replace(facts, next_id=min(facts.next_id, last + 1))
        return await CountBack(self, facts, int(self.start.value)).run()  # type: ignore[arg-type]

    async def _last_of(self, facts: starts.LogFacts) -> int | None:
        """The end up to which the newest messages are counted."""
        start, now_ms, history = self.start, self.state.runtime.clock.now_ms(), self.state.history
        if start.until is None:
            return None

        def ask(probe: starts.LogProbe) -> int | None:
            return starts.last_of(start, facts, probe, now_ms)

        if history.archive is not None and facts.first_id < facts.log_first_id:
            return await history.ask(ask, None, self.user, last=False)
        return await self.state.read(ask, self.state.reader)


class PagedSearch(ABC):
    """
    A search of the log as it is now: messages published meanwhile are not looked at.

    Args:
        facts: The log, or the part of it to look at.
    """

    def __init__(self, asked: StartSearch, facts: starts.LogFacts) -> None:
        self._state = asked.state
        self._user = asked.user
        self._patterns = asked.patterns
        self._unknown = 0
        self._first, self._end = facts.first_id, facts.next_id
        self._log = asked.state.runtime.log.bind(**{log_keys.START: str(asked.start)})

    async def run(self) -> int | None:
        """Search; the id of the message, or None if there is none."""
        counters, clock = self._state.counters, self._state.runtime.loop.time
        began = reported = clock()
        found: int | None = None
        while found is None and self._first < self._end:
            activity = counters.activity
            async with self._state.search_turns.turn(self._user):
                page_began = clock()
                found = await self._read_page()
                now = clock()
            if now - reported >= self._state.runtime.tuning.search_progress_seconds and found is None:
                reported = now
                self._report("replay_search_progress", now - began)
            if found is None and counters.activity != activity:
                await asyncio.sleep(now - page_began)
        if found is None:
            found = self._left()
        self._report("replay_search", clock() - began, **{log_keys.FIRST: found})
        return found

    @abstractmethod
    async def _read_page(self) -> int | None:
        """Look at a page of the range from ``_first`` to ``_end``, and take it off the range."""

    def _left(self) -> int | None:
        """The result if the search reached its end without a hit."""
        return None

    def _report(self, event: str, seconds: float, **more: int | None) -> None:
        if self._unknown:
            more[log_keys.UNKNOWN] = self._unknown
        self._log.info(
            event,
            **{
                log_keys.OFFSET: self._first,
                log_keys.LAST: self._end - 1,
                log_keys.ELAPSED_MS: round(seconds * 1_000),
            },
            **more,
        )


class LogSearch(PagedSearch):
    """Looks for the first message that a search takes, from the beginning on."""

    def __init__(self, asked: StartSearch, facts: starts.LogFacts, search: Search) -> None:
        super().__init__(asked, facts)
        self._search = search

    async def _read_page(self) -> int | None:
        history = self._state.history
        try:
            page = await history.search_page(self._search, self._patterns, self._first, self._end, self._user)
        except LogTrimmed as trimmed:
            # A trimmed message is no start; the search goes on with what is left.
            self._first = min(trimmed.first_id, self._end)
            return None
        self._first = page.position
        self._unknown += page.unknown
        return page.found


class CountBack(PagedSearch):
    """
    Counts messages from the newest one back; if there are fewer than ``count``, it finds the oldest of them.

    Args:
        count: How many messages.
    """

    def __init__(self, asked: StartSearch, facts: starts.LogFacts, count: int) -> None:
        super().__init__(asked, facts)
        self._count = count
        self._matches = asked.matches
        self._oldest: int | None = None
        """The oldest message that was counted."""

    async def _read_page(self) -> int | None:
        try:
            page = await self._state.history.topics_below(self._end, self._first, self._patterns, self._user)
        except LogTrimmed:
            # The messages that are still to be counted are gone.
            self._end = self._first
            return None
        matches = self._matches
        ids = [number for number, topic in page.found if matches is None or matches(topic)]
        if len(ids) >= self._count:
            return ids[self._count - 1]
        if ids:
            self._count -= len(ids)
            self._oldest = ids[-1]
        self._end = page.position
        return None

    def _left(self) -> int | None:
        return self._oldest


class Order(enum.StrEnum):
    """Which message a list has first."""

    OLDEST = "oldest"
    NEWEST = "newest"


class LoggedMessage(NamedTuple):
    """What a list says of a message."""

    message_id: int
    time_ms: int
    topic: str
    priority: int
    size_bytes: int
    content_type: str | None
    correlation_id: str | None
    is_erased: bool


class LoggedMessages(NamedTuple):
    """A page of the list."""

    messages: list[LoggedMessage]
    position: int | None
    """Where the next page begins: the next id to be looked at, or the id below which to look; None at the end."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    Which messages a list is to have.

    Attributes:
        patterns: Their topics, for the store to look for.
        matches: Whether a topic is one of them.
        accepts: A selector that each of them has to pass.
    """

    patterns: Sequence[str]
    matches: Callable[[str], bool]
    accepts: Search | None = None


class LogListing(VpnPart):
    """Lists of one Message VPN's log."""

    async def one(self, message_id: int) -> Row | None:
        """
        A message of the log, or of its archive; None where neither has it.

        Raises:
            store.errors.ReadFailed: The log cannot be read.
        """
        if message_id < self._history.first_id:
            with suppress(ReadFailed):  # Then it is not known what the archive has.
                await self._history.look()
        if message_id < self._history.first_id:
            return None
        rows = await asyncio.wrap_future(self._history.messages([message_id]))
        if not rows or (rows[0][HELD] is not None and not self._state.broker.history.is_archived(message_id)):
            return None
        return rows[0]

    async def oldest_first(self, wanted: Wanted, position: int, end: int, count: int) -> LoggedMessages:
        """
        Messages from ``position`` on, below ``end``; at most ``count``.

        Raises:
            store.errors.ReadFailed: The log cannot be read.
        """
        position = max(position, self._history.first_id)
        found: list[LoggedMessage] = []
        while position < end:
            try:
                async with self._state.search_turns.turn(ADMINISTRATION):
                    page, _ = await asyncio.wrap_future(
                        self._history.page(position, end, list(wanted.patterns))
                    )
                    taken, stopped = await self._taken(wanted, page.rows)
            except LogTrimmed as trimmed:
                position = trimmed.first_id
                continue
            found += taken
            if len(found) > count:
                return LoggedMessages(found[:count], found[count].message_id)
            position = page.position if stopped is None else stopped
        return LoggedMessages(found, None)

    async def newest_first(self, wanted: Wanted, before: int, first: int, count: int) -> LoggedMessages:
        """
        Messages below ``before``, down to ``first``, their ids falling; at most ``count``.

        Raises:
            store.errors.ReadFailed: The log cannot be read.
        """
        found: list[LoggedMessage] = []
        size = CHUNK
        while before > first:
            try:
                async with self._state.search_turns.turn(ADMINISTRATION):
                    page = await self._history.topics_below(before, first, wanted.patterns)
            except LogTrimmed:
                break
            ids = [number for number, topic in page.found if wanted.matches(topic)]
            while ids:
                chunk = ids[:size]
                async with self._state.search_turns.turn(ADMINISTRATION):
                    rows = await asyncio.wrap_future(self._history.messages(chunk[::-1]))
                    if len(chunk) > 1 and (not rows or rows[-1][ID] != chunk[0]):
                        # They are too large for one page, or some are gone; the newest of them is wanted first.
                        size = max(len(chunk) // 4, 1)
                        continue
                    # The log or its archive has them; a list does not show that an endpoint holds one as well.
                    logged = [_as_logged(row) for row in reversed(rows)]
                    taken, stopped = await self._taken(wanted, logged)
                size = min(size * 2, CHUNK)
                found += taken
                if len(found) > count:
                    return LoggedMessages(found[:count], found[count].message_id + 1)
                passed = chunk[-1] if stopped is None else stopped + 1
                ids = [number for number in ids[: len(chunk)] if number < passed] + ids[len(chunk) :]
                if len(found) == count and ids:
                    return LoggedMessages(found, ids[0] + 1)
            before = page.position
            if len(found) == count:
                # To see whether there is one more may take long.
                return LoggedMessages(found, before if before > first else None)
        return LoggedMessages(found, None)

    async def _taken(self, wanted: Wanted, rows: Sequence[Row]) -> tuple[list[LoggedMessage], int | None]:
        """The wanted messages; and the id of the first one not looked at, if the selector used up its time."""
        selecting = partial(_select, wanted, rows)
        if wanted.accepts is None:
            return selecting()
        return await self._state.read(selecting)


def _as_logged(row: Row) -> Row:
    message_id, time_ms, topic, bare, route, _held, content = row
    return message_id, time_ms, topic, bare, route, None, content


def _select(wanted: Wanted, rows: Sequence[Row]) -> tuple[list[LoggedMessage], int | None]:
    work, found = PageWork(), list[LoggedMessage]()
    search = wanted.accepts
    for row in rows:
        message_id, _, topic, _, _, held, _ = row
        if held is not None or not wanted.matches(topic):
            continue
        if search is not None:
            if work.is_over:
                return found, message_id
            if not search.takes(row, work):
                continue
        found.append(summary(row))
    return found, None


def summary(row: Row) -> LoggedMessage:
    """What a list says of a message."""
    message_id, time_ms, topic, bare, _route, _held, content = row
    priority = priority_of(content) if bare else DEFAULT_PRIORITY
    content_type, correlation_id = brief(content, bare)
    return LoggedMessage(
        message_id,
        time_ms,
        topic,
        priority,
        len(content),
        content_type,
        correlation_id,
        bool(bare) and is_erased(content, bare),
    )


class Moment(NamedTuple):
    """A message of the log, and when it arrived, ms since the epoch."""

    message_id: int
    time_ms: int


class Bucket(NamedTuple):
    """What arrived from a time (ms since the epoch) on, until that of the next bucket."""

    time_ms: int
    first_id: int
    """No message of the bucket has a lower id."""
    ids: int
    """How many ids it spans: those of its messages, and ids that the log does not have."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    Attributes:
        until_ms: The end of the last bucket (excluded), ms since the epoch.
        oldest: The oldest message of the log itself, as ``newest``; None if the log is empty.
        archived: The oldest message that only the archive has; None if there is none.
    """

    buckets: Sequence[Bucket]
    until_ms: int
    oldest: Moment | None
    newest: Moment | None
    archived: Moment | None

    @property
    def from_ms(self) -> int:
        """Where the first bucket begins."""
        return self.buckets[0].time_ms

    @property
    def first_id(self) -> int:
        """No message of the histogram has a lower id."""
        return self.buckets[0].first_id

    @property
    def last_id(self) -> int:
        """No message of the histogram has a higher id; one less than ``first_id`` if no message arrived."""
        return self.buckets[-1].first_id + self.buckets[-1].ids - 1


def ends_of(reader: Reader) -> tuple[Moment | None, Moment | None]:
    """The oldest and the newest message of the log; called on a reader thread."""
    oldest, newest = reader.first_since(0), reader.last_matching(None)
    if oldest is None or newest is None:
        return None, None
    times = reader.time_of(oldest), reader.time_of(newest)
    if times[0] is None or times[1] is None:
        return None, None  # They were trimmed meanwhile.
    return Moment(oldest, times[0]), Moment(newest, times[1])


class LogHistogram(VpnPart):
    """Histograms of one Message VPN's log, with its archive."""

    async def between(self, from_ms: int | None, until_ms: int | None, most: int) -> Histogram:
        """
        What came between two times, ms since the epoch.

        Args:
            from_ms: None for the beginning of log and archive.
            until_ms: After ``from_ms``; None for just after the newest message.
            most: Buckets, at most; each spans a millisecond at least.

        Raises:
            store.errors.LogTrimmed, store.errors.ReadFailed: It cannot be read.
        """
        with suppress(ReadFailed):  # then without the archive
            await self._history.look()
        async with self._state.search_turns.turn(ADMINISTRATION):
            oldest, newest = await self._state.read(ends_of, self._reader)
            archived = self._archived()
            start, now_ms = archived or oldest, self._now_ms()
            until = until_ms if until_ms is not None else (newest.time_ms if newest else now_ms) + 1
            since = from_ms if from_ms is not None else start.time_ms if start else until - 1
            if from_ms is None:
                since = min(since, until - 1)
            elif until_ms is None:
                until = max(until, since + 1)
            number = min(most, until - since)
            edges = [since + (until - since) * k // number for k in range(number + 1)]
            next_id = self._broker.history.log.next_id
            places = [min(found, next_id) for found in await self._history.positions_since(edges)]
        buckets = [
            Bucket(time_ms, first, behind - first)
            for time_ms, (first, behind) in zip(edges, pairwise(places), strict=False)
        ]
        return Histogram(buckets, until, oldest, newest, archived)

    def _archived(self) -> Moment | None:
        run = self._broker.history.joined
        return None if run is None else Moment(run.first_id, run.first_ms)
