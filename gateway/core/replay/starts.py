"""
Where a replay starts and ends: a client's request is resolved to ids of the log, or refused.

A start that is not possible is never ignored and never changed to another one, unless the client asks for that
(``missing=clamp``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import Missing, ReplayStart, StartKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import NOTHING, TakenOut, log_is_off
from gateway.core.model import Point


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts of a log that are known without reading it. Times in ms since the epoch."""

    enabled: bool
    generation: int
    first_id: int
    """The oldest id that may be in the log, or in its archive."""
    next_id: int
    """One past the last committed id."""
    floor_ms: int
    """No message is missing from this time on: when the log was made, or just after the newest trimmed message
    arrived."""
    points: Mapping[str, Point] = field(default_factory=dict)
    """Named points, by name."""
    log_first_id: int = 0
    """The oldest id that may be in the log itself."""
    log_floor_ms: int = 0
    """No message is missing in the log itself from this time on."""
    taken_out: TakenOut = NOTHING
    """What retention rules took out of the requested topics."""
    archive: str = ""
    """What the log's archive has, as the end of a sentence; empty where the log has no archive."""

    @property
    def holds(self) -> str:
        """What log and archive hold, for the text of a refusal."""
        if self.first_id == self.next_id:
            return f"is empty; the next message is {self.next_id}{self.archive}"
        first = max(self.log_first_id, self.first_id)
        held = f"holds ids {first} to {self.next_id - 1}" if first < self.next_id else "is empty"
        return f"{held}{self.archive}"


class LogProbe(Protocol):
    """Queries of the log that need to read it, and so run outside the event loop."""

    def first_since(self, time_ms: int) -> int | None:
        """The first logged id that arrived at or after a time."""

    def time_of(self, message_id: int) -> int | None:
        """When a message arrived, if the log holds it."""

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        """The last logged id whose topic matches."""


_PLACES: Final = frozenset(
    {
        StartKind.OFFSET,
        StartKind.AFTER,
        StartKind.AT,
        StartKind.POINT,
        StartKind.MESSAGE_ID,
        StartKind.MATCH,
    }
)
"""Starts that name a message, or a place between two."""

_TIMES: Final = frozenset({StartKind.DATE, StartKind.AGO})
"""Starts that name a time: they request the messages that arrived from then on."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolved start: ``first`` is the first id that may be delivered, ``last`` the last of a bounded replay."""

    first: int
    last: int | None
    time_ms: int | None
    """When the first message arrived; None where there is none."""
    is_live: bool = False
    without_below: int = 0
    """Retention rules had taken out messages below this id by then; the reader goes on without them."""
    values_from: int | None = None
    """For a reader of a last-value queue that requested no start: it first gets the queue's values from this id on and
    below ``first``. None: it gets no values first."""


def check_start(start: ReplayStart, facts: LogFacts) -> None:
    """
    Check a start as far as that is possible without reading the log.

    Raises:
        Refused: REPLAY_DISABLED, LOG_MODIFIED.
    """
    if not facts.enabled and start.kind is not StartKind.LIVE:
        raise log_is_off("there is nothing to replay")
    if start.generation is not None and start.generation != facts.generation:
        raise Refused(
            ErrorCode.LOG_MODIFIED,
            f"the position is from log generation {start.generation}, this log is generation {facts.generation}",
        )


def is_before_log(start: ReplayStart, facts: LogFacts, now_ms: int) -> bool:
    """
    Whether a start may be before the log, so that the log's archive has to be read. Searches, and the last message of a
    topic, may be anywhere.
    """
    first_id, floor_ms = facts.log_first_id, facts.log_floor_ms
    if first_id <= 1:
        return False  # no message has left the log
    until = start.until
    if until is not None and until.kind not in ("now", "offset", "id") and int(until.value) < floor_ms:  # type: ignore[arg-type]
        return True
    match start.kind:
        case StartKind.LIVE:
            return False
        case StartKind.DATE | StartKind.AGO:
            return _time_of(start, now_ms) < floor_ms
        case StartKind.OFFSET:
            return int(start.value) < first_id  # type: ignore[arg-type]
        case StartKind.AFTER | StartKind.AT:
            return _position_of(start).number < first_id
        case StartKind.POINT:
            point = facts.points.get(str(start.value))
            return point is not None and point.position < first_id
        case StartKind.BEGINNING | StartKind.LAST | StartKind.NEWEST | StartKind.MESSAGE_ID | StartKind.MATCH:
            return True
        case _:
            assert_never(start.kind)


def resolve(
    start: ReplayStart,
    facts: LogFacts,
    probe: LogProbe,
    now_ms: int,
    matches: Callable[[str], bool] | None = None,
    found: int | None = None,
) -> Resolved:
    """
    Resolve a start to ids of the log.

    With ``missing=clamp``, a start before the log becomes its beginning, and a start after it becomes live. A
    message-id or selector without a match, or a trimmed point, becomes the beginning, too: the message may have been
    trimmed, and the reader must not miss the messages after it. Only a point that does not exist is still refused: its
    name is a mistake, and no place in the log is near it.

    Args:
        found: The id that was found for a start that needs a search (``gateway.core.replay.search``) or a count back
            from the end; None when there is no such message.

    Raises:
        Refused: The replay cannot start there (docs/reference/refusals.md).
    """
    check_start(start, facts)
    first = _first(start, facts, probe, now_ms, matches, found)
    check_is_whole(start, first, facts.taken_out, now_ms)
    last = last_of(start, facts, probe, now_ms)
    is_live = start.kind is StartKind.LIVE or first >= facts.next_id
    return Resolved(first, last, None if is_live else probe.time_of(first), is_live)


def check_is_whole(start: ReplayStart, first: int, taken_out: TakenOut, now_ms: int) -> None:
    """
    Check that no retention rule took out messages from the start of a replay on, unless the start has ``missing=clamp``
    or names no message or time.

    Args:
        taken_out: What retention rules took out of the requested topics.

    Raises:
        Refused: START_MESSAGE_UNAVAILABLE, START_TIME_NOT_AVAILABLE.
    """
    if start.missing is Missing.CLAMP or start.kind not in _PLACES | _TIMES:
        return
    if start.kind in _TIMES and _time_of(start, now_ms) < taken_out.whole_ms:
        # The first message since then may come after the missing ones.
        raise Refused(
            ErrorCode.START_TIME_NOT_AVAILABLE,
            f"a retention rule removed messages{_of_topics(taken_out)} from the log, which is whole from "
            f"{ReplayStart(StartKind.DATE, taken_out.whole_ms)} on; ask for the beginning, or say "
            "missing=clamp",
        )
    if first >= taken_out.below:
        return
    raise Refused(
        ErrorCode.START_TIME_NOT_AVAILABLE if start.kind in _TIMES else ErrorCode.START_MESSAGE_UNAVAILABLE,
        f"from id {first} on the replay log lacks messages: up to id {taken_out.below - 1} a retention rule "
        f"removed some{_of_topics(taken_out)}; ask for the beginning, or say missing=clamp",
    )


def _first(
    start: ReplayStart,
    facts: LogFacts,
    probe: LogProbe,
    now_ms: int,
    matches: Callable[[str], bool] | None,
    found: int | None,
) -> int:
    clamp = start.missing is Missing.CLAMP
    match start.kind:
        case StartKind.BEGINNING:
            return facts.first_id
        case StartKind.LIVE:
            return facts.next_id
        case StartKind.LAST:
            last = probe.last_matching(matches)
            return facts.next_id if last is None or last < facts.first_id else last
        case StartKind.NEWEST:
            # If the log has fewer messages, the start means all of them.
            return facts.next_id if found is None else _clamped(found, facts)
        case StartKind.DATE | StartKind.AGO:
            return _since(_time_of(start, now_ms), facts, probe, now_ms, clamp)
        case StartKind.OFFSET:
            return _at_offset(int(start.value), facts, clamp)  # type: ignore[arg-type]
        case StartKind.AFTER | StartKind.AT:
            number = _number_in_this_log(_position_of(start), facts)
            may_be_there = facts.first_id <= number < facts.next_id
            if not clamp and not (may_be_there and probe.time_of(number) is not None):
                raise Refused(
                    ErrorCode.START_MESSAGE_UNAVAILABLE,
                    f"message {number} is not in the replay log, which {facts.holds}",
                )
            return _clamped(number + (start.kind is StartKind.AFTER), facts)
        case StartKind.POINT:
            return _at_point(str(start.value), facts, clamp)
        case StartKind.MESSAGE_ID | StartKind.MATCH:
            if found is not None and found >= facts.first_id:
                return found
            if clamp:
                return facts.first_id
            raise Refused(
                ErrorCode.START_MESSAGE_UNAVAILABLE,
                f"no message for {start} is in the replay log on the topics asked for; the log {facts.holds}",
            )
        case _:
            assert_never(start.kind)


def _time_of(start: ReplayStart, now_ms: int) -> int:
    """The time of a start that is a date or an age."""
    said_ms = int(start.value)  # type: ignore[arg-type]
    return now_ms - said_ms if start.kind is StartKind.AGO else said_ms


def _position_of(start: ReplayStart) -> ReplayId:
    assert isinstance(start.value, ReplayId)
    return start.value


def _number_in_this_log(position: ReplayId, facts: LogFacts) -> int:
    """A replay id's number, if it is from this log: in another log the number belongs to another message."""
    if position.generation != facts.generation:
        raise Refused(
            ErrorCode.LOG_MODIFIED,
            f"the replay id is from log generation {position.generation}, "
            f"this log is generation {facts.generation}",
        )
    return position.number


def _clamped(number: int, facts: LogFacts) -> int:
    return min(max(number, facts.first_id), facts.next_id)


def _since(time_ms: int, facts: LogFacts, probe: LogProbe, now_ms: int, clamp: bool) -> int:
    if time_ms > now_ms:
        if clamp:
            return facts.next_id
        raise Refused(ErrorCode.UNKNOWN_START, "the start date is in the future; a replay starts in the past")
    if time_ms < facts.floor_ms:
        if clamp:
            return facts.first_id
        raise Refused(
            ErrorCode.START_TIME_NOT_AVAILABLE,
            f"the start date is before the log{_with_archive(facts)} whole from "
            f"{ReplayStart(StartKind.DATE, facts.floor_ms)} on{facts.archive}; ask for the beginning, or say "
            "missing=clamp",
        )
    found = probe.first_since(time_ms)
    return facts.next_id if found is None else found


def _of_topics(taken_out: TakenOut) -> str:
    """The rule's topics, for the text of a refusal."""
    return f" of {', '.join(taken_out.topics[:3])}{', …' if len(taken_out.topics) > 3 else ''}"


def _with_archive(facts: LogFacts) -> str:
    return " and its archive, which are" if facts.first_id < facts.log_first_id else ", which is"


def _at_offset(offset: int, facts: LogFacts, clamp: bool) -> int:
    # The next offset is a valid start: a consumer that has read everything asks for it.
    if facts.first_id <= offset <= facts.next_id or clamp:
        return _clamped(offset, facts)
    raise Refused(
        ErrorCode.START_MESSAGE_UNAVAILABLE,
        f"offset {offset} is not in the replay log, which {facts.holds}",
    )


def _at_point(name: str, facts: LogFacts, clamp: bool) -> int:
    point = facts.points.get(name)
    if point is None:
        raise Refused(
            ErrorCode.START_MESSAGE_UNAVAILABLE, f"there is no point named {name!r} in the replay log"
        )
    if point.position < facts.first_id and not clamp:
        raise Refused(
            ErrorCode.START_MESSAGE_UNAVAILABLE,
            f"point {name!r} was trimmed: it is at id {point.position} "
            f"({ReplayStart(StartKind.DATE, point.time_ms)}), and the log begins at id "
            f"{facts.first_id}{facts.archive}",
        )
    return _clamped(point.position, facts)


def last_of(start: ReplayStart, facts: LogFacts, probe: LogProbe, now_ms: int) -> int | None:
    """
    The last id of a bounded replay; None where it is not bounded.

    Raises:
        Refused: UNKNOWN_START, the end is in the future; LOG_MODIFIED.
    """
    until = start.until
    if until is None:
        return None
    match until.kind:
        case "now":
            return facts.next_id - 1
        case "offset":
            return int(until.value)  # type: ignore[arg-type]
        case "id":
            return _number_in_this_log(until.value, facts)  # type: ignore[arg-type]
        case _:
            time_ms = int(until.value)  # type: ignore[arg-type]
            if time_ms > now_ms:
                raise Refused(
                    ErrorCode.UNKNOWN_START, "the end date is in the future; leave it out to go on live"
                )
            after = probe.first_since(time_ms + 1)
            return (facts.next_id if after is None else after) - 1
