"""
A rule of retention: how long, or how much, the replay log keeps of some topics.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Of rules that match a topic the first one holds; what none matches is under the log's own bounds alone."""

    topics: tuple[str, ...]
    """Topic subscriptions, ``!`` before an exception; one at least is none."""
    max_age_hours: int = 0
    """What is older leaves the log; 0 for no bound."""
    quota_bytes: int = 0
    """What all of it may take of the disk; 0 for no bound."""
