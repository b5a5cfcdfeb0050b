"""
Erasing the content of messages: a marker replaces it, and ids, times and topics stay.

A marker is mostly shorter than the content that it replaces, so endpoints and the log become smaller. The core knows
the sizes of endpoints' messages, and changes them when the erasure begins: a message that is settled later is settled
with its new size. The store says how much smaller the log becomes. Invariant: while an erasure runs, ``markers`` has
the erased messages. Code that still has the old content in memory counts it with the marker's size.
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
    """The size of an endpoint's message changes."""

    endpoint: Endpoint
    cursor_number: int
    part: int | None
    """The part of the cursor that the message is in; None where a replay or a reference put it on the endpoint."""
    message_id: int
    size_bytes: int
    """The size of the erased content."""
    change_bytes: int


def erased_row(row: Row, time_ms: int, reason: str) -> Row:
    """A message with a marker in place of its content."""
    content, bare = erased(row[CONTENT], row[BARE], time_ms, reason)
    return (*row[:BARE], bare, row[ROUTE], row[HELD], content)


def with_markers(rows: Iterable[Row], markers: Mapping[int, Row]) -> list[Row]:
    """The messages, with markers in place of erased contents."""
    return [row if (marker := markers.get(row[ID])) is None else with_content(row, marker) for row in rows]


@dataclass(eq=False)
class Erasing:
    _log: LogState
    _endpoints: Mapping[str, Endpoint]
    _routes: Iterable[Route]
    markers: dict[int, Row] = field(default_factory=dict)
    """By message id; empty while no erasure runs."""
    erasures: int = 0
    """How many erasures have begun."""

    def sized(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The messages with the sizes that count: see ``markers``."""
        return with_markers(rows, self.markers) if self.markers else rows

    def is_in_doubt(self, ids: Iterable[int]) -> bool:
        """Whether a transaction is about to settle one of these messages, or an endpoint to get a copy of one."""
        wanted = set(ids)
        return any(
            wanted & endpoint.withdrawn or wanted & endpoint.backlog.put.coming
            for endpoint in self._endpoints.values()
        )

    def begin(self, markers: Sequence[Row], sizes: Mapping[int, int]) -> Erasure:
        """
        Erase committed messages, none of which is in doubt, while no other erasure is under way.

        Args:
            markers: The rows with the markers.
            sizes: By id, the size of the erased content in bytes.
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
    One erasure that is to be committed. The caller calls ``committed`` or ``failed`` after the commit. After
    ``committed`` it calls ``end``, once no code has the old contents any more.
    """

    def __init__(
        self, erasing: Erasing, log: LogState, markers: Sequence[Row], resized: Sequence[_Resized]
    ) -> None:
        self._erasing = erasing
        self._log = log
        self._resized = resized
        self.effect = EraseMessages(markers)
        self.effects: Sequence[Effect] = (*self._resize(), self.effect)
        """The effects that make the erasure durable, in one transaction."""

    def _resize(self) -> Iterable[Effect]:
        changes: dict[tuple[Endpoint, int], int] = {}
        newest_id = self._log.newest_id
        for found in self._resized:
            if found.part is not None:
                key = (found.endpoint, found.part)
                changes[key] = changes.get(key, 0) + found.change_bytes
        # The erasure changes counts, so the store must have counted the messages before.
        for endpoint in {endpoint: None for endpoint, _ in changes}:
            yield from endpoint.backlog.count_effects(newest_id)
        for (endpoint, part), change in changes.items():
            yield SettleInTransaction(endpoint.cursor_number, part, size_bytes=change)
        for found in self._resized:
            found.endpoint.backlog.resize(found.part, found.change_bytes, is_saved=True)
            _set_size(found.endpoint, found.message_id, found.size_bytes + found.change_bytes)

    def committed(self) -> None:
        """The erasure is durable."""
        self._log.size_bytes -= self.effect.freed_bytes

    def failed(self) -> None:
        """The commit failed: nothing was written."""
        for endpoint, cursor_number, part, message_id, size, change in self._resized:
            if endpoint.cursor_number != cursor_number:
                continue  # the endpoint was emptied meanwhile
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
        """No code has the old contents any more, or the erasure has failed."""
        self._erasing.markers.clear()


def _set_size(endpoint: Endpoint, message_id: int, size_bytes: int) -> None:
    """If a flow has the message unsettled, change its size there."""
    flows: Iterable[Flow] = (*endpoint.flows, *endpoint.suspended)
    for flow in flows:
        if message_id in flow.unsettled:
            flow.unsettled[message_id] = size_bytes
            return
