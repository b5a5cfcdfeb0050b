"""
Every durable consequence of a command, as values: the store applies them in order, one transaction for many.

A ``Row`` is the one tuple a message is: it goes into the file, into the tail and out to consumers as it stands, and
nothing else is made per message. Rule on the wall: no accept, delivery or detach leaves before the effects of its
own and all earlier commands are committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from gateway.core.log.point import Point
from gateway.core.model import Row


class Ranked(NamedTuple):
    """What endpoints that deliver by priority want to know of a publication."""

    endpoints: tuple[int, ...]
    """Those endpoints; the publication lies on some of them."""
    priorities: Sequence[int]
    """One for each row, 0 to 9."""


class Publication:
    """Messages of one topic that arrived together: consecutive ids, one time, one set of endpoints."""

    __slots__ = ("endpoints", "logged", "ranked", "receipt", "rows", "size_bytes", "topic")

    def __init__(
        self,
        rows: list[Row],
        topic: str,
        endpoints: tuple[int, ...],
        logged: bool,
        size_bytes: int,
        receipt: Any,
        ranked: Ranked | None = None,
    ) -> None:
        self.rows = rows
        self.topic = topic
        self.endpoints = endpoints
        self.logged = logged
        self.size_bytes = size_bytes
        self.receipt = receipt
        self.ranked = ranked


class RemoveReferences:
    """Messages settled by a consumer: their references leave the endpoint."""

    __slots__ = ("endpoint", "ids", "size_bytes")

    def __init__(self, endpoint: int, ids: Sequence[int], size_bytes: int) -> None:
        self.endpoint = endpoint
        self.ids = ids
        self.size_bytes = size_bytes


class RemoveInTransaction(RemoveReferences):
    """The same as part of a transaction: if that fails, they were not settled."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AddReferences:
    """Replayed messages put on an endpoint again, and how far the replay has read (``position``: next id to read)."""

    endpoint: int
    ids: Sequence[int]
    size_bytes: int
    replay: str | None
    priorities: Sequence[int] | None = None
    """One for each id, where the endpoint delivers by priority."""


@dataclass(slots=True)
class DropReplayed:
    """
    What a replay had put on an endpoint, below an id, leaves it: logged messages only, for others came live and have
    no other place; so have those that were trimmed meanwhile. Messages of the same transaction are none of them. The
    store fills in what it did.
    """

    endpoint: int
    below: int
    replay: str | None
    count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class TrimLog:
    """
    Logged messages with ids from ``first`` below ``stop`` leave the log; one that still lies on an endpoint is held by
    that alone from then on. The store fills in what it did.
    """

    first: int
    stop: int
    freed_bytes: int = 0
    """Content that the log holds no longer."""
    newest_ms: int = 0
    """When the newest of them had arrived; 0 when there was none."""


@dataclass(frozen=True, slots=True)
class SaveArchived:
    """The log is in an archive up to this id, itself included. What was said before of a higher one stays true."""

    last_id: int


@dataclass(frozen=True, slots=True)
class CountAttempts:
    """Deliveries that failed: the header's delivery-count of these references after it, kept over a restart."""

    endpoint: int
    attempts: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SaveEndpoint:
    """An endpoint's definition, made or changed. ``settings`` is JSON text."""

    number: int
    name: str
    kind: str
    settings: str
    replay: str | None


@dataclass(frozen=True, slots=True)
class RenumberEndpoint:
    """
    Everything that lies on the endpoint is dropped at once: it goes on under a new number, and the references of the
    old one are collected in small batches behind.
    """

    old: int
    new: int
    replay: str | None


@dataclass(frozen=True, slots=True)
class DeleteEndpoint:
    """The endpoint and its subscriptions are gone; its references are collected behind."""

    number: int


@dataclass(frozen=True, slots=True)
class SaveSubscription:
    endpoint: int
    pattern: str


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    endpoint: int
    pattern: str


@dataclass(frozen=True, slots=True)
class SaveReplay:
    """How far an endpoint's replay is, as JSON text; None when none was ever asked for."""

    endpoint: int
    replay: str | None


@dataclass(frozen=True, slots=True)
class SavePoint:
    """A named point was made. The ids below it count as given out: none of them is used again, whatever fails."""

    point: Point


@dataclass(frozen=True, slots=True)
class DeletePoint:
    name: str


Effect: TypeAlias = (
    Publication
    | RemoveReferences
    | AddReferences
    | DropReplayed
    | TrimLog
    | SaveArchived
    | CountAttempts
    | SaveEndpoint
    | RenumberEndpoint
    | DeleteEndpoint
    | SaveSubscription
    | DeleteSubscription
    | SaveReplay
    | SavePoint
    | DeletePoint
)
