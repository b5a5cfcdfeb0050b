"""
Fields of a replay start, checked: what each may be, with the sentence for the one who sent another.
"""

from __future__ import annotations

from typing import Any, Final

from amqp_ext.codec import Char, Timestamp
from amqp_ext.replay_id import ReplayId, ReplayIdError, parse_replay_id
from amqp_ext.replay_start.value import ReplayStartError

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
