"""
How large the replay log must be: how long its quota lasts at the rate at which it grows, what a time to be kept needs,
and when the disk is full.

What rules of retention take out does not fill the log: it grows by their topics up to what they may have, and by all
others. Nothing is guessed of what is not measured: where a rate or the disk is not known, neither is what would follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
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
class TopicsSize:
    """What the log has of the topics of one rule of retention, and may have."""

    used_bytes: int
    whole_ms: int
    """For so long nothing of them left it: that is what their rate is measured by."""
    quota_bytes: int
    """0 is no bound."""
    max_age_hours: int
    """0 is no bound."""

    @property
    def per_ms(self) -> float:
        """Bytes at which they come."""
        return self.used_bytes / self.whole_ms if self.whole_ms > 0 else 0.0

    @property
    def most_bytes(self) -> float:
        """What the log has of them in the long run, by the rule."""
        by_age = self.max_age_hours * HOUR_MS * self.per_ms if self.max_age_hours else inf
        return min(by_age, self.quota_bytes or inf)


@dataclass(frozen=True, slots=True)
class TopicsPlan:
    """What follows for a rule's topics; None where it is unknown, or never."""

    lasts_ms: int | None
    """How much of their past the log holds in the long run, by the rule or by the log's own bounds."""
    holds_bytes: int | None
    """What that takes."""


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


def plan(size: LogSize, rate: Rate | None, keep_ms: int = 0, retention: Sequence[TopicsSize] = ()) -> LogPlan:
    """
    Args:
        rate: At which it is expected to grow.
        keep_ms: How much of the past is to be kept.
        retention: What it has by each rule.
    """
    per_ms = rate.size_bytes / 1_000 if rate is not None else 0.0
    if per_ms <= 0:
        return LogPlan(None, None, None, None)
    others = max(per_ms - sum(topics.per_ms for topics in retention), 0.0)
    flows = [(others, inf), *((topics.per_ms, topics.most_bytes) for topics in retention)]
    growth = [
        (others, inf),
        *((topics.per_ms, max(topics.most_bytes - topics.used_bytes, 0.0)) for topics in retention),
    ]
    age_ms = size.max_age_hours * HOUR_MS
    bounds = [size.quota_bytes] if size.quota_bytes else []
    if age_ms:
        bounds.append(ceil(_held(flows, age_ms)))
    lasts = [_until(flows, size.quota_bytes * size.trim_to)] if size.quota_bytes else []
    if age_ms:
        lasts.append(age_ms)
    room = size.room_bytes
    disk_full = None
    if room is not None and not (bounds and size.used_bytes + room >= min(bounds)):
        disk_full = _near(_until(growth, room))
    return LogPlan(
        lasts_ms=_near(min(lasts)) if lasts else None,
        trimmed_in_ms=_near(_until(growth, size.quota_bytes * size.trim_at - size.used_bytes))
        if size.quota_bytes
        else None,
        disk_full_in_ms=disk_full,
        keep_bytes=ceil(_held(flows, keep_ms) / size.trim_to) if keep_ms else None,
    )


def plan_of_topics(topics: TopicsSize, log_lasts_ms: int | None) -> TopicsPlan:
    """
    Args:
        log_lasts_ms: How much of the past the log holds of all topics in the long run; None where that has no end.
    """
    if not topics.per_ms:
        return TopicsPlan(None, None)
    lasts_ms = min(topics.most_bytes / topics.per_ms, inf if log_lasts_ms is None else log_lasts_ms)
    near_ms = _near(lasts_ms)
    return TopicsPlan(near_ms, None if near_ms is None else ceil(lasts_ms * topics.per_ms))


def _held(flows: Sequence[tuple[float, float]], ms: float) -> float:
    """Bytes of so much of the past, where each of (bytes a ms, most bytes) is kept to its own bound."""
    return sum(min(per_ms * ms, most) for per_ms, most in flows)


def _until(flows: Sequence[tuple[float, float]], size_bytes: float) -> float:
    """How many ms it takes until ``_held`` is so much; infinity, where it never is."""
    left, since = max(size_bytes, 0.0), 0.0
    ends = sorted((most / per_ms, per_ms) for per_ms, most in flows if per_ms)
    for place, (end, _) in enumerate(ends):
        per_ms = sum(flow for _, flow in ends[place:])
        if per_ms * (end - since) >= left:
            return since + left / per_ms
        left -= per_ms * (end - since)
        since = end
    return inf


def _near(milliseconds: float) -> int | None:
    return round(milliseconds) if milliseconds < FAR_MS else None
