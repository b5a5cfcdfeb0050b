"""
What the readers of all engines share: a pool of threads, the bounds of a page, the steps of a search, and topic
patterns as conditions in SQL.

A search has three ways, from quick to thorough. The index of properties tells which messages to look at. Or SQL leaves
out all messages that lack certain bytes, which every match must contain, without any work in Python. Or every message
is read and evaluated. Each page is a few short statements, whatever it finds, so that a search of a long log is many
pages and stalls nothing between them.
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
"""Ids that a page may scan for matches: about 30 ms of a reader's time."""

HEADER_BYTES: Final = 512
"""The front of a content that contains its header."""

TOPIC_ROWS: Final = 10_000
"""Rows of a page that has topics or lengths without contents: some milliseconds."""

MOST_BY_ID: Final = 512
"""Messages that one statement looks up by their ids."""

MOST_MERGED: Final = 32
"""Routes whose messages are merged by the index; with more, looking at all messages is as quick (measured)."""

PAGE_CANDIDATES: Final = 256
"""Messages that one page of a search reads because the index or their bytes suggest a match."""

PAGE_SEGMENTS: Final = 256
"""Segments of the index that one page looks into: a few milliseconds."""

PAGE_IDS: Final = 10_000
"""Messages whose bytes one page of a search looks through, if they are small: some milliseconds."""

WIDER: Final = 4
"""If some segments, or some candidates, had no match, this many times as many are looked at next."""


def reads(read: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Decorates a method of the port: its errors become the port's errors."""

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
    Pages on a pool of threads, and the steps of a search; an engine adds the statements. See ``store.ports.Reader``.

    Private methods are called on a thread of the pool, inside ``carry_out``, which translates the engine's errors.
    """

    logged: ClassVar[str]
    """Condition for rows of ``message`` that the log holds."""
    joined: ClassVar[str]
    """See ``ShortTables``."""
    has_needle: ClassVar[str]
    """Condition for a content that contains some bytes (``?``)."""

    def __init__(
        self, name: str, options: StoreOptions, largest_bytes: int, indexed: Sequence[IndexedSpan] = ()
    ) -> None:
        """
        Args:
            name: Names the threads.
            options: The bounds of pages, and the number of threads.
            largest_bytes: The largest content that can be read; ``grow_largest`` is called before it grows.
        """
        self._indexed = indexed
        self._told = ""
        """Condition, after another one, for messages that were reported; empty if the store shows no others."""
        self._page_rows = options.page_rows
        self._page_bytes = options.page_bytes
        self.largest_bytes = largest_bytes
        """While a page full of contents of this size fits, the lengths of contents need not be read."""
        self.damage: str | None = None
        self._threads = options.read_threads
        self._pool = ThreadPoolExecutor(options.read_threads, thread_name_prefix=f"reader {name}")

    @property
    def standby_damage(self) -> str | None:
        """See ``store.ports.Reader``. This reader reads from no standby."""
        return None

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """See ``store.ports.Reader``."""
        return self._pool.submit(read)

    def drain(self) -> None:
        """See ``store.ports.Reader``."""
        drain(self._pool, self._threads)

    def grow_largest(self, size_bytes: int) -> None:
        """Called before a content of this size is written."""
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
        most = min(MOST_BY_ID, self._page_rows)
        ids = self._ids(
            "select message from last_value where cursor = ? and message >= ? and message < ? "
            "and (expires is null or expires > ?) order by message limit ?",
            [cursor, position, end, now_ms, most],
        )
        rows = self.messages(ids)
        if len(rows) < len(ids) and rows:
            return LogPage(
                rows, rows[-1][ID] + 1
            )  # the page was full of bytes, or some were deleted meanwhile
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
        # Read the log's beginning last: messages that were trimmed before they could be read are below it.
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
            # What was trimmed cannot be a start; the search goes on with the rest of the log.
            return SearchPage(None, min(trimmed.first_id, end))
        work = PageWork()
        return first_taken(page.rows, search, work) or SearchPage(None, page.position, work.unknown)

    def _look_up(
        self, search: Search, span: IndexedSpan, texts: Sequence[str], position: int, stop: int
    ) -> SearchPage:
        """Look at the messages that the index has under one of these texts."""
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
        """Look at the messages that contain one of the search's needles."""
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
        """The result of looking at candidates; None if none of them matches and there are no more."""
        start, count = 0, 1
        while start < len(ids):
            # The first candidate is nearly always the match, and contents may be large.
            wanted = ids[start : start + count]
            rows = self._logged(wanted)
            page = first_taken(rows, search, work)
            if page is not None:
                return page
            # Fewer rows than ids: the page was full of bytes, or some were trimmed meanwhile.
            is_whole = len(rows) == len(wanted) or not rows
            start = start + len(wanted) if is_whole else bisect_right(ids, rows[-1][ID])
            count = min(count * WIDER, PAGE_CANDIDATES)
        if len(ids) == PAGE_CANDIDATES:
            return SearchPage(None, min(ids[-1] + 1, stop), work.unknown)
        return None

    # --- the parts of pages ------------------------------------------------------------------------------------------

    def _first_id(self) -> int:
        """The first id of the log."""
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
        """The first id, below ``stop``, up to which contents from ``position`` on exceed the size; None without one."""
        # SQL tells lengths without reading contents.
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
        """The ids, in rising order, of logged messages that may match a pattern and contain one of the needles."""
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
        """The number that a query gives; None if it gives no row."""
        found = self._ids(sql, values)
        return found[0] if found else None

    def _fetch(self, columns: Mapping[str, type], query: str, values: Sequence[Any]) -> list[Any]:
        """The rows of a query, which may be many: ``columns`` are selected, none null; ``query`` begins at FROM."""
        return self._ask(tuple(columns.values()), f"select {', '.join(columns)} {query}", values)

    # --- what an engine implements -----------------------------------------------------------------------------------

    @abstractmethod
    def carry_out(self, read: Callable[[], T]) -> T:
        """
        Call a function that reads, on a thread of the pool.

        Raises:
            ReadFailed: In place of the engine's errors.
        """

    @abstractmethod
    def _ask(
        self, kinds: Sequence[type], sql: str, values: Sequence[Any], *, is_long: bool = False
    ) -> list[Any]:
        """
        The rows of a statement.

        Args:
            kinds: The types of its columns.
            values: For its ``?``.
            is_long: It may scan much.
        """

    @abstractmethod
    def _of_topics(self, patterns: Sequence[str]) -> tuple[str, list[Any]]:
        """
        SQL that follows another condition: it holds for every topic that one of the patterns matches, and for few other
        topics. Also returns its values.
        """

    @abstractmethod
    def _check_has(self, stop: int) -> None:
        """Check, where a store may be behind, that it has everything below ``stop``."""

    @abstractmethod
    def _logged(self, ids: Sequence[int]) -> list[Row]:
        """The logged messages with these ids, from the first on as many as a page holds."""

    @abstractmethod
    def _indexed_ids(
        self, span: IndexedSpan, texts: Sequence[str], segments: range, ids: range, limit: int
    ) -> list[int]:
        """The ids that the index has under one of these texts, in rising order."""


def next_position(rows: Sequence[Row], stop: int, *, is_whole: bool) -> int:
    """
    The next id to be read after a page.

    Args:
        rows: The page's rows.
        stop: The page covers ids below this one.
        is_whole: The page has everything that it was to find there.
    """
    return stop if is_whole or not rows else rows[-1][ID] + 1


def first_taken(rows: Sequence[Row], search: Search, work: PageWork) -> SearchPage | None:
    """How a search ends among these rows; None if it goes on after them."""
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
        found: (id, topic) below ``before``, down to ``stop``, in falling order; no more than ``limit``.
        first_id: The log's first id, read afterwards: messages below it may have been trimmed before they were read.

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
    """Split a text into ``count`` texts, none of which contains the separator."""
    first, _, _ = joined.partition(separator)
    if joined == separator.join([first] * count):
        return [first] * count
    return joined.split(separator)


def distinct(texts: Sequence[str]) -> Collection[str]:
    """Each of these texts once; there must be at least one."""
    first = texts[0]
    return (first,) if texts.count(first) == len(texts) else set(texts)


def cut_blob(joined: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Split bytes into pieces of these lengths; there must be at least one."""
    length = lengths[0]
    if lengths.count(length) == len(lengths):
        # Takes a third of the time.
        return list(Struct(f"{length}s" * len(lengths)).unpack(joined))
    return [joined[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


MOST_LITERALS: Final = 1_000
MOST_WILDCARDS: Final = 32
"""Topic patterns that an engine turns into SQL. With more, reading everything and matching in the caller is quicker."""


def named_topics(
    patterns: Sequence[str], literal: Callable[[str], str], anything: str
) -> tuple[list[str], list[str]] | None:
    """
    Conditions for topic patterns: literal topics, and wildcard texts. Every topic that a pattern matches is among the
    literals, or matches a wildcard text. Few other topics do: a wildcard also takes ``/``, so the caller has to match
    again. Exceptions (``!``) are left to the caller.

    Args:
        literal: Escapes a text for use in a wildcard text.
        anything: The wildcard for any text.

    Returns:
        None if every topic has to be read, for instance because of very many patterns. Two empty lists mean the same.
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
            # > may stand for nothing: a/> matches the topic a/ with its empty last level.
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
    Wait until everything that was submitted to a pool earlier is done. Every thread of the pool has to reach a barrier,
    and reaches it only after earlier work, because a pool is first in, first out.

    Args:
        threads: The number of the pool's threads.

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
            # The pool was shut down meanwhile: release the threads that wait at the barrier.
            barrier.abort()
