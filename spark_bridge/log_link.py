"""Bounded reads of the replay log: learn what there is (``survey``), then read exactly that (``LogLink``).

A log reader is a link on ``log://<pattern>`` with the source filter ``rewind:replay-start``. The broker
tells in its answer which ids the log holds, and where the asked start lies; a bounded reader is detached,
without an error, after its last message.

Invariant: a ``LogLink`` yields every message of its range, or raises. A range that was cut short (trimmed,
log made anew, connection lost, a peer that ignores the bounds) never looks like a short log. A lost connection
alone is no loss of data: the rest of the range (``rest``) can be read over another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from amqp_ext.codec import Described, Symbol, Timestamp, ULong
from amqp_ext.replay_start import StartKind, parse_text
from amqp_ext.topics import TopicFilter, TopicPattern
from spark_bridge.errors import ConnectionFailed, DataLoss, OptionError, Refused
from spark_bridge.links import CREDIT, Receiver
from spark_bridge.options import Broker, Options
from spark_bridge.wire import Wire

REPLAY_START = "rewind:replay-start"
FIRST, LAST, GENERATION = "rewind:replay-first", "rewind:replay-last", "rewind:replay-generation"

PAGE_ROWS = 2_000  # messages in a page: 1-2 k per Arrow batch measured fastest, probably by the CPU's caches
PAGE_BYTES = 4 << 20  # bytes in a page, so that large messages do not pile up


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids ``first`` to ``last``, both included, of one generation of the log. Empty when last < first.

    A range names ids, not messages: a topic pattern, or a message that was never logged, leaves gaps.
    """

    first: int
    last: int
    generation: int | None

    def split(self, parts: int) -> list[IdRange]:
        """At most ``parts`` adjoining ranges of nearly equal width; an empty range stays one."""
        width = self.last - self.first + 1
        count = max(1, min(parts, width))
        edges = [self.first + width * part // count for part in range(count + 1)]
        return [IdRange(low, high - 1, self.generation) for low, high in pairwise(edges)]


def filtered_here(patterns: Sequence[str]) -> bool:
    """Whether the link has to carry the whole log: an address holds one pattern, and not every text."""
    return len(patterns) != 1 or patterns[0].startswith("!") or "?" in patterns[0]


def topic_filter(patterns: Sequence[str]) -> TopicFilter:
    """Which topics these patterns take, as a log reader understands them."""
    return TopicFilter([TopicPattern.parse(pattern) for pattern in patterns], implicit_all=True)


def address(patterns: Sequence[str]) -> str:
    """The log address to attach to for these patterns."""
    return "log://>" if filtered_here(patterns) else f"log://{patterns[0]}"


def extent(link: Receiver, where: str) -> IdRange:
    """The ids the log held when this link was attached."""
    first, last = _integer(link.properties, FIRST, where), _integer(link.properties, LAST, where)
    return IdRange(first, last, link.properties.get(GENERATION))


def live(wire: Wire, where: str, credit: int = CREDIT) -> Receiver:
    """A reader of what comes from now on; attaching tells what there is."""
    return Receiver(wire, where, filters=_filter("live"), settled=True, credit=credit)


def survey(options: Options, place: int = 0) -> IdRange:
    """Ask a broker for the log's ids now and pin what a read with these options means.

    Raises Refused for a start the log does not have, OptionError for an end that does not fit,
    ConnectionFailed.
    """
    where, broker = address(options.patterns), options.places[place]
    assert isinstance(broker, Broker)
    text = options.start_of(place)
    start: Any = text if options.fail_on_data_loss else _clamped(text)
    if options.since is not None:
        start = _date(options.since)
    with Wire(broker) as wire:
        link = Receiver(wire, where, filters=_filter(start), settled=True)
        first, held = _integer(_resolved(link, where), "offset", where), extent(link, where)
        if start == StartKind.LAST.value and len(options.patterns) > 1:
            first, held = _last_of(wire, options.patterns)
        last, stop = held.last, options.stop_of(place)
        if options.before is not None:
            last = min(last, first_since(wire, where, options.before) - 1)
        elif stop is not None:
            check_stop(stop, first, held)
            last = stop - 1
    return replace(held, first=first, last=last)


def check_stop(stop: int, first: int, held: IdRange) -> None:
    """Hold an exclusive end against the log and the start of the read. Raises OptionError."""
    if stop > held.last + 1:
        raise OptionError(
            f"Option endingOffsets={stop} lies beyond the log, whose last offset is {held.last}."
        )
    if stop < first:
        raise OptionError(f"Option endingOffsets={stop} lies before the start of the read, offset {first}.")


def check_end(ids: IdRange, last: int) -> None:
    """Hold the end of a planned range against the log's last id now. Raises DataLoss."""
    if last < ids.last:
        raise DataLoss(
            f"Offsets {ids.first} to {ids.last} were planned, and the log ends at {last} now, as one restored from an "
            "older copy would."
        )


def _clamped(text: str) -> str | dict[Symbol, Any]:
    """The same start, taking the nearest place where the log does not have it."""
    start = parse_text(text)
    value: Any = start.value
    match start.kind:
        case StartKind.BEGINNING | StartKind.LIVE | StartKind.LAST:
            return text
        case StartKind.OFFSET | StartKind.AGO:
            value = ULong(value)
        case StartKind.DATE:
            value = Timestamp(value)
        case StartKind.AFTER:
            value = text
    return {Symbol(start.kind.value): value, Symbol("missing"): Symbol("clamp")}


def _last_of(wire: Wire, patterns: Sequence[str]) -> tuple[int, IdRange]:
    """The last offset that any of these patterns takes, and the log at that moment: an address holds one pattern."""
    newest = 0
    for pattern in patterns:
        where = address([pattern])
        link = Receiver(wire, where, filters=_filter(StartKind.LAST.value), settled=True)
        found, held = _integer(_resolved(link, where), "offset", where), extent(link, where)
        if found <= held.last:
            newest = max(newest, found)
    return newest or held.last + 1, held


def _date(time: int) -> dict[Symbol, Any]:
    """The first message from a time on; before the log its first one, behind it the next to come."""
    return {Symbol("date"): Timestamp(time), Symbol("missing"): Symbol("clamp")}


def first_since(wire: Wire, where: str, time: int) -> int:
    """The first id from a time (ms) on; the next one to be given out where there is none."""
    link = Receiver(wire, where, filters=_filter(_date(time)), settled=True)
    return _integer(_resolved(link, where), "offset", where)


class LogLink:
    """One bounded read on an open wire."""

    def __init__(self, wire: Wire, where: str, ids: IdRange) -> None:
        """Attach. Raises DataLoss when the log no longer holds the range, and ConnectionFailed."""
        self._ids = ids
        self.rest = ids
        """What is still to come behind the last page that was checked."""
        start = {"offset": ULong(ids.first), "until": ULong(ids.last)}
        if ids.generation is not None:
            start["generation"] = ULong(ids.generation)
        try:
            self._link = Receiver(
                wire,
                where,
                filters=_filter({Symbol(key): value for key, value in start.items()}),
                settled=True,
                batches=True,
            )
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
        held = _integer(self._link.properties, FIRST, where)
        if held > ids.first:
            raise DataLoss(
                f"The log was trimmed since the read was planned: of {ids.first} and up, {held} is first now."
            )
        check_end(ids, _integer(self._link.properties, LAST, where))

    def pages(self) -> Iterator[list[bytes]]:
        """The messages of the range in order, some thousand at a time, until the broker says that is all.

        Raises DataLoss when the broker ends the replay early, ConnectionFailed when the connection is lost.
        """
        page: list[bytes] = []
        size = 0
        while taken := self._take(PAGE_ROWS - len(page)):
            page += taken
            size += sum(map(len, taken))
            if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    def check(self, offsets: Sequence[int]) -> None:
        """Hold a page's offsets against the range: inside it, and rising all the way. Raises DataLoss."""
        expected = self.rest.first
        for offset in offsets:
            if not expected <= offset <= self._ids.last:
                raise DataLoss(
                    f"Offset {offset} came where one of {expected} to {self._ids.last} was due; "
                    "the broker does not keep to the bounds of the replay."
                )
            expected = offset + 1
        self.rest = replace(self._ids, first=expected)

    def _take(self, limit: int) -> list[bytes]:
        try:
            return self._link.take(limit)
        except Refused as error:
            raise DataLoss(
                f"The read of offsets {self._ids.first} to {self._ids.last} broke off. {error.sentence}"
            ) from error


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
            f"The broker's answer on {where} has {value!r} for {key}, where an integer is due."
        )
    return value
