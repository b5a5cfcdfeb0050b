"""
What the places share that read a gateway's own log where it is stored, whichever engine stores it: the ids at which a
selection starts and ends, and rows for Spark from stored pages. ``StoredLog`` says what an engine has to provide.

Stored messages are checked against their checksums (``store.checksum``), a page at a time. The checksum of a page's
joined contents follows from the checksums of the single contents: so their bytes are read once, in the buffer where
they are, and no content becomes an object of Python.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple
from zlib import adler32

import numpy as np
import pyarrow as pa

from amqp_ext.addresses.patterns import may_hold_for
from amqp_ext.message.annotations import Splicer
from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import StartKind, parse_text
from spark_bridge.columns.record_batches import STORED, BatchBuilder
from spark_bridge.errors import OptionError
from spark_bridge.options import EVERY_TOPIC, WHOLE_LOG, Selection
from spark_bridge.places.log_place import LiveLog, planned, topic_filter
from store.archive.columns import ALL, Columns
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange, LogWatch
from store.checksum import HEAD, HEAD_BITS, HEAD_MODULUS, NOT_AS_WRITTEN, content_sum, topic_sum


class RuleMark(NamedTuple):
    """What a rule of retention has taken out of the log, as the store records it."""

    rule: str
    """Its topics, then those of the rules before it, as JSON."""
    below: int
    """The log may lack messages of its topics with ids below this."""
    whole_ms: int
    """From this time on, in ms since the epoch, no message of its topics is missing."""


class StoredLog(AbstractContextManager["StoredLog"], ABC):
    """
    A log that is read where it is stored, over a connection that the end of a ``with`` block closes.

    Every method raises ConnectionFailed if the log cannot be read.
    """

    TEXT: ClassVar[str]
    """The placeholder for a text parameter of a query."""
    KIND: ClassVar[str]
    """What a gateway stores the log in, as error messages call it."""
    place: str
    """The name of the log in error messages."""

    @abstractmethod
    def extent(self, *, up_to: int | None = None) -> IdRange:
        """
        The ids the log holds now; last < first when there are none.

        Args:
            up_to: An id that the gateway is known to have told: a standby that does not have it yet is waited for.
        """

    def settled_extent(self) -> IdRange:
        """The extent that a read is planned with."""
        return self.extent()

    @property
    def is_current(self) -> bool:
        """Whether the connection still leads to the present log."""
        return True

    @property
    def is_standby(self) -> bool:
        """Whether the log is a copy that follows another one."""
        return False

    @abstractmethod
    def row(self, query: str, *texts: str) -> tuple[int, ...] | None:
        """The first row of a query's result, which is numbers; None if there are no rows."""

    def one(self, query: str) -> tuple[int, ...]:
        """The same for a query that has a row in every log."""
        row = self.row(query)
        if row is None:
            raise ConnectionFailed(f"{self.place} cannot be read as a gateway's {self.KIND}: it has no log.")
        return row

    def floor_ms(self) -> int:
        """The time, in ms, from which on every message is still there."""
        return self.one("select floor_time from log")[0]

    def point(self, name: str) -> int | None:
        """The position of the point with this name; None if there is no such point."""
        row = self.row(f"select position from point where name = {self.TEXT}", name)
        return None if row is None else row[0]

    def next_message(self, message_id: int) -> tuple[int, int] | None:
        """Id and time, in ms, of the first message with this id or a higher one."""
        row = self.row(f"select id, time from message where id >= {message_id} order by id limit 1")
        return None if row is None else (row[0], row[1])

    @abstractmethod
    def taken_out(self) -> Sequence[RuleMark]:
        """What rules of retention have taken out of the log, between messages that stay."""

    @abstractmethod
    def topics_below(self, first: int, last: int) -> tuple[list[int], list[str]] | None:
        """Ids and topics of the last messages of a range, falling: some, perhaps not all. None if there are none."""

    @abstractmethod
    def unchecked_pages(
        self, ids: IdRange, names: Sequence[str], patterns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Pages with the columns of these names; ``pages`` checks them against their checksums."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __exit__(self, *exception: object) -> None:
        self.close()

    def pages(
        self,
        ids: IdRange,
        columns: Collection[str] = STORED,
        *,
        whole: bool = False,
        patterns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        The logged messages of a range in order, some thousand at a time: the id, those columns of ``STORED``, and the
        columns for the check. Contents are checked whenever they are read. The other columns are checked only if
        ``whole`` is set: that takes two columns more, and a twentieth of a row's time in Spark.

        Args:
            whole: Read, and check, all that is stored of a message.
            patterns: The topics of which no message may be missing that was there when the range was planned; None if
                rules of retention may have taken messages out.

        Raises:
            DataLoss: The log no longer holds the range.
            ConnectionFailed: The log cannot be read, or a message is not what was written.
        """
        asked = [name for name in STORED if name == "id" or whole or name in columns]
        beside = BESIDE_ALL if whole else BESIDE_CONTENT if "content" in asked else ()
        for page in self.unchecked_pages(ids, [*asked, *beside], patterns):
            damaged = first_damaged(page) if beside else None
            if damaged is not None:
                raise ConnectionFailed(f"{self.place} is damaged: message {damaged} {NOT_AS_WRITTEN}.")
            yield page

    def extent_for(self, extent: IdRange, patterns: Sequence[str]) -> IdRange:
        """The extent, with what rules of retention took out of these topics."""
        return replace(extent, taken_below=below(marks_for(self.taken_out(), patterns)))

    def plan(self, selection: Selection) -> IdRange:
        """
        The range of ids that a selection means now.

        Raises:
            DataLoss: The log does not have the start.
            OptionError: Start or end make no sense for this log.
        """
        extent = self.settled_extent()
        marks = marks_for(self.taken_out(), selection.patterns)
        first = _start(self, selection, extent, marks)
        whole = replace(extent, taken_below=below(marks))
        return planned(selection, first, whole, lambda date: first_since(self, date, extent))


class StoredPlace(LiveLog, ABC):
    """The place of a log where it is stored; the archiver reads it, too (``ArchivableLog``)."""

    @abstractmethod
    def opened(self) -> StoredLog:
        """A connection to the log."""

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``."""
        with self.opened() as log:
            return log.extent_for(log.settled_extent(), selection.patterns)

    def plan(self, selection: Selection) -> IdRange:
        """See ``LogPlace.plan``."""
        with self.opened() as log:
            return log.plan(selection)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See ``LiveLog.batches``."""
        assert ids.generation is not None
        patterns = selection.patterns
        is_whole = ">" in patterns and not any(pattern.startswith("!") for pattern in patterns)
        builder = BatchBuilder(columns, None if is_whole else topic_filter(patterns), selection.partition)
        splicer = Splicer(ids.generation)
        with self.opened() as log:
            for page in log.pages(ids, builder.stored_columns, patterns=patterns):
                yield builder.stored(page, splicer, ids.generation), page.column("id")[-1].as_py() + 1

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """See ``store.archive.source.ArchivableLog``: messages as the publisher sent them."""
        assert ids.generation is not None
        builder, splicer = BatchBuilder(ALL), Splicer(ids.generation)
        with self.opened() as log:
            for page in log.pages(ids, whole=True):
                yield builder.stored(page, splicer, ids.generation), page.column("content").to_pylist()

    def may_be_behind(self) -> bool:
        """See ``LogPlace.may_be_behind``."""
        with self.opened() as log:
            return log.is_standby

    def watch(self, selection: Selection = WHOLE_LOG) -> LogWatch:
        """See ``LogPlace.watch``."""
        return StoredWatch(self)


class StoredWatch:
    """Asking a log again and again, over one connection."""

    def __init__(self, place: StoredPlace) -> None:
        self._place = place
        self._log: StoredLog | None = None

    def extent(self) -> IdRange:
        """See ``LogWatch.extent``."""
        if self._log is not None and not self._log.is_current:
            self.close()
        if self._log is None:
            self._log = self._place.opened()
            return self._log.settled_extent()
        return self._log.extent()

    def close(self) -> None:
        """See ``LogWatch.close``."""
        if self._log is not None:
            self._log.close()
        self._log = None


def marks_for(marks: Iterable[RuleMark], patterns: Sequence[str]) -> list[RuleMark]:
    """The marks of the rules that may apply to the topics that are read."""
    return [mark for mark in marks if _concerns(mark.rule, tuple(patterns))]


def below(marks: Iterable[RuleMark]) -> tuple[int, ...]:
    """The ``IdRange.taken_below`` of these marks."""
    return tuple(mark.below for mark in marks)


@lru_cache(1_000)
def _concerns(rule: str, patterns: tuple[str, ...]) -> bool:
    topics, *before = json.loads(rule)
    return may_hold_for(topics, before, patterns)


def first_since(log: StoredLog, date: int, extent: IdRange) -> int:
    """The first id from a time on, one past the last if there is none. Times never fall along ids."""
    low, high = extent.first, extent.last + 1
    while low < high:
        middle = (low + high) // 2
        number, arrived_ms = log.next_message(middle) or (middle, date)
        if arrived_ms >= date:
            high = middle
        else:
            low = number + 1
    return min(low, extent.last + 1)


def check_range(ids: IdRange, extent: IdRange) -> None:
    """
    Check that the log still reaches down to a range, in the range's generation.

    Raises:
        DataLoss: It does not.
    """
    if extent.generation != ids.generation:
        raise DataLoss(
            f"Offsets {ids.first} to {ids.last} cannot be read any more: the log was recreated since."
        )
    check_begin(ids, extent)


def check_begin(ids: IdRange, extent: IdRange) -> None:
    """
    Check that the log still reaches down to the first id of a range.

    Raises:
        DataLoss: It does not.
    """
    if extent.first > ids.first:
        raise DataLoss(
            f"The log was trimmed since the read was planned: offset {ids.first} was to be read, and the log "
            f"begins at {extent.first} now."
        )


def check_is_whole(ids: IdRange, taken_below: Sequence[int]) -> None:
    """
    Check a range, or a part of one, against what rules of retention have taken out by now.

    Raises:
        DataLoss: They have taken messages out of it since it was planned.
    """
    if ids.lost_since(taken_below):
        raise DataLoss(
            "A retention rule removed messages from the log since the read was planned, between offsets "
            f"{ids.first} and {ids.last}."
        )


def _start(log: StoredLog, selection: Selection, extent: IdRange, marks: Sequence[RuleMark]) -> int:
    if selection.since is not None:
        return first_since(log, selection.since, extent)
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
            return _newest_matching(log, selection.patterns, extent, 1)
        case StartKind.NEWEST, int():
            return _newest_matching(log, selection.patterns, extent, value)
        case StartKind.DATE | StartKind.AGO, int():
            date = value if kind is StartKind.DATE else now - value
            if date > now:
                raise OptionError(f"Option replayStart={text!r} is in the future.")
            if date < log.floor_ms() and selection.fail_on_data_loss:
                raise DataLoss(f"The log does not reach back to {text}.")
            if date < max((mark.whole_ms for mark in marks), default=0):
                _refuse_hole(text, selection, marks)
            return first_since(log, date, extent)
        case StartKind.AFTER, ReplayId():
            if value.generation != extent.generation:
                raise DataLoss(f"The log was recreated after it gave out {text}.")
            return _checked(value.number + 1, text, selection, extent, marks)
        case StartKind.POINT, str():
            position = log.point(value)
            if position is None:
                raise OptionError(f"Option replayStart={text!r}: the log has no such point.")
            return _checked(position, text, selection, extent, marks)
        case StartKind.OFFSET, int():
            return _checked(value, text, selection, extent, marks)
    raise OptionError(f"Option replayStart={text!r} has to be resolved by a gateway; give a url.")


def _checked(first: int, text: str, selection: Selection, extent: IdRange, marks: Sequence[RuleMark]) -> int:
    if extent.first <= first <= extent.last + 1:
        if first < max(below(marks), default=0):
            _refuse_hole(text, selection, marks)
        return first
    if selection.fail_on_data_loss:
        raise DataLoss(f"The log has {extent.first} to {extent.last}; {text} is not in it.")
    return min(max(first, extent.first), extent.last + 1)


def _refuse_hole(text: str, selection: Selection, marks: Sequence[RuleMark]) -> None:
    """Refuse a named start after which messages are missing, as a gateway does."""
    if selection.fail_on_data_loss:
        raise DataLoss(
            f"From {text} on the log lacks messages: up to offset {max(below(marks)) - 1} a retention rule "
            "removed some. Set failOnDataLoss to false to read the others."
        )


def _newest_matching(log: StoredLog, patterns: tuple[str, ...], extent: IdRange, count: int) -> int:
    """
    The first of the last ``count`` ids on the topics that are read: the oldest id if there are fewer, one past the last
    if there are none.
    """
    topics = None if patterns == EVERY_TOPIC else topic_filter(patterns)
    position = extent.last
    oldest = extent.last + 1
    while position >= extent.first:
        found = log.topics_below(extent.first, position)
        if found is None:
            break
        number = position
        for number, topic in zip(*found, strict=True):
            if topics is None or topics.matches(topic):
                oldest = number
                count -= 1
                if not count:
                    return oldest
        position = number - 1
    return oldest


ADLER_MODULUS: Final = 65_521
HALF: Final = 0xFFFF
BESIDE_CONTENT: Final = ("checksum",)
"""The columns that are needed to check contents."""
BESIDE_ALL: Final = ("bare", "route", "checksum")
"""The columns that are needed to check all of ``STORED``."""


def first_damaged(page: pa.RecordBatch) -> int | None:
    """The id of the first message that is not what was written; None if all are. The page has the columns for that."""
    checksums = page.column("checksum").to_numpy()
    contents = page.column("content")
    is_sound = np.ones(len(checksums), bool)
    sums = checksums >> HEAD_BITS
    if not _are_sums_of(sums, contents):
        is_sound &= sums == [content_sum(content) for content in contents.to_pylist()]
    if "bare" in page.schema.names:
        heads = sum(page.column(name).to_numpy() for name in ("id", "time", "bare", "route"))
        topics = page.column("topic").dictionary_encode()
        of_topics = np.array([topic_sum(topic) for topic in topics.dictionary.to_pylist()])
        heads = heads + of_topics[topics.indices.to_numpy()]
        is_sound &= ((checksums & HEAD) - heads) % HEAD_MODULUS == 0
    if is_sound.all():
        return None
    return int(page.column("id")[int(is_sound.argmin())].as_py())


def _are_sums_of(sums: np.ndarray, contents: pa.Array) -> bool:
    """Whether these are the checksums of the contents, by one check of all contents together."""
    if contents.type != pa.binary():
        return False
    _, offsets, data = contents.buffers()
    ends = np.frombuffer(offsets, np.int32)[contents.offset : contents.offset + len(contents) + 1].astype(
        np.int64
    )
    joined = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    firsts = (sums & HALF) - 1
    # In the second half of the sum, each byte of a content counts once for itself and once for each byte after it.
    second = (sums >> 16).sum() + (firsts * (ends[-1] - ends[1:])).sum()
    return adler32(joined) == int(second) % ADLER_MODULUS << 16 | (int(firsts.sum()) + 1) % ADLER_MODULUS
