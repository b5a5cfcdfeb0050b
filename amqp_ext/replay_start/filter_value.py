"""
The forms of a replay start that carry more than its text: the value of the filter ``rewind:replay-start`` (a map, or a
short form), and the options of an address (``orders?replay-start=beginning&until=now``).

Both have modifiers beside the start: where the replay ends, what happens if the log does not reach that far, how fast.
Texts of an end (``until``): ``now``, a date, ``#123``, ``rmid1:…``. A range may be given by its end alone: ``until``
without a start reads from the beginning. The other modifiers say nothing about a place, and without a start or
``until`` they are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import Timestamp
from amqp_ext.message.fields import text_of
from amqp_ext.replay_id import MAX_FIELD, ReplayId
from amqp_ext.replay_start.text import NUMBER, OFFSET, START_TEXTS, WORDS, parse_text
from amqp_ext.replay_start.value import (
    ANSWER,
    DATE,
    FILTER,
    OPTION,
    SOME_DATE,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    Until,
    UntilKind,
    check_ago,
    check_date,
    check_name,
    check_newest,
    check_offset,
    is_integer,
    is_text,
    parse_date,
    read_id,
    shown,
)


def from_rewind_filter(value: Any) -> ReplayStart:
    """
    Read the value of the filter ``rewind:replay-start``.

    A map has symbols (or strings) as keys: one start of ``from`` ``last`` ``date`` ``offset`` ``after`` ``at``
    ``ago`` ``point`` ``message-id`` ``match``, and modifiers ``until`` ``missing`` ``generation`` ``speed`` ``rate``
    ``name``;
    null is as good as absent. A message-id is of its own type, or a text. Short forms: a string or symbol is the text
    of a start, a timestamp a date, an integer of any type an offset. What the gateway answered to an attach is read,
    too: see ``is_answer``.

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

    It stands in the source that answers an attach. A client that attaches a link again asks for the source as it is
    in place, and so sends it back (AMQP 1.0 sections 2.6.3 and 3.5.3).
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
                f"start and {', '.join(MODIFIERS)} beside it."
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
    """An answer stands for what it says is in place: live, or the offset of the first message and the bound."""
    if entries.get("from") is not None:
        kind, _ = _from_word(entries["from"])
        return ReplayStart(kind, form=ANSWER)
    kind, place = _from_offset(entries.get("offset"))
    modifiers = {name: entries[name] for name in ("generation", "until") if entries.get(name) is not None}
    return with_modifiers(ReplayStart(kind, place, form=ANSWER), modifiers, ANSWER)


def _from_word(value: Any) -> tuple[StartKind, None]:
    if is_text(value) and value.lower() in WORDS:
        return WORDS[value.lower()], None
    raise ReplayStartError(f"'from' is one of {', '.join(WORDS)}, not {shown(value)}.")


def _from_last(value: Any) -> tuple[StartKind, int]:
    if not is_integer(value):
        raise ReplayStartError(f"'last' is an integer, a number of messages, not {shown(value)}.")
    return StartKind.NEWEST, check_newest(value)


def _from_date(value: Any) -> tuple[StartKind, int]:
    if isinstance(value, Timestamp):
        return StartKind.DATE, check_date(value)
    if is_text(value):
        return StartKind.DATE, parse_date(value)
    # A bare number would be read as milliseconds by us and as seconds by half of those who send one.
    raise ReplayStartError(f"'date' is an AMQP timestamp, or a text such as {SOME_DATE}, not {shown(value)}.")


def _from_offset(value: Any) -> tuple[StartKind, int]:
    if not is_integer(value):
        raise ReplayStartError(f"'offset' is an integer, not {shown(value)}.")
    return StartKind.OFFSET, check_offset(value)


def _from_ago(value: Any) -> tuple[StartKind, int]:
    if not is_integer(value):
        raise ReplayStartError(f"'ago' is an integer, in milliseconds, not {shown(value)}.")
    return StartKind.AGO, check_ago(value)


def _from_id(key: str, kind: StartKind) -> Callable[[Any], tuple[StartKind, ReplayId]]:
    def read(value: Any) -> tuple[StartKind, ReplayId]:
        if not is_text(value):
            raise ReplayStartError(f"{key!r} is the text of a replay id, rmid1:…, not {shown(value)}.")
        return kind, read_id(value)

    return read


def _from_name(key: str, kind: StartKind) -> Callable[[Any], tuple[StartKind, str]]:
    def read(value: Any) -> tuple[StartKind, str]:
        if not is_text(value):
            raise ReplayStartError(f"{key!r} is a text, not {shown(value)}.")
        return kind, check_name(key, value)

    return read


def _from_message_id(value: Any) -> tuple[StartKind, str]:
    # As a client has it in its hands: of a message's own type, not as somebody would type it.
    if isinstance(value, UUID | bytes) or (is_integer(value) and value >= 0):
        return StartKind.MESSAGE_ID, text_of(value)
    if not is_text(value):
        raise ReplayStartError(f"'message-id' is a text, a ulong, a uuid or binary, not {shown(value)}.")
    return StartKind.MESSAGE_ID, check_name("message-id", value)


_START_KEYS: Final[Mapping[str, Callable[[Any], tuple[StartKind, int | ReplayId | str | None]]]] = {
    "from": _from_word,
    "last": _from_last,
    "date": _from_date,
    "offset": _from_offset,
    "after": _from_id("after", StartKind.AFTER),
    "at": _from_id("at", StartKind.AT),
    "ago": _from_ago,
    "point": _from_name("point", StartKind.POINT),
    "message-id": _from_message_id,
    "match": _from_name("match", StartKind.MATCH),
}


NAME_CHARACTERS: Final = 200
"""Longest name of a replay: as long as a queue's."""

_UNTIL_TEXTS: Final = f"until is now, a date such as {SOME_DATE}, an offset (#123 in a text) or rmid1:…"


def with_modifiers(start: ReplayStart | None, modifiers: Mapping[str, Any], form: str) -> ReplayStart:
    """
    A start with what was said beside it.

    Args:
        start: None where none was given: then ``until`` implies the beginning.
        modifiers: Values as they came, by their names in ``MODIFIERS``.
        form: Of the start that is implied.

    Raises:
        ReplayStartError: A value is none; or nothing says where to start.
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


def _read_missing(value: Any) -> Missing:
    if is_text(value):
        for missing in Missing:
            if value == missing.value:
                return missing
    raise ReplayStartError(f"'missing' is fail or clamp, not {shown(value)}.")


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
"""What may be said beside a start, with its readers."""


_OPTIONS: Final = {"name": "replay-name"}
"""Options by the modifiers they stand for, where they are called otherwise."""

_DECIMAL: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?")


def from_options(options: Mapping[str, str]) -> ReplayStart | None:
    """
    Read the options of an address that ask for a replay; None when there are none of them.

    They are ``replay-start``, ``until``, ``missing``, ``generation``, ``speed``, ``rate`` and ``replay-name``;
    others are left to their readers.

    Raises:
        ReplayStartError: One has a bad value, or there is no start for them.
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
