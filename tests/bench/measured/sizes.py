"""How much of everything is measured, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """In messages unless said otherwise."""

    rounds: int
    bulk: int
    container: int
    single: int
    windowed: int
    fanned: int
    subscribers: int
    """Durable subscriptions on one topic, and endpoints whose memory is measured."""
    history: int
    spooled: int
    logged: int
    trimmed: int
    purged: int
    deep: int
    """On the deepest queue."""
    worked: int
    """Published, consumed and replayed before a gateway's memory is measured."""
    connections: int
    readers: int
    """Log readers that wait for something that does not come."""
    read: int
    queues: int
    routes: int
    """Topics, each with an endpoint of its own."""
    minutes: float
    """Of mixed load."""
    before: Path | None = None
    """Another checkout, whose gateway is measured too."""


FULL = Sizes(
    rounds=3,
    bulk=200_000,
    container=50_000,
    single=2_000,
    windowed=50_000,
    fanned=50_000,
    subscribers=900,
    history=200_000,
    spooled=1_000_000,
    logged=10_000_000,
    trimmed=1_000_000,
    purged=1_000_000,
    deep=10_000_000,
    worked=1_000_000,
    connections=5_000,
    readers=8_000,
    read=1_000_000,
    queues=10_000,
    routes=1_000,
    minutes=5,
)
QUICK = Sizes(
    rounds=1,
    bulk=20_000,
    container=10_000,
    single=300,
    windowed=10_000,
    fanned=5_000,
    subscribers=50,
    history=20_000,
    spooled=10_000,
    logged=100_000,
    trimmed=100_000,
    purged=10_000,
    deep=50_000,
    worked=20_000,
    connections=500,
    readers=200,
    read=20_000,
    queues=1_000,
    routes=50,
    minutes=0.1,
)
