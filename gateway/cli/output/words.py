"""Numbers and times in words: what a person reads in place of bytes, milliseconds and seconds since 1970."""

from __future__ import annotations

from datetime import datetime
from typing import Final

NEVER: Final = "never"
NONE: Final = "none"
NO_LIMIT: Final = "no limit"

MEGABYTE: Final = 1 << 20
"""As in the settings."""

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_SIZES: Final = ((1 << 50, "PB"), (1 << 40, "TB"), (1 << 30, "GB"), (MEGABYTE, "MB"), (1 << 10, "kB"))
_TIMES: Final = (
    (365 * DAY_MS, "year"),
    (DAY_MS, "day"),
    (HOUR_MS, "hour"),
    (MINUTE_MS, "minute"),
    (1_000, "second"),
)


def counted(count: float, thing: str, things: str | None = None) -> str:
    """A count and its noun: ``1 message``, ``1,200 messages``."""
    noun = thing if count == 1 else things or f"{thing}s"
    return f"{number(count)} {noun}"


def number(count: float) -> str:
    """With separators, ``1,234,567``; a fraction to one digit."""
    return f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"


def size(count: float) -> str:
    """Bytes as they are said: ``999 bytes``, ``1.5 kB``, ``12.3 GB``. A MB is 1,048,576 bytes, as in the settings."""
    for unit, name in _SIZES:
        # What would be rounded up to a thousand of a unit is one of the next.
        if abs(count) >= unit * 0.99995:
            return f"{count / unit:,.1f} {name}"
    return counted(round(count), "byte")


def duration(milliseconds: float) -> str:
    """A length of time in the unit that matters, and the next where there are few: ``5 ms``, ``2 hours 5 minutes``."""
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:,.0f} ms"
    for place, (unit, name) in enumerate(_TIMES):
        if milliseconds >= unit:
            many = int(milliseconds // unit)
            text = counted(many, name)
            if many < 10 and place + 1 < len(_TIMES):
                smaller, smaller_name = _TIMES[place + 1]
                rest = int(milliseconds % unit // smaller)
                text += f" {counted(rest, smaller_name)}" if rest else ""
            return text
    return f"{milliseconds:,.0f} ms"


def moment(time_ms: float) -> str:
    """A time (ms since 1970) where the reader is, with the zone: ``2026-01-02 15:04:05 CET``."""
    try:
        return datetime.fromtimestamp(time_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):
        # No calendar has it.
        return f"{time_ms:,.0f} ms"


def moment_and_age(time_ms: float, now_ms: float) -> str:
    """The same, and how far away that is: ``… (3 minutes ago)``, ``… (in 2 days)``."""
    away = now_ms - time_ms
    if abs(away) < 1_000:
        return f"{moment(time_ms)} (now)"
    return f"{moment(time_ms)} ({f'{duration(away)} ago' if away > 0 else f'in {duration(-away)}'})"


def one_line(text: str) -> str:
    """The text with what would end the line, or steer a terminal, escaped: names come from anybody."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
