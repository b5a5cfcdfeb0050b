"""
Copies of a store, for every engine: copying a store row by row into another store, the mark that says whether a copy
may continue the ids of its log, and files that appear whole or not at all.

Invariant: of all copies of a log, at most one continues in its generation, so that an id that a client knows never
becomes another message's id. A backup is older than its log, which has given out ids since. So a backup that is opened
as a store gets another generation, no matter how it was put in place. Copying a store with its generation closes the
source: the copy continues. A copy that is not complete cannot be opened.

In a log of another generation, the old log's ids have no meaning. The gateway refuses a consumer with an earlier replay
id (``log-modified``), a Spark query detects that its log was recreated, and an archive belongs to another log. A plain
offset names no generation. So the new log skips as many ids as the old log may have given out since the copy was made,
and such an offset points to where the new messages begin.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from gateway.core.model import CONTENT
from store.checksum import HEAD, HEAD_MODULUS
from store.data_folder import FILE_MODE
from store.errors import DamagedMessage, StoreError
from store.property_index import SEGMENT_BITS
from store.tables import ShortTables

StoredMessage: TypeAlias = tuple[int, int, str, int, int, int | None, bytes, int]
"""A ``Row`` with its checksum: id, time, topic, bare, route, held, content, checksum."""

MESSAGE: Final = ("id", "time", "topic", "bare", "route", "held", "content", "checksum")
"""The columns of a ``StoredMessage``."""

ENTRY: Final = "segment, number, value, message"
"""The columns of an entry of the property index: ``number`` is the number of its indexed span."""

IN_SEGMENT: Final = (1 << SEGMENT_BITS) - 1
"""The mask of an id's position in its segment."""


SMALL: Final[Mapping[str, str]] = {
    "route": "number, priority, endpoints",
    "endpoint": "number, cursor, name, kind, settings, replay",
    "subscription": "endpoint, pattern",
    "cursor": "number, part, floor, counted_id, messages, size_bytes",
    "cursor_range": "number, part, first, last",
    "attempt": "cursor, message, count",
    "reference": "cursor, message",
    "delayed": "cursor, due, message, size_bytes, retry",
    "last_value": "cursor, key, message, size_bytes, expires",
    "dedup": "endpoint, first, time, ids",
    "garbage": "cursor, endpoint, up_to",
    "point": "name, position, time, made",
    "replay_record": "number, name, state, record",
    "retention": "rule, below, whole_time",
    "indexed": "number, property, first_id, end_id",
}
"""The columns of small tables, their keys first."""

CHECKSUM: Final = f"(checksum - (checksum & {HEAD}) + (checksum & {HEAD}) % {HEAD_MODULUS})"
"""SQL for a checksum in its canonical form: some writers store a head that is not reduced by ``HEAD_MODULUS``."""


class Digest(NamedTuple):
    """A digest of the rows of a span. Different rows have different digests, except by a rare accident."""

    rows: int = 0
    total: int = 0
    """Sum of the checksums; of index entries: sum of the messages' positions in the segment."""
    rest: int = 0
    """Sum of ``held + 1`` over held messages; of index entries: sum of span numbers and lengths of values."""


class StoreTables(ABC):
    """
    An open store that no gateway uses meanwhile; the target of a copy is created if there is none.

    Messages are compared and copied in spans of ids, index entries in segments. All other tables are small, and are
    copied whole at the end.
    """

    failures: ClassVar[tuple[type[Exception], ...]]
    """What its engine raises when it cannot read or write."""

    def __init__(self, place: str, short: ShortTables) -> None:
        """
        Args:
            place: Where the store is, for people, without secrets; the same at every run.
        """
        self.place = place
        self._short = short

    # --- what an engine implements ------------------------------------------------------------------------------------

    @abstractmethod
    def log(self) -> LogRow | None:
        """The log's row, with what was published since it was written; None in a store that was just created."""

    @abstractmethod
    def _write_log(self, log: LogRow) -> None:
        """Write the log's row, in the caller's transaction."""

    @abstractmethod
    def _writing(self, *, is_durable: bool) -> AbstractContextManager[object]:
        """A transaction; with ``is_durable``, it and everything before it survive a power cut."""

    @abstractmethod
    def messages(self, first: int, stop: int) -> Iterator[StoredMessage]:
        """
        The messages with ids from ``first`` on, below ``stop``, in the order of their ids, each as it was written.

        Raises:
            DamagedMessage: A message is not what was written.
        """

    @abstractmethod
    def add_messages(self, rows: Sequence[StoredMessage]) -> None:
        """Add messages with rising ids, none of which is there yet, in one transaction."""

    @abstractmethod
    def check(self) -> list[str]:
        """The promises of ``rewind store check`` that the store breaks, a sentence each."""

    @abstractmethod
    def close(self) -> None: ...

    # --- small tables -------------------------------------------------------------------------------------------------

    def mark(self) -> CopyMark | None:
        return read_mark(self._short)

    def write_mark(self, mark: CopyMark | None, log: LogRow | None = None) -> None:
        """Write the mark durably, together with the log's row if one is given."""
        with self._writing(is_durable=True):
            if log is not None:
                self._write_log(log)
            write_mark(self._short, mark)

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a small table, in the order of its key."""
        columns = SMALL[table]
        rows = self._short.each(f"select {columns} from {table} order by {columns}")
        if table != "route":
            return rows
        return ((number, priority, self._short.numbers(endpoints)) for number, priority, endpoints in rows)

    def replace(self, log: LogRow, tables: Mapping[str, Iterable[tuple[Any, ...]]]) -> None:
        """Replace all rows of the small tables and the log's row, in one transaction."""
        with self._writing(is_durable=True):
            self._write_log(log)
            for table, rows in tables.items():
                self._short.ask(f"delete from {table}")
                self._short.add(table, SMALL[table], rows)

    # --- messages -----------------------------------------------------------------------------------------------------

    def digest(self, first: int, stop: int) -> Digest:
        """The digest of the messages with ids from ``first`` on, below ``stop``."""
        return self._digest(
            f"select count(*), coalesce(sum({CHECKSUM}), 0), coalesce(sum(held + 1), 0) "
            f"from {self._short.messages} where id >= ? and id < ?",
            first,
            stop,
        )

    def _digest(self, sql: str, *values: int) -> Digest:
        (found,) = self._short.ask(sql, *values)
        return Digest(*map(int, found))

    def last_below(self, stop: int) -> int:
        """The highest message id below ``stop``; 0 if there is none."""
        return max(self._ids("id < ? order by id desc", stop), default=0)

    def next_from(self, first: int) -> int | None:
        """The lowest message id from ``first`` on; None if there is none."""
        return min(self._ids("id >= ? order by id", first), default=None)

    def _ids(self, which: str, bound: int) -> list[int]:
        """The first id that each message table has for a condition."""
        found: list[int] = []
        for table, is_there in self._short.message_tables.items():
            rows = self._short.ask(f"select id from {table} where {is_there} and {which} limit 1", bound)
            found += [message_id for (message_id,) in rows]
        return found

    def remove(self, first: int, stop: int) -> None:
        """Delete all messages of a span."""
        with self._writing(is_durable=False):
            for table in self._short.message_tables:
                self._short.ask(f"delete from {table} where id >= ? and id < ?", first, stop)

    # --- entries of the index -----------------------------------------------------------------------------------------

    def segments(self) -> list[int]:
        """The segments for which the index has entries, in rising order."""
        # Each step looks up the next segment: there are many entries, and few segments.
        rows = self._short.ask(
            "with recursive found (segment) as (select min(segment) from property_value union all "
            "select (select min(segment) from property_value where segment > found.segment) from found "
            "where found.segment is not null) select segment from found where segment is not null"
        )
        return [segment for (segment,) in rows]

    def entries_digest(self, segment: int) -> Digest:
        return self._digest(
            "select count(*), coalesce(sum(message & ?), 0), "
            f"coalesce(sum(number + {self._short.value_bytes}), 0) from property_value where segment = ?",
            IN_SEGMENT,
            segment,
        )

    def entries(self, segment: int) -> Iterator[tuple[Any, ...]]:
        return self._short.each(
            f"select {ENTRY} from property_value where segment = ? order by {ENTRY}", segment
        )

    def replace_entries(self, segment: int, entries: Iterable[tuple[Any, ...]]) -> None:
        """Replace all entries of a segment."""
        with self._writing(is_durable=False):
            self._short.ask("delete from property_value where segment = ?", segment)
            self._short.add("property_value", ENTRY, entries)


SKIP_IDS: Final = 1_000_000
"""Ids to skip if a log's row does not tell how fast it gives them out."""

LEAST_SKIPPED: Final = 10_000
MOST_SKIPPED: Final = 100_000_000
"""Readers pass over this many ids in a second or two, and a log has 2^63 of them."""

MARGIN: Final = 4
"""Ids to skip for each id that the log would have given out since, at its average pace."""


class LogRow(NamedTuple):
    """The log's row, which covers all messages. ``store.sqlite.schema`` describes the columns."""

    generation: int
    first_id: int
    last_id: int
    last_time: int
    floor_time: int
    size_bytes: int
    largest_bytes: int
    next_number: int
    archived_id: int
    counted_id: int

    def ids_since(self, now_ms: int) -> int:
        """How many ids may have been given out, at most, since the newest message: by the log's average pace."""
        ids, took = self.last_id - self.first_id + 1, self.last_time - self.floor_time
        if ids <= 0 or took <= 0:
            return SKIP_IDS
        since = max(now_ms - self.last_time, 0)
        return min(max(MARGIN * ids * since // took, LEAST_SKIPPED), MOST_SKIPPED)

    def renewed(self, now_ms: int, *, above: int = 0, skip_ids: int | None = None) -> LogRow:
        """
        The row of a new log with the same messages, of which no archive has any.

        Args:
            above: An id that is known to have been given out; 0 if none is.
            skip_ids: How many ids to skip after the highest known one; None: as many as may have been given out.
        """
        skipped = self.ids_since(now_ms) if skip_ids is None else skip_ids
        return self._replace(
            generation=secrets.randbits(63), last_id=max(self.last_id, above) + skipped, archived_id=0
        )


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


MARK_TABLE: Final = "copy_mark"


class MarkState(StrEnum):
    """What a mark says of its store. The mark is a table of one row; most stores have no such table."""

    BACKUP = "backup"
    """A copy of a log that continued: opened as a store, it gets another generation."""
    UNFINISHED = "unfinished"
    """A copy that is being made: it cannot be opened before it is complete."""
    MOVED = "moved"
    """A closed store: its copy continues in another place."""


class CopyMark(NamedTuple):
    state: MarkState
    other: str
    """The place of the store that this is a copy of, or the place of this store's copy."""


STORIES: Final[Mapping[MarkState, str]] = {
    MarkState.UNFINISHED: "it is an unfinished copy of {}",
    MarkState.MOVED: "it is closed: its copy {} continues",
}
"""Why a store with such a mark cannot be opened; ``{}`` is the place of the other store."""


def refuse(mark: CopyMark | None, state: MarkState, operation: str, place: object, hint: str) -> None:
    """
    Raises:
        StoreError: The store to be used has a mark of this state.
    """
    if mark is not None and mark.state is state:
        raise StoreError(operation, place, STORIES[state].format(mark.other), hint)


def read_mark(tables: ShortTables) -> CopyMark | None:
    """The mark of a store; None if it has none."""
    rows = tables.ask(f"select state, other from {MARK_TABLE}") if tables.has(MARK_TABLE) else []
    return CopyMark(MarkState(rows[0][0]), rows[0][1]) if rows else None


def write_mark(tables: ShortTables, mark: CopyMark | None) -> None:
    """Write the mark of a store, or remove it, in the caller's transaction."""
    if mark is None:
        tables.ask(f"drop table if exists {MARK_TABLE}")
        return
    tables.ask(f"create table if not exists {MARK_TABLE} (state text not null, other text not null)")
    tables.ask(f"delete from {MARK_TABLE}")
    tables.ask(f"insert into {MARK_TABLE} values (?, ?)", mark.state.value, mark.other)


def check_whole(place: object, mark: CopyMark | None) -> None:
    """
    Refuse a store whose mark forbids opening it.

    Args:
        place: Where the store is.

    Raises:
        StoreError: It is an unfinished copy, or its copy continues elsewhere.
    """
    again = "Run the same `rewind store copy` again: it continues where it was interrupted"
    refuse(mark, MarkState.UNFINISHED, "cannot open", place, again)
    that_one = "Use the copy. To continue here, as another log, use `rewind store renew`"
    refuse(mark, MarkState.MOVED, "cannot open", place, that_one)


def renew(tables: StoreTables, skip_ids: int | None) -> tuple[LogRow, LogRow]:
    """
    Give the log a new generation, durably, and open the store again if it was closed.

    Args:
        skip_ids: How many ids to skip; None: as many as may have been given out since (``store.copies``).

    Returns:
        The log's row before and after.

    Raises:
        StoreError: It is no store, or an unfinished copy, or it cannot be read or written.
    """
    try:
        mark, before = tables.mark(), tables.log()
        refuse(mark, MarkState.UNFINISHED, "cannot renew", tables.place, "Finish the copy first")
        if before is None:
            raise StoreError("cannot renew", tables.place, "it is not a store of a gateway", "Name a store")
        log = before.renewed(now_ms(), skip_ids=skip_ids)
        tables.write_mark(None, log)
    except tables.failures as error:
        raise StoreError(
            "cannot renew", tables.place, error, "Repair it, and run the command again"
        ) from error
    return before, log


SPAN_BITS: Final = 12
SPAN_IDS: Final = 1 << SPAN_BITS
"""Ids whose messages are compared in one step."""

COMMIT_BYTES: Final = 8 * 1024 * 1024
"""Content of one transaction, at most; one message is always let through."""

HINT: Final = "Nothing was closed; check both with `rewind store check`"


class Copied(NamedTuple):
    """How far a copy is."""

    position: int
    """Ids below this one have been looked at."""
    last_id: int
    messages: int
    """Messages that this run copied."""
    size_bytes: int
    """Their content."""


class Copy(NamedTuple):
    """A complete copy."""

    log: LogRow
    messages: int
    """All messages of the copy."""
    copied: Copied
    has_closed: bool
    """The source is closed."""


Progress: TypeAlias = Callable[[Copied], None]

Step: TypeAlias = Callable[[str], None]
"""Called after each step, with its name. Tests end the process there."""


@dataclass(eq=False)
class Copying:
    """
    The copying of one store, with its ids, generation, routes, cursors and all else.

    Each span is compared before it is copied. So a run that was interrupted at any moment is continued by the next run,
    and it does no harm if the source was used in between. The target is marked as unfinished until everything was
    compared once more and found sound. Then the source is closed, and only after that the target is opened: at no
    moment are there two stores that would continue the ids of one generation.
    """

    source: StoreTables
    target: StoreTables
    as_new_log: bool = False
    """The copy gets another generation, and the source stays open."""
    progress: Progress = lambda copied: None
    step: Step = lambda name: None
    _copied: Copied = field(default_factory=lambda: Copied(0, 0, 0, 0), init=False)

    def run(self) -> Copy:
        """
        Copy what is missing, compare everything, and open the target as a store. Blocks.

        Raises:
            StoreError: The source is no store, or continues elsewhere; the target is a store already; a message is
                damaged; the copy differs from the source; or a store cannot be read or written.
        """
        try:
            return self._run()
        except (*self.source.failures, *self.target.failures) as error:
            raise StoreError(
                "cannot copy", self.source.place, error, "Check both places, and run the command again"
            ) from error

    def _run(self) -> Copy:
        source, target = self.source, self.target
        log = source.log()
        if log is None:
            raise StoreError("cannot copy", source.place, "it is not a store of a gateway", "Name a store")
        if self._is_done(log):
            return Copy(log, self._compare_messages(), self._copied, has_closed=True)
        self._copied = self._copied._replace(last_id=log.last_id)
        target.write_mark(CopyMark(MarkState.UNFINISHED, source.place))
        self.step("marked")
        self._copy_messages()
        self._copy_entries()
        target.replace(log, {table: source.rows(table) for table in SMALL})
        self.step("tables")
        count = self._compare()
        self.step("compared")
        if self.as_new_log:
            log = log.renewed(now_ms())
            target.write_mark(None, log)
        else:
            source.write_mark(CopyMark(MarkState.MOVED, target.place))
            self.step("closed")
            target.write_mark(None)
        self.step("opened")
        return Copy(log, count, self._copied, not self.as_new_log)

    def _is_done(self, log: LogRow) -> bool:
        """Whether an earlier run has done everything, by the marks of both stores. Refuses marks that forbid a copy."""
        source, target = self.source, self.target
        ours, theirs, there = source.mark(), target.mark(), target.log()
        refuse(ours, MarkState.UNFINISHED, "cannot copy", source.place, "Finish that copy first")
        if ours is not None and ours.state is MarkState.MOVED:
            if ours.other != target.place:
                refuse(ours, MarkState.MOVED, "cannot copy", source.place, "Copy from there")
            if theirs is None and there is not None and there.generation == log.generation:
                return True
        if ours is not None and ours.state is MarkState.BACKUP:
            self.as_new_log = True  # the log that it is a backup of has continued
        if theirs == CopyMark(MarkState.UNFINISHED, source.place):
            return False
        refuse(theirs, MarkState.UNFINISHED, "cannot copy to", target.place, "Name another place")
        if there is not None:
            raise StoreError("cannot copy to", target.place, "it has a store already", "Name another place")
        return False

    # --- copying ----------------------------------------------------------------------------------------------

    def _copy_messages(self) -> None:
        for first in self._spans():
            self._copy_span(first, first + SPAN_IDS)
            self._told(first + SPAN_IDS)

    def _spans(self) -> Iterator[int]:
        """The first ids of the spans in which the source or the target has a message."""
        position = 0
        while True:
            found = [
                first
                for tables in (self.source, self.target)
                if (first := tables.next_from(position)) is not None
            ]
            if not found:
                return
            first = min(found) >> SPAN_BITS << SPAN_BITS
            yield first
            position = first + SPAN_IDS

    def _copy_span(self, first: int, stop: int) -> None:
        source, target = self.source, self.target
        there = target.digest(first, stop)
        if there.rows:
            if there == source.digest(first, stop):
                return
            behind = target.last_below(stop) + 1
            if there == source.digest(first, behind):
                first = behind  # an earlier run ended here
            else:
                target.remove(first, stop)
        for rows in self._pieces(first, stop):
            target.add_messages(rows)
            size = sum(len(row[CONTENT]) for row in rows)
            copied = self._copied
            self._copied = copied._replace(
                messages=copied.messages + len(rows), size_bytes=copied.size_bytes + size
            )
            self.step("messages")
            self._told(rows[-1][0] + 1)

    def _pieces(self, first: int, stop: int) -> Iterator[list[StoredMessage]]:
        """The rows of a span, in pieces of about one transaction's content."""
        piece: list[StoredMessage] = []
        size = 0
        try:
            for row in self.source.messages(first, stop):
                piece.append(row)
                size += len(row[CONTENT])
                if size >= COMMIT_BYTES:
                    yield piece
                    piece, size = [], 0
        except DamagedMessage as error:
            raise StoreError("cannot copy", self.source.place, error, HINT) from error
        if piece:
            yield piece

    def _told(self, position: int) -> None:
        self._copied = self._copied._replace(position=position)
        self.progress(self._copied)

    def _copy_entries(self) -> None:
        source, target = self.source, self.target
        for segment in sorted({*source.segments(), *target.segments()}):
            if source.entries_digest(segment) != target.entries_digest(segment):
                target.replace_entries(segment, source.entries(segment))
                self.step("entries")

    # --- comparing --------------------------------------------------------------------------------------------

    def _compare(self) -> int:
        """Compare everything; returns how many messages there are. Raises if anything differs or is not sound."""
        source, target = self.source, self.target
        count = self._compare_messages()
        for segment in {*source.segments(), *target.segments()}:
            if source.entries_digest(segment) != target.entries_digest(segment):
                raise self._differs(f"segment {segment} of the index")
        for table in SMALL:
            if any(mine != other for mine, other in zip_longest(source.rows(table), target.rows(table))):
                raise self._differs(f"table {table}")
        if source.log() != target.log():
            raise self._differs("the log's row")
        problems = target.check()
        if problems:
            raise StoreError("cannot copy to", target.place, "; ".join(problems), HINT)
        return count

    def _compare_messages(self) -> int:
        count = 0
        for first in self._spans():
            here = self.source.digest(first, first + SPAN_IDS)
            if here != self.target.digest(first, first + SPAN_IDS):
                raise self._differs(f"messages from {first} on")
            count += here.rows
        return count

    def _differs(self, what: str) -> StoreError:
        return StoreError(
            "cannot copy to",
            self.target.place,
            f"{what}: the copy is not what {self.source.place} has",
            HINT,
        )


SUFFIX: Final = ".part"

COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""The files that SQLite creates next to a database."""

OpenFile: TypeAlias = int
"""A file descriptor."""


@contextmanager
def made_beside(to: Path) -> Iterator[tuple[Path, OpenFile]]:
    """
    An empty file next to ``to``, open and readable by its owner alone, to be filled. It is removed at the end if it is
    still there. What a killed run left under this name is emptied first.

    Raises:
        StoreError: It cannot be created, or another process is writing it.
    """
    part = to.with_name(f"{to.name}{SUFFIX}")
    try:
        held = _claimed(part)
        for suffix in COMPANIONS:
            Path(f"{part}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            "cannot write", part, error.strerror, "Name a place where this user may write"
        ) from error
    try:
        yield part, held
    finally:
        if _is_named(held, part):
            for suffix in (*COMPANIONS, ""):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
        # Closing a file releases all of this process's locks on it, SQLite's too: so SQLite has to close it first.
        os.close(held)


def _claimed(part: Path) -> OpenFile:
    while True:
        found = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        with ExitStack() as closing:
            closing.callback(os.close, found)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    "cannot write", part, "another process is writing it", "Wait until it has ended"
                ) from None
            # The process that had the lock until now may have renamed the file.
            if _is_named(found, part):
                os.ftruncate(found, 0)
                closing.pop_all()
                return found


def _is_named(held: OpenFile, part: Path) -> bool:
    """Whether this name still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(held), part.stat())
    except FileNotFoundError:
        return False


def put_in_place(part: Path, held: OpenFile, to: Path) -> None:
    """
    Give the file its final name, durably. A file that has that name now is replaced.

    Raises:
        StoreError: It cannot be written.
    """
    try:
        os.fsync(held)
        part.replace(to)
        sync_folder(to.parent)
    except OSError as error:
        raise StoreError("cannot write", to, error.strerror, "Check the disk") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
