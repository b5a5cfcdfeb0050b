"""
Erasing the content of messages: in its place is a marker, and ids, times and topics stay.

A marker is shorter than what it stands for, mostly, so queues and the log take less. Of what lies on endpoints the
sizes are known here, and change when the erasure is ordered: what is settled behind it is settled with its new size.
What the log takes less is the store's to say. Invariant: while an erasure is under way, ``markers`` has what is erased:
whoever has the content still, in memory, counts it as the marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from amqp_ext.message.annotations import erased
from gateway.core.effects import Effect, EraseMessages, SettleInTransaction
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.model import BARE, CONTENT, HELD, ID, ROUTE, LogState, Row, with_content
from gateway.core.router import Route


class _Resized(NamedTuple):
    """A message that lies on an endpoint takes less there, or more."""

    endpoint: Endpoint
    cursor_number: int
    part: int | None
    """Of the cursor that it is in; None where it was put there."""
    message_id: int
    size_bytes: int
    """Of what is erased."""
    change_bytes: int


def erased_row(row: Row, time_ms: int, reason: str) -> Row:
    """A message with a marker in the place of its content."""
    content, bare = erased(row[CONTENT], row[BARE], time_ms, reason)
    return (*row[:BARE], bare, row[ROUTE], row[HELD], content)


def with_markers(rows: Iterable[Row], markers: Mapping[int, Row]) -> list[Row]:
    """Messages with the markers of those that are erased."""
    return [row if (marker := markers.get(row[ID])) is None else with_content(row, marker) for row in rows]


@dataclass(eq=False)
class Erasing:
    _log: LogState
    _endpoints: Mapping[str, Endpoint]
    _routes: Iterable[Route]
    markers: dict[int, Row] = field(default_factory=dict)
    """By the ids of messages; empty where no erasure is under way."""
    erasures: int = 0
    """Begun so far."""

    def sized(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Messages as they count: see ``markers``."""
        return with_markers(rows, self.markers) if self.markers else rows

    def is_in_doubt(self, ids: Iterable[int]) -> bool:
        """Whether a transaction is about to settle one of these messages, or an endpoint is to get a copy of one."""
        wanted = set(ids)
        return any(
            wanted & endpoint.withdrawn or wanted & endpoint.backlog.put.coming
            for endpoint in self._endpoints.values()
        )

    def begin(self, markers: Sequence[Row], sizes: Mapping[int, int]) -> Erasure:
        """
        Erase committed messages, none of which is in doubt, while no other erasure is under way.

        Args:
            markers: What is to stand in their place.
            sizes: Of the contents that are erased, in bytes, by id.
        """
        self.erasures += 1
        self.markers.update((marker[ID], marker) for marker in markers)
        resized = list(self._resized(markers, sizes))
        return Erasure(self, self._log, markers, resized)

    def _resized(self, markers: Sequence[Row], sizes: Mapping[int, int]) -> Iterable[_Resized]:
        numbers = {marker[ROUTE] for marker in markers}
        routes = {number: route for route in self._routes for number in route.numbers if number in numbers}
        having = [
            endpoint
            for endpoint in self._endpoints.values()
            if endpoint.backlog.put.references or endpoint.backlog.put.replayed is not None
        ]
        for marker in markers:
            message_id, size = marker[ID], sizes[marker[ID]]
            change = len(marker[CONTENT]) - size
            for endpoint in having:
                if endpoint.backlog.put.has(message_id):
                    yield _Resized(endpoint, endpoint.cursor_number, None, message_id, size, change)
            route = routes.get(marker[ROUTE])
            if route is None:
                continue
            for endpoint in route.endpoints:
                backlog, part = endpoint.backlog, endpoint.backlog.part_of(route)
                if not (backlog.put.has(message_id) or backlog.parts[part].is_done(message_id)):
                    yield _Resized(endpoint, endpoint.cursor_number, part, message_id, size, change)


class Erasure:
    """
    One erasure, of which the commit is awaited: tell ``committed`` or ``failed``, and ``end`` it once nobody has the
    contents any more.
    """

    def __init__(
        self, erasing: Erasing, log: LogState, markers: Sequence[Row], resized: Sequence[_Resized]
    ) -> None:
        self._erasing = erasing
        self._log = log
        self._resized = resized
        self.effect = EraseMessages(markers)
        self.effects: Sequence[Effect] = (*self._resize(), self.effect)
        """What makes it durable, as one transaction."""

    def _resize(self) -> Iterable[Effect]:
        changes: dict[tuple[Endpoint, int], int] = {}
        newest_id = self._log.newest_id
        for found in self._resized:
            if found.part is not None:
                key = (found.endpoint, found.part)
                changes[key] = changes.get(key, 0) + found.change_bytes
        # Counts are changed by what is erased; so the store has to have counted that it came.
        for endpoint in {endpoint: None for endpoint, _ in changes}:
            yield from endpoint.backlog.count_effects(newest_id)
        for (endpoint, part), change in changes.items():
            yield SettleInTransaction(endpoint.cursor_number, part, size_bytes=change)
        for found in self._resized:
            found.endpoint.backlog.resize(found.part, found.change_bytes, is_saved=True)
            _set_size(found.endpoint, found.message_id, found.size_bytes + found.change_bytes)

    def committed(self) -> None:
        """It is durable."""
        self._log.size_bytes -= self.effect.freed_bytes

    def failed(self) -> None:
        """Nothing of it was written."""
        for endpoint, cursor_number, part, message_id, size, change in self._resized:
            if endpoint.cursor_number != cursor_number:
                continue  # It was emptied meanwhile.
            backlog = endpoint.backlog
            if part is None:
                is_there = backlog.put.has(message_id)
            else:
                is_there = not backlog.parts[part].is_done(message_id)
                backlog.parts[part].saved_bytes -= change
            if is_there:
                backlog.resize(part, -change, is_saved=False)
                _set_size(endpoint, message_id, size)
        self.end()

    def end(self) -> None:
        """Nobody has the contents any more, or it has failed."""
        self._erasing.markers.clear()


def _set_size(endpoint: Endpoint, message_id: int, size_bytes: int) -> None:
    """What is unsettled is settled with this size."""
    flows: Iterable[Flow] = (*endpoint.flows, *endpoint.suspended)
    for flow in flows:
        if message_id in flow.unsettled:
            flow.unsettled[message_id] = size_bytes
            return
