"""One peer causes so many lines of a kind, and what is held back is counted."""

from __future__ import annotations

from gateway.logging.lines import BURST, LineRate


def test_a_flood_of_one_kind_is_thinned_out() -> None:
    """A burst is said whole; then one line a second, each with how many were left out; other kinds are not touched."""
    now = 0.0
    rate = LineRate(lambda: now)
    said = []
    for _ in range(1_000):
        said.append(rate.admit("attach_refused"))
        now += 0.01
    assert said[:BURST] == [0] * BURST
    later = [held_back for held_back in said[BURST:] if held_back is not None]
    assert 9 <= len(later) <= 10
    assert sum(later) + rate.held_back + len(later) + BURST == 1_000
    assert rate.admit("protocol_error") == 0


def test_after_a_while_a_burst_is_said_again() -> None:
    """A peer that was quiet is heard again."""
    now = 0.0
    rate = LineRate(lambda: now)
    for _ in range(BURST + 5):
        rate.admit("attach_refused")
    now += 1_000
    assert rate.admit("attach_refused") == 5
    assert [rate.admit("attach_refused") for _ in range(BURST)] == [0] * (BURST - 1) + [None]
