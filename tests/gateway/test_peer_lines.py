"""The lines of an address are limited together, counted, and told of; and few addresses are remembered."""

from __future__ import annotations

import pytest

from gateway.logging import lines
from gateway.logging.lines import ADDRESS_BURST, ADDRESS_PER_SECOND, COUNTS, MOST_ADDRESSES, PeerLines


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_every_line_is_said_or_told_of(clock: Clock) -> None:
    """A thousand a second for ten seconds are a burst and some; each that was left out is in a count, and but once."""
    lines, before = PeerLines(clock), COUNTS.held_back
    said = told = 0
    for _ in range(10_000):
        held_back = lines.admit("10.0.0.1", "connection_refused")
        if held_back is not None:
            said += 1
            told += held_back
        clock.now += 0.001
    assert said == pytest.approx(ADDRESS_BURST + 10 * ADDRESS_PER_SECOND, abs=2)
    assert COUNTS.held_back - before == 10_000 - said
    assert lines.untold() == [], "more may come"
    clock.now += 1_000
    ((address, left),) = lines.untold()
    assert (address, said + told + left) == ("10.0.0.1", 10_000)
    assert lines.untold() == []


def test_another_address_and_another_kind_are_not_touched(clock: Clock) -> None:
    """One peer's flood hides nobody else's lines, nor others of its own."""
    lines = PeerLines(clock)
    for _ in range(ADDRESS_BURST + 1):
        found = lines.admit("10.0.0.1", "connection_refused")
    assert found is None
    assert lines.admit("10.0.0.2", "connection_refused") == 0
    assert lines.admit("10.0.0.1", "connection_opened") == 0


def test_a_line_stands_for_those_left_out_before(clock: Clock) -> None:
    """What one connection held back is carried by its next line, or counted with it."""
    lines = PeerLines(clock, burst=1, per_second=1)
    assert lines.admit("10.0.0.1", "attach_refused", 7) == 7
    assert lines.admit("10.0.0.1", "attach_refused", 5) is None
    clock.now += 2
    assert lines.admit("10.0.0.1", "attach_refused") == 6


def test_few_addresses_are_remembered(clock: Clock) -> None:
    """However many there are; what was left out of a forgotten one is told without its name."""
    lines = PeerLines(clock, burst=1, per_second=1)
    for number in range(3 * MOST_ADDRESSES):
        for _ in range(3):
            lines.admit(str(number), "connection_refused")
    assert len(lines._rates) == MOST_ADDRESSES
    told = dict(lines.untold(all_of_them=True))
    assert told.pop("") == 2 * 2 * MOST_ADDRESSES
    assert set(told.values()) == {2}
    assert len(told) == MOST_ADDRESSES


def test_to_be_forgotten_takes_as_long_as_a_new_burst() -> None:
    """Else who waits a little would have one the sooner."""
    assert PeerLines(lambda: 0.0)._quiet_seconds >= lines.ADDRESS_BURST / lines.ADDRESS_PER_SECOND
