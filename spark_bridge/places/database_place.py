"""
The log read straight from a gateway's tables in PostgreSQL, whether its gateway runs or not: same rows as over AMQP.

Everything is read-only, and in short statements of a page each: nothing keeps a server from vacuuming, or a standby
from replaying. Pages are Arrow batches from the start, and have only the columns that were asked for.

Invariants:

- A page holds every logged message of the ids it looked at, or the read raises. The statement that reads a page also
  checks that the log still reaches down to it, in the planned generation, how far the server has replayed, and what
  rules of retention have taken out.
- Nothing is planned beyond what the active gateway may have told. A primary shows a commit once the standbys that it
  waits for have it; there the bound is ``log.last_id``. A standby shows a commit as soon as it has it, perhaps before
  the gateway is told. A standby that the primary did not wait for may lose the commit at a failover: the ids that it
  showed are then given to other messages. There is one writer, which begins a commit when the previous one is known to
  be durable, and a server replays commits in order: a reader that sees a commit knows that the previous one will stay.
  So on a standby the bound is ``log.told_id``, the highest id of the previous commit. An idle gateway commits once a
  second: the bound follows by then.
- A standby that has not yet replayed what was planned is waited for, and no message is skipped.

Pages come packed: one row has a page of messages, with a value for each column, which Arrow takes as it is. With one
row a message, as COPY sends them, the driver is called for each message: for rows of 300 bytes this process takes 1.1
us a row before the rows are parsed, and with a packed page 0.3 us in all. The server takes 0.9 us a row for packing,
and 0.75 us for COPY. With ADBC's driver, which parses COPY's rows in C++, it is 0.6 us here and 0.7 us there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from spark_bridge.columns.message_block import PAGE_BYTES, PAGE_ROWS
from spark_bridge.errors import OptionError
from spark_bridge.options import Schema, Selection
from spark_bridge.places import stored_log
from spark_bridge.places.log_place import check_end
from store.archive.columns import Columns
from store.archive.errors import ConnectionFailed
from store.archive.source import IdRange
from store.postgresql.database import (
    ESCAPE,
    PATIENCE_SECONDS,
    RETRY_SECONDS,
    Answer,
    Database,
    ReadConnections,
    Value,
    number,
    read_text,
)

NUMBERS: Final = {"id": 8, "time": 8, "checksum": 8, "route": 8, "bare": 4}
"""Columns that are integers, and the bytes of each."""

TEXTS: Final = {"topic": pa.string(), "content": pa.binary()}
"""The other columns, and their types in Arrow."""


MARKS: Final = (
    "(select json_agg(json_build_array(rule, below, whole_time) order by rule)::text from retention)"
)
"""SQL for what rules of retention have taken out, as JSON; null if that is nothing."""


def query(names: Sequence[str], bound: int | None) -> str:
    """
    SQL that gives a page in one row: the log's generation, its first and its last id, ``MARKS``, whether ``bound`` left
    out no message, and whether the server is a standby; then the number of messages, and their columns.

    Its parameters: the first and the last id of the range, the generation, and the most messages.

    Args:
        names: The columns; the id is the first.
        bound: The most bytes of content in a page, unless its first message alone has more. None for no bound.
    """
    rows = (
        f"select {', '.join(names)} from message where id between $1::bigint and $2::bigint and exists "
        "(select 1 from log where first_id <= $1::bigint and generation = $3::bigint) order by id limit $4::bigint"
    )
    fits, filtered = "true", ""
    if bound is not None:
        fits, filtered = "coalesce(bool_and(fits), true)", " filter (where fits)"
        rows = (
            f"select page.*, sum(octet_length(content)) over before <= {bound} or row_number() over before = 1 as fits "
            f"from ({rows}) as page window before as (order by id rows unbounded preceding)"
        )
    packed = [
        f"string_agg({form}, ''){filtered}"
        for name in names
        for form in (
            (f"int{NUMBERS[name]}send({name})",)
            if name in NUMBERS
            else (f"int4send(octet_length({name}))", name)
        )
    ]
    return (
        f"select (select generation from log), (select first_id from log), (select last_id from log), {MARKS}, "
        f"{fits}, pg_is_in_recovery(), count(*){filtered}, {', '.join(packed)} from ({rows}) as page"
    )


def batch(names: Sequence[str], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """
    The record batch of a received page, which has at least one message.

    Args:
        values: The values after the count in ``query``'s row, in binary.
    """
    rest = (value or b"" for value in values)
    return pa.RecordBatch.from_arrays([_column(name, rest) for name in names], list(names))


def _column(name: str, values: Iterator[bytes]) -> pa.Array:
    value = next(values)
    if name in NUMBERS:
        return pa.array(np.frombuffer(value, f">i{NUMBERS[name]}").astype(np.int64))
    lengths, octets = np.frombuffer(value, ">i4"), next(values)
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    column = pa.Array.from_buffers(
        TEXTS[name], len(lengths), [None, pa.py_buffer(edges), pa.py_buffer(octets)]
    )
    if name == "topic" and ESCAPE.encode() in octets:
        return pa.array(map(read_text, column.to_pylist()), pa.string())
    return column


TOLD_SECONDS: Final = 2.0
"""How long a plan waits until the commits that a standby shows are known to stay: an idle gateway commits once a
second."""

SCAN_IDS: Final = 50_000
"""Ids a page may look at in search of messages."""

UNDEFINED: Final = frozenset({"42P01", "42703"})
"""SQLSTATEs: there is no such table, or column."""

STANDING: Final = """
    select first_id, least(told_id, last_id), last_id, generation, pg_is_in_recovery()::integer::bigint from log
"""


class LogTables(stored_log.StoredLog):
    """A connection to one Message VPN's schema."""

    TEXT, KIND = "$1::text", "tables"

    def __init__(self, schema: Schema) -> None:
        """
        Raises:
            OptionError: The connection string is invalid.
            ConnectionFailed: The server cannot be reached, or has no such Message VPN that this version reads.
        """
        password_file = None if schema.password_file is None else Path(schema.password_file)
        database = Database(schema.dsn, password_file)
        self._vpn = schema.vpn
        check_dsn(schema.dsn)
        self.place = database.place_of(schema.vpn)
        self._connections = ReadConnections(partial(database.connect, schema.vpn, "spark"), schema.vpn)
        try:
            # At the start nothing is waited for: a wrong name is reported immediately.
            self._ask(STANDING, patience_seconds=0)
        except BaseException:
            self.close()
            raise

    @property
    def is_standby(self) -> bool:
        """Whether the server replays what another one writes."""
        return bool(self.one(STANDING)[-1])

    def extent(self, *, up_to: int | None = None) -> IdRange:
        """
        The ids of the log now that are known to stay; last < first when there are none.

        Args:
            up_to: An id that the gateway is known to have told. A standby that does not have it yet is waited for, and
                then all ids that it has count.

        Raises:
            ConnectionFailed: The log cannot be read, or the standby does not reach ``up_to`` in time.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            first, told, last, generation, is_standby = self.one(STANDING)
            if up_to is None:
                return IdRange(first, max(told if is_standby else last, first - 1), generation)
            if last >= up_to or not is_standby:
                return IdRange(first, last, generation)
            self._wait_for_replay(deadline, up_to, last)

    def settled_extent(self) -> IdRange:
        """The same, once it has all ids that the server shows at first; waits at most ``TOLD_SECONDS`` for that."""
        extent = self.extent()
        shown = self.extent(up_to=0).last
        deadline = time.monotonic() + TOLD_SECONDS
        while extent.last < shown and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS / 10)
            extent = self.extent()
        return extent

    def unchecked_pages(
        self, ids: IdRange, names: Sequence[str], patterns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """See ``StoredLog.unchecked_pages``."""
        bound = None
        if "content" in names:
            (largest,) = self.one("select largest_bytes from log")
            bound = None if largest * PAGE_ROWS <= PAGE_BYTES else PAGE_BYTES
        statement = query(names, bound)
        position, deadline = ids.first, time.monotonic() + PATIENCE_SECONDS
        while position <= ids.last:
            end = min(ids.last, position + SCAN_IDS - 1)
            ((generation, first, last, marks, is_whole, is_standby, count, *values),) = self._ask(
                statement, position, end, ids.generation or 0, PAGE_ROWS
            )
            found = IdRange(number(first), number(last), number(generation))
            if found.last < end and is_standby == b"\1" and found.generation == ids.generation:
                self._wait_for_replay(deadline, end, found.last)
                continue
            stored_log.check_range(IdRange(position, ids.last, ids.generation), found)
            check_end(IdRange(ids.first, end, ids.generation), found.last)
            rows = number(count)
            page = batch(names, values) if rows else None
            if page is not None and (rows == PAGE_ROWS or is_whole != b"\1"):
                end = page.column(0)[-1].as_py()
            if patterns is not None and marks is not None:
                stored_log.check_is_whole(
                    replace(ids, first=position, last=end),
                    stored_log.below(stored_log.marks_for(_marks(marks), patterns)),
                )
            position = end + 1
            if page is not None:
                yield page
            deadline = time.monotonic() + PATIENCE_SECONDS

    def taken_out(self) -> list[stored_log.RuleMark]:
        """See ``StoredLog``."""
        ((marks,),) = self._ask(f"select {MARKS}")
        return _marks(marks)

    def topics_below(self, first: int, last: int) -> tuple[list[int], list[str]] | None:
        """See ``StoredLog``."""
        rows = self._ask(
            f"select id, topic from message where id between {first} and {last} order by id desc limit {PAGE_ROWS}"
        )
        if not rows:
            return None
        return [number(found) for found, _ in rows], [read_text((topic or b"").decode()) for _, topic in rows]

    # --- the connection -------------------------------------------------------------------------------------------

    def row(self, query: str, *texts: str) -> tuple[int, ...] | None:
        """See ``StoredLog.row``."""
        rows = self._ask(query, *texts)
        return tuple(map(number, rows[0])) if rows else None

    def _ask(self, sql: str, *values: Value, patience_seconds: float | None = None) -> list[Answer]:
        """All rows of a statement; if the server goes away, waits for it or for the one that replaces it."""
        patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                return self._connections.mine.ask(sql, values)
            except (psycopg.Error, OSError) as error:
                if not self._connections.passes(error) or time.monotonic() >= deadline:
                    self._fail(error)
                time.sleep(RETRY_SECONDS)

    def _wait_for_replay(self, deadline: float, wanted: int, last: int) -> None:
        if time.monotonic() >= deadline:
            raise ConnectionFailed(
                f"The standby at {self.place} ends at {last}, and does not reach offset {wanted}, which was "
                "planned. Make sure that it replays, or read from another server."
            )
        time.sleep(RETRY_SECONDS / 10)

    def _fail(self, error: Exception) -> NoReturn:
        state = getattr(error, "sqlstate", None)
        if state in UNDEFINED:
            raise ConnectionFailed(
                f"There are no tables of the Message VPN {self._vpn!r} that this version reads at {self.place}."
            ) from None
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConnectionFailed(f"{self.place} cannot be read as a gateway's tables: {reason}.") from None

    def close(self) -> None:
        """Close the connection."""
        self._connections.closing.set()
        self._connections.close()


def check_dsn(dsn: str) -> None:
    """
    Check that libpq accepts a connection string. Errors repeat nothing of it, as it may have a password in it.

    Raises:
        OptionError: The string is invalid, or has a password in it.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise OptionError(
            "Option dsn is not a connection string of PostgreSQL: postgresql://host:port/database, or "
            "key=value words."
        ) from None
    if given.get("password"):
        raise OptionError("Option dsn has a password in it; passwords go into the option passwordFile.")


def _marks(text: bytes | None) -> list[stored_log.RuleMark]:
    """The marks in a result of ``MARKS``."""
    return [] if text is None else [stored_log.RuleMark(*mark) for mark in json.loads(text)]


@dataclass(frozen=True, slots=True)
class DatabasePlace(stored_log.StoredPlace):
    """The replay log in a Message VPN's schema."""

    schema: Schema
    planned: int | None = None
    """An id that a plan has: a standby is waited for until it has the id."""

    @property
    def name(self) -> str:
        """Hosts, database and Message VPN: the same for every user and password."""
        check_dsn(self.schema.dsn)
        return f"{Database(self.schema.dsn).place}#{self.schema.vpn}"

    def opened(self) -> LogTables:
        """See ``StoredPlace.opened``."""
        return LogTables(self.schema)

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``."""
        with self.opened() as tables:
            extent = tables.settled_extent() if self.planned is None else tables.extent(up_to=self.planned)
            return tables.extent_for(extent, selection.patterns)

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """See ``LogPlace.read``."""
        return stored_log.StoredPlace.read(replace(self, planned=ids.last), selection, columns, ids)
