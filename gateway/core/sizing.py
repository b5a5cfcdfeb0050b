"""
How quickly the replay log grows, and how large it must be: how long its quota lasts at that rate, what a time to be
kept needs, and when the disk is full.

Of its growth, places on the way are kept, each the time and what was taken until then: one a minute for an hour, one an
hour for two days, one a day for a month. However long it runs, that is some 140 of them.

What rules of retention take out does not fill the log: it grows by their topics up to what they may have, and by all
others. Nothing is guessed of what is not measured: where a rate or the disk is not known, neither is what would follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

PERIODS_MS: Final = (10 * MINUTE_MS, HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS)
"""Over which rates are told."""

_RINGS: Final = ((MINUTE_MS, 61), (HOUR_MS, 49), (DAY_MS, 32))
"""From one place to the next at least, and how many are kept."""


class Taken(NamedTuple):
    """What the log had taken by a time; below 0 for what it took before this gateway counted."""

    time_ms: int
    messages: float
    size_bytes: float


class Rate(NamedTuple):
    """What the log takes a second."""

    period_ms: int
    """Over how long that was measured."""
    messages: float
    size_bytes: float


class LogGrowth:
    def __init__(self) -> None:
        self._rings: list[deque[Taken]] = [deque(maxlen=count) for _step, count in _RINGS]
        self._newest: Taken | None = None

    def note(self, taken: Taken) -> None:
        """What it has taken by now; times never go back, and numbers only rise."""
        self._newest = taken
        for (step_ms, _count), ring in zip(_RINGS, self._rings, strict=True):
            if not ring or taken.time_ms - ring[-1].time_ms >= step_ms:
                ring.append(taken)

    def rate(self, period_ms: int) -> Rate | None:
        """Over the last so many milliseconds, or a little more, or as long as is known; None when nothing is known."""
        newest = self._newest
        if newest is None:
            return None
        since = self._place_before(newest.time_ms - period_ms)
        measured_ms = newest.time_ms - since.time_ms
        if measured_ms <= 0:
            return None
        seconds = measured_ms / 1_000
        return Rate(
            measured_ms,
            (newest.messages - since.messages) / seconds,
            (newest.size_bytes - since.size_bytes) / seconds,
        )

    def rates(self) -> list[Rate]:
        """Over each of ``PERIODS_MS`` that is known, or else over what is."""
        found: list[Rate] = []
        for period_ms in PERIODS_MS:
            rate = self.rate(period_ms)
            if rate is None or (found and found[-1].period_ms == rate.period_ms):
                break
            found.append(rate)
            if rate.period_ms < period_ms:
                break
        return found

    def _place_before(self, time_ms: int) -> Taken:
        """The newest place at or before a time, or the oldest there is."""
        oldest: Taken | None = None
        for ring in self._rings:
            before = [place for place in ring if place.time_ms <= time_ms]
            if before:
                return before[-1]
            if oldest is None or ring[0].time_ms < oldest.time_ms:
                oldest = ring[0]
        assert oldest is not None  # whatever is noted is in a ring that was empty
        return oldest


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
