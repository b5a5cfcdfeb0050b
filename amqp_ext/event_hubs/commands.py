"""
What Event Hubs' clients ask ``$cbs`` and ``$management`` for, and what comes of it, as plain values. Nothing of
messages is in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SAS_TOKEN: Final = "servicebus.windows.net:sastoken"
"""The kind of a token that is a shared access signature."""


@dataclass(frozen=True, slots=True)
class PutToken:
    """Let this connection do what the token permits. Results in nothing."""

    token: str
    kind: str


@dataclass(frozen=True, slots=True)
class ReadHub:
    """What there is to know of an event hub. Results in ``HubState``."""

    name: str
    token: str | None = field(default=None, repr=False)
    """A token that came with the request, and permits this one."""


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """What there is to know of a partition. Results in ``PartitionState``."""

    hub: str
    partition: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HubState:
    """An event hub. Times are milliseconds since the epoch."""

    name: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as it is in the log."""

    hub: str
    begin: int
    """The first id that is there, or that the next event may have."""
    last: int | None
    """The last id; None where the partition is empty."""
    last_ms: int
    """When that arrived; 0 where the partition is empty."""
