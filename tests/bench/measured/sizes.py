"""How much of everything is measured, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """In messages unless said otherwise."""

    rounds: int = 3
    bulk: int = 200_000
    container: int = 50_000
    single: int = 2_000
    windowed: int = 50_000
    fanned: int = 50_000
    subscribers: int = 900
    """Durable subscriptions on one topic, and endpoints whose memory is measured."""
    history: int = 200_000
    copied: int = 1_000_000
    trimmed: int = 1_000_000
    purged: int = 1_000_000
    delayed: int = 1_000_000
    deep: int = 10_000_000
    """On the deepest queue."""
    restarts: int = 3
    """Of a gateway with it."""
    worked: int = 1_000_000
    """Published, consumed and replayed before a gateway's memory is measured."""
    connections: int = 5_000
    readers: int = 8_000
    """Log readers that wait for something that does not come."""
    read: int = 1_000_000
    queues: int = 10_000
    routes: int = 1_000
    """Topics, each with an endpoint of its own."""
    minutes: float = 5
    """Of mixed load."""
    before: Path | None = None
    """Another checkout, whose gateway is measured too."""


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    bulk=20_000,
    container=10_000,
    single=300,
    windowed=10_000,
    fanned=5_000,
    subscribers=50,
    history=20_000,
    copied=10_000,
    trimmed=100_000,
    purged=10_000,
    delayed=20_000,
    deep=50_000,
    restarts=1,
    worked=20_000,
    connections=500,
    readers=200,
    read=20_000,
    queues=1_000,
    routes=50,
    minutes=0.1,
)
