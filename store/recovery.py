"""
What a gateway needs to know of a store to go on, put together from its rows: the same for every engine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from amqp_ext.message.fields import priorities_of
from gateway.core.effects import SaveEndpoint, StoredCursor, StoredEndpoint, StoredReference, StoredRoute
from gateway.core.log import RetentionMark
from gateway.core.model import WHOLE, LogState, Point, ReplayRecord
from store.ports import Recovered


class StoredRows(NamedTuple):
    """All the short rows of a store, as one snapshot shows them."""

    log: LogState
    next_number: int
    routes: list[StoredRoute]
    """By number."""
    endpoints: Iterable[tuple[int, int, str, str, str, str | None]]
    """(number, cursor, name, kind, settings, replay), by number."""
    cursors: Iterable[tuple[int, int, int, int, int, int]]
    """(number, part, floor, counted id, messages, bytes)."""
    ranges: Iterable[tuple[int, int, int, int]]
    """(cursor, part, first, last), by all of them."""
    newcomers: Iterable[tuple[int, int, int]]
    """(id, route, length of its content), by id: routed messages that some cursor may not have counted."""
    references: Sequence[tuple[int, int, int, int, bytes, int]]
    """(cursor, message, length of its content, where its bare message begins, what is before that, failed deliveries),
    by cursor and message: those whose messages are there."""
    subscriptions: Iterable[tuple[int, str]]
    """(endpoint, pattern), by both."""
    points: Iterable[tuple[str, int, int, int]]
    """(name, position, time, made), by name."""
    records: Iterable[str]
    """Of replays, as JSON text, by number."""
    retention: Iterable[tuple[str, int, int]]
    """(rule, below, whole_time), by rule."""
    dropped: Collection[int]
    """Numbers of cursors that are still to be worked off."""


class _Part(NamedTuple):
    """One part of a cursor as it was saved."""

    cursor: StoredCursor
    counted_id: int


_Cursors: TypeAlias = "dict[int, dict[int, _Part]]"


def recovered(rows: StoredRows) -> Recovered:
    """Put it together. Nothing is repaired: every transaction leaves a whole state."""
    cursors = _cursors(rows)
    endpoints = {
        number: StoredEndpoint(SaveEndpoint(number, cursor, name, kind, settings, replay), {})
        for number, cursor, name, kind, settings, replay in rows.endpoints
    }
    by_cursor = {found.definition.cursor: found for found in endpoints.values()}
    _count_what_came_after(rows, endpoints, cursors)
    for number, found in by_cursor.items():
        found.parts = {part: saved.cursor for part, saved in cursors.pop(number, {}).items()}
    for number in rows.dropped:
        cursors.pop(number, None)
    _add_references(rows.references, by_cursor)
    for endpoint, pattern in rows.subscriptions:
        endpoints[endpoint].subscriptions.append(pattern)
    return Recovered(
        rows.log,
        list(endpoints.values()),
        rows.routes,
        {number: parts[WHOLE].cursor for number, parts in sorted(cursors.items()) if WHOLE in parts},
        rows.next_number,
        [Point(*point) for point in rows.points],
        [ReplayRecord.from_json(text) for text in rows.records],
        [RetentionMark(*mark) for mark in rows.retention],
    )


def _cursors(rows: StoredRows) -> _Cursors:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, part, first, last in rows.ranges:
        ranges.setdefault((number, part), []).append((first, last))
    found: _Cursors = {}
    for number, part, floor, counted_id, messages, size_bytes in rows.cursors:
        cursor = StoredCursor(floor, ranges.get((number, part), []), messages, size_bytes)
        found.setdefault(number, {})[part] = _Part(cursor, counted_id)
    return found


def _count_what_came_after(
    rows: StoredRows, endpoints: Mapping[int, StoredEndpoint], cursors: _Cursors
) -> None:
    """Bring what cursors count up to the newest message."""
    came: dict[int, tuple[list[int], list[int]]] = {}
    for message_id, route, length in rows.newcomers:
        ids, lengths = came.setdefault(route, ([], []))
        ids.append(message_id)
        lengths.append(length)
    for definition, _ in rows.routes:
        if definition.number not in came:
            continue
        ids, lengths = came[definition.number]
        totals = list(accumulate(lengths, initial=0))
        for number in definition.endpoints:
            endpoint = endpoints.get(number)
            parts = {} if endpoint is None else cursors.get(endpoint.definition.cursor, {})
            key = WHOLE if WHOLE in parts else definition.priority
            if key is None or key not in parts:
                continue
            saved, its_counted_id = parts[key]
            known = bisect_right(ids, its_counted_id)
            counted = saved._replace(
                later_messages=saved.later_messages + len(ids) - known,
                later_bytes=saved.later_bytes + totals[-1] - totals[known],
            )
            parts[key] = _Part(counted, its_counted_id)


def _add_references(
    rows: Sequence[tuple[int, int, int, int, bytes, int]], by_cursor: Mapping[int, StoredEndpoint]
) -> None:
    priorities = priorities_of([row[4] for row in rows], [row[3] for row in rows])
    for (cursor, message_id, size_bytes, _, _, attempts), priority in zip(rows, priorities, strict=True):
        if cursor in by_cursor:
            by_cursor[cursor].references.append(StoredReference(message_id, size_bytes, priority, attempts))
