"""
What may be said beside a start: where the replay ends, what happens if the log does not reach that far, and how fast.

Texts of an end (``until``): ``now``, a date, ``#123``, ``rmid1:…``. A range may be given by its end alone: ``until``
without a start reads from the beginning. The other modifiers say nothing about a place, and without a start or
``until`` they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from amqp_ext.codec import Timestamp
from amqp_ext.replay_id import MAX_FIELD
from amqp_ext.replay_start.date import DATE, SOME_DATE, parse_date
from amqp_ext.replay_start.fields import check_date, check_offset, is_integer, is_text, read_id, shown
from amqp_ext.replay_start.text import OFFSET, START_TEXTS
from amqp_ext.replay_start.value import Missing, ReplayStart, ReplayStartError, StartKind, Until, UntilKind

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
