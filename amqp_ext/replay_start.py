"""Where a replay starts, as asked for in the four dialects a client may speak, brought to one value.

==========================  ==================================================================================
our own filter              `from_rewind_filter`: a map, or a short form
RabbitMQ's stream filter    `from_stream_offset_spec`
Event Hubs' selector        `from_event_hubs_selector`
address option, JMS         `from_options`, `parse_text`
==========================  ==================================================================================

Texts of a start: ``beginning``, ``live``, ``last``, an RFC 3339 date with a zone, ``10m`` (ago; s m h D),
``rmid1:…`` (after that message), ``#123`` (offset, inclusive), ``point:<name>``, ``message-id:<id>``,
``match:<selector>``. Texts of an end (``until``): ``now``, a date, ``#123``, ``rmid1:…``.

A range may be given by its end alone: ``until`` without a start reads from the beginning. The other modifiers
say nothing about a place, and without a start or ``until`` they are refused.

Invariant: what is read here is complete and within bounds, or `ReplayStartError` was raised; nothing is
guessed or left out. Whether the log has such a place, only the log can say. Nor is there a clock here:
``10m`` stays ten minutes, and a date may lie in the future.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import Char, Timestamp
from amqp_ext.message.message_id import text_of
from amqp_ext.replay_id import MAX_FIELD, ReplayId, ReplayIdError, parse_replay_id

MAX_OFFSET: Final = (1 << 63) - 1
"""Largest offset: what a signed 64-bit integer of the store and of AMQP's ``long`` holds."""

MAX_DATE_MS: Final = 253_402_300_799_999
"""Latest date in milliseconds: the end of the year 9999, the last that RFC 3339 can write."""

_MS_PER_DAY: Final = 86_400_000
_UNITS_AGO: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "D": _MS_PER_DAY}
_UNITS_RABBITMQ: Final = _UNITS_AGO | {"M": 30 * _MS_PER_DAY, "Y": 365 * _MS_PER_DAY}

_SOME_DATE: Final = "2026-01-02T03:04:05Z"
_START_TEXTS: Final = (
    f"a start is beginning, live, last, a date such as {_SOME_DATE}, 10m (ago; s m h D), rmid1:…, #123, "
    "point:<name>, message-id:<id> or match:<selector>"
)
_UNTIL_TEXTS: Final = f"until is now, a date such as {_SOME_DATE}, an offset (#123 in a text) or rmid1:…"

# Nineteen digits are enough for any 64-bit number; int() is slow, and refuses, beyond some thousands.
_AGO: Final = re.compile(r"([0-9]{1,19})([smhD])")
_RABBITMQ_INTERVAL: Final = re.compile(r"([0-9]{1,19})([YMDhms])")
_OFFSET: Final = re.compile(r"#([0-9]{1,19})")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_BEFORE_ALL_EVENTS: Final = re.compile(r"-1|0{1,20}")
_BEFORE_ALL_TIMES: Final = re.compile(r"-[0-9]{1,20}|0{1,20}")
_DECIMAL: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?")
_DATE: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
_EVENT_HUBS: Final = re.compile(
    r"""\s*(?P<quote>"?)amqp\.annotation\.x-opt-(?P<field>offset|sequence-number|enqueued-time)(?P=quote)"""
    r"""\s*(?P<operator>>=?)\s*(?:'(?P<text>[^']*)'|(?P<number>-?[0-9]+))\s*""",
    re.ASCII,
)


class ReplayStartError(ValueError):
    """A replay start that says nothing we know, or two things at once (``unknown-start``, subcode 139).

    Its text is one sentence: what was sent, and what is allowed.
    """


class StartKind(enum.Enum):
    """What a replay start goes by."""

    BEGINNING = "beginning"
    LIVE = "live"
    LAST = "last"
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


class Origin(enum.Enum):
    """Which dialect a start came in."""

    REWIND = "rewind"
    RABBITMQ = "rabbitmq"
    EVENT_HUBS = "event-hubs"
    OPTION = "option"
    SELECTOR = "selector"
    ANSWER = "answer"
    """Our answer to an earlier attach, come back: what it stands for gives way to any other start, see `combine`."""


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a bounded replay; the message it names is the last one.

    ``value``: for DATE milliseconds since the epoch, for OFFSET the offset, for ID the id, for NOW none.
    """

    kind: UntilKind
    value: int | ReplayId | None = None

    def __str__(self) -> str:
        return _show(self.kind.value, self.value)


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """Where a replay starts, where it ends, and how it runs. Equal when they ask for the same.

    ``value`` by kind: DATE milliseconds since the epoch; OFFSET the offset, inclusive; AFTER and AT a
    `ReplayId`; AGO milliseconds; POINT, MESSAGE_ID and MATCH the text; none for BEGINNING, LIVE and LAST.
    ``generation`` is the one the log must have. ``speed`` is a factor of the original pace, ``rate`` at
    most so many messages a second.
    """

    kind: StartKind
    value: int | ReplayId | str | None = None
    until: Until | None = None
    missing: Missing = Missing.FAIL
    generation: int | None = None
    speed: float | None = None
    rate: float | None = None
    origin: Origin = field(default=Origin.OPTION, compare=False)

    def __str__(self) -> str:
        """A line for logs and error texts, in the words of the texts above where there are any."""
        words = [_show(self.kind.value, self.value)]
        if self.until is not None:
            words.append(f"until {self.until}")
        if self.missing is Missing.CLAMP:
            words.append("missing=clamp")
        for name in ("generation", "speed", "rate"):
            if (value := getattr(self, name)) is not None:
                words.append(f"{name}={value}")
        return " ".join(words)


def parse_text(text: str, origin: Origin = Origin.OPTION) -> ReplayStart:
    """Read the text of a start. Raises `ReplayStartError`."""
    if (word := text.lower()) in _WORDS:
        return ReplayStart(_WORDS[word], origin=origin)
    if found := _OFFSET.fullmatch(text):
        return ReplayStart(StartKind.OFFSET, _check_offset(int(found[1])), origin=origin)
    if found := _AGO.fullmatch(text):
        return ReplayStart(StartKind.AGO, _check_ago(int(found[1]) * _UNITS_AGO[found[2]]), origin=origin)
    if word.startswith("rmid1:"):
        return ReplayStart(StartKind.AFTER, _read_id(text), origin=origin)
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _NAMED:
        return ReplayStart(_NAMED[prefix], _check_name(prefix, rest), origin=origin)
    if _DATE.fullmatch(text):
        return ReplayStart(StartKind.DATE, parse_date(text), origin=origin)
    if _NUMBER.fullmatch(text):
        raise ReplayStartError(
            f"{_cut(text)} could be an offset or a time; write '#{text}' for the offset, or a date such as "
            f"{_SOME_DATE}."
        )
    raise ReplayStartError(f"{_cut(text)} is not a replay start: {_START_TEXTS}.")


def from_rewind_filter(value: Any) -> ReplayStart:
    """Read the value of the filter ``rewind:replay-start``. Raises `ReplayStartError`.

    A map has symbols (or strings) as keys: one start of ``from`` ``date`` ``offset`` ``after`` ``at`` ``ago``
    ``point`` ``message-id`` ``match``, and modifiers ``until`` ``missing`` ``generation`` ``speed`` ``rate``;
    null is as good as absent. A message-id is of its own type, or a text. Short forms: a string or symbol is the text
    of a start, a timestamp a date, an integer of any type an offset. What the gateway answered to an attach is read,
    too: see `is_answer`.
    """
    if is_answer(value):
        return _from_answer(value)
    if isinstance(value, Mapping):
        return _from_map(value)
    if _is_text(value):
        return parse_text(value, Origin.REWIND)
    if isinstance(value, Timestamp):
        return ReplayStart(StartKind.DATE, _check_date(value), origin=Origin.REWIND)
    if _is_integer(value):
        return ReplayStart(StartKind.OFFSET, _check_offset(value), origin=Origin.REWIND)
    raise ReplayStartError(
        f"A replay start cannot be {_cut(value)}: it is a map, a text, a timestamp (date) or an integer "
        "(offset)."
    )


def is_answer(value: Any) -> bool:
    """Whether the value of a filter ``rewind:replay-start`` is a start as the gateway resolved it.

    It stands in the source that answers an attach. A client that attaches a link again asks for the source as it is
    in place, and so sends it back (AMQP 1.0 §2.6.3, §3.5.3).
    """
    return isinstance(value, Mapping) and value.keys() >= {"id", "offset", "generation"}


def combine(one: ReplayStart | None, other: ReplayStart | None) -> ReplayStart | None:
    """The start that two places of one attach ask for. Raises `ReplayStartError` when they ask for two.

    An answer that came back beside the start which it answers says nothing new.
    """
    if one is None or (other is not None and one.origin is Origin.ANSWER):
        return other
    if other is None or one == other or other.origin is Origin.ANSWER:
        return one
    raise ReplayStartError(
        f"The attach asks for two different replay starts, {one} ({one.origin.value}) and {other} "
        f"({other.origin.value}); give one of them."
    )


def from_stream_offset_spec(value: Any) -> ReplayStart:
    """Read the value of RabbitMQ's filter ``rabbitmq:stream-offset-spec``. Raises `ReplayStartError`.

    ``first``, ``last``, ``next``, an interval ago (``10m``; Y M D h m s, a month has 30 days), an offset, or
    a timestamp. A place that the log does not reach to is clamped, as RabbitMQ does; a bad value is refused,
    where RabbitMQ starts at ``next`` without a word. Source: RabbitMQ documentation, "Streams", and
    ``parse_offset_arg`` of its rabbit_stream_queue.
    """
    kind, place = _read_stream_offset(value)
    return ReplayStart(kind, place, missing=Missing.CLAMP, origin=Origin.RABBITMQ)


def from_event_hubs_selector(text: str) -> ReplayStart | None:
    """Read a selector of the form that Event Hubs clients send; None when it has another form.

    The form is one comparison, ``amqp.annotation.x-opt-offset > '5'``, with ``offset``, ``sequence-number``
    or ``enqueued-time`` (ms since the epoch) and ``>`` or ``>=``. ``'@latest'`` is live; ``'-1'`` is the beginning,
    and so is what no event can be at: the number 0, and any time up to the epoch, such as that of a date that was
    never set. Qpid JMS can send it only with the name in double quotes and the number bare, so that is read too.
    Raises `ReplayStartError` when the form is right and the position is none.
    """
    found = _EVENT_HUBS.fullmatch(text)
    if found is None:
        return None
    position = found["number"] or found["text"] or ""
    by_time = found["field"] == "enqueued-time"
    if position == "@latest" and not by_time:
        return ReplayStart(StartKind.LIVE, origin=Origin.EVENT_HUBS)
    if (_BEFORE_ALL_TIMES if by_time else _BEFORE_ALL_EVENTS).fullmatch(position):
        return ReplayStart(StartKind.BEGINNING, origin=Origin.EVENT_HUBS)
    if not _NUMBER.fullmatch(position):
        allowed = (
            "a time in ms since the epoch" if by_time else "a number, '-1' (beginning) or '@latest' (live)"
        )
        raise ReplayStartError(f"The supplied {found['field']} {_cut(position)} is invalid: it is {allowed}.")
    # '>' means from the next one on: offsets and milliseconds are whole.
    place = int(position) + (found["operator"] == ">")
    if by_time:
        return ReplayStart(StartKind.DATE, _check_date(place), origin=Origin.EVENT_HUBS)
    return ReplayStart(StartKind.OFFSET, _check_offset(place), origin=Origin.EVENT_HUBS)


def from_options(options: Mapping[str, str]) -> ReplayStart | None:
    """Read the options of an address that ask for a replay; None when there are none of them.

    They are ``replay-start``, ``until``, ``missing``, ``generation``, ``speed`` and ``rate``; others are left
    to their readers. Raises `ReplayStartError`.
    """
    modifiers = {name: options[name] for name in _MODIFIERS if name in options}
    text = options.get("replay-start")
    if text is None and not modifiers:
        return None
    start = None if text is None else parse_text(text)
    return _modified(
        start, {name: _number_of(name, value) for name, value in modifiers.items()}, Origin.OPTION
    )


def parse_date(text: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 date-time. Raises `ReplayStartError`.

    The zone is required: without it the text is not one moment. Digits beyond the millisecond are dropped, as
    the gateway drops them when it stamps a message, so that the message of that moment is not missed.
    """
    found = _DATE.fullmatch(text)
    zone = found[8] if found else None
    if found is None or zone is None:
        raise ReplayStartError(
            f"{_cut(text)} is no full date: give date, time and zone, as in {_SOME_DATE} or "
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
        raise ReplayStartError(f"{_cut(text)} is no date: no calendar and clock show it.")
    east_of_utc = (zone_hour * 60 + zone_minute) * (-1 if zone[0] == "-" else 1)
    seconds = days * 86_400 + hour * 3_600 + (minute - east_of_utc) * 60 + second
    return _check_date(seconds * 1_000 + int((found[7] or "").ljust(3, "0")[:3]))


# ---------------------------------------------------------------------------------------- maps and modifiers


def _from_map(entries: Mapping[Any, Any]) -> ReplayStart:
    start: ReplayStart | None = None
    start_key = ""
    modifiers: dict[str, Any] = {}
    for key, value in entries.items():
        if not isinstance(key, str) or (key not in _START_KEYS and key not in _MODIFIERS):
            raise ReplayStartError(
                f"{_cut(key)} is not a key of a replay start; the keys are {', '.join(_START_KEYS)} for the "
                f"start and {', '.join(_MODIFIERS)} beside it."
            )
        if value is None:
            continue
        if key in _MODIFIERS:
            modifiers[str(key)] = value
            continue
        if start is not None:
            raise ReplayStartError(
                f"A replay has one start, but this one has {start_key!r} and {str(key)!r}."
            )
        kind, place = _START_KEYS[key](value)
        start, start_key = ReplayStart(kind, place, origin=Origin.REWIND), str(key)
    return _modified(start, modifiers, Origin.REWIND)


def _from_answer(entries: Mapping[Any, Any]) -> ReplayStart:
    """An answer stands for what it says is in place: live, or the offset of the first message and the bound."""
    if entries.get("from") is not None:
        kind, _ = _from_word(entries["from"])
        return ReplayStart(kind, origin=Origin.ANSWER)
    kind, place = _from_offset(entries.get("offset"))
    modifiers = {name: entries[name] for name in ("generation", "until") if entries.get(name) is not None}
    return _modified(ReplayStart(kind, place, origin=Origin.ANSWER), modifiers, Origin.ANSWER)


def _modified(start: ReplayStart | None, modifiers: Mapping[str, Any], origin: Origin) -> ReplayStart:
    """``start`` with the modifiers, read; without a start, the one that ``until`` implies."""
    if start is None:
        if "until" not in modifiers:
            given = f"it has only {', '.join(modifiers)}" if modifiers else "it is empty"
            raise ReplayStartError(f"The replay start does not say where to start, {given}; {_START_TEXTS}.")
        start = ReplayStart(StartKind.BEGINNING, origin=origin)
    return replace(start, **{name: _MODIFIERS[name](value) for name, value in modifiers.items()})


def _number_of(name: str, text: str) -> Any:
    """The number that an option's text writes, where the modifier is a number; other texts stay texts."""
    if name == "generation" and _NUMBER.fullmatch(text):
        return int(text)
    if name in ("speed", "rate") and _DECIMAL.fullmatch(text):
        return float(text)
    return text


def _from_word(value: Any) -> tuple[StartKind, None]:
    if _is_text(value) and value.lower() in _WORDS:
        return _WORDS[value.lower()], None
    raise ReplayStartError(f"'from' is one of {', '.join(_WORDS)}, not {_cut(value)}.")


def _from_date(value: Any) -> tuple[StartKind, int]:
    if isinstance(value, Timestamp):
        return StartKind.DATE, _check_date(value)
    if _is_text(value):
        return StartKind.DATE, parse_date(value)
    # A bare number would be read as milliseconds by us and as seconds by half of those who send one.
    raise ReplayStartError(f"'date' is an AMQP timestamp, or a text such as {_SOME_DATE}, not {_cut(value)}.")


def _from_offset(value: Any) -> tuple[StartKind, int]:
    if not _is_integer(value):
        raise ReplayStartError(f"'offset' is an integer, not {_cut(value)}.")
    return StartKind.OFFSET, _check_offset(value)


def _from_ago(value: Any) -> tuple[StartKind, int]:
    if not _is_integer(value):
        raise ReplayStartError(f"'ago' is an integer, in milliseconds, not {_cut(value)}.")
    return StartKind.AGO, _check_ago(value)


def _from_id(key: str, kind: StartKind) -> Callable[[Any], tuple[StartKind, ReplayId]]:
    def read(value: Any) -> tuple[StartKind, ReplayId]:
        if not _is_text(value):
            raise ReplayStartError(f"{key!r} is the text of a replay id, rmid1:…, not {_cut(value)}.")
        return kind, _read_id(value)

    return read


def _from_name(key: str, kind: StartKind) -> Callable[[Any], tuple[StartKind, str]]:
    def read(value: Any) -> tuple[StartKind, str]:
        if not _is_text(value):
            raise ReplayStartError(f"{key!r} is a text, not {_cut(value)}.")
        return kind, _check_name(key, value)

    return read


def _from_message_id(value: Any) -> tuple[StartKind, str]:
    # As a client has it in its hands: of a message's own type, not as somebody would type it.
    if isinstance(value, UUID | bytes) or (_is_integer(value) and value >= 0):
        return StartKind.MESSAGE_ID, text_of(value)
    if not _is_text(value):
        raise ReplayStartError(f"'message-id' is a text, a ulong, a uuid or binary, not {_cut(value)}.")
    return StartKind.MESSAGE_ID, _check_name("message-id", value)


def _read_until(value: Any) -> Until:
    if isinstance(value, Timestamp):
        return Until(UntilKind.DATE, _check_date(value))
    if _is_integer(value):
        return Until(UntilKind.OFFSET, _check_offset(value))
    if _is_text(value):
        if value.lower() == "now":
            return Until(UntilKind.NOW)
        if found := _OFFSET.fullmatch(value):
            return Until(UntilKind.OFFSET, _check_offset(int(found[1])))
        if value.lower().startswith("rmid1:"):
            return Until(UntilKind.ID, _read_id(value))
        if _DATE.fullmatch(value):
            return Until(UntilKind.DATE, parse_date(value))
    raise ReplayStartError(f"A replay cannot end at {_cut(value)}: {_UNTIL_TEXTS}.")


def _read_missing(value: Any) -> Missing:
    if _is_text(value):
        for missing in Missing:
            if value == missing.value:
                return missing
    raise ReplayStartError(f"'missing' is fail or clamp, not {_cut(value)}.")


def _read_generation(value: Any) -> int:
    if not _is_integer(value) or not 0 <= value <= MAX_FIELD:
        raise ReplayStartError(f"'generation' is an unsigned 64-bit integer, not {_cut(value)}.")
    return int(value)


def _positive(name: str, meaning: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if (isinstance(value, float) or _is_integer(value)) and value > 0 and math.isfinite(value):
            return float(value)
        raise ReplayStartError(f"{name!r} is {meaning}, a number above 0, not {_cut(value)}.")

    return read


def _read_stream_offset(value: Any) -> tuple[StartKind, int | None]:
    if isinstance(value, Timestamp):
        return StartKind.DATE, _check_date(value)
    if _is_integer(value):
        return StartKind.OFFSET, _check_offset(value)
    if _is_text(value):
        if value in _RABBITMQ_WORDS:
            return _RABBITMQ_WORDS[value], None
        if found := _RABBITMQ_INTERVAL.fullmatch(value):
            return StartKind.AGO, _check_ago(int(found[1]) * _UNITS_RABBITMQ[found[2]])
    raise ReplayStartError(
        f"{_cut(value)} is not a stream offset: one is first, last, next, an interval such as 10m (Y M D h m "
        "s), an integer from 0 or a timestamp."
    )


# --------------------------------------------------------------------------------------------------- checks


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Char)


def _is_integer(value: Any) -> bool:
    """Whether ``value`` is an AMQP integer of any width; to Python a bool and a Timestamp are ints too."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def _check_offset(value: int) -> int:
    if not 0 <= value <= MAX_OFFSET:
        raise ReplayStartError(f"An offset is a number from 0 to {MAX_OFFSET}, not {value}.")
    return int(value)


def _check_date(value: int) -> int:
    if not 0 <= value <= MAX_DATE_MS:
        raise ReplayStartError(
            f"A date lies between the years 1970 and 9999; {value} ms since 1970 does not."
        )
    return int(value)


def _check_ago(value: int) -> int:
    if not 0 <= value <= MAX_DATE_MS:
        raise ReplayStartError(f"A time ago is a number of ms from 0 to {MAX_DATE_MS}, not {value}.")
    return int(value)


def _check_name(key: str, value: str) -> str:
    if not value.strip():
        raise ReplayStartError(f"{key!r} needs a text behind it, and there is none.")
    return str(value)


def _read_id(text: str) -> ReplayId:
    try:
        return parse_replay_id(text)
    except ReplayIdError as error:
        raise ReplayStartError(str(error)) from None


def _cut(value: Any) -> str:
    """``value`` for an error sentence: as Python writes it, and cut where a hostile peer made it long."""
    shown = repr(str(value)) if isinstance(value, str) else repr(value)
    limit = 120
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def _show(kind: str, value: int | ReplayId | str | None) -> str:
    match kind, value:
        case _, None:
            return kind
        case "date", int(ms):
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case "offset", int(number):
            return f"#{number}"
        case "ago", int(ms):
            return f"{ms} ms ago"
        case "after" | "id", _:
            return str(value)
        case _:
            return f"{kind}:{value}"


_WORDS: Final = {kind.value: kind for kind in (StartKind.BEGINNING, StartKind.LIVE, StartKind.LAST)}
_RABBITMQ_WORDS: Final = {"first": StartKind.BEGINNING, "last": StartKind.LAST, "next": StartKind.LIVE}
_NAMED: Final = {kind.value: kind for kind in (StartKind.POINT, StartKind.MESSAGE_ID, StartKind.MATCH)}

_START_KEYS: Final[Mapping[str, Callable[[Any], tuple[StartKind, int | ReplayId | str | None]]]] = {
    "from": _from_word,
    "date": _from_date,
    "offset": _from_offset,
    "after": _from_id("after", StartKind.AFTER),
    "at": _from_id("at", StartKind.AT),
    "ago": _from_ago,
    "point": _from_name("point", StartKind.POINT),
    "message-id": _from_message_id,
    "match": _from_name("match", StartKind.MATCH),
}

_MODIFIERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "until": _read_until,
    "missing": _read_missing,
    "generation": _read_generation,
    "speed": _positive("speed", "a factor of the original pace"),
    "rate": _positive("rate", "messages a second"),
}
