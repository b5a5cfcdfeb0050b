"""The pace of log readers beside live traffic."""

from __future__ import annotations

import pytest

from gateway.vpn import turns
from gateway.vpn.runtime import Counters, SystemClock, Tuning
from gateway.vpn.turns import HistoryPace

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
        self.live_per_second = live_per_second
        self._due: list[float] = []
        self._wakes: list[float] = []
        self._published = 0.0
        self._seen = self.now
        self.counters = Counters()
        self.pace = HistoryPace(self.counters, _Clock(self), Tuning().longest_pause)

    def share(self, readers: int, seconds: float) -> float:
        """The part of the time that their turns take."""
        if len(self._due) != readers:
            self._due, self._wakes = [0.0] * readers, [self.now] * readers
        due, wakes = self._due, self._wakes
        end, taken = self.now + seconds, 0.0
        while (at := min(wakes)) < end:
            reader = wakes.index(at)
            self.now = started = max(self.now, at)
            self._live_goes_on()
            wait = self.pace.wait(due[reader])
            if wait <= 0:
                self.now += ROWS * self.row_seconds
                taken += self.now - started
                self._live_goes_on()
                due[reader] = self.pace.spent(started, ROWS, self.reading)
                wait = self.pace.wait(due[reader])
            wakes[reader] = self.now + max(wait, 0)
        return taken / (self.now - end + seconds)

    def _live_goes_on(self) -> None:
        elapsed, self._seen = self.now - self._seen, self.now
        self._published += elapsed * self.live_per_second
        self.counters.published_messages = int(self._published)


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


@pytest.mark.parametrize("readers", [1, 7])
def test_readers_go_on_at_once_where_live_traffic_has_ended(readers: int) -> None:
    """A pause that was begun beside full load is not waited for, and nothing of it is left over."""
    loop = Loop(3e-6, 80_000)
    loop.reading = 0.004
    loop.share(readers, 1.0)
    loop.live_per_second = 0
    loop.share(readers, 4 * turns.WINDOW_SECONDS)
    assert loop.share(readers, 0.5) == pytest.approx(1, abs=0.02)


def test_a_reader_that_comes_after_live_traffic_does_not_wait_for_it() -> None:
    """What came while nobody read is no measure of what comes now."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    loop.now += 2 * turns.STALE_SECONDS
    loop.counters.published_messages += 1_000_000
    started = loop.now
    loop.now += ROWS * loop.row_seconds
    assert loop.pace.wait(loop.pace.spent(started, ROWS)) == 0


def test_a_search_that_finds_little_is_not_taken_for_slow_rows() -> None:
    """A page that was read for long and had one row says nothing of what live messages take."""
    loop = Loop(3e-6, 1)
    loop.share(1, 0.5)
    loop.reading = 0.03
    for _ in range(50):
        started = loop.now
        loop.now += 0.001
        loop.pace.spent(started, 1, 0.03)
    loop.reading = 0.0
    assert loop.share(1, 2.0) == pytest.approx(1, abs=0.02)


def test_one_that_pauses_beside_live_traffic_looks_seldom() -> None:
    """However many pause, the loop is not kept busy by their asking."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    due = loop.now + 10.0
    looks = 0
    while (wait := loop.pace.wait(due)) > 0:
        loop.now += wait
        loop.counters.published_messages += int(80_000 * wait)
        looks += 1
    assert loop.now >= due
    assert looks <= 50


def test_a_turn_that_was_interrupted_is_not_waited_for_long() -> None:
    """Other processes had the processor meanwhile: a pause as long again would only be lost."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    loop.now += 1.0
    assert loop.pace.spent(loop.now - 1.0, ROWS) - loop.now <= 16.01 * turns.LONGEST_TURN
