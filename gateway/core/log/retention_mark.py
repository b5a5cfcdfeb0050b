"""
What a rule of retention has taken out of the replay log: the part of it that outlives the gateway, and the rule.
"""

from __future__ import annotations

from typing import NamedTuple


class RetentionMark(NamedTuple):
    """What a retention rule has taken out of the log, as the store keeps it."""

    rule: str
    """Key of the rule: its topics as JSON."""
    below: int
    """Of the rule's topics the log may lack messages with ids below this."""
    whole_ms: int
    """From this time on nothing of them is missing, ms since the epoch."""
