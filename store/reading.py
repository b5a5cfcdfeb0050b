"""
What the readers of every engine share: a pool of threads, the bounds of a page, the course of a search, and topic
patterns as an engine looks at topics.

A search has three ways, from quick to thorough: the index tells which messages to look at; bytes that must stand in a
message leave out all that have none of them, without a step of Python; else every message is read and asked. Each page
is a few short statements, whatever it finds, so that a search of a long log is many pages and holds nothing up between
them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial, wraps
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from gateway.core.effects import DelayedMessage
from gateway.core.model import ID, Row
from gateway.core.replay.search import PageWork, Search
from store.cursors import header_priority
from store.errors import DamagedMessage, LogTrimmed
from store.ports import MAX_ID, LengthPage, LogPage, SearchPage, StoreOptions, TopicPage
from store.property_index import SEGMENT_BITS, IndexedSpan, span_at

P = ParamSpec("P")
R = TypeVar("R", bound="PooledReader")
T = TypeVar("T")

SCAN_IDS: Final = 50_000
"""Ids a page may look at in search of matches: about 30 ms of a reader's time."""

HEADER_BYTES: Final = 512
"""Of a content, in which its header is."""

TOPIC_ROWS: Final = 10_000
"""Messages of which a page has the topics alone: some milliseconds."""

MOST_VALUES: Final = 512
"""Values that a page has: as many as the store gives messages by their ids."""

MOST_MERGED: Final = 32
"""Routes whose messages are merged by the index; with more, looking at all messages is as quick (measured)."""

PAGE_CANDIDATES: Final = 256
"""Messages that one page of a search reads because the index or their bytes speak for them."""

PAGE_SEGMENTS: Final = 256
"""Segments of the index that one page looks into: a few milliseconds."""

PAGE_IDS: Final = 10_000
"""Messages whose bytes one page looks through, if they are small: some milliseconds."""

WIDER: Final = 4
"""Where nothing was found among some segments, or some candidates, so many times as many are looked at next."""


def reads(read: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """What is read for the port: its errors are those of the port."""

    @wraps(read)
    def translated(reader: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return reader.carry_out(partial(read, reader, *args, **kwargs))
        except DamagedMessage as error:
            reader.damage = str(error)
            raise

    return translated


class PooledReader(ABC):
    """
    Pages on a pool of threads, and the course of a search; an engine has the statements. See ``store.ports.Reader``.

    What is not public is called by a thread of the pool, from within what an engine translates the errors of.
    """

    logged: ClassVar[str]
    """Condition for a row of ``message`` that the log holds."""
    joined: ClassVar[str]
    """See ``ShortTables``."""
    has_needle: ClassVar[str]
    """Condition for a content in which some bytes (``?``) are."""

    def __init__(
        self, name: str, options: StoreOptions, largest_bytes: int, indexed: Sequence[IndexedSpan] = ()
    ) -> None:
        """
        Args:
            name: Of its threads.
            options: The bounds of pages, and how many threads.
            largest_bytes: Of all contents that can be read; ``grow_largest`` says when it grows.
        """
        self._indexed = indexed
        self._told = ""
        """Condition for what the caller was told of, after another one, where there may be more."""
        self._page_rows = options.page_rows
        self._page_bytes = options.page_bytes
        self.largest_bytes = largest_bytes
        """While whole pages of it fit the bound, lengths need not be looked at."""
        self.damage: str | None = None
        self._threads = options.read_threads
        self._pool = ThreadPoolExecutor(options.read_threads, thread_name_prefix=f"reader {name}")

    @property
    def standby_damage(self) -> str | None:
        """See ``store.ports.Reader``: it reads no standby."""
        return None

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """See ``store.ports.Reader``."""
        return self._pool.submit(read)

    def drain(self) -> None:
        """See ``store.ports.Reader``."""
        drain(self._pool, self._threads)

    def grow_largest(self, size_bytes: int) -> None:
        """A content of this size is about to be there."""
        self.largest_bytes = max(self.largest_bytes, size_bytes)

    # --- pages -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """See ``store.ports.Reader``."""

    @reads
    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """See ``store.ports.Reader``."""
        stop = min(end, position + SCAN_IDS)
        self._check_has(stop)
        condition, values = self._of_topics(patterns)
        found = self._fetch(
            {"id": int, "topic": str, "length": int},
            "from (select id, topic, length(content) as length from message "
            f"where id >= ? and id < ? and {self.logged}{condition} order by id limit ?) as page",
            [position, stop, *values, TOPIC_ROWS],
        )
        return LengthPage(found, found[-1][0] + 1 if len(found) == TOPIC_ROWS else stop)

    @reads
    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        """See ``store.ports.Reader``."""
        self._check_has(end)
        condition, values = self._of_topics(patterns)
        return self._ask(
            (str, int, int),
            "select topic, count(*), sum(length(content)) from message "
            f"where id >= ? and id < ? and {self.logged}{condition} group by topic",
            [position, end, *values],
            is_long=True,
        )

    @reads
    def attempts(self, cursor: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        """See ``store.ports.Reader``."""
        return self._fetch(
            {"message": int, "count": int},
            "from attempt where cursor = ? and message between ? and ? order by message",
            [cursor, first, last],
        )

    @reads
    def delayed_page(
        self,
        cursor: int,
        after: tuple[int, int] = (0, 0),
        limit: int = 256,
        retries_below: int | None = None,
        until_ms: int | None = None,
    ) -> list[DelayedMessage]:
        """See ``store.ports.Reader``."""
        which, values = "cursor = ? and (due, message) > (?, ?)", [cursor, *after]
        if until_ms is not None:
            next_ms = "select min(due) from delayed where cursor = ? and due > ?"
            which, values = (
                f"{which} and due <= coalesce(({next_ms}), ?)",
                [*values, cursor, until_ms, until_ms],
            )
        if retries_below is not None:
            which, values = f"{which} and retry <> 0 and message < ?", [*values, retries_below]
        return self._delayed(f"{which} order by due, message limit ?", [*values, limit])

    @reads
    def delayed_message(self, cursor: int, message_id: int) -> DelayedMessage | None:
        """See ``store.ports.Reader``."""
        return next(iter(self._delayed("cursor = ? and message = ?", [cursor, message_id])), None)

    def _delayed(self, which: str, values: Sequence[int]) -> list[DelayedMessage]:
        numbers = ("due", "id", "size_bytes", "length", "bare", "attempts", "retry")
        found = self._fetch(
            dict.fromkeys(numbers, int) | {"front": bytes},
            "from (select due, id, size_bytes, length(content) as length, bare, coalesce(count, 0) as attempts, "
            f"retry, coalesce(substr(content, 1, {HEADER_BYTES}), content) as front "  # SQLite has null for no bytes
            f"from (select * from delayed where {which}) as waiting "
            f"{self.joined.format('id = waiting.message')} left join attempt "
            "on attempt.cursor = waiting.cursor and attempt.message = waiting.message) as page order by due, id",
            values,
        )
        return [
            DelayedMessage(due, i, counted, size, header_priority(front, bare), attempts, bool(retry))
            for due, i, counted, size, bare, attempts, retry, front in found
        ]

    @abstractmethod
    def messages(self, ids: Sequence[int]) -> list[Row]:
        """See ``store.ports.Reader``."""

    @reads
    def values_page(self, cursor: int, position: int, end: int, now_ms: int) -> LogPage:
        """See ``store.ports.Reader``."""
        most = min(MOST_VALUES, self._page_rows)
        ids = self._ids(
            "select message from last_value where cursor = ? and message >= ? and message < ? "
            "and (expires is null or expires > ?) order by message limit ?",
            [cursor, position, end, now_ms, most],
        )
        rows = self.messages(ids)
        if len(rows) < len(ids) and rows:
            return LogPage(rows, rows[-1][ID] + 1)  # a page's bytes were full, or some are gone meanwhile
        return LogPage(rows, ids[-1] + 1 if len(ids) == most else end)

    @reads
    def value_of(self, cursor: int, key: bytes) -> int | None:
        """See ``store.ports.Reader``."""
        return self._id("select message from last_value where cursor = ? and key = ?", cursor, key)

    @reads
    def first_since(self, time_ms: int) -> int | None:
        """See ``LogProbe``."""
        (position,) = self.positions_since([time_ms])
        return self._id(
            f"select id from message where id >= ? and {self.logged}{self._told} order by id limit 1",
            position,
        )

    @abstractmethod
    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """See ``store.ports.Reader``."""

    @reads
    def time_of(self, message_id: int) -> int | None:
        """See ``LogProbe``."""
        return self._id(f"select time from message where id = ? and {self.logged}", message_id)

    @reads
    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """See ``store.ports.Reader``."""
        self._check_has(before)
        stop = max(first, before - SCAN_IDS)
        found = self._newest_topics(before, stop, patterns, TOPIC_ROWS)
        # After it: what was trimmed before it was read is below.
        return falling(found, before, stop, TOPIC_ROWS, self._first_id())

    @reads
    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        """See ``LogProbe``."""
        before = 1 << 62
        while True:
            rows = self._newest_topics(before, 0, (), self._page_rows)
            for found, topic in rows:
                if matches is None or matches(topic):
                    return found
            if len(rows) < self._page_rows:
                return None
            before, _ = rows[-1]

    @reads
    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        """See ``store.ports.Reader``."""
        self._check_has(end)
        span, texts, end = span_at(self._indexed, search.keys, position, end)
        if span is not None:
            return self._look_up(search, span, texts, position, end)
        if search.needles:
            return self._scan(search, patterns, position, end)
        try:
            page = self.log_page(position, end, patterns)
        except LogTrimmed as trimmed:
            # What is gone is no start; the search goes on with what is left.
            return SearchPage(None, min(trimmed.first_id, end))
        work = PageWork()
        return first_taken(page.rows, search, work) or SearchPage(None, page.position, work.unknown)

    def _look_up(
        self, search: Search, span: IndexedSpan, texts: Sequence[str], position: int, stop: int
    ) -> SearchPage:
        """Look at messages that the index has under one of these texts."""
        work = PageWork()
        looked_at, width = 0, 1
        while looked_at < PAGE_SEGMENTS and position < stop:
            first = position >> SEGMENT_BITS
            last = min(first + width - 1, (stop - 1) >> SEGMENT_BITS)
            bound = min(stop, (last + 1) << SEGMENT_BITS)
            ids = self._indexed_ids(
                span, texts, range(first, last + 1), range(position, bound), PAGE_CANDIDATES
            )
            page = self._first_taken(search, ids, work, bound)
            if page is not None:
                return page
            position = bound
            looked_at += width
            width = min(width * WIDER, PAGE_SEGMENTS - looked_at)
        return SearchPage(None, position, work.unknown)

    def _scan(self, search: Search, patterns: Sequence[str], position: int, stop: int) -> SearchPage:
        """Look at messages that contain one of the search's needles."""
        stop = min(stop, position + PAGE_IDS)
        if self.largest_bytes * PAGE_IDS > self._page_bytes:
            last = self._last_fitting(position, stop, self._page_bytes)
            stop = stop if last is None else last + 1
        ids = self._needle_ids(search.needles, patterns, range(position, stop), PAGE_CANDIDATES)
        work = PageWork()
        return self._first_taken(search, ids, work, stop) or SearchPage(None, stop, work.unknown)

    def _first_taken(
        self, search: Search, ids: Sequence[int], work: PageWork, stop: int
    ) -> SearchPage | None:
        """What came of looking at candidates; None where the search takes none of them, and these were all."""
        start, count = 0, 1
        while start < len(ids):
            # The first one is nearly always it, and contents may be large.
            wanted = ids[start : start + count]
            rows = self._logged(wanted)
            page = first_taken(rows, search, work)
            if page is not None:
                return page
            # Fewer rows than ids: a page's bytes were full, or some were trimmed meanwhile.
            is_whole = len(rows) == len(wanted) or not rows
            start = start + len(wanted) if is_whole else bisect_right(ids, rows[-1][ID])
            count = min(count * WIDER, PAGE_CANDIDATES)
        if len(ids) == PAGE_CANDIDATES:
            return SearchPage(None, min(ids[-1] + 1, stop), work.unknown)
        return None

    # --- what they are made of ---------------------------------------------------------------------------------------

    def _first_id(self) -> int:
        """Where the log begins."""
        (first_id,) = self._ids("select first_id from log", [])
        return first_id

    def _newest_topics(
        self, before: int, stop: int, patterns: Sequence[str], limit: int
    ) -> list[tuple[int, str]]:
        """(id, topic) of logged messages below ``before``, down to ``stop``, the newest first."""
        condition, values = self._of_topics(patterns)
        return self._fetch(
            {"id": int, "topic": str},
            f"from message where id >= ? and id < ? and {self.logged}{self._told}{condition} "
            "order by id desc limit ?",
            [stop, before, *values, limit],
        )

    def _last_fitting(self, position: int, stop: int, size_bytes: int) -> int | None:
        """The id from ``position`` on, below ``stop``, with which there is more content than this, if there is."""
        # Lengths are known without the contents.
        return self._id(
            "select min(id) from (select id, sum(length(content)) over (order by id) as total from message "
            "where id >= ? and id < ?) as page where total > ? having count(*) > 0",
            position,
            stop,
            size_bytes,
        )

    def _needle_ids(
        self, needles: Sequence[bytes], patterns: Sequence[str], ids: range, limit: int
    ) -> list[int]:
        """Those of some ids, rising, whose messages are logged, may match a pattern, and have one of these bytes."""
        condition, values = self._of_topics(patterns)
        any_needle = " or ".join([self.has_needle] * len(needles))
        return self._ids(
            f"select id from message where id >= ? and id < ? and {self.logged}{condition} and ({any_needle}) "
            "order by id limit ?",
            [ids.start, ids.stop, *values, *needles, limit],
        )

    def _ids(self, sql: str, values: Sequence[Any]) -> list[int]:
        return [found for (found,) in self._ask((int,), sql, values)]

    def _id(self, sql: str, *values: int | bytes) -> int | None:
        """The one number that a query gives; None when there is no row."""
        found = self._ids(sql, values)
        return found[0] if found else None

    def _fetch(self, columns: Mapping[str, type], query: str, values: Sequence[Any]) -> list[Any]:
        """Rows of a query, from its FROM on, that may be many; ``columns``: what to select, none of it null."""
        return self._ask(tuple(columns.values()), f"select {', '.join(columns)} {query}", values)

    # --- what an engine does of it -----------------------------------------------------------------------------------

    @abstractmethod
    def carry_out(self, read: Callable[[], T]) -> T:
        """
        Read something; from within a thread of the pool.

        Raises:
            ReadFailed: For whatever the engine raises.
        """

    @abstractmethod
    def _ask(
        self, kinds: Sequence[type], sql: str, values: Sequence[Any], *, is_long: bool = False
    ) -> list[Any]:
        """
        Rows of a statement.

        Args:
            kinds: Of its columns.
            values: For its ``?``.
            is_long: It may look at much.
        """

    @abstractmethod
    def _of_topics(self, patterns: Sequence[str]) -> tuple[str, list[Any]]:
        """
        Condition, after another one, that holds for every topic one of the patterns matches, and for few others; and
        its values.
        """

    @abstractmethod
    def _check_has(self, stop: int) -> None:
        """That what is below ``stop`` is there, where it may not be yet."""

    @abstractmethod
    def _logged(self, ids: Sequence[int]) -> list[Row]:
        """Those of some ids that the log holds, as many from the first on as a page holds."""

    @abstractmethod
    def _indexed_ids(
        self, span: IndexedSpan, texts: Sequence[str], segments: range, ids: range, limit: int
    ) -> list[int]:
        """Those of some ids, rising, that the index has under one of these texts."""


def next_position(rows: Sequence[Row], stop: int, *, is_whole: bool) -> int:
    """
    The next id to be read after a page.

    Args:
        rows: The page's.
        stop: It looked at ids below this one.
        is_whole: It has all that it looked for there.
    """
    return stop if is_whole or not rows else rows[-1][ID] + 1


def first_taken(rows: Sequence[Row], search: Search, work: PageWork) -> SearchPage | None:
    """How a search ends among these rows; None where it goes on behind them."""
    for row in rows:
        if work.is_over:
            return SearchPage(None, row[ID], work.unknown)
        if search.takes(row, work):
            return SearchPage(row[ID], row[ID] + 1, work.unknown)
    return None


def falling(found: Sequence[tuple[int, str]], before: int, stop: int, limit: int, first_id: int) -> TopicPage:
    """
    A page of topics, the newest first.

    Args:
        found: What was found below ``before``, down to ``stop``, falling; no more than ``limit``.
        first_id: The log's, as it was looked at afterwards: what is below may have been trimmed before it was read.

    Raises:
        LogTrimmed: The log has nothing below ``before``.
    """
    if first_id >= before:
        raise LogTrimmed(before - 1, first_id)
    reached = found[-1][0] if len(found) == limit else stop
    if reached >= first_id:
        return TopicPage(list(found), reached)
    return TopicPage([one for one in found if one[0] >= first_id], first_id)


def cut_texts(joined: str, separator: str, count: int) -> list[str]:
    """So many texts, which do not hold the separator, out of one."""
    first, _, _ = joined.partition(separator)
    if joined == separator.join([first] * count):
        return [first] * count
    return joined.split(separator)


def distinct(texts: Sequence[str]) -> Collection[str]:
    """Each of these texts once; there is one at least."""
    first = texts[0]
    return (first,) if texts.count(first) == len(texts) else set(texts)


def cut_blob(joined: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Blobs of these lengths, one at least, out of one."""
    length = lengths[0]
    if lengths.count(length) == len(lengths):
        # A third of the time.
        return list(Struct(f"{length}s" * len(lengths)).unpack(joined))
    return [joined[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


MOST_LITERALS: Final = 1_000
MOST_WILDCARDS: Final = 32
"""Topic patterns that an engine looks at for each message; with more, it is quicker to read them all and let the
caller's index decide."""


def named_topics(
    patterns: Sequence[str], literal: Callable[[str], str], anything: str
) -> tuple[list[str], list[str]] | None:
    """
    Topics, and texts of which one matches every topic that a pattern with wildcards matches, and few others: the
    wildcard also takes ``/``, so the caller has to match again. Exceptions (``!``) are left to the caller.

    Args:
        literal: Gives what stands for just this text in one with wildcards.
        anything: What stands for any text.

    Returns:
        None where every topic has to be looked at, very many patterns among the reasons; so it has where both lists
        are empty.
    """
    literals: list[str] = []
    wildcards: list[str] = []

    def level_text(level: str) -> str:
        return literal(level[:-1]) + anything if level.endswith("*") else literal(level)

    for pattern in patterns:
        if pattern == ">":
            return None
        if pattern.startswith("!"):
            continue
        levels = pattern.split("/")
        if levels[-1] == ">":
            # What > takes may be empty: a/> matches the topic a/ with its empty last level.
            wildcards.append("/".join([*map(level_text, levels[:-1]), anything]))
        elif any(level.endswith("*") for level in levels):
            wildcards.append("/".join(map(level_text, levels)))
        else:
            literals.append(pattern)
    if len(literals) > MOST_LITERALS or len(wildcards) > MOST_WILDCARDS:
        return None
    return literals, wildcards


def drain(pool: ThreadPoolExecutor, threads: int) -> None:
    """
    Wait until all that was submitted to a pool before is done. Each of its threads comes to a barrier; none of them
    does so before it is through with what came earlier, as a pool takes things in their order.

    Args:
        threads: Those of the pool.

    Raises:
        RuntimeError: The pool is shut down.
    """
    barrier = threading.Barrier(threads)

    def meet() -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait()

    for met in [pool.submit(meet) for _ in range(threads)]:
        try:
            met.result()
        except CancelledError:
            # It was shut down meanwhile: those that are at the barrier wait for nobody.
            barrier.abort()
