"""
A replay start as a value: where a replay starts, where it ends, and how it runs.

Invariant: what is made by the readers of this package is complete and within bounds, or ``ReplayStartError`` was
raised; nothing is guessed or left out. Whether the log has such a place, only the log can say. Nor is there a clock
here: ``10m`` stays ten minutes, and a date may lie in the future.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from amqp_ext.replay_id import ReplayId

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
