"""
Readers of a file: pages of the log and of routes, and of searches, on a small pool of threads with a connection each.

Every read is short: an open cursor would keep the WAL from being begun anew. A page is bounded in rows and in bytes,
and in how much of the log it may scan for matches, so that no reader stalls another.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import apsw

from gateway.core.effects import DelayedMessage
from gateway.core.model import ID, Columns, Row
from store.cursors import header_priority
from store.errors import DamagedMessage, LogTrimmed, ReadFailed
from store.ports import MAX_ID, DiskUse, LengthPage, LogPage, RoutedPage, StoreOptions
from store.property_index import IndexedSpan
from store.reading import MOST_MERGED, SCAN_IDS, TOPIC_ROWS, PooledReader, named_topics, next_position
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
from store.sqlite.statements import marks

P = ParamSpec("P")
T = TypeVar("T")

FEW_ROWS: Final = 4
"""Below this rows are fetched one by one: packing them copies long contents for no gain."""

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


class SqliteReader(PooledReader):
    """Pages from one file."""

    def __init__(
        self, path: Path, options: StoreOptions, largest_bytes: int, indexed: Sequence[IndexedSpan] = ()
    ) -> None:
        super().__init__(path.stem, options, largest_bytes, indexed)
        self._path = path
        self._open: list[apsw.Connection] = []
        self._fitting = options.page_rows
        """How many messages the bytes of a page had room for last."""

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
        """See ``store.ports.Reader``."""
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
        if not rows and (first_id := self._first_id()) > position:
            raise LogTrimmed(position, first_id)
        return LogPage(rows, next_position(rows, stop, is_whole=is_whole), columns)

    @_reads
    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> RoutedPage:
        """See ``store.ports.Reader``."""
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
        return self._messages(ids, "")

    def _messages(self, ids: Sequence[int], condition: str) -> list[Row]:
        wanted = ids[: min(self._page_rows, 512)]
        if not wanted:
            return []
        # Filled up with the last one to a power of two, so that a handful of prepared statements serves every length.
        size = 1 << (len(wanted) - 1).bit_length()
        rows, _, _ = self._bounded(
            MESSAGE,
            f"from message where id in ({marks(size)}){condition} order by id",
            [*wanted, *repeat(wanted[-1], size - len(wanted))],
            self._page_rows,
        )
        return rows

    @_reads
    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """See ``store.ports.Reader``."""
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
        """See ``store.ports.Reader``."""
        condition, values = topic_condition(patterns)
        query = (
            "select topic, count(*), sum(length(content)) from message "
            f"where id >= ? and id < ? and held is null{condition} group by topic"
        )
        found: list[Any] = self._connection.execute(query, [position, end, *values]).fetchall()
        return found

    @_reads
    def attempts(self, cursor: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        """See ``store.ports.Reader``."""
        return fetch(
            self._connection,
            {"message": RISING, "count": INTEGER},
            "from attempt where cursor = ? and message between ? and ? order by message",
            [cursor, first, last],
        )

    @_reads
    def delayed_page(
        self, cursor: int, after: tuple[int, int] = (0, 0), limit: int = 256
    ) -> list[DelayedMessage]:
        """See ``store.ports.Reader``."""
        which = "cursor = ? and (due, delayed.message) > (?, ?) order by due, delayed.message limit ?"
        return self._delayed(which, (cursor, *after, limit))

    @_reads
    def delayed_message(self, cursor: int, message_id: int) -> DelayedMessage | None:
        """See ``store.ports.Reader``."""
        return next(iter(self._delayed("cursor = ? and delayed.message = ?", (cursor, message_id))), None)

    def _delayed(self, which: str, values: Sequence[int]) -> list[DelayedMessage]:
        found = self._connection.execute(
            "select due, id, delayed.size_bytes, length(content), bare, substr(content, 1, min(bare, 512)) "
            f"from delayed cross join message on id = delayed.message where {which}",
            values,
        )
        return [
            DelayedMessage(due, i, counted, size, header_priority(front, bare))
            for due, i, counted, size, bare, front in found
        ]

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
            # Lengths come from the row headers: long contents are not read for it. Of many more than fit, they would be
            # looked at in vain.
            asked = self._fitting
            while True:
                asked = min(asked * 2, limit)
                lengths = fetch(
                    connection,
                    {"length": INTEGER},
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
        """See ``LogProbe``."""
        (position,) = self.positions_since([time_ms])
        return self._number(
            "select id from message where id >= ? and held is null order by id limit 1", position
        )

    @_reads
    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """See ``store.ports.Reader``; beside a busy interpreter many statements would each wait for their turn."""
        found: list[Any] = self._connection.execute(_POSITIONS_SINCE, [json.dumps(list(times_ms))]).fetchall()
        return [position for (position,) in found]

    @_reads
    def time_of(self, message_id: int) -> int | None:
        return self._number("select time from message where id = ? and held is null", message_id)

    search_page = _reads(PooledReader.search_page)
    topics_below = _reads(PooledReader.topics_below)
    last_matching = _reads(PooledReader.last_matching)

    # --- what they are made of --------------------------------------------------------------------------------

    def _check_has(self, stop: int) -> None:
        """A caller was told of nothing that is not in the file."""

    def _first_id(self) -> int:
        ((first_id,),) = self._connection.execute("select first_id from log")
        return int(first_id)

    def _newest_topics(
        self, before: int, stop: int, patterns: Sequence[str], limit: int
    ) -> list[tuple[int, str]]:
        condition, values = topic_condition(patterns)
        return fetch(
            self._connection,
            {"id": INTEGER, "topic": TEXT},
            f"from message where id >= ? and id < ? and held is null{condition} order by id desc limit ?",
            [stop, before, *values, limit],
        )

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

    def _last_fitting(self, position: int, stop: int, size_bytes: int) -> int | None:
        # Lengths come from the row headers: long contents are not read for it.
        last: int | None
        (last,) = self._ids(
            "select min(id) from (select id, sum(length(content)) over (order by id) as total from message"
            " where id >= ? and id < ?) where total > ?",
            (position, stop, size_bytes),
        )
        return last

    def _needle_ids(
        self, needles: Sequence[bytes], patterns: Sequence[str], ids: range, limit: int
    ) -> list[int]:
        condition, values = topic_condition(patterns)
        any_needle = " or ".join(["instr(content, ?) > 0"] * len(needles))
        return self._ids(
            f"select id from message where id >= ? and id < ? and held is null{condition} and ({any_needle})"
            " order by id limit ?",
            [ids.start, ids.stop, *values, *needles, limit],
        )

    def _ids(self, statement: str, values: Sequence[int | str | bytes]) -> list[Any]:
        return [message_id for (message_id,) in self._connection.execute(statement, values)]


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
