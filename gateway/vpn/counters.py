"""What a Message VPN has done since the gateway started, as numbers that only rise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Added to once a batch, never once a message."""

    published_messages: int = 0
    """Durable messages, whether they went to the log, to endpoints, or both."""
    published_bytes: int = 0
    settled_messages: int = 0
    """Messages that consumers have settled for good."""
    commits: int = 0
    """Reports of the writer, each of one transaction."""
    batches: int = 0
    """Batches of effects in those."""
    failed_commits: int = 0
