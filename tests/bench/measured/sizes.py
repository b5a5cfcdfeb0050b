"""The sizes of all measurements, and the type of their figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of messages, unless said otherwise."""

    rounds: int = 3
    bulk: int = 200_000
    container: int = 50_000
    single: int = 2_000
    windowed: int = 50_000
    fanned: int = 50_000
    subscribers: int = 900
    """Durable subscriptions on one topic; also the number of endpoints whose memory is measured."""
    history: int = 200_000
    copied: int = 1_000_000
    trimmed: int = 1_000_000
    purged: int = 1_000_000
    delayed: int = 1_000_000
    deep: int = 10_000_000
    """Messages on the deepest queue."""
    restarts: int = 3
    """Restarts of a gateway with that queue."""
    worked: int = 1_000_000
    """Messages that are published, consumed and replayed before a gateway's memory is measured."""
    connections: int = 5_000
    readers: int = 8_000
    """Log readers that wait on a topic without messages."""
    read: int = 1_000_000
    queues: int = 10_000
    routes: int = 1_000
    """Topics, each with its own endpoint."""
    minutes: float = 5
    """Minutes of mixed load."""
    before: Path | None = None
    """Another checkout whose gateway is measured, too."""


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
