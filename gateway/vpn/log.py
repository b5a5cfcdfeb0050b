"""
The replay log of a Message VPN as clients and administrators ask for it: what it holds, where a replay starts, points,
lists of messages, and when they came.

The log is read off the loop, page by page. At most one reader thread of a Message VPN searches or lists, however many
ask: users take turns, a page each. Beside live traffic a search rests after a page for as long as the page took. A long
one says how far it is, every few seconds; its attach waits meanwhile, and it ends with its connection.
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
from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import History
from gateway.core.model import HELD, ID, ListedPoint, Point, Row
from gateway.core.replay.reading import topic_matcher
from gateway.core.replay.search import PageWork, Search, search_for
from gateway.core.replay.starts import (
    LogFacts,
    LogProbe,
    Resolved,
    check_is_whole,
    check_start,
    is_before_log,
    last_of,
    resolve,
)
from gateway.logging import log_keys
from gateway.vpn.committer import Committer
from gateway.vpn.history import LogHistory
from gateway.vpn.runtime import Counters, Runtime
from gateway.vpn.turns import ADMINISTRATION, UserTurns
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import Reader


@dataclass(frozen=True, slots=True)
class SearchShared:
    """What all searches of a Message VPN's log have in common."""

    reader: Reader
    history: LogHistory
    counters: Counters
    runtime: Runtime
    turns: UserTurns
    """Held by the one search that reads a page of the log."""


class PagedSearch(ABC):
    """
    A search of the log as it is now: what is published meanwhile is not looked at.

    Args:
        user: Whose it is.
        patterns: The topics that are looked at.
        facts: The log, or the part of it that is looked at.
    """

    def __init__(
        self, shared: SearchShared, user: str, start: ReplayStart, patterns: Sequence[str], facts: LogFacts
    ) -> None:
        self._shared = shared
        self._user = user
        self._unknown = 0
        self._patterns = patterns
        self._first, self._end = facts.first_id, facts.next_id
        self._log = shared.runtime.log.bind(**{log_keys.START: str(start)})

    async def run(self) -> int | None:
        """The id of the message that is looked for."""
        counters, clock = self._shared.counters, self._shared.runtime.loop.time
        began = reported = clock()
        found: int | None = None
        while found is None and self._first < self._end:
            activity = counters.activity
            async with self._shared.turns.turn(self._user):
                page_began = clock()
                found = await self._read_page()
                now = clock()
            if now - reported >= self._shared.runtime.tuning.search_progress_seconds and found is None:
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
        """Look at a page of what is left between ``_first`` and ``_end``, and make that less."""

    def _left(self) -> int | None:
        """What is taken where the search came to its end."""
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

    def __init__(
        self,
        shared: SearchShared,
        user: str,
        start: ReplayStart,
        search: Search,
        patterns: Sequence[str],
        facts: LogFacts,
    ) -> None:
        super().__init__(shared, user, start, patterns, facts)
        self._search = search

    async def _read_page(self) -> int | None:
        history = self._shared.history
        try:
            page = await history.search_page(self._search, self._patterns, self._first, self._end, self._user)
        except LogTrimmed as trimmed:
            # What is gone is no start; the search goes on with what is left.
            self._first = min(trimmed.first_id, self._end)
            return None
        self._first = page.position
        self._unknown += page.unknown
        return page.found


class CountBack(PagedSearch):
    """
    Counts messages from the newest one back; where there are fewer than asked for, the oldest of them is found.

    Args:
        count: So many.
        matches: Whether a topic counts; None when every topic does.
    """

    def __init__(
        self,
        shared: SearchShared,
        user: str,
        start: ReplayStart,
        count: int,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        facts: LogFacts,
    ) -> None:
        super().__init__(shared, user, start, patterns, facts)
        self._count = count
        self._matches = matches
        self._oldest: int | None = None
        """Of those that were counted."""

    async def _read_page(self) -> int | None:
        try:
            page = await self._shared.history.topics_below(self._end, self._first, self._patterns, self._user)
        except LogTrimmed:
            # What is left of the count is gone.
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


CHUNK: Final = 256
"""Messages that are read at once, if they are small."""


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
    Which messages.

    Attributes:
        patterns: Their topics, for the store to look for.
        matches: Whether a topic is one of them.
        accepts: What else holds for each, by a selector.
    """

    patterns: Sequence[str]
    matches: Callable[[str], bool]
    accepts: Search | None = None


class LogListing:
    """Lists of one Message VPN's log."""

    def __init__(self, shared: SearchShared) -> None:
        self._history = shared.history
        self._reader = shared.reader
        self._turns = shared.turns

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
        if not rows or (rows[0][HELD] is not None and not self._history.is_archived(message_id)):
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
                async with self._turns.turn(ADMINISTRATION):
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
                async with self._turns.turn(ADMINISTRATION):
                    page = await self._history.topics_below(before, first, wanted.patterns)
            except LogTrimmed:
                break
            ids = [number for number, topic in page.found if wanted.matches(topic)]
            while ids:
                chunk = ids[:size]
                async with self._turns.turn(ADMINISTRATION):
                    rows = await asyncio.wrap_future(self._history.messages(chunk[::-1]))
                    if len(chunk) > 1 and (not rows or rows[-1][ID] != chunk[0]):
                        # They are too large for one page, or some are gone; the newest of them is wanted first.
                        size = max(len(chunk) // 4, 1)
                        continue
                    # The log, or its archive, has them: that an endpoint holds one, too, is nothing to a list.
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
                # Whether there is one more may take long to see.
                return LoggedMessages(found, before if before > first else None)
        return LoggedMessages(found, None)

    async def _taken(self, wanted: Wanted, rows: Sequence[Row]) -> tuple[list[LoggedMessage], int | None]:
        """Those that are wanted; and the id of the first that was not asked, where a selector had taken its time."""
        selecting = partial(_select, wanted, rows)
        if wanted.accepts is None:
            return selecting()
        return await asyncio.wrap_future(self._reader.submit(selecting))


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
    """No message of it has a lower id."""
    ids: int
    """How many may be of it: one for each message, and those that the log does not have."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    Attributes:
        until_ms: The end of the last bucket, ms since the epoch; itself not in it.
        oldest: Of the log itself, with ``newest``; None where it is empty.
        archived: The oldest that the archive alone has; None where there is none.
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
        """No message of it has a lower id."""
        return self.buckets[0].first_id

    @property
    def last_id(self) -> int:
        """Nor a higher one; one less than ``first_id`` where nothing came."""
        return self.buckets[-1].first_id + self.buckets[-1].ids - 1


class LogHistogram:
    """Of one Message VPN's log, with its archive."""

    def __init__(self, shared: SearchShared, history: History) -> None:
        self._log_history = shared.history
        self._reader = shared.reader
        self._turns = shared.turns
        self._history = history
        self._now_ms = shared.runtime.clock.now_ms

    async def between(self, from_ms: int | None, until_ms: int | None, most: int) -> Histogram:
        """
        What came between two times, ms since the epoch.

        Args:
            from_ms: None for the beginning of log and archive.
            until_ms: After ``from_ms``; None for behind the newest message.
            most: Buckets, at most; each has a millisecond at least.

        Raises:
            store.errors.LogTrimmed, store.errors.ReadFailed: It cannot be read.
        """
        with suppress(ReadFailed):  # without the archive, then
            await self._log_history.look()
        async with self._turns.turn(ADMINISTRATION):
            oldest, newest = await asyncio.wrap_future(self._reader.submit(self._ends))
            archived = self._archived()
            start = archived or oldest
            until = until_ms if until_ms is not None else (newest.time_ms if newest else self._now_ms()) + 1
            since = from_ms if from_ms is not None else start.time_ms if start else until - 1
            if from_ms is None:
                since = min(since, until - 1)
            elif until_ms is None:
                until = max(until, since + 1)
            number = min(most, until - since)
            edges = [since + (until - since) * k // number for k in range(number + 1)]
            next_id = self._history.log.next_id
            places = [min(found, next_id) for found in await self._log_history.positions_since(edges)]
        buckets = [
            Bucket(time_ms, first, behind - first)
            for time_ms, (first, behind) in zip(edges, pairwise(places), strict=False)
        ]
        return Histogram(buckets, until, oldest, newest, archived)

    def _ends(self) -> tuple[Moment | None, Moment | None]:
        reader = self._reader
        oldest, newest = reader.first_since(0), reader.last_matching(None)
        if oldest is None or newest is None:
            return None, None
        times = reader.time_of(oldest), reader.time_of(newest)
        if times[0] is None or times[1] is None:
            return None, None  # They were trimmed meanwhile.
        return Moment(oldest, times[0]), Moment(newest, times[1])

    def _archived(self) -> Moment | None:
        history = self._history
        if not history.is_joined or history.archived is None:
            return None
        return Moment(history.archived.first_id, history.archived.first_ms)


T = TypeVar("T")


class MessageLog:
    def __init__(self, broker: Broker, committer: Committer, search: SearchShared) -> None:
        self._broker = broker
        self._committer = committer
        self._search = search
        self.listing = LogListing(search)
        """Lists of it, for people."""
        self.histogram = LogHistogram(search, broker.history)
        """When what is in it came, for people."""
        self._now_ms = search.runtime.clock.now_ms

    # --- what it holds --------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Which log this is: a replay id of another generation means nothing here."""
        return self._broker.log.generation

    @property
    def first_id(self) -> int:
        """The oldest id that may be read, in the log or in its archive."""
        return self._broker.history.first_id

    @property
    def next_id(self) -> int:
        """One past the last committed id."""
        return self._broker.log.next_id

    @property
    def reader(self) -> Reader:
        """Reads it, off the loop."""
        return self._search.reader

    async def off_loop(self, work: Callable[[], T]) -> T:
        """What is done with something that was read, on a thread that reads."""
        return await asyncio.wrap_future(self._search.reader.submit(work))

    def check_reads(self, without: str) -> None:
        """
        That what is logged can be read; ``without`` says what is not there as long as it cannot.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        self._broker.policy.check_reads(without)

    def facts(self, endpoint: Endpoint | None = None, patterns: Sequence[str] = ()) -> LogFacts:
        """
        What is known of log and archive without reading them.

        Args:
            endpoint: Of the part that it shows, where it is a stream.
            patterns: Of the topics that are asked for; none for all.
        """
        return self._broker.log_facts(endpoint, patterns)

    def patterns_of(self, endpoint: Endpoint) -> tuple[str, ...]:
        """The topics of an endpoint as patterns, to look for in the store."""
        return endpoint.topics.patterns

    def matcher_of(self, endpoint: Endpoint) -> Callable[[str], bool]:
        """Whether a topic is one of the endpoint's, by its subscriptions or, for a queue or stream, by its name."""
        return endpoint.topics.matches

    # --- where a replay starts ------------------------------------------------------------------------------------

    async def resolve_start(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        user: str = ADMINISTRATION,
        *,
        with_archive: bool = True,
    ) -> Resolved:
        """
        Where a replay of these topics starts, as it was asked for.

        Args:
            user: Who asks: of searches, users take turns.
            with_archive: Whether what lies before the log is looked for in its archive.

        Raises:
            Refused: It cannot start there.
        """
        resolved = await self._resolve(
            start, patterns, topic_matcher(patterns), user, with_archive=with_archive
        )
        return self._checked(start, resolved, None, patterns)

    async def resolve_start_on(
        self, endpoint: Endpoint, start: ReplayStart, user: str = ADMINISTRATION
    ) -> Resolved:
        """The same for what an endpoint subscribes to, its exceptions among it, and for the part a stream shows."""
        patterns = self.patterns_of(endpoint)
        resolved = await self._resolve(start, patterns, self.matcher_of(endpoint), user, endpoint)
        return self._checked(start, resolved, endpoint, patterns)

    def _checked(
        self, start: ReplayStart, resolved: Resolved, endpoint: Endpoint | None, patterns: Sequence[str]
    ) -> Resolved:
        """
        By what rules of retention have taken out of the log while it was looked at.

        Raises:
            Refused: START_MESSAGE_UNAVAILABLE, START_TIME_NOT_AVAILABLE.
        """
        taken_out = self.facts(endpoint, patterns).taken_out
        check_is_whole(start, resolved.first, taken_out)
        return replace(resolved, without_below=taken_out.below)

    async def _resolve(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        user: str,
        endpoint: Endpoint | None = None,
        *,
        with_archive: bool = True,
    ) -> Resolved:
        """
        A message-id or a selector is searched for first, and the newest messages are counted, in what the log holds at
        this moment.

        Args:
            patterns: The topics to be replayed.
            matches: Whether a topic is one of them; None when every topic is.
            endpoint: What is replayed or read, if it is not the log itself: a stream may show no more than a part.
            with_archive: Whether what lies before the log is looked for in its archive.
        """
        now_ms = self._now_ms()
        # What can be refused at once is refused before a search that may take minutes.
        facts = self.facts(endpoint, patterns)
        check_start(start, facts)
        with_archive = with_archive and self._search.history.archive is not None
        if with_archive and is_before_log(start, facts, now_ms):
            return await self._resolve_before_log(start, patterns, matches, user, endpoint, now_ms)
        found = await self._look_for(start, search_for(start, matches), patterns, matches, user, facts)
        facts, reader = self.facts(endpoint, patterns), self.reader
        probe: LogProbe = reader
        resolved = await asyncio.wrap_future(
            reader.submit(lambda: resolve(start, facts, probe, now_ms, matches, found))
        )
        if with_archive and self._broker.trimming.below > facts.log_first_id:
            # Some of it may have been trimmed before it was looked at.
            return await self._resolve_before_log(start, patterns, matches, user, endpoint, now_ms)
        return resolved

    async def _resolve_before_log(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        user: str,
        endpoint: Endpoint | None,
        now_ms: int,
    ) -> Resolved:
        """The same for a start that may lie in the archive: whoever asks for one waits until that was seen."""
        history = self._search.history
        try:
            await history.look(user)
            facts = self.facts(endpoint, patterns)
            found = await self._look_for(start, search_for(start, matches), patterns, matches, user, facts)
            facts = self.facts(endpoint, patterns)
            return await history.ask(
                lambda probe: resolve(start, facts, probe, now_ms, matches, found),
                matches,
                user,
                last=start.kind is StartKind.LAST,
            )
        except (LogTrimmed, ReadFailed) as error:
            self._search.runtime.report("archive_read_failed", error)
            raise Refused(
                ErrorCode.INTERNAL,
                f"the start may lie before the replay log, which {self.facts(endpoint, patterns).holds}, and its "
                "archive cannot be read now; the gateway's log says why; try again later",
            ) from None

    async def _look_for(
        self,
        start: ReplayStart,
        search: Search | None,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        user: str,
        facts: LogFacts,
    ) -> int | None:
        """The message of a start that has to be looked for; None where there is none, and for any other start."""
        if search is not None:
            return await LogSearch(self._search, user, start, search, patterns, facts).run()
        if start.kind is StartKind.NEWEST:
            count = int(start.value)  # type: ignore[arg-type]
            last = await self._last_of(start, facts, user)
            if last is not None:
                facts = replace(facts, next_id=min(facts.next_id, last + 1))
            return await CountBack(self._search, user, start, count, patterns, matches, facts).run()
        return None

    async def _last_of(self, start: ReplayStart, facts: LogFacts, user: str) -> int | None:
        """The end up to which the newest messages are counted."""
        now_ms, history, reader = self._now_ms(), self._search.history, self.reader
        if start.until is None:
            return None
        if history.archive is not None and facts.first_id < facts.log_first_id:
            return await history.ask(
                lambda probe: last_of(start, facts, probe, now_ms), None, user, last=False
            )
        return await asyncio.wrap_future(reader.submit(lambda: last_of(start, facts, reader, now_ms)))

    # --- points ---------------------------------------------------------------------------------------------------

    async def create_point(self, name: str, start: ReplayStart | None = None) -> Point:
        """
        Name a place in the log; returns when that is durable.

        Args:
            start: The place, in any way that a replay start says one; None (or live) for now.

        Raises:
            Refused: The name is taken or bad, the log has no such place, or the store could not write.
        """
        broker, now_ms = self._broker, self._now_ms()
        broker.points.check(name)
        position = time_ms = None
        if start is not None and start.kind is not StartKind.LIVE:
            resolved = await self.resolve_start(start, (">",))
            position, time_ms = resolved.first, resolved.time_ms
        point, effects = broker.points.create(name, position, time_ms, now_ms)

        def written(error: WriteFailed | None) -> None:
            if error is not None:
                broker.points.deleted(point)

        self._committer.commit(effects, written)
        await self._committer.committed()
        return point

    async def delete_point(self, name: str) -> None:
        """
        Take a name away; returns when that is durable.

        Raises:
            Refused: There is none of this name, or the store could not write.
        """
        points = self._broker.points
        point, effects = points.delete(name)

        def written(error: WriteFailed | None) -> None:
            if error is None:
                points.deleted(point)

        self._committer.commit(effects, written)
        await self._committer.committed()

    def points(self) -> list[ListedPoint]:
        """All points, in the order of the log."""
        points = self._broker.points
        in_order = sorted(points.values(), key=lambda point: (point.position, point.name))
        return [ListedPoint(point, points.is_trimmed(point)) for point in in_order]
