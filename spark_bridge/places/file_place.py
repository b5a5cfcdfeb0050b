"""
The log read straight from a gateway's SQLite file on this host, whether its gateway runs or not: same rows as over
AMQP.

Everything is read-only and in short keyset pages, as an open statement would keep the gateway's WAL from being
restarted. A page looks at a bounded number of ids for the same reason. Pages are Arrow batches from the start, and
have only the columns that were asked for.

Invariant: a page holds every logged message of the ids it looked at, or the read raises. The statement that reads a
page also checks that the log still reaches down to it, in the planned generation. What rules of retention have taken
out since then is asked after it.

The file is read through ADBC's driver, which answers in Arrow: no row becomes a Python object.

The driver brings an SQLite of its own. Two copies of SQLite in one process must never have the same file open together:
when one closes it, the kernel drops the other's locks. So the Spark bridge reads a gateway's file through this driver
alone.

Invariant: between two calls no statement is open, so that nothing keeps the gateway's WAL from being restarted.

The driver's DB-API is not used: importing it imports pandas where that is installed, half a second for each of Spark's
workers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import adbc_driver_sqlite
import numpy as np
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement, Error
from adbc_driver_sqlite import StatementOptions

from spark_bridge.columns.message_block import PAGE_BYTES, PAGE_ROWS
from spark_bridge.options import Folder
from spark_bridge.places.log_place import check_end
from spark_bridge.places.stored_log import (
    RuleMark,
    StoredLog,
    StoredPlace,
    below,
    check_is_whole,
    check_range,
    marks_for,
)
from store.archive.errors import ConnectionFailed
from store.archive.source import IdRange

BUSY_MS = 10_000  # how long to wait for a lock; a gateway that starts holds one for a moment


FAILED = (Error, pa.ArrowException, OSError)  # what the driver raises where the file cannot be read

LIGHT_ROWS = 2_000
"""If so many messages as large as the log's largest fit into a page, sizes need not be read first."""

SCAN_IDS = 50_000  # ids a page may look at in search of matching topics: about 30 ms
_NEEDS_WRITING = ("readonly", "unable to open")  # what SQLite says if it may not create its -shm file


class LogFile(StoredLog):
    """A read-only connection to one Message VPN's file."""

    TEXT, KIND = "?", "file"

    def __init__(self, folder: Folder) -> None:
        """
        Raises:
            ConnectionFailed: There is no such file, or this version cannot read it.
        """
        self._path = folder.file
        self.place = str(self._path)
        self._identity = _identity(self._path)
        if not self._is_there():
            raise ConnectionFailed(
                f"There is no {self._path}; path is the data folder of a gateway on this host"
                f"{_neighbours(self._path)}."
            )
        with ExitStack() as opened:
            try:
                uri = f"{self._path.absolute().as_uri()}?mode=ro"
                database = opened.enter_context(adbc_driver_sqlite.connect(uri))
                self._connection = opened.enter_context(AdbcConnection(database))
            except FAILED as error:
                raise self._unreadable(error) from error
            self.row(f"pragma busy_timeout = {BUSY_MS}")
            self.row("pragma query_only = on")
            self.extent()
            self._opened = opened.pop_all()

    def _is_there(self) -> bool:
        try:
            return self._path.is_file()
        except OSError as error:
            raise ConnectionFailed(
                f"{self._path} cannot be read: {error.strerror}. The user of this process needs the right to "
                "read it."
            ) from error

    @property
    def is_current(self) -> bool:
        """Whether no other file has replaced this one, which would then never change again."""
        return _identity(self._path) == self._identity

    def extent(self, *, up_to: int | None = None) -> IdRange:
        """See ``StoredLog.extent``."""
        # There may be messages above the last id in the log's row: the row is not written with each message.
        row = self.one(
            "select first_id, max(last_id, coalesce((select max(id) from message), 0)), generation from log"
        )
        first, last, generation = row
        return IdRange(first, last, generation)

    def unchecked_pages(
        self, ids: IdRange, names: Sequence[str], patterns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """See ``StoredLog.unchecked_pages``."""
        # The row is not written with each message (``extent``).
        (largest,) = self.one(
            "select max(largest_bytes, coalesce((select max(length(content)) from message where id > last_id), 0)) "
            "from log"
        )
        rows = PAGE_ROWS if "content" not in names else min(PAGE_ROWS, PAGE_BYTES // max(largest, 1))
        is_light = rows >= LIGHT_ROWS
        if not is_light:
            rows = PAGE_ROWS
        position, ends = ids.first, deque[int]()
        while position <= ids.last:
            end = min(ids.last, position + SCAN_IDS - 1)
            if not is_light:
                if not ends:
                    ends.extend(self._ends_of_pages(position, end))
                end = ends.popleft()
            page = self._rows(
                f"select {', '.join(names)} from message where id between {position} and {end} and held is null"
                f" and (select first_id <= {position} and generation = {ids.generation or 0} from log)",
                limit=rows,
            )
            if page is None:
                check_range(IdRange(position, ids.last, ids.generation), self.extent())
            elif page.num_rows == rows:
                end = page.column(0)[-1].as_py()
            if patterns is not None:
                self._check_is_whole(replace(ids, first=position, last=end), patterns)
            position = end + 1
            if page is not None:
                yield page
        check_end(ids, self.extent().last)

    def _check_is_whole(self, ids: IdRange, patterns: Sequence[str]) -> None:
        """Check that the page has all that was planned: a rule of retention commits its mark with what it takes out."""
        marks = self.taken_out()
        # After the marks were read: the log forgets marks when it is trimmed.
        check_range(ids, self.extent())
        check_is_whole(ids, below(marks_for(marks, patterns)))

    def _ends_of_pages(self, first: int, last: int) -> list[int]:
        """The last id of each page, by the sizes of the messages; a page has at least one message."""
        found = self._rows(
            f"select id, length(content) from message where id between {first} and {last} and held is null"
        )
        if found is None:
            return [last]
        numbers, sizes = (column.to_numpy() for column in found.columns)
        behind = np.cumsum(sizes)
        ends, start = [], 0
        while start < len(numbers):
            before = behind[start] - sizes[start]
            start = int(np.searchsorted(behind, before + PAGE_BYTES)) + 1
            ends.append(int(numbers[min(start, len(numbers)) - 1]))
        if len(numbers) < PAGE_ROWS:
            ends[-1] = last
        return ends

    def taken_out(self) -> list[RuleMark]:
        """See ``StoredLog``."""
        # Always one row: the driver takes the types from the first row.
        found = self._batch(
            "select coalesce(json_group_array(json_array(rule, below, whole_time)), '[]') from retention", 1
        )
        return [] if found is None else [RuleMark(*mark) for mark in json.loads(found.column(0)[0].as_py())]

    def topics_below(self, first: int, last: int) -> tuple[list[int], list[str]] | None:
        """See ``StoredLog``."""
        rows = self._rows(
            f"select id, topic from message where id between {first} and {last} and held is null", "desc"
        )
        return None if rows is None else (rows.column(0).to_pylist(), rows.column(1).to_pylist())

    def row(self, query: str, *texts: str) -> tuple[int, ...] | None:
        """See ``StoredLog.row``."""
        batch = self._batch(query, 1, *texts)
        return None if batch is None else tuple(column[0].as_py() for column in batch.columns)

    def _rows(self, query: str, order: str = "asc", limit: int = PAGE_ROWS) -> pa.RecordBatch | None:
        """A page of messages in order of ids. The query contains its numbers: binding them takes the driver longer."""
        return self._batch(f"{query} order by id {order} limit {limit}", limit)

    def _batch(self, query: str, limit: int, *texts: str) -> pa.RecordBatch | None:
        """The first ``limit`` rows of a query's result; None if there are none."""
        try:
            with AdbcStatement(self._connection) as statement:
                # The driver takes the types from the rows of its first batch, and assumes the same for all others.
                statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(limit)})
                statement.set_sql_query(query)
                if texts:
                    names = [str(number) for number in range(len(texts))]
                    statement.prepare()
                    statement.bind(pa.RecordBatch.from_arrays([pa.array([text]) for text in texts], names))
                stream, _ = statement.execute_query()
                with pa.RecordBatchReader.from_stream(stream) as batches:
                    return next((batch for batch in batches if batch.num_rows), None)
        except FAILED as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ConnectionFailed:
        hint = ""
        if any(word in str(error) for word in _NEEDS_WRITING):
            hint = (
                " Where no gateway is running, SQLite has to create files to read it: permit this process's "
                "user to write to the folder, or start the gateway."
            )
        return ConnectionFailed(f"{self._path} cannot be read as a gateway's file: {error}.{hint}")

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


def _identity(path: Path) -> tuple[int, int] | None:
    found = path.stat() if path.exists() else None
    return found and (found.st_dev, found.st_ino)


def _neighbours(path: Path) -> str:
    found = sorted(file.stem for file in path.parent.glob("*.db"))
    return f" (it has the Message VPNs {', '.join(found)})" if found else ""


@dataclass(frozen=True, slots=True)
class FilePlace(StoredPlace):
    """The replay log in a Message VPN's file."""

    folder: Folder

    @property
    def name(self) -> str:
        """The file."""
        return str(self.folder.file)

    def opened(self) -> LogFile:
        """See ``StoredPlace.opened``."""
        return LogFile(self.folder)
