"""
Readers of a file: pages of the log and of routes, and searches, on a small pool of threads with a connection each.

Every read is short, because an open cursor would keep the WAL from restarting. A page is bounded in rows, in bytes, and
in how much of the log it may scan for matches, so that no reader stalls another.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from gateway.core.model import ID, Columns, Row
from store.errors import DamagedMessage, LogTrimmed, ReadFailed
from store.ports import MAX_ID, DiskUse, LogPage, StoreOptions
from store.property_index import IndexedSpan
from store.reading import MOST_BY_ID, MOST_MERGED, SCAN_IDS, PooledReader, named_topics, next_position, reads
from store.sqlite import packed
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader, is_damage
from store.sqlite.statements import marks

T = TypeVar("T")

FEW_ROWS: Final = 4
"""Below this number, rows are fetched one by one: packing would copy long contents for no gain."""

PACKED: Final[Mapping[type, packed.Kind]] = {int: packed.INTEGER, str: packed.TEXT, bytes: packed.BLOB}

NO_ROUTE: Final = -1
"""The number of no route: it fills up the values of a merge."""


class SqliteReader(PooledReader):
    """Pages from one file."""

    logged = "held is null"
    joined = SqliteShortTables.joined
    has_needle = "instr(content, ?) > 0"

    def __init__(
        self, path: Path, options: StoreOptions, largest_bytes: int, indexed: Sequence[IndexedSpan] = ()
    ) -> None:
        super().__init__(path.stem, options, largest_bytes, indexed)
        self._path = path
        self._local: Any = threading.local()
        self._open: list[apsw.Connection] = []
        self._fitting = options.page_rows
        """How many messages the last page's bytes had room for."""

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

    @reads
    def disk(self) -> DiskUse:
        """The size of the file and its write-ahead log, and what the file system has free for users other than root."""
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

    @reads
    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """See ``store.ports.Reader``."""
        condition, values = self._of_topics(patterns)
        stop = min(end, position + SCAN_IDS)
        wanted = f"(held is not null or (1{condition}))" if held else f"held is null{condition}"
        # In the same statement, so that messages trimmed before it are noticed and not skipped silently.
        where = f"id >= ? and id < ? and ? >= (select first_id from log) and {wanted}"
        rows, is_whole, columns = self._bounded(
            packed.MESSAGE if held else packed.LOGGED,
            f"from message where {where} order by id",
            [position, stop, position, *values],
            self._page_rows,
        )
        if not rows and (first_id := self._first_id()) > position:
            raise LogTrimmed(position, first_id)
        return LogPage(rows, next_position(rows, stop, is_whole=is_whole), columns)

    @reads
    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> LogPage:
        """See ``store.ports.Reader``."""
        most = self._page_rows if limit is None else min(limit, self._page_rows)
        if not routes:
            return LogPage([], end)
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
        rows, is_whole, columns = self._bounded(packed.MESSAGE, query, values, most)
        return LogPage(rows, next_position(rows, stop, is_whole=is_whole), columns)

    @reads
    def messages(self, ids: Sequence[int]) -> list[Row]:
        """See ``store.ports.Reader``."""
        most = min(self._page_rows, MOST_BY_ID)
        for at in range(0, len(ids), most):
            if rows := self._messages(ids[at : at + most], ""):
                return rows
        return []

    def _messages(self, ids: Sequence[int], condition: str) -> list[Row]:
        wanted = ids[: min(self._page_rows, MOST_BY_ID)]
        if not wanted:
            return []
        # Filled up with the last one to a power of two, so that a handful of prepared statements serves every length.
        size = 1 << (len(wanted) - 1).bit_length()
        rows, _, _ = self._bounded(
            packed.MESSAGE,
            f"from message where id in ({marks(size)}){condition} order by id",
            [*wanted, *repeat(wanted[-1], size - len(wanted))],
            self._page_rows,
        )
        return rows

    def _bounded(
        self, columns: Mapping[str, packed.Kind], query: str, values: list[int | str], limit: int
    ) -> tuple[list[Row], bool, Columns | None]:
        """Rows of a query within the page's bounds, whether those are all rows, and their columns if there are any."""
        if self.largest_bytes * limit <= self._page_bytes:
            rows, is_cut, found = self._rows(columns, query, values, limit)
            return rows, len(rows) < limit and not is_cut, found
        connection = self._connection
        connection.execute("begin")  # so that both statements see the same rows
        try:
            # Lengths come from row headers, without reading long contents. To get many more lengths than rows that fit
            # would be wasted work.
            asked = self._fitting
            while True:
                asked = min(asked * 2, limit)
                lengths = packed.fetch(
                    connection,
                    {"length": packed.INTEGER},
                    f"from (select length(content) as length {query} limit ?)",
                    [*values, asked],
                )
                fitting = bisect_right(list(accumulate(length for (length,) in lengths)), self._page_bytes)
                if fitting < len(lengths) or len(lengths) < asked or asked == limit:
                    break
            fitting = min(max(fitting, 1), len(lengths))
            if lengths:
                self._fitting = fitting
            rows, is_cut, found = self._rows(columns, query, values, fitting)
        finally:
            if connection.in_transaction:  # an I/O error has ended it
                connection.execute("commit")
        return rows, fitting == len(lengths) < limit and not is_cut, found

    def _rows(
        self, columns: Mapping[str, packed.Kind], query: str, values: list[int | str], limit: int
    ) -> tuple[list[Row], bool, Columns | None]:
        """
        Rows of a query, whether they were cut before a damaged row, and their columns if there are many. The rows
        before a damaged one are sound; the next page begins with the damaged row, and fails.
        """
        query, values = f"{query} limit ?", [*values, limit]
        if limit >= FEW_ROWS:
            found = packed.fetch_sound(self._connection, columns, query, values, self.largest_bytes)
            if found is not None:
                sound, unpacked = found
                return sound, False, unpacked
        rows: list[Row] = []
        one_by_one: list[Any] = self._connection.execute(
            f"select {packed.CHECKED} {query}", values
        ).fetchall()
        for checked in one_by_one:
            row = packed.sound_row(checked)
            if row is None:
                error = DamagedMessage(checked[ID])
                self.damage = str(error)
                if rows:
                    return rows, True, None
                raise error
            rows.append(row)
        return rows, False, None

    @reads
    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """See ``store.ports.Reader``. One statement: many statements would each wait for a busy interpreter."""
        return self._ids(_POSITIONS_SINCE, [json.dumps(list(times_ms))])

    # --- the parts of pages -----------------------------------------------------------------------------------

    def carry_out(self, read: Callable[[], T]) -> T:
        """See ``PooledReader``."""
        try:
            return read()
        except apsw.Error as error:
            reason = str(error)
            if is_damage(error):
                self.damage = reason
            raise ReadFailed(reason) from error
        except UnicodeDecodeError as error:
            self.damage = f"a topic is no longer a text ({error}); `rewind store check` names its message"
            raise ReadFailed(self.damage) from error

    def _ask(
        self, kinds: Sequence[type], sql: str, values: Sequence[Any], *, is_long: bool = False
    ) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()

    def _fetch(self, columns: Mapping[str, type], query: str, values: Sequence[Any]) -> list[Any]:
        return packed.fetch(
            self._connection, {name: PACKED[kind] for name, kind in columns.items()}, query, values
        )

    def _of_topics(self, patterns: Sequence[str]) -> tuple[str, list[Any]]:
        """See ``PooledReader``; the wildcard is GLOB's ``*``."""
        literals, globs = named_topics(patterns, _literal, "*") or ((), ())
        parts = ["topic glob ?"] * len(globs)
        if literals:
            parts.insert(0, f"topic in ({marks(len(literals))})")
        return (f" and ({' or '.join(parts)})" if parts else ""), [*literals, *globs]

    def _check_has(self, stop: int) -> None:
        """See ``PooledReader``: callers are told only of what is in the file."""

    def _logged(self, ids: Sequence[int]) -> list[Row]:
        return self._messages(ids, " and held is null")

    def _indexed_ids(
        self, span: IndexedSpan, texts: Sequence[str], segments: range, ids: range, limit: int
    ) -> list[int]:
        found: list[int] = []
        for segment in segments:
            found += self._ids(
                "select message from property_value where segment = ? and number = ? "
                f"and value in ({marks(len(texts))}) and message >= ? and message < ? order by message limit ?",
                [segment, span.number, *texts, ids.start, ids.stop, limit - len(found)],
            )
            if len(found) == limit:
                break
        return found


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
"""In every step there is a message below ``high``, so each step halves the rest."""


@cache
def _merge(count: int) -> str:
    """
    Messages of ``count`` routes: the index merges their ids, and only the rows of the first ones are read.

    Values: the id after which to begin, the id before which to end, the most ids, and the routes.
    """
    runs = " union all ".join(
        f"select id from message where route = ?{4 + k} and route <> 0 and id > ?1 and id < ?2"
        for k in range(count)
    )
    return f"from message where id in ({runs} order by id limit ?3) order by id"


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)
