"""
The log read straight from a gateway's SQLite file on this host: same rows as over AMQP, and no gateway needed.

Everything is read-only and in short keyset pages, as an open statement would keep the gateway's WAL from being
begun anew. A page looks at a bounded number of ids for the same reason. Pages are Arrow batches from the start, and
have only the columns that were asked for.

Invariant: a page holds every logged message of the ids it looked at, or raises. That the log still reaches down to it,
in the generation that was planned, is asked in the same statement that reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import StartKind, parse_text
from spark_bridge.columns.encoded_messages import PAGE_BYTES, PAGE_ROWS
from spark_bridge.columns.record_batches import STORED
from spark_bridge.errors import OptionError
from spark_bridge.places.addresses import Folder
from spark_bridge.places.page_checksums import BESIDE_ALL, BESIDE_CONTENT, first_damaged
from spark_bridge.places.selection import EVERY_TOPIC, Selection, check_end, check_stop, topic_filter
from spark_bridge.places.sqlite_reader import SqliteReader
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.id_range import IdRange
from store.checksum import NOT_AS_WRITTEN

LIGHT_ROWS = (
    2_000  # where so many of a log's largest message fit into a page, sizes need not be looked at first
)
SCAN_IDS = 50_000  # ids a page may look at in search of matching topics: about 30 ms
_NEEDS_WRITING = ("readonly", "unable to open")  # what SQLite says where it may not make its -shm file


class LogFile:
    """A read-only connection to one Message VPN's file; a context manager that closes it."""

    def __init__(self, folder: Folder) -> None:
        """
        Raises:
            ConnectionFailed: There is no such file, or none that this version reads.
        """
        self._path = folder.file
        if not self._is_there():
            raise ConnectionFailed(
                f"There is no {self._path}; path is the data folder of a gateway on this host"
                f"{_neighbours(self._path)}."
            )
        try:
            self._file = SqliteReader(self._path)
        except SqliteReader.Failed as error:
            raise self._unreadable(error) from error
        try:
            self.extent()
        except BaseException:
            self.close()
            raise

    def _is_there(self) -> bool:
        try:
            return self._path.is_file()
        except OSError as error:
            raise ConnectionFailed(
                f"{self._path} cannot be read: {error.strerror}. This process has to be a user who may."
            ) from error

    def extent(self) -> IdRange:
        """The ids the log holds now; last < first when there are none."""
        # Messages may be above what the log's row says: it is not written with each of them.
        row = self._one(
            "select first_id, max(last_id, coalesce((select max(id) from message), 0)), generation from log"
        )
        return IdRange(*row)

    def plan(self, selection: Selection) -> IdRange:
        """
        What a selection means now.

        Raises:
            DataLoss: The log does not have the start.
            OptionError: Start or end make no sense for this log.
        """
        extent = self.extent()
        first = self._start(selection, extent)
        last, stop = extent.last, selection.stop
        if selection.before is not None:
            last = self.first_since(selection.before, extent) - 1
        elif stop is not None:
            check_stop(stop, first, extent)
            last = stop - 1
        return IdRange(first, last, extent.generation)

    def pages(
        self, ids: IdRange, columns: Collection[str] = STORED, *, whole: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """
        The logged messages of a range in order, some thousand at a time: the id, those columns of ``STORED``, and what
        they were checked by: contents wherever they are read. What is beside them is checked where ``whole`` says so:
        it takes two columns more, and a twentieth of a row's time in Spark.

        Args:
            whole: Check all that is stored of a message, which is then all that is read.

        Raises:
            DataLoss: The log no longer holds the range.
            ConnectionFailed: It cannot be read, or a message is not what was written.
        """
        asked = [name for name in STORED if name == "id" or name in columns]
        beside = BESIDE_ALL if whole else BESIDE_CONTENT if "content" in asked else ()
        names = ", ".join([*asked, *beside])
        (largest,) = self._one("select largest_bytes from log")
        rows = PAGE_ROWS if "content" not in columns else min(PAGE_ROWS, PAGE_BYTES // max(largest, 1))
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
                f"select {names} from message where id between {position} and {end} and held is null"
                f" and (select first_id <= {position} and generation = {ids.generation or 0} from log)",
                limit=rows,
            )
            if page is None:
                self._check(IdRange(position, ids.last, ids.generation))
            elif page.num_rows == rows:
                end = page.column(0)[-1].as_py()
            position = end + 1
            if page is not None:
                damaged = first_damaged(page) if beside else None
                if damaged is not None:
                    raise ConnectionFailed(f"{self._path} is damaged: message {damaged} {NOT_AS_WRITTEN}.")
                yield page
        check_end(ids, self.extent().last)

    def _ends_of_pages(self, first: int, last: int) -> list[int]:
        """The ids up to which messages fill pages, by their sizes alone; one message at least is in each."""
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

    def _check(self, ids: IdRange) -> None:
        """Raise unless the log still reaches down to the range, in its generation."""
        extent = self.extent()
        if extent.generation != ids.generation:
            raise DataLoss(
                f"Offsets {ids.first} to {ids.last} cannot be read any more: the log was made anew since."
            )
        if extent.first > ids.first:
            raise DataLoss(
                f"The log was trimmed since the read was planned: of {ids.first} and up, {extent.first} is first now."
            )

    def _start(self, selection: Selection, extent: IdRange) -> int:
        if selection.since is not None:
            return self.first_since(selection.since, extent)
        text = selection.start
        start = parse_text(text)
        now = time.time_ns() // 1_000_000
        kind, value = start.kind, start.value
        match kind, value:
            case StartKind.BEGINNING, _:
                return extent.first
            case StartKind.LIVE, _:
                return extent.last + 1
            case StartKind.LAST, _:
                return self._last_matching(selection.patterns, extent)
            case StartKind.DATE | StartKind.AGO, int():
                date = value if kind is StartKind.DATE else now - value
                if date > now:
                    raise OptionError(f"Option replayStart={text!r} lies in the future.")
                (floor,) = self._one("select floor_time from log")
                if date < floor and selection.fail_on_data_loss:
                    raise DataLoss(f"The log does not reach back to {text}.")
                return self.first_since(date, extent)
            case StartKind.AFTER, ReplayId():
                if value.generation != extent.generation:
                    raise DataLoss(f"The log was made anew since it gave out {text}.")
                return self._checked(value.number + 1, text, selection, extent)
            case StartKind.POINT, str():
                row = self._row("select position from point where name = ?", value)
                if row is None:
                    raise OptionError(f"Option replayStart={text!r}: the log has no such point.")
                (position,) = row
                return self._checked(int(position), text, selection, extent)
            case StartKind.OFFSET, int():
                return self._checked(value, text, selection, extent)
        raise OptionError(f"Option replayStart={text!r} has to be looked up by a gateway; give a url.")

    def _checked(self, first: int, text: str, selection: Selection, extent: IdRange) -> int:
        if extent.first <= first <= extent.last + 1:
            return first
        if selection.fail_on_data_loss:
            raise DataLoss(f"The log has {extent.first} to {extent.last}; {text} is not in it.")
        return min(max(first, extent.first), extent.last + 1)

    def _last_matching(self, patterns: tuple[str, ...], extent: IdRange) -> int:
        """The last id on a topic that is read, one past the last where there is none."""
        topics = None if patterns == EVERY_TOPIC else topic_filter(patterns)
        position = extent.last
        while position >= extent.first:
            rows = self._rows(
                f"select id, topic from message where id between {extent.first} and {position} and held is null",
                "desc",
            )
            if rows is None:
                break
            for number, topic in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                if topics is None or topics.matches(topic):
                    return int(number)
            position = number - 1
        return extent.last + 1

    def first_since(self, date: int, extent: IdRange) -> int:
        """The first id from a time on, one past the last where there is none: times never fall along ids."""
        low, high = extent.first, extent.last + 1
        while low < high:
            middle = (low + high) // 2
            row = self._row(f"select id, time from message where id >= {middle} order by id limit 1")
            number, arrived_ms = row or (middle, date)
            if arrived_ms >= date:
                high = middle
            else:
                low = number + 1
        return min(low, extent.last + 1)

    def _one(self, query: str) -> tuple[int, ...]:
        row = self._row(query)
        if row is None:
            raise ConnectionFailed(f"{self._path} cannot be read as a gateway's file: it has no log.")
        return row

    def _row(self, query: str, *values: str) -> tuple[int, ...] | None:
        try:
            return self._file.row(query, *values)
        except SqliteReader.Failed as error:
            raise self._unreadable(error) from error

    def _rows(self, query: str, order: str = "asc", limit: int = PAGE_ROWS) -> pa.RecordBatch | None:
        """A page of messages by their ids; numbers are in the query, as the driver takes longer to bind them."""
        try:
            return self._file.rows(f"{query} order by id {order} limit {limit}", limit)
        except SqliteReader.Failed as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ConnectionFailed:
        hint = ""
        if any(word in str(error) for word in _NEEDS_WRITING):
            hint = (
                " Where no gateway is running, SQLite has to make the files it reads through: let this process's user"
                " write to the folder, or start the gateway."
            )
        return ConnectionFailed(f"{self._path} cannot be read as a gateway's file: {error}.{hint}")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _neighbours(path: Path) -> str:
    found = sorted(file.stem for file in path.parent.glob("*.db"))
    return f" (it has the Message VPNs {', '.join(found)})" if found else ""
