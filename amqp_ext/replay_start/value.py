"""
A replay start as a value: where a replay starts, where it ends, and how it runs; and its fields, each checked, with the
sentence for whoever sent another.

Invariant: what is made by the readers of this package is complete and within bounds, or ``ReplayStartError`` was
raised; nothing is guessed or left out. Whether the log has such a place, only the log can say. Nor is there a clock
here: ``10m`` stays ten minutes, and a date may lie in the future. Dates are RFC 3339 date-times with a zone.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from amqp_ext.codec import Char, Timestamp
from amqp_ext.replay_id import ReplayId, ReplayIdError, parse_replay_id

SOME_DATE: Final = "2026-01-02T03:04:05Z"
"""As it stands in error texts."""

DATE: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
"""A date, with or without time and zone."""


def parse_date(text: str) -> int:
    """
    Milliseconds since the epoch of an RFC 3339 date-time.

    The zone is required: without it the text is not one moment. Digits beyond the millisecond are dropped, as
    the gateway drops them when it stamps a message, so that the message of that moment is not missed.

    Raises:
        ReplayStartError: It is none, or has no zone.
    """
    found = DATE.fullmatch(text)
    zone = found[8] if found else None
    if found is None or zone is None:
        raise ReplayStartError(
            f"{shown(text)} is no full date: give date, time and zone, as in {SOME_DATE} or "
            "2026-01-02T03:04:05+02:00."
        )
    hour, minute, second = int(found[4]), int(found[5]), int(found[6])
    zone_hour, zone_minute = (0, 0) if zone in "Zz" else (int(zone[1:3]), int(zone[4:6]))
    try:
        days = (date(int(found[1]), int(found[2]), int(found[3])) - date(1970, 1, 1)).days
    except ValueError:
        days = None
    # A second 60 is a leap second, which counts as the first of the next minute.
    if days is None or hour > 23 or minute > 59 or second > 60 or zone_hour > 23 or zone_minute > 59:
        raise ReplayStartError(f"{shown(text)} is no date: no calendar and clock show it.")
    east_of_utc = (zone_hour * 60 + zone_minute) * (-1 if zone[0] == "-" else 1)
    seconds = days * 86_400 + hour * 3_600 + (minute - east_of_utc) * 60 + second
    return check_date(seconds * 1_000 + int((found[7] or "").ljust(3, "0")[:3]))


FILTER: Final = "rewind"
OPTION: Final = "option"
SELECTOR: Final = "selector"
ANSWER: Final = "answer"
"""Forms that a start is asked for in: our own filter, an address's option, a selector, and our answer to an earlier
attach, come back; what that stands for gives way to any other start, see ``combine``. Vendors' forms have names of
theirs."""


class ReplayStartError(ValueError):
    """
    A replay start that says nothing we know, or two things at once (``unknown-start``, subcode 139).

    Its text is one sentence: what was sent, and what is allowed.
    """


class StartKind(enum.Enum):
    """What a replay start goes by."""

    BEGINNING = "beginning"
    LIVE = "live"
    LAST = "last"
    NEWEST = "newest"
    DATE = "date"
    OFFSET = "offset"
    AFTER = "after"
    AT = "at"
    AGO = "ago"
    POINT = "point"
    MESSAGE_ID = "message-id"
    MATCH = "match"


class UntilKind(enum.StrEnum):
    """What the end of a bounded replay goes by."""

    NOW = "now"
    DATE = "date"
    OFFSET = "offset"
    ID = "id"


class Missing(enum.Enum):
    """What happens when the log does not reach to the start: refuse, or take the nearest place it has."""

    FAIL = "fail"
    CLAMP = "clamp"


@dataclass(frozen=True, slots=True)
class Until:
    """
    The end of a bounded replay; the message it names is the last one.

    Attributes:
        value: For DATE milliseconds since the epoch, for OFFSET the offset, for ID the id, for NOW none.
    """

    kind: UntilKind
    value: int | ReplayId | None = None

    def __str__(self) -> str:
        return _shown(self.kind, self.value)


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """
    Where a replay starts, where it ends, and how it runs. Equal when they ask for the same.

    Attributes:
        value: By kind: DATE milliseconds since the epoch; OFFSET the offset, inclusive; AFTER and AT a ``ReplayId``;
            AGO milliseconds; NEWEST how many messages; POINT, MESSAGE_ID and MATCH the text; none for BEGINNING, LIVE
            and LAST.
        generation: The one the log must have.
        speed: A factor of the original pace.
        rate: At most so many messages a second.
        name: What the replay is called: on record, and on the messages that it delivers.
        form: What it was asked for with, for error texts; one of ``FILTER``, ``OPTION``, ``SELECTOR`` and ``ANSWER``,
            or a vendor's.
    """

    kind: StartKind
    value: int | ReplayId | str | None = None
    until: Until | None = None
    missing: Missing = Missing.FAIL
    generation: int | None = None
    speed: float | None = None
    rate: float | None = None
    name: str | None = None
    form: str = field(default=OPTION, compare=False)

    def __str__(self) -> str:
        """A line for logs and error texts, in the words of its text where there are any."""
        words = [_shown(self.kind, self.value)]
        if self.until is not None:
            words.append(f"until {self.until}")
        if self.missing is Missing.CLAMP:
            words.append("missing=clamp")
        for name in ("generation", "speed", "rate", "name"):
            if (value := getattr(self, name)) is not None:
                words.append(f"{name}={value}")
        return " ".join(words)


def combine(one: ReplayStart | None, other: ReplayStart | None) -> ReplayStart | None:
    """
    The start that two places of one attach ask for.

    An answer that came back beside the start which it answers says nothing new.

    Raises:
        ReplayStartError: They ask for two.
    """
    if one is None or (other is not None and one.form == ANSWER):
        return other
    if other is None or one == other or other.form == ANSWER:
        return one
    raise ReplayStartError(
        f"The attach asks for two different replay starts, {one} ({one.form}) and {other} "
        f"({other.form}); give one of them."
    )


def _shown(kind: StartKind | UntilKind, value: int | ReplayId | str | None) -> str:
    match kind, value:
        case _, None:
            return kind.value
        case ((StartKind.DATE | UntilKind.DATE), int(ms)):
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case ((StartKind.OFFSET | UntilKind.OFFSET), int(number)):
            return f"#{number}"
        case StartKind.AGO, int(ms):
            return f"{ms} ms ago"
        case StartKind.NEWEST, int(count):
            return f"last:{count}"
        case ((StartKind.AFTER | UntilKind.ID), _):
            return str(value)
        case _:
            return f"{kind.value}:{value}"


MAX_OFFSET: Final = (1 << 63) - 1
"""Largest offset: what a signed 64-bit integer of the store and of AMQP's ``long`` holds."""

MAX_DATE_MS: Final = 253_402_300_799_999
"""Latest date in milliseconds: the end of the year 9999, the last that RFC 3339 can write."""


MAX_NEWEST: Final = 1_000_000
"""Most messages that are counted back from the newest one: a second or so of a reader's time, in pages."""


def is_text(value: Any) -> bool:
    """Whether ``value`` is an AMQP string or symbol; to Python a char is text too."""
    return isinstance(value, str) and not isinstance(value, Char)


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an AMQP integer of any width; to Python a bool and a Timestamp are ints too."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def check_offset(value: int) -> int:
    """
    An offset in the log, as a plain number.

    Raises:
        ReplayStartError: It is out of range; so with the others.
    """
    if not 0 <= value <= MAX_OFFSET:
        raise ReplayStartError(f"An offset is a number from 0 to {MAX_OFFSET}, not {value}.")
    return int(value)


def check_date(value: int) -> int:
    """A date, in milliseconds since the epoch."""
    if not 0 <= value <= MAX_DATE_MS:
        raise ReplayStartError(
            f"A date lies between the years 1970 and 9999; {value} ms since 1970 does not."
        )
    return int(value)


def check_ago(value: int) -> int:
    """A time ago, in milliseconds."""
    if not 0 <= value <= MAX_DATE_MS:
        raise ReplayStartError(f"A time ago is a number of ms from 0 to {MAX_DATE_MS}, not {value}.")
    return int(value)


def check_newest(value: int) -> int:
    """How many of the newest messages."""
    if not 1 <= value <= MAX_NEWEST:
        raise ReplayStartError(
            f"'last' takes a number of messages from 1 to {MAX_NEWEST}, not {shown(value)}; to begin further back, "
            "name a date or an offset."
        )
    return int(value)


def check_name(key: str, value: str) -> str:
    """The text behind ``point:``, ``message-id:`` or ``match:``: it is not empty."""
    if not value.strip():
        raise ReplayStartError(f"{key!r} needs a text behind it, and there is none.")
    return str(value)


def read_id(text: str) -> ReplayId:
    """A replay id, from ``rmid1:…``."""
    try:
        return parse_replay_id(text)
    except ReplayIdError as error:
        raise ReplayStartError(str(error)) from None


def shown(value: Any) -> str:
    """``value`` for an error sentence: as Python writes it, and cut where a hostile peer made it long."""
    written = repr(str(value)) if isinstance(value, str) else repr(value)
    limit = 120
    return written if len(written) <= limit else f"{written[:limit]}…"
