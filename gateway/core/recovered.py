"""
An endpoint as a start finds it in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.effects import SaveEndpoint
from gateway.core.model import RouteDefinition


class StoredCursor(NamedTuple):
    """One part of a cursor."""

    floor: int
    ranges: Sequence[tuple[int, int]]
    """(first, last) of the ids above the floor with which its endpoint is done, rising; they may touch each other and
    the floor, as a transaction left them."""
    messages: int
    """What the endpoint has by it, by the last count."""
    size_bytes: int
    later_messages: int = 0
    """What came after that."""
    later_bytes: int = 0


class StoredRoute(NamedTuple):
    """A route that messages may name."""

    definition: RouteDefinition
    newest_id: int
    """Of its messages; 0 when it has none."""


class StoredReference(NamedTuple):
    """A message that an endpoint has by itself."""

    message_id: int
    size_bytes: int
    priority: int
    """The message's own, by its header."""
    attempts: int
    """Failed deliveries."""


@dataclass(slots=True)
class StoredEndpoint:
    """An endpoint as recovery found it."""

    definition: SaveEndpoint
    parts: dict[int, StoredCursor]
    """Its cursor, by part."""
    references: list[StoredReference] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)
