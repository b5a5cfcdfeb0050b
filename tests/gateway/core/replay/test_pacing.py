"""The pace of a replay, with a clock of the test's own."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import Row
from gateway.core.replay.reading import CATCH_UP_MS, SHORTEST_WAIT_MS, Pacer


def rows(*times_ms: int) -> list[Row]:
    return [(number, time_ms, "a", 0, 0, None, b"") for number, time_ms in enumerate(times_ms, 1)]


def test_a_rate_lets_so_many_go_in_a_second() -> None:
    """At 10 messages a second one goes every 100 ms, however they lay in the log."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    sent = 0
    for now_ms in range(1_000_000, 1_002_000, 10):
        sent += pacer.due(log[sent:], now_ms)
    assert sent == 20


@pytest.mark.parametrize("rate", [1.0, 90.0, 1_000.0, 20_000.0, 1e6])
@pytest.mark.parametrize("pause_ms", [SHORTEST_WAIT_MS, 30, CATCH_UP_MS - 20])
def test_a_rate_is_kept_up_however_seldom_one_asks(rate: float, pause_ms: int) -> None:
    """A gateway that is busy, and commits that take their time, are made up for."""
    pacer, log = Pacer(None, rate), rows(*[0] * int(rate))
    asked = range(1_000_000, 1_002_000, pause_ms)
    sent = sum(pacer.due(log, now_ms) for now_ms in asked)
    assert abs(sent - rate * (asked[-1] - asked[0]) / 1_000) <= 1


def test_time_not_used_is_not_saved_up() -> None:
    """After a pause, and at the beginning, there is no burst."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 1
    pacer, log = Pacer(None, 2_000.0), rows(*[0] * 1_000)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 2_000 * CATCH_UP_MS / 1_000


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.floats(0.5, 5_000),
    st.sampled_from([0, CATCH_UP_MS, 1_000]),
)
def test_no_second_has_more_than_the_rate_and_what_is_made_up_for(
    pauses_ms: list[int], rate: float, catch_up_ms: int
) -> None:
    pacer, log = Pacer(None, rate, catch_up_ms), rows(*[0] * 10_000)
    asked = [1_000_000 + passed for passed in accumulate(pauses_ms)]
    sent = [pacer.due(log, now_ms) for now_ms in asked]
    for first, began_ms in enumerate(asked):
        within = sum(
            count
            for now_ms, count in zip(asked[first:], sent[first:], strict=True)
            if now_ms < began_ms + 1_000
        )
        assert within <= rate * (1_000 + catch_up_ms) / 1_000 + 2


def test_what_is_not_due_is_asked_for_again_when_it_is() -> None:
    """Not for each message by itself, where many go in a moment."""
    pacer, log = Pacer(None, 10.0), rows(0, 0)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.wait_s(log[1], 1_000_040) == pytest.approx(0.06)
    pacer = Pacer(None, 2_000.0)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.wait_s(log[1], 1_000_000) == SHORTEST_WAIT_MS / 1_000


def test_speed_keeps_the_distances_of_the_original() -> None:
    """At speed 10 a message published a minute after the first goes six seconds after it."""
    pacer, log = Pacer(10.0, None), rows(500_000, 500_000, 560_000)
    assert pacer.due(log, 9_000_000) == 2
    assert pacer.due_ms(log[2], 9_000_000) == 9_006_000
    assert pacer.due(log[2:], 9_005_999) == 0
    assert pacer.due(log[2:], 9_006_000) == 1


def test_speed_and_rate_hold_together() -> None:
    """Both bounds apply: the later one decides."""
    pacer, log = Pacer(1.0, 2.0), rows(0, 0, 0)
    assert pacer.due(log, 1_000) == 1
    assert pacer.due(log[1:], 1_499) == 0
    assert pacer.due(log[1:], 1_500) == 1
