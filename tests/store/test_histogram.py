"""Numbers counted by ranges."""

from __future__ import annotations

from store.ports import Histogram


def test_bounds_are_inclusive_and_counts_add_up() -> None:
    """A number at a bound belongs to it, one above all bounds to the last, and each count holds those before it."""
    histogram = Histogram((1, 10))
    for value in (0, 1, 2, 10, 11):
        histogram.add(value)
    assert histogram.cumulative() == [("1", 2), ("10", 4), ("+Inf", 5)]
    assert histogram.total == 24
