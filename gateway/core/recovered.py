"""
An endpoint as a start finds it in the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.effects import SaveEndpoint


@dataclass(slots=True)
class StoredEndpoint:
    """An endpoint as recovery found it."""

    definition: SaveEndpoint
    depth: int
    size_bytes: int
    newest_id: int
    """The newest reference, but for those in ``awaiting``."""
    subscriptions: list[str] = field(default_factory=list)
    replayed: int = 0
    """Of an endpoint whose replay is not complete: how many of its references lie before live."""
    awaiting: list[int] = field(default_factory=list)
    """Of an endpoint in mid-replay: references that the replay has yet to reach, rising."""
    awaiting_priorities: list[int] = field(default_factory=list)
    """The priorities of those, where the endpoint delivers by them."""
