"""The time that messages are stamped with follows the machine's clock, and neither jumps nor goes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.steady_time import SETTLE_SECONDS, STEP_MS, WAITING_PACE, SteadyTime

START = 1_800_000_000_000
YEARS = 14 * 365 * 86_400_000


class Machine:
    """Clocks of a machine, and the time that goes by them."""

    def __init__(self, at_least_ms: int = 0) -> None:
        self.wall = START
        self.seconds = 50.0
        self.time = SteadyTime(at_least_ms)
        self.now = self.time.read(self.wall, self.seconds)

    def passes(self, seconds: float) -> int:
        """So much time passes, looked at each second."""
        for _ in range(int(seconds)):
            self.wall += 1_000
            self.seconds += 1
            self.now = self.time.read(self.wall, self.seconds)
        return self.now

    def set_by(self, ms: int) -> int:
        """Somebody sets the clock."""
        self.wall += ms
        self.now = self.time.read(self.wall, self.seconds)
        return self.now


def test_it_is_the_machine_s_time() -> None:
    """As long as nobody sets the clock, and when it is corrected by little."""
    machine = Machine()
    assert machine.passes(100) == START + 100_000
    assert machine.set_by(STEP_MS) == START + 100_000 + STEP_MS
    assert machine.time.problem() is None


def test_a_jump_for_a_moment_is_not_followed() -> None:
    """A clock that is fourteen years ahead for a minute stamps nothing with that, and an alarm says so meanwhile."""
    machine = Machine()
    assert machine.set_by(YEARS) == START
    assert machine.passes(60) == START + 60_000
    assert "ahead" in (machine.time.problem() or "")
    assert machine.set_by(-YEARS) == START + 60_000
    assert machine.passes(10) == START + 70_000
    assert machine.time.problem() is None


def test_a_jump_that_stays_is_followed() -> None:
    """A machine that slept for an hour is believed after a while."""
    machine = Machine()
    machine.set_by(3_600_000)
    machine.passes(SETTLE_SECONDS + 1)
    assert machine.now == machine.wall
    assert machine.time.problem() is None


@pytest.mark.parametrize("how", ["set back", "restarted behind the log"])
def test_a_time_to_live_is_as_long_while_time_is_ahead(how: str) -> None:
    """Time goes on, a tenth slower, until the clock has come up; it does not stand still for years."""
    machine = Machine(at_least_ms=START + YEARS if how == "restarted behind the log" else 0)
    if how == "set back":
        machine.set_by(-YEARS)
    before = machine.now
    machine.passes(1_000)
    assert machine.now - before == pytest.approx(1_000_000 * WAITING_PACE, abs=1_000)
    assert "ahead" in (machine.time.problem() or "")


def test_a_clock_that_was_set_back_a_little_is_caught_up_with() -> None:
    """Ten seconds ahead, it agrees again within two minutes."""
    machine = Machine()
    machine.set_by(-10_000)
    machine.passes(120)
    assert machine.now == machine.wall


@given(
    st.lists(st.tuples(st.integers(-YEARS, YEARS), st.integers(0, 1_000)), max_size=30),
    st.integers(0, 2 * START),
)
def test_it_never_goes_back(steps: list[tuple[int, int]], at_least_ms: int) -> None:
    """Whatever is done to the clock: times never fall, and are never below those given out before a restart."""
    machine = Machine(at_least_ms)
    last = machine.now
    assert last >= at_least_ms
    for by, seconds in steps:
        for now in (machine.set_by(by), machine.passes(seconds)):
            assert now >= last
            last = now
