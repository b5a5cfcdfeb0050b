"""Verdicts on curves whose growth is known."""

from __future__ import annotations

import pytest

from .flatness import LEAST_SAMPLES, Bound, verdict

BOUND = Bound(name="resident_bytes", share=0.1, allowance=5)


@pytest.mark.parametrize(
    ("curve", "is_flat"),
    [
        ([100.0] * 40, True),
        ([0.0] * 10 + [100.0] * 30, True),
        ([100.0 + n for n in range(40)], False),
        ([90.0, 110.0] * 20, True),
        ([100.0] * 30 + [114.0] * 10, True),
        ([100.0] * 30 + [116.0] * 10, False),
        ([100.0] * 40 + [1000.0], False),
    ],
    ids=[
        "level",
        "filled at first",
        "rising",
        "a saw",
        "within the bound",
        "past the bound",
        "a jump at the end",
    ],
)
def test_the_last_quarter_is_held_against_the_second(curve: list[float], is_flat: bool) -> None:
    """How a run begins does not count; what its end has over its second quarter does."""
    assert verdict(BOUND, curve).is_flat is is_flat


def test_too_few_samples_are_no_verdict() -> None:
    """A run that is too short to tell is not called flat."""
    with pytest.raises(ValueError, match="say nothing"):
        verdict(BOUND, [1.0] * (LEAST_SAMPLES - 1))
