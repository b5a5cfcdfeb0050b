"""The pace of a replay, with a clock of the test's own."""

from __future__ import annotations

from gateway.core.model import Row
from gateway.core.replay.pacing import Pacer


def rows(*times_ms: int) -> list[Row]:
    return [(number, time_ms, "a", 0, 0, None, b"") for number, time_ms in enumerate(times_ms, 1)]


def test_a_rate_lets_so_many_go_in_a_second() -> None:
    """At 10 messages a second one goes every 100 ms, however they lay in the log."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    sent = 0
    for now_ms in range(1_000_000, 1_002_000, 10):
        sent += pacer.due(log[sent:], now_ms)
    assert sent == 20


def test_time_not_used_is_not_saved_up() -> None:
    """After a pause there is no burst."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 1


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
