"""How quickly the log grows, and what follows from that, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sizing import (
    DAY_MS,
    FAR_MS,
    HOUR_MS,
    MINUTE_MS,
    LogGrowth,
    LogPlan,
    LogSize,
    Rate,
    Taken,
    TopicsPlan,
    TopicsSize,
    plan,
    plan_of_topics,
)

GB = 10**9
NOW_MS = 1_767_323_045_000


def grown(*, days: float, bytes_per_second: float = 1_000, step_ms: int = MINUTE_MS) -> LogGrowth:
    """A log that took ten messages a second for so long, looked at once a minute."""
    growth = LogGrowth()
    for passed in range(0, int(days * DAY_MS) + 1, step_ms):
        growth.note(Taken(NOW_MS + passed, passed / 100, passed / 1_000 * bytes_per_second))
    return growth


def test_nothing_is_known_of_what_was_looked_at_once() -> None:
    """A rate takes two looks."""
    growth = LogGrowth()
    assert (growth.rate(HOUR_MS), growth.rates()) == (None, [])
    growth.note(Taken(NOW_MS, 0, 0))
    assert (growth.rate(HOUR_MS), growth.rates()) == (None, [])


def test_a_steady_log_has_one_rate_over_every_period_that_is_known() -> None:
    """Each is over its period, but for the longest, which is over what there is."""
    assert grown(days=2).rates() == [
        Rate(10 * MINUTE_MS, 10, 1_000),
        Rate(HOUR_MS, 10, 1_000),
        Rate(DAY_MS, 10, 1_000),
        Rate(2 * DAY_MS, 10, 1_000),
    ]
    assert grown(days=0.01).rates() == [
        Rate(10 * MINUTE_MS, 10, 1_000),
        Rate(14 * MINUTE_MS, 10, 1_000),
    ]


def test_a_burst_is_seen_in_the_hour_and_hardly_in_the_week() -> None:
    """What came in the last minutes is a large part of an hour, and a small one of a week."""
    growth = grown(days=7)
    newest = growth._newest
    assert newest is not None
    growth.note(Taken(newest.time_ms + MINUTE_MS, newest.messages, newest.size_bytes + 3_600_000))
    hour, week = growth.rate(HOUR_MS), growth.rate(7 * DAY_MS)
    assert hour is not None and hour.size_bytes == pytest.approx(1_983, abs=1)
    assert week is not None and week.size_bytes == pytest.approx(1_006, abs=1)


@given(st.lists(st.tuples(st.integers(1, 3 * DAY_MS), st.integers(0, 10**9)), max_size=400))
def test_what_is_kept_is_bounded_and_a_rate_lies_between_the_least_and_the_most(
    steps: list[tuple[int, int]],
) -> None:
    """However often and how irregularly it is looked at; a rate is over no less than was asked for, if known."""
    growth = LogGrowth()
    taken = Taken(NOW_MS, 0, 0)
    growth.note(taken)
    for passed_ms, size in steps:
        taken = Taken(taken.time_ms + passed_ms, taken.messages + 1, taken.size_bytes + size)
        growth.note(taken)
    assert sum(map(len, growth._rings)) <= 142
    rates = [size * 1_000 / passed_ms for passed_ms, size in steps]
    for period_ms in (MINUTE_MS, HOUR_MS, DAY_MS, 30 * DAY_MS):
        rate = growth.rate(period_ms)
        if rate is None:
            assert not steps
            continue
        assert min(rates) * 0.999 <= rate.size_bytes <= max(rates) * 1.001
        assert rate.period_ms >= min(period_ms, 30 * DAY_MS) or rate.period_ms <= taken.time_ms - NOW_MS


SIZE = LogSize(
    used_bytes=10 * GB, quota_bytes=100 * GB, trim_at=0.9, trim_to=0.88, max_age_hours=0, room_bytes=None
)
KEEP = 818_181_818_182
"""What 30 days take at a gigabyte an hour, and as much more as is trimmed at once."""
A_GB_AN_HOUR = Rate(DAY_MS, 100, GB / 3_600)


@pytest.mark.parametrize(
    ("size", "rate", "expected"),
    [
        (SIZE, None, LogPlan(None, None, None, None)),
        (SIZE, Rate(DAY_MS, 0, 0), LogPlan(None, None, None, None)),
        # 88 GB are kept, 80 are left until 90 % of the quota, 30 days are 720 GB and an eighth more.
        (SIZE, A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 80 * HOUR_MS, None, KEEP)),
        (replace(SIZE, used_bytes=95 * GB), A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 0, None, KEEP)),
        # The disk is smaller than the quota.
        (replace(SIZE, room_bytes=5 * GB), A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 80 * HOUR_MS, 5 * HOUR_MS, KEEP)),
        (replace(SIZE, room_bytes=90 * GB), A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 80 * HOUR_MS, None, KEEP)),
        # Without a quota it fills the disk, unless its age ends it before.
        (replace(SIZE, quota_bytes=0, room_bytes=5 * GB), A_GB_AN_HOUR, LogPlan(None, None, 5 * HOUR_MS, KEEP)),
        (
            replace(SIZE, quota_bytes=0, room_bytes=5 * GB, max_age_hours=12),
            A_GB_AN_HOUR,
            LogPlan(12 * HOUR_MS, None, None, KEEP),
        ),
        (
            replace(SIZE, quota_bytes=0, room_bytes=5 * GB, max_age_hours=24),
            A_GB_AN_HOUR,
            LogPlan(24 * HOUR_MS, None, 5 * HOUR_MS, KEEP),
        ),
        # What takes a thousand years does not happen.
        (SIZE, Rate(DAY_MS, 1, GB * 1_000 / FAR_MS), LogPlan(None, None, None, 93_400)),
    ],
)  # fmt: skip
def test_what_follows_from_a_rate(size: LogSize, rate: Rate | None, expected: LogPlan) -> None:
    """How much it keeps, when it is trimmed, when the disk is full, and what 30 days take."""
    found = plan(size, rate, 30 * DAY_MS)
    for name in LogPlan.__slots__:
        said, right = getattr(found, name), getattr(expected, name)
        assert said == (right if right is None else pytest.approx(right, rel=1e-5)), name


DEBUG = TopicsSize(used_bytes=8 * GB, whole_ms=10 * HOUR_MS, quota_bytes=8 * GB, max_age_hours=0)
"""Four fifths of what comes, kept for ten hours."""


@pytest.mark.parametrize(
    ("size", "topics", "expected"),
    [
        # A fifth fills the log: 80 GB in 400 hours, until 10 GB more of the quota are used; 30 days are 144 + 8 GB.
        (SIZE, DEBUG, LogPlan(400 * HOUR_MS, 400 * HOUR_MS, None, 172_727_272_728)),
        (replace(SIZE, quota_bytes=0, room_bytes=5 * GB), DEBUG, LogPlan(None, None, 25 * HOUR_MS, 172_727_272_728)),
        # The rule has room still: that fills up at first.
        (
            replace(SIZE, quota_bytes=0, room_bytes=10 * GB),
            replace(DEBUG, quota_bytes=16 * GB),
            LogPlan(None, None, 10 * HOUR_MS, 181_818_181_819),
        ),
        # All that comes is the rule's: the log is never full.
        (
            replace(SIZE, room_bytes=15 * GB),
            replace(DEBUG, used_bytes=10 * GB, quota_bytes=0, max_age_hours=20),
            LogPlan(None, None, None, 22_727_272_728),
        ),
    ],
)  # fmt: skip
def test_what_a_rule_takes_out_does_not_fill_the_log(
    size: LogSize, topics: TopicsSize, expected: LogPlan
) -> None:
    """Its topics grow up to what they may have, at their own rate, and the others fill the rest."""
    found = plan(size, A_GB_AN_HOUR, 30 * DAY_MS, [topics])
    for name in LogPlan.__slots__:
        said, right = getattr(found, name), getattr(expected, name)
        assert said == (right if right is None else pytest.approx(right, rel=1e-5)), name


@pytest.mark.parametrize(
    ("topics", "log_lasts_ms", "expected"),
    [
        (DEBUG, None, TopicsPlan(10 * HOUR_MS, 8 * GB)),
        (replace(DEBUG, max_age_hours=5), None, TopicsPlan(5 * HOUR_MS, 4 * GB)),
        (DEBUG, 2 * HOUR_MS, TopicsPlan(2 * HOUR_MS, round(1.6 * GB))),
        (replace(DEBUG, quota_bytes=0), None, TopicsPlan(None, None)),
        (replace(DEBUG, used_bytes=0), None, TopicsPlan(None, None)),
        (replace(DEBUG, whole_ms=0), None, TopicsPlan(None, None)),
    ],
)  # fmt: skip
def test_what_a_rule_will_hold(topics: TopicsSize, log_lasts_ms: int | None, expected: TopicsPlan) -> None:
    """By its own bounds and the log's, at the rate at which its topics came since the last of them left."""
    found = plan_of_topics(topics, log_lasts_ms)
    for name in TopicsPlan.__slots__:
        said, right = getattr(found, name), getattr(expected, name)
        assert said == (right if right is None else pytest.approx(right, rel=1e-5)), name
