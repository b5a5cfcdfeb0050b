"""
A replay start, which clients ask for in several forms, as one checked value: where a replay starts, where it ends, and
how it runs.

=============================  ==========================================
our own filter                 ``from_rewind_filter``
address option, JMS selector   ``from_options``, ``parse_text``
the vendors' filters           in the vendors' modules
=============================  ==========================================

Invariant: the readers of this package return a value that is complete and within bounds, or raise
``ReplayStartError``; they guess nothing and leave nothing out. Only the log can say whether it has such a place. There
is no clock here: ``10m`` stays ten minutes, and a date may be in the future. Dates are RFC 3339 date-times with a zone.

Texts of a start: ``beginning``, ``live``, ``last``, ``last:100`` (the newest hundred), an RFC 3339 date with a zone,
``10m`` (ago; s m h D), ``rmid1:…`` (after that message), ``#123`` (offset, inclusive), ``point:<name>``,
``message-id:<id>``, ``match:<selector>``.

The filter's value and the options of an address have modifiers in addition to the start: where the replay ends, what
happens if the log does not reach that far back, how fast it runs. Texts of an end (``until``): ``now``, a date,
``#123``, ``rmid1:…``. A range may be given by its end alone: ``until`` without a start reads from the beginning. The
other modifiers name no place, and are refused without a start or ``until``.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import Char, Timestamp
from amqp_ext.message.fields import text_of
from amqp_ext.replay_id import MAX_FIELD, ReplayId, ReplayIdError, parse_replay_id

SOME_DATE: Final = "2026-01-02T03:04:05Z"
"""The example of a date in error texts."""

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
        ReplayStartError: The text is no date-time, or has no zone.
    """
    found = DATE.fullmatch(text)
    zone = found[8] if found else None
    if found is None or zone is None:
        raise ReplayStartError(
            f"{shown(text)} is not a complete date: give date, time and zone, as in {SOME_DATE} or "
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
        raise ReplayStartError(f"{shown(text)} is not a valid date and time.")
    east_of_utc = (zone_hour * 60 + zone_minute) * (-1 if zone[0] == "-" else 1)
    seconds = days * 86_400 + hour * 3_600 + (minute - east_of_utc) * 60 + second
    return check_date(seconds * 1_000 + int((found[7] or "").ljust(3, "0")[:3]))


def date_text(time_ms: int) -> str:
    """
    A time in ms since the epoch as RFC 3339 has it, in UTC.

    Raises:
        OverflowError: No calendar has the time: AMQP's times are any 64-bit number.
    """
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


FILTER: Final = "rewind"
OPTION: Final = "option"
SELECTOR: Final = "selector"
ANSWER: Final = "answer"
"""The forms in which a start is asked for: our own filter, an address's option, a selector, and our answer to an
earlier attach, which the client has sent back. A start in the last form gives way to any other (``combine``). Vendors'
forms have names of their own."""


class ReplayStartError(ValueError):
    """
    A replay start that we do not understand, or that asks for two starts (``unknown-start``, subcode 139).

    Its text is one sentence: what was sent, and what is allowed.
    """


class StartKind(enum.Enum):
    """The kinds of replay starts."""

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
    """The kinds of ends of a bounded replay."""

    NOW = "now"
    DATE = "date"
    OFFSET = "offset"
    ID = "id"


class Missing(enum.Enum):
    """What happens if the log does not have the start: refuse the replay, or take the nearest place the log has."""

    FAIL = "fail"
    CLAMP = "clamp"


@dataclass(frozen=True, slots=True)
class Until:
    """
    The end of a bounded replay; the message it names is the last one.

    Attributes:
        value: For DATE milliseconds since the epoch, for OFFSET the offset, for ID the id, for NOW None.
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
            AGO milliseconds; NEWEST how many messages; POINT, MESSAGE_ID and MATCH the text; None for BEGINNING, LIVE
            and LAST.
        generation: The generation that the log must have; None for any.
        speed: A factor of the original pace.
        rate: The most messages a second.
        name: The replay's name: on record, and on the messages that it delivers.
        form: The form in which it was asked for, for error texts: ``FILTER``, ``OPTION``, ``SELECTOR``, ``ANSWER``, or
            a vendor's.
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
        """One line for logs and error texts, as the text of the start where it has one."""
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

    An answer of ours that the client sends back together with the start that it answers says nothing new.

    Raises:
        ReplayStartError: They ask for two different starts.
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
            return date_text(ms)
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
"""The largest offset: the largest signed 64-bit integer, as the store and AMQP's ``long`` have it."""

MAX_DATE_MS: Final = 253_402_300_799_999
"""Latest date in milliseconds: the end of the year 9999, the last that RFC 3339 can write."""

MAX_NEWEST: Final = 1_000_000
"""The most messages that are counted back from the newest one: counting takes a reader about a second, in pages."""


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
        ReplayStartError: It is out of range; the other checks raise the same.
    """
    if not 0 <= value <= MAX_OFFSET:
        raise ReplayStartError(f"An offset is a number from 0 to {MAX_OFFSET}, not {value}.")
    return int(value)


def check_date(value: int) -> int:
    """A date, in milliseconds since the epoch."""
    if not 0 <= value <= MAX_DATE_MS:
        raise ReplayStartError(f"A date is between the years 1970 and 9999; {value} ms since 1970 does not.")
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
    """The text after ``point:``, ``message-id:`` or ``match:``, which may not be empty."""
    if not value.strip():
        raise ReplayStartError(f"{key!r} needs a text after the colon.")
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


MS_PER_DAY: Final = 86_400_000
UNITS_AGO: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "D": MS_PER_DAY}
"""Milliseconds of each unit of a time ago."""

START_TEXTS: Final = (
    f"a start is beginning, live, last, last:N, a date such as {SOME_DATE}, 10m (ago; s m h D), rmid1:…, #123, "
    "point:<name>, message-id:<id> or match:<selector>"
)
"""What is allowed, for error texts."""

# Nineteen digits are enough for any 64-bit number; int() is slow, and refuses, beyond some thousands.
_AGO: Final = re.compile(r"([0-9]{1,19})([smhD])")
_NEWEST: Final = re.compile(r"last:([0-9]{1,19})", re.IGNORECASE)
OFFSET: Final = re.compile(r"#([0-9]{1,19})")
NUMBER: Final = re.compile(r"[0-9]{1,20}")
WORDS: Final = {kind.value: kind for kind in (StartKind.BEGINNING, StartKind.LIVE, StartKind.LAST)}
_NAMED: Final = {kind.value: kind for kind in (StartKind.POINT, StartKind.MESSAGE_ID, StartKind.MATCH)}


def parse_text(text: str, form: str = OPTION) -> ReplayStart:
    """
    Read the text of a start.

    Args:
        form: The form of the start, for the sentence that refuses two starts in one attach.

    Raises:
        ReplayStartError: The text is not a start.
    """
    if (word := text.lower()) in WORDS:
        return ReplayStart(WORDS[word], form=form)
    if found := OFFSET.fullmatch(text):
        return ReplayStart(StartKind.OFFSET, check_offset(int(found[1])), form=form)
    if found := _AGO.fullmatch(text):
        return ReplayStart(StartKind.AGO, check_ago(int(found[1]) * UNITS_AGO[found[2]]), form=form)
    if found := _NEWEST.fullmatch(text):
        return ReplayStart(StartKind.NEWEST, check_newest(int(found[1])), form=form)
    if word.startswith("rmid1:"):
        return ReplayStart(StartKind.AFTER, read_id(text), form=form)
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _NAMED:
        return ReplayStart(_NAMED[prefix], check_name(prefix, rest), form=form)
    if DATE.fullmatch(text):
        return ReplayStart(StartKind.DATE, parse_date(text), form=form)
    if NUMBER.fullmatch(text):
        raise ReplayStartError(
            f"{shown(text)} could be an offset or a time; write '#{text}' for the offset, or a date such as "
            f"{SOME_DATE}."
        )
    raise ReplayStartError(f"{shown(text)} is not a replay start: {START_TEXTS}.")


def from_rewind_filter(value: Any) -> ReplayStart:
    """
    Read the value of the filter ``rewind:replay-start``.

    A map has symbols (or strings) as keys: one start of ``from`` ``last`` ``date`` ``offset`` ``after`` ``at`` ``ago``
    ``point`` ``message-id`` ``match``, and the modifiers ``until`` ``missing`` ``generation`` ``speed`` ``rate``
    ``name``. A null value counts as absent. A message-id has its own AMQP type, or is a text. Short forms: a string or
    symbol is the text of a start, a timestamp a date, an integer of any type an offset. The gateway's answer to an
    earlier attach is read, too: see ``is_answer``.

    Raises:
        ReplayStartError: It is no start, or more than one.
    """
    if is_answer(value):
        return _from_answer(value)
    if isinstance(value, Mapping):
        return _from_map(value)
    if is_text(value):
        return parse_text(value, FILTER)
    if isinstance(value, Timestamp):
        return ReplayStart(StartKind.DATE, check_date(value), form=FILTER)
    if is_integer(value):
        return ReplayStart(StartKind.OFFSET, check_offset(value), form=FILTER)
    raise ReplayStartError(
        f"A replay start cannot be {shown(value)}: it is a map, a text, a timestamp (date) or an integer "
        "(offset)."
    )


def is_answer(value: Any) -> bool:
    """
    Whether the value of a filter ``rewind:replay-start`` is a start as the gateway resolved it.

    The source that answers an attach has it. A client that attaches a link again may ask for the source that is in
    place, and so sends it back (AMQP 1.0 sections 2.6.3 and 3.5.3).
    """
    return isinstance(value, Mapping) and value.keys() >= {"id", "offset", "generation"}


def _from_map(entries: Mapping[Any, Any]) -> ReplayStart:
    start: ReplayStart | None = None
    start_key = ""
    modifiers: dict[str, Any] = {}
    for key, value in entries.items():
        if not isinstance(key, str) or (key not in _START_KEYS and key not in MODIFIERS):
            raise ReplayStartError(
                f"{shown(key)} is not a key of a replay start; the keys are {', '.join(_START_KEYS)} for the "
                f"start, and in addition {', '.join(MODIFIERS)}."
            )
        if value is None:
            continue
        if key in MODIFIERS:
            modifiers[str(key)] = value
            continue
        if start is not None:
            raise ReplayStartError(
                f"A replay has one start, but this one has {start_key!r} and {str(key)!r}."
            )
        kind, place = _START_KEYS[key](value)
        start, start_key = ReplayStart(kind, place, form=FILTER), str(key)
    return with_modifiers(start, modifiers, FILTER)


def _from_answer(entries: Mapping[Any, Any]) -> ReplayStart:
    """The start that an answer says is in place: live, or the offset of the first message, and the end."""
    if entries.get("from") is not None:
        kind, _ = _from_word(entries["from"])
        return ReplayStart(kind, form=ANSWER)
    kind, place = _START_KEYS["offset"](entries.get("offset"))
    modifiers = {name: entries[name] for name in ("generation", "until") if entries.get(name) is not None}
    return with_modifiers(ReplayStart(kind, place, form=ANSWER), modifiers, ANSWER)


_Place = int | ReplayId | str | None
_ReadStart = Callable[[Any], tuple[StartKind, _Place]]
_ID_TEXT: Final = "the text of a replay id, rmid1:…"


def _from_word(value: Any) -> tuple[StartKind, None]:
    if is_text(value) and value.lower() in WORDS:
        return WORDS[value.lower()], None
    raise ReplayStartError(f"'from' is one of {', '.join(WORDS)}, not {shown(value)}.")


def _from_date(value: Any) -> tuple[StartKind, int]:
    if isinstance(value, Timestamp):
        return StartKind.DATE, check_date(value)
    if is_text(value):
        return StartKind.DATE, parse_date(value)
    # A bare number would be read as milliseconds by us and as seconds by half of those who send one.
    raise ReplayStartError(f"'date' is an AMQP timestamp, or a text such as {SOME_DATE}, not {shown(value)}.")


def _from_message_id(value: Any) -> tuple[StartKind, str]:
    # The id as a client has it, in its own AMQP type, not the text that a person would type.
    if isinstance(value, UUID | bytes) or (is_integer(value) and value >= 0):
        return StartKind.MESSAGE_ID, text_of(value)
    if not is_text(value):
        raise ReplayStartError(f"'message-id' is a text, a ulong, a uuid or binary, not {shown(value)}.")
    return StartKind.MESSAGE_ID, check_name("message-id", value)


def _reader(
    key: str, kind: StartKind, is_its_type: Callable[[Any], bool], what: str, check: Callable[[Any], _Place]
) -> _ReadStart:
    """A reader of values that have one type, which ``what`` names."""

    def read(value: Any) -> tuple[StartKind, _Place]:
        if not is_its_type(value):
            raise ReplayStartError(f"{key!r} is {what}, not {shown(value)}.")
        return kind, check(value)

    return read


_START_KEYS: Final[Mapping[str, _ReadStart]] = {
    "from": _from_word,
    "last": _reader("last", StartKind.NEWEST, is_integer, "an integer, a number of messages", check_newest),
    "date": _from_date,
    "offset": _reader("offset", StartKind.OFFSET, is_integer, "an integer", check_offset),
    "after": _reader("after", StartKind.AFTER, is_text, _ID_TEXT, read_id),
    "at": _reader("at", StartKind.AT, is_text, _ID_TEXT, read_id),
    "ago": _reader("ago", StartKind.AGO, is_integer, "an integer, in milliseconds", check_ago),
    "point": _reader("point", StartKind.POINT, is_text, "a text", partial(check_name, "point")),
    "message-id": _from_message_id,
    "match": _reader("match", StartKind.MATCH, is_text, "a text", partial(check_name, "match")),
}

NAME_CHARACTERS: Final = 200
"""Longest name of a replay: as long as a queue's."""

_UNTIL_TEXTS: Final = f"until is now, a date such as {SOME_DATE}, an offset (#123 in a text) or rmid1:…"


def with_modifiers(start: ReplayStart | None, modifiers: Mapping[str, Any], form: str) -> ReplayStart:
    """
    A start with its modifiers.

    Args:
        start: None if none was given: then ``until`` implies the beginning.
        modifiers: Values as received, by their names in ``MODIFIERS``.
        form: The form of an implied start.

    Raises:
        ReplayStartError: A value is invalid, or nothing says where to start.
    """
    if start is None:
        if "until" not in modifiers:
            given = f"it has only {', '.join(modifiers)}" if modifiers else "it is empty"
            raise ReplayStartError(f"The replay start does not say where to start, {given}; {START_TEXTS}.")
        start = ReplayStart(StartKind.BEGINNING, form=form)
    return replace(start, **{name: MODIFIERS[name](value) for name, value in modifiers.items()})


def _read_until(value: Any) -> Until:
    if isinstance(value, Timestamp):
        return Until(UntilKind.DATE, check_date(value))
    if is_integer(value):
        return Until(UntilKind.OFFSET, check_offset(value))
    if is_text(value):
        if value.lower() == "now":
            return Until(UntilKind.NOW)
        if found := OFFSET.fullmatch(value):
            return Until(UntilKind.OFFSET, check_offset(int(found[1])))
        if value.lower().startswith("rmid1:"):
            return Until(UntilKind.ID, read_id(value))
        if DATE.fullmatch(value):
            return Until(UntilKind.DATE, parse_date(value))
    raise ReplayStartError(f"A replay cannot end at {shown(value)}: {_UNTIL_TEXTS}.")


_MISSING: Final = {missing.value: missing for missing in Missing}


def _read_missing(value: Any) -> Missing:
    if not is_text(value) or value not in _MISSING:
        raise ReplayStartError(f"'missing' is fail or clamp, not {shown(value)}.")
    return _MISSING[value]


def _read_generation(value: Any) -> int:
    if not is_integer(value) or not 0 <= value <= MAX_FIELD:
        raise ReplayStartError(f"'generation' is an unsigned 64-bit integer, not {shown(value)}.")
    return int(value)


def _read_name(value: Any) -> str:
    if not is_text(value) or not value.strip() or not value.isprintable() or len(value) > NAME_CHARACTERS:
        raise ReplayStartError(
            f"A replay's name is a text of 1 to {NAME_CHARACTERS} printable characters, not {shown(value)}."
        )
    return str(value)


def _positive(name: str, meaning: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if (isinstance(value, float) or is_integer(value)) and value > 0 and math.isfinite(value):
            return float(value)
        raise ReplayStartError(f"{name!r} is {meaning}, a number above 0, not {shown(value)}.")

    return read


MODIFIERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "until": _read_until,
    "missing": _read_missing,
    "generation": _read_generation,
    "speed": _positive("speed", "a factor of the original pace"),
    "rate": _positive("rate", "messages a second"),
    "name": _read_name,
}
"""The modifiers of a start, with their readers."""

_OPTIONS: Final = {"name": "replay-name"}
"""Modifiers whose address option has another name, with that name."""

_DECIMAL: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?")


def from_options(options: Mapping[str, str]) -> ReplayStart | None:
    """
    Read the options of an address that ask for a replay; None when there are none of them.

    They are ``replay-start``, ``until``, ``missing``, ``generation``, ``speed``, ``rate`` and ``replay-name``;
    others are left to their readers.

    Raises:
        ReplayStartError: An option has an invalid value, or there are only modifiers that imply no start.
    """
    modifiers = {
        name: options[option] for name in MODIFIERS if (option := _OPTIONS.get(name, name)) in options
    }
    text = options.get("replay-start")
    if text is None and not modifiers:
        return None
    start = None if text is None else parse_text(text)
    return with_modifiers(start, {name: _number_of(name, value) for name, value in modifiers.items()}, OPTION)


def _number_of(name: str, text: str) -> Any:
    """The number that an option's text writes, where the modifier is a number; other texts stay texts."""
    if name == "generation" and NUMBER.fullmatch(text):
        return int(text)
    if name in ("speed", "rate") and _DECIMAL.fullmatch(text):
        return float(text)
    return text
