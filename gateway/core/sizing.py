"""
The growth of the replay log, and its size: how long its quota lasts at the present rate, which quota a time to keep
needs, and when the disk is full.

Growth is measured by samples. Each sample has a time and the totals that the log had taken by then. There is one sample
a minute for an hour, one an hour for two days, and one a day for a month: at most some 140 samples.

Messages that retention rules take out do not fill the log. So the topics of a rule let the log grow only up to the
rule's limit; all other topics have no such limit. The module does not guess: where a rate or the disk is not known, the
results that depend on it are None.
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
"""The periods for which rates are reported."""

_RINGS: Final = ((MINUTE_MS, 61), (HOUR_MS, 49), (DAY_MS, 32))
"""(least time from one sample to the next, number of samples that are kept)."""


class Taken(NamedTuple):
    """A sample: what the log had taken by a time, since this gateway began to count; negative for times before that."""

    time_ms: int
    messages: float
    size_bytes: float


class Rate(NamedTuple):
    """What the log takes per second."""

    period_ms: int
    """The time over which the rate was measured."""
    messages: float
    size_bytes: float


class LogGrowth:
    def __init__(self) -> None:
        self._rings: list[deque[Taken]] = [deque(maxlen=count) for _step, count in _RINGS]
        self._newest: Taken | None = None

    def note(self, taken: Taken) -> None:
        """Add a sample. Times never go back, and totals only rise."""
        self._newest = taken
        for (step_ms, _count), ring in zip(_RINGS, self._rings, strict=True):
            if not ring or taken.time_ms - ring[-1].time_ms >= step_ms:
                ring.append(taken)

    def rate(self, period_ms: int) -> Rate | None:
        """The rate over ``period_ms`` or a little longer, or over the time that is known; None without samples."""
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
        """The rates over each of ``PERIODS_MS``; the last one may be over a shorter time, if no more is known."""
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
        """The newest sample at or before a time, or else the oldest sample."""
        oldest: Taken | None = None
        for ring in self._rings:
            before = [place for place in ring if place.time_ms <= time_ms]
            if before:
                return before[-1]
            if oldest is None or ring[0].time_ms < oldest.time_ms:
                oldest = ring[0]
        assert oldest is not None  # the first sample is in every ring
        return oldest


FAR_MS: Final = 1_000 * 365 * 24 * HOUR_MS
"""A longer time counts as never."""


@dataclass(frozen=True, slots=True)
class LogSize:
    """The size of the log, and its limits."""

    used_bytes: int
    quota_bytes: int
    """0 is no limit."""
    trim_at: float
    """The share of the quota at which the log is trimmed."""
    trim_to: float
    """The share that remains after trimming."""
    max_age_hours: int
    """0 is no limit."""
    room_bytes: int | None
    """The free disk space for the log; None where it is not known."""


@dataclass(frozen=True, slots=True)
class TopicsSize:
    """The size of the messages of one retention rule in the log, and the rule's limits."""

    used_bytes: int
    whole_ms: int
    """How long no message of the rule has left the log. Their rate is measured over this time."""
    quota_bytes: int
    """0 is no limit."""
    max_age_hours: int
    """0 is no limit."""

    @property
    def per_ms(self) -> float:
        """The rate of the rule's messages, in bytes per ms."""
        return self.used_bytes / self.whole_ms if self.whole_ms > 0 else 0.0

    @property
    def most_bytes(self) -> float:
        """The size of the rule's messages in the long run, by the rule's limits."""
        by_age = self.max_age_hours * HOUR_MS * self.per_ms if self.max_age_hours else inf
        return min(by_age, self.quota_bytes or inf)


@dataclass(frozen=True, slots=True)
class TopicsPlan:
    """The plan of a rule's topics; None where it is unknown, or never."""

    lasts_ms: int | None
    """How long the log keeps a message of the rule in the long run, by the limits of the rule and of the log."""
    holds_bytes: int | None
    """The size of the rule's messages then."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What follows from a rate. Times are in ms. None: unknown, or never."""

    lasts_ms: int | None
    """How long the log keeps a message in the long run, by its quota or its age, whichever is less."""
    trimmed_in_ms: int | None
    """The time until the log is trimmed; 0 where trimming is due."""
    disk_full_in_ms: int | None
    """The time until the disk is full; also None where quota or age end the growth before."""
    keep_bytes: int | None
    """The quota that the time to keep needs."""


def plan(size: LogSize, rate: Rate | None, keep_ms: int = 0, retention: Sequence[TopicsSize] = ()) -> LogPlan:
    """
    Args:
        rate: The rate at which the log is expected to grow.
        keep_ms: How long messages are to be kept.
        retention: The size of each retention rule's messages.
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
        log_lasts_ms: How long the log keeps a message of any topic in the long run; None where it has no limit.
    """
    if not topics.per_ms:
        return TopicsPlan(None, None)
    lasts_ms = min(topics.most_bytes / topics.per_ms, inf if log_lasts_ms is None else log_lasts_ms)
    near_ms = _near(lasts_ms)
    return TopicsPlan(near_ms, None if near_ms is None else ceil(lasts_ms * topics.per_ms))


def _held(flows: Sequence[tuple[float, float]], ms: float) -> float:
    """The bytes that come in ``ms``, where each flow of (bytes per ms, most bytes) stays within its own limit."""
    return sum(min(per_ms * ms, most) for per_ms, most in flows)


def _until(flows: Sequence[tuple[float, float]], size_bytes: float) -> float:
    """How many ms it takes until ``_held`` reaches ``size_bytes``; infinity where it never does."""
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
