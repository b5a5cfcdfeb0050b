"""
Read-only readers: pages of the log and of endpoints, on a small pool of threads with a connection each.

Every read is one short statement: an open cursor would keep the WAL from being begun anew. A page is bounded in rows
and in bytes, and in how much of the log it may scan for matches, so that no reader stalls another.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from gateway.core.effects import Row
from store.database import connect_reader

T = TypeVar("T")

SCAN_IDS: Final = 50_000
"""Ids a page may look at in search of matches: about 30 ms of a reader's time."""

MAX_ID: Final = (1 << 63) - 1

COLUMNS: Final = "id, time, topic, bare, held, content"


class LogPage(NamedTuple):
    rows: list[Row]
    position: int
    """The next id to be read: everything below it was considered."""


class Reader:
    """Pages from one file. All methods block; ``submit`` runs one on the pool."""

    def __init__(
        self, path: Path, *, threads: int, page_rows: int, page_bytes: int, largest_bytes: int
    ) -> None:
        self._path = path
        self._page_rows = page_rows
        self._page_bytes = page_bytes
        self.largest_bytes = largest_bytes
        """The largest content there may be: while whole pages of it fit the bound, lengths need not be looked at."""
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"reader {path.stem}")

    def submit(self, read: Callable[[], T]) -> Future[T]:
        return self._pool.submit(read)

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

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        """
        Logged messages from ``position`` on, below ``end``.

        Args:
            patterns: Topic patterns (Solace's); what matches none of them is mostly left out, but the caller must
                still match. None at all: every message.
        """
        condition, values = topic_condition(patterns)
        # Without a condition every id counts; with one, look at a bounded stretch of the log.
        stop = end if not condition else min(end, position + SCAN_IDS)
        where = f"id >= ? and id < ? and held is null{condition}"
        rows, is_whole = self._bounded(f"from message where {where} order by id", [position, stop, *values])
        return LogPage(rows, stop if is_whole else rows[-1][0] + 1)

    def endpoint_page(self, endpoint: int, after: int, end: int = MAX_ID) -> list[Row]:
        """
        Messages on an endpoint with ids above ``after`` and below ``end``; none when there are no more.

        Args:
            end: One past the last id the caller was told of: the file may know more already.
        """
        rows, _ = self._bounded(
            "from reference join message on message.id = reference.message "
            "where reference.endpoint = ? and reference.message > ? and reference.message < ? "
            "order by reference.message",
            [endpoint, after, end],
        )
        return rows

    def messages(self, ids: Sequence[int]) -> list[Row]:
        """These messages (rising ids), as many from the first on as a page holds."""
        wanted = ids[: min(self._page_rows, 500)]
        rows, _ = self._bounded(
            f"from message where id in ({','.join('?' * len(wanted))}) order by id", list(wanted)
        )
        return rows

    def attempts(self, endpoint: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        """(id, failed deliveries) of those of the endpoint's messages from ``first`` to ``last`` that have any."""
        return self._connection.execute(
            "select message, attempts from reference "
            "where endpoint = ? and message between ? and ? and attempts > 0",
            (endpoint, first, last),
        ).fetchall()

    def _bounded(self, query: str, values: list[int | str]) -> tuple[list[Row], bool]:
        """Rows of a query within the page's bounds, and whether that is all of them."""
        connection = self._connection
        limit = self._page_rows
        if self.largest_bytes * limit > self._page_bytes:
            # Lengths come from the row headers: long contents are not read for it.
            total = 0
            lengths = connection.execute(
                f"select length(content) {query} limit ?", [*values, limit]
            ).fetchall()
            limit = len(lengths)
            for count, (length,) in enumerate(lengths):
                total += length
                if total > self._page_bytes:
                    limit = max(count, 1)
                    break
            rows = (
                connection.execute(f"select {COLUMNS} {query} limit ?", [*values, limit]).fetchall()
                if limit
                else []
            )
            return rows, limit == len(lengths) < self._page_rows
        rows = connection.execute(f"select {COLUMNS} {query} limit ?", [*values, limit]).fetchall()
        return rows, len(rows) < limit

    # --- probes (gateway.core.replay.LogProbe) ----------------------------------------------------------------

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
            row = connection.execute(probe, (middle,)).fetchone()
            if row is None or row[1] >= time_ms:
                high = middle
            else:
                low = row[0] + 1
        row = connection.execute(
            "select id from message where id >= ? and held is null order by id limit 1", (low,)
        ).fetchone()
        return None if row is None else int(row[0])

    def time_of(self, message_id: int) -> int | None:
        row = self._connection.execute(
            "select time from message where id = ? and held is null", (message_id,)
        ).fetchone()
        return None if row is None else int(row[0])

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        connection = self._connection
        before = 1 << 62
        while True:
            rows = connection.execute(
                "select id, topic from message where id < ? and held is null order by id desc limit ?",
                (before, self._page_rows),
            ).fetchall()
            for number, topic in rows:
                if matches is None or matches(topic):
                    return int(number)
            if len(rows) < self._page_rows:
                return None
            before = rows[-1][0]


def topic_condition(patterns: Sequence[str]) -> tuple[str, list[int | str]]:
    """
    SQL that holds for every topic one of the patterns matches, and for few others.

    GLOB's ``*`` also takes ``/``, so a pattern with wildcards finds a little more than it should: the caller matches
    again. Exceptions (``!``) are left to the caller.
    """
    parts: list[str] = []
    values: list[int | str] = []
    for pattern in patterns:
        if pattern == ">":
            return "", []
        if pattern.startswith("!"):
            continue
        levels = pattern.split("/")
        has_tail = levels[-1] == ">"
        escaped = [_glob(level) for level in (levels[:-1] if has_tail else levels)]
        if has_tail:
            escaped.append("?*")
        if not has_tail and "*" not in pattern:
            parts.append("topic = ?")
            values.append(pattern)
        else:
            parts.append("topic glob ?")
            values.append("/".join(escaped))
    return (f" and ({' or '.join(parts)})" if parts else ""), values


def _glob(level: str) -> str:
    literal, wildcard = (level[:-1], "*") if level.endswith("*") else (level, "")
    return "".join(f"[{c}]" if c in "*?[" else c for c in literal) + wildcard
