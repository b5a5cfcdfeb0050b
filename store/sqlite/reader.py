"""
Read-only readers: pages of the log and of routes, on a small pool of threads with a connection each.

Every read is short: an open cursor would keep the WAL from being begun anew. A page is bounded in rows and in bytes,
and in how much of the log it may scan for matches, so that no reader stalls another.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, wraps
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import apsw

from gateway.core.model import ID, Columns, Row
from gateway.core.replay.search import Search
from store.errors import DamagedMessage, LogTrimmed, ReadFailed
from store.ports import MAX_ID, DiskUse, LengthPage, LogPage, RoutedPage, SearchPage, TopicPage
from store.property_index import IndexedSpan, span_at
from store.reading import drain, falling, named_topics, next_position, searched
from store.sqlite.database import connect_reader, is_damage
from store.sqlite.packed import (
    CHECKED,
    INTEGER,
    LOGGED,
    MESSAGE,
    RISING,
    TEXT,
    Kind,
    fetch,
    fetch_sound,
    sound_row,
)
from store.sqlite.search import PAGE_IDS, look_up, scan

P = ParamSpec("P")
T = TypeVar("T")

SCAN_IDS: Final = 50_000
"""Ids a page may look at in search of matches: about 30 ms of a reader's time."""

TOPIC_ROWS: Final = 10_000
"""Messages of which a page has the topics alone: some milliseconds."""

FEW_ROWS: Final = 4
"""Below this rows are fetched one by one: packing them copies long contents for no gain."""

MOST_MERGED: Final = 32
"""Routes whose messages are merged by the index; with more, looking at all messages is as quick (measured)."""

NO_ROUTE: Final = -1
"""No message is on it: merges are filled up with it."""


def _reads(
    read: Callable[Concatenate[SqliteReader, P], T],
) -> Callable[Concatenate[SqliteReader, P], T]:
    """A page's errors are those of the port."""

    @wraps(read)
    def translated(reader: SqliteReader, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(reader, *args, **kwargs)
        except apsw.Error as error:
            reason = str(error)
            if is_damage(error):
                reader.damage = reason
            raise ReadFailed(reason) from error
        except DamagedMessage as error:
            reader.damage = str(error)
            raise
        except UnicodeDecodeError as error:
            reader.damage = f"a topic is no text any more ({error}); `rewind store check` names its message"
            raise ReadFailed(reader.damage) from error

    return translated


class SqliteReader:
    """Pages from one file."""

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        page_rows: int,
        page_bytes: int,
        largest_bytes: int,
        indexed: Sequence[IndexedSpan] = (),
    ) -> None:
        self._path = path
        self._indexed = indexed
        self._page_rows = page_rows
        self._page_bytes = page_bytes
        self.largest_bytes = largest_bytes
        """Of all contents that can be read: while whole pages of it fit the bound, lengths need not be looked at."""
        self.damage: str | None = None
        self.standby_damage: str | None = None
        self._local = threading.local()
        self._threads = threads
        self._open: list[apsw.Connection] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"reader {path.stem}")

    def submit(self, read: Callable[[], T]) -> Future[T]:
        return self._pool.submit(read)

    def drain(self) -> None:
        """See ``store.ports.Reader.drain``."""
        drain(self._pool, self._threads)

    def grow_largest(self, size_bytes: int) -> None:
        """A content of this size is about to be there."""
        self.largest_bytes = max(self.largest_bytes, size_bytes)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    @property
    def _connection(self) -> apsw.Connection:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect_reader(self._path)
            self._open.append(connection)
        return connection

    @_reads
    def disk(self) -> DiskUse:
        """What the file and its write-ahead log take, and what the file system gives a user who is not root."""
        ((pages, page_bytes),) = self._connection.execute(
            "select freelist_count, page_size from pragma_freelist_count, pragma_page_size"
        )
        try:
            size_bytes = sum(
                file.stat().st_size
                for file in (self._path, self._path.with_name(f"{self._path.name}-wal"))
                if file.exists()
            )
            system = os.statvfs(self._path.parent)
        except OSError as error:
            raise ReadFailed(str(error)) from error
        return DiskUse(size_bytes, pages * page_bytes, system.f_bavail * system.f_frsize)

    # --- pages ------------------------------------------------------------------------------------------------

    @_reads
    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """
        Logged messages from ``position`` on, below ``end``.

        Args:
            patterns: Topic patterns (Solace's); what matches none of them is mostly left out, but the caller must
                still match. None at all: every message.
            held: With them all that endpoints alone hold, whatever its topic.

        Raises:
            LogTrimmed: The log begins behind ``position``.
        """
        condition, values = topic_condition(patterns)
        stop = min(end, position + SCAN_IDS)
        wanted = f"(held is not null or (1{condition}))" if held else f"held is null{condition}"
        # In the same statement: what was trimmed before it is not in the page, and must not be missed in silence.
        where = f"id >= ? and id < ? and ? >= (select first_id from log) and {wanted}"
        rows, is_whole, columns = self._bounded(
            MESSAGE if held else LOGGED,
            f"from message where {where} order by id",
            [position, stop, position, *values],
            self._page_rows,
        )
        if not rows:
            ((first_id,),) = self._connection.execute("select first_id from log")
            if first_id > position:
                raise LogTrimmed(position, first_id)
        return LogPage(rows, next_position(rows, stop, is_whole=is_whole), columns)

    @_reads
    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        """
        Look for a logged message from ``position`` on, below ``end``.

        Args:
            patterns: The topics that the search looks at, as for ``log_page``.
        """
        span, texts, end = span_at(self._indexed, search.keys, position, end)
        if span is not None:
            return look_up(self._connection, search, span, texts, position, end)
        if search.needles:
            is_small = self.largest_bytes * PAGE_IDS <= self._page_bytes
            budget = None if is_small else self._page_bytes
            return scan(self._connection, search, topic_condition(patterns), position, end, budget)
        try:
            page = self.log_page(position, end, patterns)
        except LogTrimmed as trimmed:
            # What is gone is no start; the search goes on with what is left.
            return SearchPage(None, min(trimmed.first_id, end))
        return searched(page, search)

    @_reads
    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> RoutedPage:
        """
        Messages of some routes with ids above ``after`` and below ``end``, whether the log holds them or not.

        Args:
            routes: Numbers, rising. Few of them are merged; with very many, messages are looked at one by one.
            end: One past the last id the caller was told of: the file may know more already.
            limit: Fewer messages than a page holds.
        """
        most = self._page_rows if limit is None else min(limit, self._page_rows)
        if not routes:
            return RoutedPage([], end)
        if len(routes) > MOST_MERGED:
            stop = min(end, after + 1 + SCAN_IDS)
            query = "from message where id > ? and id < ? and +route in (select value from json_each(?)) order by id"
            values: list[int | str] = [after, stop, json.dumps(list(routes))]
        else:
            stop = end
            # Filled up to a power of two, so that a handful of prepared statements serves every number of routes.
            size = 1 << (len(routes) - 1).bit_length()
            query = _merge(size)
            values = [after, end, most, *routes, *repeat(NO_ROUTE, size - len(routes))]
        rows, is_whole, columns = self._bounded(MESSAGE, query, values, most)
        return RoutedPage(rows, next_position(rows, stop, is_whole=is_whole), columns)

    @_reads
    def messages(self, ids: Sequence[int]) -> list[Row]:
        """These messages (rising ids), as many from the first on as a page holds."""
        wanted = ids[: min(self._page_rows, 512)]
        if not wanted:
            return []
        # Filled up with the last one to a power of two, so that a handful of prepared statements serves every length.
        size = 1 << (len(wanted) - 1).bit_length()
        rows, _, _ = self._bounded(
            MESSAGE,
            f"from message where id in ({','.join('?' * size)}) order by id",
            [*wanted, *repeat(wanted[-1], size - len(wanted))],
            self._page_rows,
        )
        return rows

    @_reads
    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """
        Logged messages with ids below ``before``, down to ``first``, the newest first; contents are not read.

        Args:
            patterns: As for ``log_page``: topics that match none of them are mostly left out.

        Raises:
            LogTrimmed: The log has nothing below ``before`` any more.
        """
        condition, values = topic_condition(patterns)
        stop = max(first, before - SCAN_IDS)
        found: list[tuple[int, str]] = fetch(
            self._connection,
            {"id": INTEGER, "topic": TEXT},
            f"from message where id >= ? and id < ? and held is null{condition} order by id desc limit ?",
            [stop, before, *values, TOPIC_ROWS],
        )
        # After it: what was trimmed before it was read is below.
        ((first_id,),) = self._connection.execute("select first_id from log")
        return falling(found, before, stop, TOPIC_ROWS, first_id)

    @_reads
    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """
        Logged messages from ``position`` on, below ``end``, without their contents.

        Args:
            patterns: As for ``log_page``: topics that match none of them are mostly left out.
        """
        condition, values = topic_condition(patterns)
        stop = min(end, position + SCAN_IDS)
        found: list[tuple[int, str, int]] = fetch(
            self._connection,
            {"id": INTEGER, "topic": TEXT, "length": INTEGER},
            "from (select id, topic, length(content) as length from message "
            f"where id >= ? and id < ? and held is null{condition} order by id limit ?)",
            [position, stop, *values, TOPIC_ROWS],
        )
        return LengthPage(found, found[-1][0] + 1 if len(found) == TOPIC_ROWS else stop)

    @_reads
    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        """
        (topic, messages, bytes of content) of the logged messages from ``position`` on, below ``end``.

        Args:
            patterns: As for ``log_page``: topics that match none of them are mostly left out.
        """
        condition, values = topic_condition(patterns)
        query = (
            "select topic, count(*), sum(length(content)) from message "
            f"where id >= ? and id < ? and held is null{condition} group by topic"
        )
        found: list[Any] = self._connection.execute(query, [position, end, *values]).fetchall()
        return found

    @_reads
    def attempts(self, cursor: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        """
        (id, failed deliveries) of the messages from ``first`` to ``last`` that have any with this cursor's endpoint.
        """
        return fetch(
            self._connection,
            {"message": RISING, "count": INTEGER},
            "from attempt where cursor = ? and message between ? and ? order by message",
            [cursor, first, last],
        )

    def _bounded(
        self, columns: Mapping[str, Kind], query: str, values: list[int | str], limit: int
    ) -> tuple[list[Row], bool, Columns | None]:
        """Rows of a query within the page's bounds, whether that is all of them, and their columns if there are any."""
        if self.largest_bytes * limit <= self._page_bytes:
            rows, is_cut, found = self._rows(columns, query, values, limit)
            return rows, len(rows) < limit and not is_cut, found
        connection = self._connection
        connection.execute("begin")  # both statements see the same rows
        try:
            # Lengths come from the row headers: long contents are not read for it.
            lengths = fetch(
                connection,
                {"length": INTEGER},
                f"from (select length(content) as length {query} limit ?)",
                [*values, limit],
            )
            fitting = bisect_right(list(accumulate(length for (length,) in lengths)), self._page_bytes)
            fitting = min(max(fitting, 1), len(lengths))
            rows, is_cut, found = self._rows(columns, query, values, fitting)
        finally:
            if connection.in_transaction:  # an I/O error has ended it
                connection.execute("commit")
        return rows, fitting == len(lengths) < limit and not is_cut, found

    def _rows(
        self, columns: Mapping[str, Kind], query: str, values: list[int | str], limit: int
    ) -> tuple[list[Row], bool, Columns | None]:
        """
        Rows of a query, and whether they were cut short before one that is not what was written: what comes before it
        is sound, and the next page begins with it, and fails. Many have their columns with them.
        """
        query, values = f"{query} limit ?", [*values, limit]
        if limit >= FEW_ROWS:
            found = fetch_sound(self._connection, columns, query, values, self.largest_bytes)
            if found is not None:
                sound, unpacked = found
                return sound, False, unpacked
        rows: list[Row] = []
        one_by_one: list[Any] = self._connection.execute(f"select {CHECKED} {query}", values).fetchall()
        for checked in one_by_one:
            row = sound_row(checked)
            if row is None:
                error = DamagedMessage(checked[ID])
                self.damage = str(error)
                if rows:
                    return rows, True, None
                raise error
            rows.append(row)
        return rows, False, None

    def _number(self, query: str, value: int) -> int | None:
        """The one number that a query gives; None when there is no row."""
        rows: list[Any] = self._connection.execute(query, (value,)).fetchall()
        return rows[0][0] if rows else None

    # --- probes (gateway.core.replay.starts.LogProbe) ---------------------------------------------------------

    @_reads
    def first_since(self, time_ms: int) -> int | None:
        """The first logged id that arrived at ``time_ms`` or later: a binary search, as times never fall along ids."""
        probe = "select id, time from message where id >= ? order by id limit 1"
        connection = self._connection
        ((low, high),) = connection.execute("select min(id), (select max(id) from message) from message")
        if low is None:
            return None
        high += 1
        while low < high:
            middle = (low + high) // 2
            found: list[Any] = connection.execute(probe, (middle,)).fetchall()
            ((message_id, arrived_ms),) = found or [(middle, time_ms)]
            if arrived_ms >= time_ms:
                high = middle
            else:
                low = message_id + 1
        return self._number("select id from message where id >= ? and held is null order by id limit 1", low)

    @_reads
    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """See ``store.ports.Reader``; beside a busy interpreter many statements would each wait for their turn."""
        found: list[Any] = self._connection.execute(_POSITIONS_SINCE, [json.dumps(list(times_ms))]).fetchall()
        return [position for (position,) in found]

    @_reads
    def time_of(self, message_id: int) -> int | None:
        return self._number("select time from message where id = ? and held is null", message_id)

    @_reads
    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        connection = self._connection
        before = 1 << 62
        while True:
            rows: list[tuple[int, str]] = fetch(
                connection,
                {"id": INTEGER, "topic": TEXT},
                "from message where id < ? and held is null order by id desc limit ?",
                [before, self._page_rows],
            )
            for number, topic in rows:
                if matches is None or matches(topic):
                    return number
            if len(rows) < self._page_rows:
                return None
            before, _ = rows[-1]


_POSITIONS_SINCE: Final = """
    with recursive searched (number, time, low, high) as (
        select wanted.key, wanted.value, log.first_id,
            max(log.first_id, coalesce((select max(id) + 1 from message), 0))
            from json_each(?) as wanted, log
        union all
        select number, searched.time,
            iif(message.time < searched.time, message.id + 1, low),
            iif(message.time < searched.time, high, (low + high) / 2)
            from searched join message
            on message.id = (select min(id) from message where id >= (low + high) / 2)
            where low < high
    )
    select low from searched where low >= high order by number
"""
"""Below ``high`` there is a message in every step, so that each one halves what is left."""


@cache
def _merge(count: int) -> str:
    """
    Messages of so many routes: ids are merged by the index, and only rows of those that come first are read.

    Values: the id after which it begins, the one before which it ends, how many ids at most, and the routes.
    """
    runs = " union all ".join(
        f"select id from message where route = ?{4 + k} and route <> 0 and id > ?1 and id < ?2"
        for k in range(count)
    )
    return f"from message where id in ({runs} order by id limit ?3) order by id"


def topic_condition(patterns: Sequence[str]) -> tuple[str, list[str]]:
    """
    SQL that holds for every topic one of the patterns matches, and for few others.

    GLOB's ``*`` also takes ``/``, so a pattern with wildcards finds a little more than it should: the caller matches
    again. Exceptions (``!``) are left to the caller; so is everything where there are very many patterns.
    """
    named = named_topics(patterns, _literal, "*")
    if named is None:
        return "", []
    literals, globs = named
    parts = ["topic glob ?"] * len(globs)
    if literals:
        parts.insert(0, f"topic in ({','.join('?' * len(literals))})")
    return (f" and ({' or '.join(parts)})" if parts else ""), [*literals, *globs]


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)
