"""What a Message VPN has done since the gateway started, as numbers that only rise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from store.histogram import Histogram

REFUSALS: Final[Counter[str]] = Counter()
"""Refusals of the process by AMQP condition: of connections, links and deliveries, as they are told to clients."""

_BATCH_BOUNDS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

_READ_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class ArchiveReads:
    """What was read out of a log's archive; added to once a page."""

    messages: int = 0
    """That readers and replays were given."""
    failures: int = 0
    """Reads that the archive, or a file of it, failed. That it has no such id is none."""
    seconds: Histogram = field(default_factory=lambda: Histogram(_READ_BOUNDS))
    """How long a read took, whatever came of it."""


@dataclass(slots=True)
class Counters:
    """Added to once a batch, never once a message."""

    published_messages: int = 0
    """Durable messages, whether they went to the log, to endpoints, or both."""
    published_bytes: int = 0
    copied_messages: int = 0
    """Those of them that a job published: no live traffic."""
    logged_messages: int = 0
    """Of the published ones, what the log took."""
    logged_bytes: int = 0
    """What these take of the disk (``gateway.core.model``)."""
    settled_messages: int = 0
    """Messages that consumers have settled for good."""
    commits: int = 0
    """Reports of the writer, each of one transaction."""
    batches: int = 0
    """Batches of effects in those."""
    failed_commits: int = 0
    direct_dropped_messages: int = 0
    """Direct messages that nobody took, or that there was no room for: nobody was told."""
    dead_discarded_messages: int = 0
    """Dead messages that their dead message queue did not take."""
    activity: int = 0
    """Batches published or settled: whether there is live traffic."""
    commit_messages: Histogram = field(default_factory=lambda: Histogram(_BATCH_BOUNDS))
    """Messages published in one transaction: group commit at work."""
