"""
A log over AMQP, the place of a broker's url: learn what there is (``survey``), then read exactly that (``LogLink``).

A log reader is a link on ``log://<pattern>`` with the source filter ``rewind:replay-start``. The broker's answer says
which ids the log holds, and at which id the requested start is. The broker detaches a bounded reader, without an error,
after its last message.

Invariant: a ``LogLink`` yields every message of its range, or raises. A range that was cut short (a trimmed or
recreated log, a lost connection, a peer that ignores the bounds) never looks like a short log. A lost connection
alone is no loss of data: the rest of the range (``rest``) can be read over another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from amqp_ext.codec import CodecError, Described, Symbol, Timestamp, ULong
from amqp_ext.replay_start import StartKind, parse_text
from spark_bridge.amqp_client.links import CREDIT, Receiver
from spark_bridge.amqp_client.wire import Broker, Wire
from spark_bridge.columns.message_block import PAGE_BYTES, EncodedMessages, Gathered, Numbers
from spark_bridge.columns.record_batches import BatchBuilder
from spark_bridge.errors import Refused
from spark_bridge.options import WHOLE_LOG, Selection
from spark_bridge.places.log_place import LiveLog, check_end, planned, topic_filter
from spark_bridge.places.stored_log import check_begin, check_is_whole
from store.archive.columns import ALL, Columns
from store.archive.errors import ConnectionFailed, DataLoss, LogError
from store.archive.source import IdRange

PAGE_ROWS = 4_000
"""Messages of a page. Fewer than in a page of a file: a link is slower, and the first messages wait for the last."""
REPLAY_START = "rewind:replay-start"
FIRST, LAST, GENERATION = "rewind:replay-first", "rewind:replay-last", "rewind:replay-generation"
TAKEN_BELOW = "rewind:replay-taken-below"


def filtered_here(patterns: Sequence[str]) -> bool:
    """Whether the link has to carry the whole log: an address holds one pattern, with no exception and no ``?``."""
    return len(patterns) != 1 or patterns[0].startswith("!") or "?" in patterns[0]


def address(patterns: Sequence[str]) -> str:
    """The log address to attach to for these patterns."""
    return "log://>" if filtered_here(patterns) else f"log://{patterns[0]}"


def extent(link: Receiver, where: str) -> IdRange:
    """The ids the log held when this link was attached."""
    first, last = _integer(link.properties, FIRST, where), _integer(link.properties, LAST, where)
    return IdRange(
        first, last, link.properties.get(GENERATION), tuple(link.properties.get(TAKEN_BELOW) or ())
    )


def extent_for(wire: Wire, patterns: Sequence[str], whole: IdRange) -> IdRange:
    """The extent, with what rules of retention took out of these topics alone if the link carries others, too."""
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    if not whole.taken_below or not filtered_here(patterns) or not wanted:
        return whole
    taken_below: tuple[int, ...] = ()
    for pattern in wanted:
        where = address([pattern])
        link = live(wire, where)
        taken_below += extent(link, where).taken_below
        link.detach()
    return replace(whole, taken_below=taken_below)


def live(wire: Wire, where: str, credit: int = CREDIT) -> Receiver:
    """A reader of messages from now on; the answer to its attach gives the extent of the log."""
    return Receiver(wire, where, filters=_filter("live"), settled=True, credit=credit)


def _looked_up(wire: Wire, where: str, start: str | Mapping[Any, Any]) -> tuple[int, IdRange]:
    """The first id from a start on, or the id of the next message if there is none; and the log at that moment."""
    link = Receiver(wire, where, filters=_filter(start), settled=True)
    return _integer(_resolved(link, where), "offset", where), extent(link, where)


def survey(broker: Broker, selection: Selection) -> IdRange:
    """
    Ask a broker for the log's ids now, and fix the range of ids that a selection means.

    Raises:
        Refused: The log does not have the start.
        OptionError: The end is before the start or beyond the log.
        ConnectionFailed: The broker cannot be asked.
    """
    where = address(selection.patterns)
    start: Any = selection.start if selection.fail_on_data_loss else _clamped(selection.start)
    if selection.since is not None:
        start = _date(selection.since)
    with Wire(broker) as wire:
        first, whole = _looked_up(wire, where, start)
        if start == StartKind.LAST.value and len(selection.patterns) > 1:
            first, whole = _last_of(wire, selection.patterns)
        whole = extent_for(wire, selection.patterns, whole)
        return planned(selection, first, whole, lambda date: _looked_up(wire, where, _date(date))[0])


def _clamped(text: str) -> str | dict[Symbol, Any]:
    """The same start, or the nearest place that the log has."""
    start = parse_text(text)
    value: Any = start.value
    match start.kind:
        case StartKind.BEGINNING | StartKind.LIVE | StartKind.LAST | StartKind.NEWEST:
            return text
        case StartKind.OFFSET | StartKind.AGO:
            value = ULong(value)
        case StartKind.DATE:
            value = Timestamp(value)
        case StartKind.AFTER:
            value = text
    return {Symbol(start.kind.value): value, Symbol("missing"): Symbol("clamp")}


def _last_of(wire: Wire, patterns: Sequence[str]) -> tuple[int, IdRange]:
    """The last offset that any of these patterns matches, and the log at that moment: an address holds one pattern."""
    newest = 0
    for pattern in patterns:
        found, whole = _looked_up(wire, address([pattern]), StartKind.LAST.value)
        if found <= whole.last:
            newest = max(newest, found)
    return newest or whole.last + 1, whole


def _date(time: int) -> dict[Symbol, Any]:
    """The start at the first message from a time on, clamped: at the log's first message, or at the next to come."""
    return {Symbol("date"): Timestamp(time), Symbol("missing"): Symbol("clamp")}


class LogLink:
    """One bounded read on an open wire."""

    def __init__(self, wire: Wire, where: str, ids: IdRange, patterns: Sequence[str] | None = None) -> None:
        """
        Attach.

        Args:
            patterns: The topics of which no message may be missing that was there when the range was planned; None if
                rules of retention may have taken messages out. The broker tells if a rule takes some from now on.

        Raises:
            DataLoss: The log no longer holds the range.
            ConnectionFailed: The connection was lost.
        """
        self._ids = ids
        self._where = where
        self.rest = ids
        """What is still to come after the last page that was checked."""
        # Clamped: a rule of retention may have taken out the first message. Whether the log was trimmed is seen below.
        start: dict[Symbol, Any] = {
            Symbol("offset"): ULong(ids.first),
            Symbol("until"): ULong(ids.last),
            Symbol("missing"): Symbol("clamp"),
        }
        if ids.generation is not None:
            start[Symbol("generation")] = ULong(ids.generation)
        try:
            self._link = Receiver(wire, where, filters=_filter(start), settled=True, batches=True)
        except Refused as error:
            raise DataLoss(
                f"Offsets {ids.first} to {ids.last} cannot be read any more. {error.sentence}"
            ) from error
        resolved = _resolved(self._link, where)
        first, until = _integer(resolved, "offset", where), _integer(resolved, "until", where)
        if first < ids.first or until != ids.last:
            raise DataLoss(
                f"Offsets {ids.first} to {ids.last} were asked for; the broker understood {first} to {until}."
            )
        now = extent(self._link, where)
        check_begin(ids, now)
        check_end(ids, now.last)
        if patterns is not None and replace(ids, taken_below=()).lost_since(now.taken_below):
            check_is_whole(ids, extent_for(wire, patterns, now).taken_below)

    def pages(self) -> Iterator[EncodedMessages]:
        """
        The messages of the range in order, some thousand at a time, until the broker ends the link.

        If the connection is lost, the messages that have come are yielded first: they need not be read again.

        Raises:
            DataLoss: The broker ended the replay early.
            ConnectionFailed: The connection was lost.
        """
        page = Gathered(in_batches=self._link.in_batches)
        try:
            while taken := self._link.receive(1 if self._link.in_batches else PAGE_ROWS - len(page)):
                try:
                    for delivery in taken:
                        page.add(delivery)
                except CodecError as error:
                    raise ConnectionFailed(
                        f"The broker's answer on {self._where} failed: {error}."
                    ) from error
                if len(page) >= PAGE_ROWS or page.octets >= PAGE_BYTES:
                    full, page = page, Gathered(in_batches=self._link.in_batches)
                    yield full.messages()
        except ConnectionFailed:
            if len(page):
                yield page.messages()
            raise
        except Refused as error:
            raise DataLoss(
                f"The read of offsets {self._ids.first} to {self._ids.last} broke off. {error.sentence}"
            ) from error
        if len(page):
            yield page.messages()

    def check(self, offsets: Numbers) -> None:
        """
        Check that a page's offsets are inside the range, and rise.

        Raises:
            DataLoss: An offset is out of bounds.
        """
        least = np.empty_like(offsets)  # the least that each may be
        least[:1] = self.rest.first
        least[1:] = offsets[:-1] + 1
        wrong = np.flatnonzero((offsets < least) | (offsets > self._ids.last))
        if len(wrong):
            raise DataLoss(
                f"Offset {offsets[wrong[0]]} came where one of {least[wrong[0]]} to {self._ids.last} was "
                "expected; the broker does not keep to the start and end of the replay."
            )
        if len(offsets):
            self.rest = replace(self._ids, first=int(offsets[-1]) + 1)


def _filter(start: str | Mapping[Any, Any]) -> dict[str, Described]:
    # A key of our own: the broker echoes this entry as it is, and adds the resolved start under its name.
    return {"start": Described(Symbol(REPLAY_START), start)}


def _resolved(link: Receiver, where: str) -> Mapping[str, Any]:
    """The start as the broker understood it; a filter not echoed was not applied (AMQP 1.0, 3.5.3)."""
    entry = link.source_filter.get(REPLAY_START)
    value = entry.value if isinstance(entry, Described) else entry
    if not isinstance(value, dict):
        raise ConnectionFailed(
            f"The broker did not honour the replay start on {where}; is it a Rewind gateway?"
        )
    return {str(key): item for key, item in value.items()}


def _integer(values: Mapping[str, Any], key: str, where: str) -> int:
    value = values.get(key)
    if not isinstance(value, int):
        raise ConnectionFailed(
            f"The broker's answer on {where} has {value!r} for {key}, where an integer is expected."
        )
    return value


@dataclass(frozen=True, slots=True)
class BrokerPlace(LiveLog):
    """The replay log of a Message VPN of a running gateway."""

    broker: Broker

    @property
    def name(self) -> str:
        """The broker's url."""
        return self.broker.url

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``."""
        with Wire(self.broker) as wire:
            whole = extent(live(wire, address(selection.patterns)), self.broker.url)
            return extent_for(wire, selection.patterns, whole)

    def plan(self, selection: Selection) -> IdRange:
        """See ``LogPlace.plan``."""
        return survey(self.broker, selection)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """
        See ``LiveLog.batches``.

        A consumer that takes longer than the broker's idle time-out loses the connection between two batches. The rest
        is then read over a new connection, as long as each connection brings some messages.
        """
        patterns, rest = selection.patterns, ids
        topics = topic_filter(patterns) if filtered_here(patterns) else None
        builder = BatchBuilder(columns, topics, selection.partition)
        while rest.first <= rest.last:
            with Wire(self.broker) as wire:
                link = LogLink(wire, address(patterns), rest, patterns)
                try:
                    for page in link.pages():
                        batch, offsets = builder.batch(page)
                        link.check(offsets)
                        yield batch, link.rest.first
                    return
                except ConnectionFailed as error:
                    if link.rest == rest:
                        raise DataLoss(
                            f"Offsets {rest.first} to {rest.last} could not be read. {error.sentence}"
                        ) from error
                    rest = link.rest

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """See ``store.archive.source.ArchivableLog``: messages as a log reader gets them."""
        builder = BatchBuilder(ALL)
        with Wire(self.broker) as wire:
            link = LogLink(wire, address(WHOLE_LOG.patterns), ids)
            for messages in link.pages():
                batch, offsets = builder.batch(messages)
                link.check(offsets)
                yield batch, list(messages)

    def watch(self, selection: Selection = WHOLE_LOG) -> BrokerWatch:
        """See ``LogPlace.watch``."""
        return BrokerWatch(self.broker, address(selection.patterns))


class BrokerWatch:
    """
    Asking a broker where its log ends, a hundred times a second, without a new link each time.

    Spark polls an idle stream every 10 ms. A new link each time would fill the broker's own log. So one reader stays
    attached at the live end with a credit of one: as long as nothing comes through it, nothing has changed.

    Invariant: the extent was that of the log when the last link was attached, and no message that the patterns match
    has come since, except those that have not reached us yet.
    """

    def __init__(self, broker: Broker, where: str) -> None:
        self._broker = broker
        self._where = where
        self._wire: Wire | None = None
        self._link: Receiver | None = None
        self._extent = IdRange(1, 0, None)

    def extent(self) -> IdRange:
        """
        The ids the log holds.

        Raises:
            LogUnavailable: The broker is unavailable, also at a second try.
        """
        try:
            if self._link is not None and not self._link.has_more():
                return self._extent
            if self._link is not None:
                self._link.detach()
            return self._attach()
        except (ConnectionFailed, Refused):
            self.close()
            return self._attach()

    def _attach(self) -> IdRange:
        try:
            if self._wire is None:
                self._wire = Wire(self._broker)
            self._link = None
            self._link = live(self._wire, self._where, credit=1)
            self._extent = extent(self._link, self._where)
        except LogError:
            self.close()
            raise
        return self._extent

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        if self._wire is not None:
            self._wire.close()
        self._wire = self._link = None
