"""
Read-only readers: pages of the log and of endpoints, on a small pool of threads with a connection each.

Every read is short: an open cursor would keep the WAL from being begun anew. A page is bounded in rows and in bytes,
and in how much of the log it may scan for matches, so that no reader stalls another.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from itertools import accumulate, repeat
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from gateway.core.model import Row
from gateway.core.replay.search import Search
from store.errors import LogTrimmed, ReadFailed
from store.ports import MAX_ID, LogPage, SearchPage
from store.sqlite.database import connect_reader
from store.sqlite.packed import BLOB, INTEGER, NOTHING, OPTIONAL_INTEGER, RISING, TEXT, Kind, fetch
from store.sqlite.property_index import IndexedSpan, span_at
from store.sqlite.search import PAGE_IDS, look_up, scan

P = ParamSpec("P")
T = TypeVar("T")

SCAN_IDS: Final = 50_000
"""Ids a page may look at in search of matches: about 30 ms of a reader's time."""

FEW_ROWS: Final = 4
"""Below this rows are fetched one by one: packing them copies long contents for no gain."""

MOST_LITERALS: Final = 1_000
MOST_WILDCARDS: Final = 32
"""Topic patterns that SQLite looks at for each message; with more, it is quicker to read them all and let the caller's
index decide."""

MESSAGE: Final = {
    "id": RISING,
    "time": INTEGER,
    "topic": TEXT,
    "bare": INTEGER,
    "held": OPTIONAL_INTEGER,
    "content": BLOB,
}
ONE_PRIORITY: Final = " and reference.priority = ?"
"""By the index of priorities: the references of one priority are a run of it."""

LOGGED: Final = {**MESSAGE, "held": NOTHING}
"""The columns of a ``Row``; where the query asks for logged messages alone, nothing holds them."""


def _reads(read: Callable[P, T]) -> Callable[P, T]:
    """A page's errors are those of the port."""

    @wraps(read)
    def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except sqlite3.Error as error:
            raise ReadFailed(str(error)) from error

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
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"reader {path.stem}")

    def submit(self, read: Callable[[], T]) -> Future[T]:
        return self._pool.submit(read)

    def grow_largest(self, size_bytes: int) -> None:
        """A content of this size is about to be there."""
        self.largest_bytes = max(self.largest_bytes, size_bytes)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect_reader(self._path)
            self._open.append(connection)
        return connection

    # --- pages ------------------------------------------------------------------------------------------------

    @_reads
    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        """
        Logged messages from ``position`` on, below ``end``.

        Args:
            patterns: Topic patterns (Solace's); what matches none of them is mostly left out, but the caller must
                still match. None at all: every message.

        Raises:
            LogTrimmed: The log begins behind ``position``.
        """
        condition, values = topic_condition(patterns)
        stop = min(end, position + SCAN_IDS)
        # In the same statement: what was trimmed before it is not in the page, and must not be missed in silence.
        where = f"id >= ? and id < ? and held is null and ? >= (select first_id from log){condition}"
        rows, is_whole = self._bounded(
            LOGGED, f"from message where {where} order by id", [position, stop, position, *values]
        )
        if not rows:
            (first_id,) = self._connection.execute("select first_id from log").fetchone()
            if first_id > position:
                raise LogTrimmed(position, first_id)
        if is_whole:
            return LogPage(rows, stop)
        last_id, *_ = rows[-1]
        return LogPage(rows, last_id + 1)

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
        row = next(filter(search.takes, page.rows), None)
        if row is None:
            return SearchPage(None, page.position)
        found, *_ = row
        return SearchPage(found, page.position)

    @_reads
    def endpoint_page(
        self, endpoint: int, after: int, end: int = MAX_ID, priority: int | None = None
    ) -> list[Row]:
        """
        Messages on an endpoint with ids above ``after`` and below ``end``; none when there are no more.

        Args:
            end: One past the last id the caller was told of: the file may know more already.
            priority: Only those of it, on an endpoint that delivers by priority.
        """
        condition, values = ("", []) if priority is None else (ONE_PRIORITY, [priority])
        rows, _ = self._bounded(
            MESSAGE,
            f"from reference join message on message.id = reference.message "
            f"where reference.endpoint = ?{condition} and reference.message > ? and reference.message < ? "
            "order by reference.message",
            [endpoint, *values, after, end],
        )
        return rows

    @_reads
    def messages(self, ids: Sequence[int]) -> list[Row]:
        """These messages (rising ids), as many from the first on as a page holds."""
        wanted = ids[: min(self._page_rows, 512)]
        if not wanted:
            return []
        # Filled up with the last one to a power of two, so that a handful of prepared statements serves every length.
        size = 1 << (len(wanted) - 1).bit_length()
        rows, _ = self._bounded(
            MESSAGE,
            f"from message where id in ({','.join('?' * size)}) order by id",
            [*wanted, *repeat(wanted[-1], size - len(wanted))],
        )
        return rows

    @_reads
    def has_reference(self, endpoint: int, message_id: int) -> bool:
        """Whether a message lies on an endpoint."""
        query = "select 1 from reference where endpoint = ? and message = ?"
        return self._connection.execute(query, (endpoint, message_id)).fetchone() is not None

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
        return self._connection.execute(query, [position, end, *values]).fetchall()

    @_reads
    def attempts(
        self, endpoint: int, first: int = 0, last: int = MAX_ID, priority: int | None = None
    ) -> list[tuple[int, int]]:
        """
        (id, failed deliveries) of those of the endpoint's messages from ``first`` to ``last`` that have any.

        Args:
            priority: Only those of it, on an endpoint that delivers by priority.
        """
        condition, values = ("", []) if priority is None else (ONE_PRIORITY, [priority])
        return fetch(
            self._connection,
            {"message": RISING, "attempts": INTEGER},
            f"from reference where endpoint = ?{condition} and message between ? and ? and attempts > 0 "
            "order by message",
            [endpoint, *values, first, last],
        )

    def _bounded(
        self, columns: Mapping[str, Kind], query: str, values: list[int | str]
    ) -> tuple[list[Row], bool]:
        """Rows of a query within the page's bounds, and whether that is all of them."""
        limit = self._page_rows
        if self.largest_bytes * limit <= self._page_bytes:
            rows = self._rows(columns, query, values, limit)
            return rows, len(rows) < limit
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
            limit = min(max(fitting, 1), len(lengths))
            rows = self._rows(columns, query, values, limit)
        finally:
            connection.execute("commit")
        return rows, limit == len(lengths) < self._page_rows

    def _rows(
        self, columns: Mapping[str, Kind], query: str, values: list[int | str], limit: int
    ) -> list[Row]:
        query, values = f"{query} limit ?", [*values, limit]
        if limit >= FEW_ROWS:
            return fetch(self._connection, columns, query, values)
        return self._connection.execute(f"select {', '.join(MESSAGE)} {query}", values).fetchall()

    def _number(self, query: str, value: int) -> int | None:
        """The one number that a query gives; None when there is no row."""
        (number,) = self._connection.execute(query, (value,)).fetchone() or (None,)
        return number

    # --- probes (gateway.core.replay.starts.LogProbe) ---------------------------------------------------------

    @_reads
    def first_since(self, time_ms: int) -> int | None:
        """The first logged id that arrived at ``time_ms`` or later: a binary search, as times never fall along ids."""
        probe = "select id, time from message where id >= ? order by id limit 1"
        connection = self._connection
        low, high = connection.execute(
            "select min(id), (select max(id) from message) from message"
        ).fetchone()
        if low is None:
            return None
        high += 1
        while low < high:
            middle = (low + high) // 2
            message_id, arrived_ms = connection.execute(probe, (middle,)).fetchone() or (middle, time_ms)
            if arrived_ms >= time_ms:
                high = middle
            else:
                low = message_id + 1
        return self._number("select id from message where id >= ? and held is null order by id limit 1", low)

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


def topic_condition(patterns: Sequence[str]) -> tuple[str, list[str]]:
    """
    SQL that holds for every topic one of the patterns matches, and for few others.

    GLOB's ``*`` also takes ``/``, so a pattern with wildcards finds a little more than it should: the caller matches
    again. Exceptions (``!``) are left to the caller; so is everything where there are very many patterns.
    """
    literals: list[str] = []
    globs: list[str] = []
    for pattern in patterns:
        if pattern == ">":
            return "", []
        if pattern.startswith("!"):
            continue
        levels = pattern.split("/")
        if levels[-1] == ">":
            # What > takes may be empty: a/> matches the topic a/ with its empty last level.
            globs.append("/".join([*map(_glob, levels[:-1]), "*"]))
        elif any(level.endswith("*") for level in levels):
            globs.append("/".join(map(_glob, levels)))
        else:
            literals.append(pattern)
    if len(literals) > MOST_LITERALS or len(globs) > MOST_WILDCARDS:
        return "", []
    parts = ["topic glob ?"] * len(globs)
    if literals:
        parts.insert(0, f"topic in ({','.join('?' * len(literals))})")
    return (f" and ({' or '.join(parts)})" if parts else ""), [*literals, *globs]


def _glob(level: str) -> str:
    literal, wildcard = (level[:-1], "*") if level.endswith("*") else (level, "")
    return "".join(f"[{c}]" if c in "*?[" else c for c in literal) + wildcard
