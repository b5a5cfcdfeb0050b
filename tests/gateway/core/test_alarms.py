"""Alarms: raised once, cleared once, and not for every small move around a threshold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.alarms import Alarm, AlarmKind, Alarms

THRESHOLDS = (80, 90)
HYSTERESIS = 5


class Told:
    """What was told of, in order: the threshold, and whether it was raised."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bool]] = []
        self.alarms = Alarms(self)

    def __call__(self, alarm: Alarm, is_raised: bool) -> None:
        self.events.append((alarm.threshold_percent, is_raised))

    def use(self, percent: float) -> list[tuple[int, bool]]:
        """What a use of so much leads to."""
        self.events.clear()
        self.alarms.note_use(AlarmKind.ENDPOINT_USE, "q", percent / 100, THRESHOLDS, HYSTERESIS, now_ms=7)
        return self.events.copy()


def test_each_threshold_is_raised_and_cleared_once() -> None:
    """Within the hysteresis nothing is told; below it, that it is over."""
    told = Told()
    assert told.use(79) == []
    assert told.use(80) == [(80, True)]
    assert told.use(95) == [(90, True)]
    assert told.use(85) == []
    assert told.use(84.9) == [(90, False)]
    assert told.use(90) == [(90, True)]
    assert told.use(10) == [(80, False), (90, False)]
    assert told.alarms.active() == []


@given(st.lists(st.floats(0, 150)))
def test_raised_and_cleared_take_turns(uses: list[float]) -> None:
    """However the use moves, a threshold is never raised twice in a row, and what is active was raised last."""
    told = Told()
    last = dict.fromkeys(THRESHOLDS, False)
    for percent in uses:
        for threshold, is_raised in told.use(percent):
            assert is_raised is not last[threshold]
            last[threshold] = is_raised
    assert {one.threshold_percent for one in told.alarms.active()} == {
        one for one, is_on in last.items() if is_on
    }


def test_what_an_alarm_is_about_may_go() -> None:
    """An alarm about what is gone is cleared, and one about something else stays."""
    told = Told()
    told.use(85)
    told.alarms.note(AlarmKind.STORE, "", "the disk is full", now_ms=8)
    told.alarms.note(AlarmKind.STORE, "", "the disk is still full", now_ms=9)
    told.alarms.keep(lambda alarm: alarm.subject != "q")
    assert told.events == [(80, True), (0, True), (80, False)]
    assert told.alarms.active() == [Alarm(AlarmKind.STORE, "", 0, 8, "the disk is full")]


def test_time_that_is_left_is_told_of_once() -> None:
    """Below the hours it is raised, a quarter above them cleared; what nobody knows is none, and 0 hours never."""
    told = Told()

    def left(hours: float | None, threshold: int = 24) -> list[Alarm]:
        left_ms = None if hours is None else int(hours * 3_600_000)
        told.alarms.note_time(AlarmKind.DISK_TIME, left_ms, threshold, "the disk is full in", now_ms=7)
        return told.alarms.active()

    assert left(24) == []
    assert left(23.5) == [Alarm(AlarmKind.DISK_TIME, "", 0, 7, "the disk is full in 23.5 hours")]
    assert len(left(29)) == 1
    assert left(30) == []
    assert len(left(1)) == 1
    assert left(None) == []
    assert left(1, threshold=0) == []
    assert told.events == [(0, True), (0, False), (0, True), (0, False)]
