"""Whether a resource stayed flat: the mean of a run's last quarter against that of its second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 8
"""Two to a quarter. A run of fewer says nothing about growth."""

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much more the last quarter may have than the second."""

    name: str
    """Of a sample's field."""
    share: float
    """Of the second quarter."""
    allowance: float
    """On top, in the field's unit, for what is small."""


BOUNDS = (
    Bound(name="resident_bytes", share=0.10, allowance=10 * MEGABYTE),
    Bound(name="file_bytes", share=0.10, allowance=20 * MEGABYTE),
    Bound(name="wal_bytes", share=0.50, allowance=20 * MEGABYTE),
    Bound(name="descriptors", share=0.10, allowance=8),
    Bound(name="threads", share=0.0, allowance=4),
)
"""A leak of an hour's length passes none of them; what an allocator or a checkpoint does from minute to minute does."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one resource."""

    bound: Bound
    second: float
    """Mean of the second quarter."""
    last: float
    """Mean of the last."""

    @property
    def is_flat(self) -> bool:
        """Whether the last quarter is within the bound."""
        return self.last <= self.second * (1 + self.bound.share) + self.bound.allowance


def verdict(bound: Bound, values: Sequence[float]) -> Verdict:
    """
    Compare.

    Args:
        values: Of a run, evenly spaced in time, at least ``LEAST_SAMPLES``.
    """
    if len(values) < LEAST_SAMPLES:
        raise ValueError(f"{len(values)} samples say nothing about growth; {LEAST_SAMPLES} are the least")
    quarter = len(values) // 4
    second, last = values[quarter : 2 * quarter], values[-quarter:]
    return Verdict(bound, sum(second) / quarter, sum(last) / quarter)
