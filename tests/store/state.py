"""
What a store has in its tables, in the form of the naive store: the same for every engine.

What a dropped cursor left counts as worked off: nobody can see it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.core.effects import SaveEndpoint
from gateway.core.model import (
    CONTENT,
    HELD,
    ID,
    ROUTE,
    UNROUTED,
    WHOLE,
    Point,
    ReplayRecord,
    RouteDefinition,
    Row,
)
from tests.support.naive_store import State, StoredPart


class LogRow(NamedTuple):
    """The log's, with what was published since it was written."""

    first_id: int
    floor_ms: int
    last_id: int
    last_time_ms: int
    logged_bytes: int
    largest_bytes: int
    next_number: int
    archived_id: int
    counted_id: int


class Tables(NamedTuple):
    """All rows of each."""

    log: LogRow
    messages: Iterable[Row]
    routes: Iterable[RouteDefinition]
    garbage: Iterable[tuple[int, int, int]]
    """(cursor, endpoint, up to)."""
    cursors: Iterable[tuple[int, int, int, int, int, int]]
    """(number, part, floor, counted id, messages, bytes)."""
    ranges: Iterable[tuple[int, int, int, int]]
    """(cursor, part, first, last), by all of them."""
    references: Iterable[tuple[int, int]]
    delayed: Iterable[tuple[int, int, int, int]]
    """(cursor, due, message, bytes)."""
    attempts: Iterable[tuple[int, int, int]]
    endpoints: Iterable[tuple[int, int, str, str, str, str | None]]
    subscriptions: Iterable[tuple[int, str]]
    points: Iterable[tuple[str, int, int, int]]
    records: Iterable[tuple[int, str, str, str]]
    """(number, name, state, JSON) of replays."""
    retention: Iterable[tuple[str, int, int]]
    """(rule, below, whole_time)."""


def state_from(tables: Tables) -> State:
    """All that can be seen of it, with what dropped cursors left taken away."""
    garbage = {cursor: (endpoint, up_to) for cursor, endpoint, up_to in tables.garbage}
    routes = {route.number: route for route in tables.routes}
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, part, first, last in tables.ranges:
        ranges.setdefault((number, part), []).append((first, last))
    cursors = {
        (number, part): StoredPart(floor, tuple(ranges.get((number, part), ())), *counted)
        for number, part, floor, *counted in tables.cursors
    }
    references, delayed = set(tables.references), set(tables.delayed)
    messages: dict[int, Row] = {row[ID]: row for row in tables.messages}
    for i, row in messages.items():
        if row[HELD] is not None:
            dropped = sum(
                _needs(cursors, c, routes[row[ROUTE]], e, u, i)
                for c, (e, u) in garbage.items()
                if row[ROUTE] != UNROUTED
            )
            dropped += sum(cursor in garbage for cursor, message in references if message == i)
            dropped += sum(cursor in garbage for cursor, _, message, _ in delayed if message == i)
            messages[i] = (*row[:HELD], row[HELD] - dropped, row[CONTENT])
    messages = {i: row for i, row in messages.items() if row[HELD] is None or row[HELD] > 0}
    named = {row[ROUTE] for row in messages.values()} - {UNROUTED}
    return State(
        messages=messages,
        routes={number: routes[number] for number in named},
        cursors={key: part for key, part in cursors.items() if key[0] not in garbage},
        references={(cursor, message) for cursor, message in references if cursor not in garbage},
        delayed={found for found in delayed if found[0] not in garbage},
        attempts={
            (cursor, message): count for cursor, message, count in tables.attempts if cursor not in garbage
        },
        endpoints={row[0]: SaveEndpoint(*row) for row in tables.endpoints},
        subscriptions=set(tables.subscriptions),
        points={row[0]: Point(*row) for row in tables.points},
        records={row[0]: _record(*row) for row in tables.records},
        retention={rule: (below, whole_ms) for rule, below, whole_ms in tables.retention},
        **tables.log._asdict(),
    )


def _record(number: int, name: str, state: str, text: str) -> ReplayRecord:
    record = ReplayRecord.from_json(text)
    assert (record.number, record.name, record.state) == (number, name, state), (
        "columns say what the JSON says"
    )
    return record


def _needs(
    cursors: dict[tuple[int, int], StoredPart],
    cursor: int,
    route: RouteDefinition,
    endpoint: int,
    up_to: int,
    message_id: int,
) -> bool:
    """Whether a message is held for a dropped cursor."""
    if endpoint not in route.endpoints or message_id > up_to:
        return False
    part = cursors.get((cursor, WHOLE)) or cursors.get(
        (cursor, -2 if route.priority is None else route.priority)
    )
    return (
        part is not None
        and message_id > part.floor
        and not any(first <= message_id <= last for first, last in part.ranges)
    )
