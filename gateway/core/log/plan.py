"""
How large the replay log must be: how long its quota lasts at the rate at which it grows, what a time to be kept needs,
and when the disk is full.

Nothing is guessed of what is not measured: where a rate or the disk is not known, neither is what would follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from gateway.core.log.growth import HOUR_MS, Rate

FAR_MS: Final = 1_000 * 365 * 24 * HOUR_MS
"""What takes longer does not happen."""


@dataclass(frozen=True, slots=True)
class LogSize:
    """What the log takes and may take."""

    used_bytes: int
    quota_bytes: int
    """0 is no bound."""
    trim_at: float
    """Share of the quota from which on it is trimmed."""
    trim_to: float
    """Share that is kept then."""
    max_age_hours: int
    """0 is no bound."""
    room_bytes: int | None
    """What the disk has left for it; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What follows from a rate; each in ms, and None where it is unknown, or never."""

    lasts_ms: int | None
    """How much of the past the log holds in the long run, by its quota or its age, whichever is less."""
    trimmed_in_ms: int | None
    """Until it is trimmed; 0 where it is."""
    disk_full_in_ms: int | None
    """Until the disk is full; None, too, where quota or age end its growth before."""
    keep_bytes: int | None
    """The quota that a time to be kept needs."""


def plan(size: LogSize, rate: Rate | None, keep_ms: int = 0) -> LogPlan:
    """
    Args:
        rate: At which it is expected to grow.
        keep_ms: How much of the past is to be kept.
    """
    per_ms = rate.size_bytes / 1_000 if rate is not None else 0.0
    if per_ms <= 0:
        return LogPlan(None, None, None, None)
    age_ms = size.max_age_hours * HOUR_MS
    bounds = [size.quota_bytes] if size.quota_bytes else []
    if age_ms:
        bounds.append(ceil(age_ms * per_ms))
    lasts = [size.quota_bytes * size.trim_to / per_ms] if size.quota_bytes else []
    if age_ms:
        lasts.append(age_ms)
    room = size.room_bytes
    disk_full = None
    if room is not None and not (bounds and size.used_bytes + room >= min(bounds)):
        disk_full = _near(room / per_ms)
    trimmed = (size.quota_bytes * size.trim_at - size.used_bytes) / per_ms if size.quota_bytes else None
    return LogPlan(
        lasts_ms=_near(min(lasts)) if lasts else None,
        trimmed_in_ms=None if trimmed is None else _near(max(trimmed, 0)),
        disk_full_in_ms=disk_full,
        keep_bytes=ceil(keep_ms * per_ms / size.trim_to) if keep_ms else None,
    )


def _near(milliseconds: float) -> int | None:
    return int(milliseconds) if milliseconds < FAR_MS else None
