"""The pace of log readers beside live traffic."""

from __future__ import annotations

import pytest

from gateway.vpn.clock import SystemClock
from gateway.vpn.counters import Counters
from gateway.vpn.delivery import history_pace
from gateway.vpn.delivery.history_pace import HistoryPace
from gateway.vpn.tuning import Tuning

ROWS = 128


class _Clock(SystemClock):
    """The loop's."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def seconds(self) -> float:  # type: ignore[override]
        return self._loop.now


class Loop:
    """A loop on which readers take turns beside live traffic; its clock moves as they do."""

    def __init__(self, row_seconds: float, live_per_second: float) -> None:
        self.now = 100.0
        self.row_seconds = row_seconds
        self.reading = 0.0
        self._live = live_per_second
        self._begun = self.now
        self.counters = Counters()
        self.pace = HistoryPace(self.counters, _Clock(self), Tuning().longest_pause)

    def share(self, readers: int, seconds: float) -> float:
        """The part of the time that their turns take."""
        due = [self.now] * readers
        end, taken = self.now + seconds, 0.0
        while (at := min(due)) < end:
            self.now = started = max(self.now, at)
            self.now += ROWS * self.row_seconds
            taken += self.now - started
            self.counters.published_messages = int((self.now - self._begun) * self._live)
            due[due.index(at)] = self.pace.spent(started, ROWS, self.reading)
        return taken / (self.now - end + seconds)


def share(*, row_us: float, live: float, readers: int = 1) -> float:
    """The part of the loop's time that readers take once they know the live traffic."""
    loop = Loop(row_us / 1e6, live)
    loop.share(readers, 0.5)
    return loop.share(readers, 2.0)


def test_history_has_the_loop_while_there_is_no_live_traffic() -> None:
    """Nobody waits for nobody."""
    assert share(row_us=3, live=0) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("readers", [1, 2, 7])
def test_beside_full_load_all_readers_together_have_a_seventeenth(readers: int) -> None:
    """How many partitions a job reads with makes no difference to live traffic."""
    assert share(row_us=3, live=80_000, readers=readers) == pytest.approx(1 / 16.5, rel=0.1)


def test_reading_pages_counts_as_turns_do() -> None:
    """What readers cost in another thread, live traffic pays for, too: where it is as much, they have half."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    alone = loop.share(1, 2.0)
    loop.reading = ROWS * loop.row_seconds
    assert loop.share(1, 2.0) == pytest.approx(alone / 2, rel=0.1)


def test_beside_a_trickle_a_reader_goes_on_quickly() -> None:
    """A thousand messages a second, published and settled, leave a reader more than half of the loop."""
    assert share(row_us=3, live=2_000) > 0.5


def test_on_a_slower_machine_the_same_load_is_more() -> None:
    """What counts is the part of the loop that live traffic takes, not how many messages it is."""
    quick = share(row_us=3, live=8_000)
    assert share(row_us=6, live=4_000) == pytest.approx(quick, rel=0.05)
    assert share(row_us=6, live=8_000) < quick


def test_a_turn_that_was_interrupted_is_not_waited_for_long() -> None:
    """Other processes had the processor meanwhile: a pause as long again would only be lost."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    loop.now += 1.0
    assert loop.pace.spent(loop.now - 1.0, ROWS) - loop.now <= 16.01 * history_pace.LONGEST_TURN
