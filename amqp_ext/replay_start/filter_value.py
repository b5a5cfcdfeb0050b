"""
The value of the filter ``rewind:replay-start``: a map, or a short form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import Timestamp
from amqp_ext.message.message_id import text_of
from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start.date import SOME_DATE, parse_date
from amqp_ext.replay_start.fields import (
    check_ago,
    check_date,
    check_name,
    check_newest,
    check_offset,
    is_integer,
    is_text,
    read_id,
    shown,
)
from amqp_ext.replay_start.modifiers import MODIFIERS, with_modifiers
from amqp_ext.replay_start.text import WORDS, parse_text
from amqp_ext.replay_start.value import ANSWER, FILTER, ReplayStart, ReplayStartError, StartKind


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
