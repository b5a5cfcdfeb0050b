"""
The contents of a store's tables in the form of the naive store, the same for every engine.

What dropped cursors still hold is left out, as if it were already deleted: no reader can see it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from amqp_ext.message.fields import split_ids
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
from store.copies import SMALL, LogRow
from store.tables import ShortTables
from tests.support.naive_store import NaiveStore, State, StoredPart


def state_of(tables: ShortTables, log: LogRow) -> State:
    """
    The visible state of a store, without what only dropped cursors still hold.

    Args:
        log: The log's row, brought up to date with the messages published since it was written.
    """

    def rows(table: str) -> list[Any]:
        return tables.ask(f"select {SMALL[table]} from {table} order by {SMALL[table]}")

    garbage = {cursor: (endpoint, up_to) for cursor, endpoint, up_to in rows("garbage")}
    routes = {route.number: route for route in tables.routes()}
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, part, first, last in rows("cursor_range"):
        ranges.setdefault((number, part), []).append((first, last))
    cursors = {
        (number, part): StoredPart(floor, tuple(ranges.get((number, part), ())), *counted)
        for number, part, floor, *counted in rows("cursor")
    }
    references, delayed, values = set(rows("reference")), set(rows("delayed")), set(rows("last_value"))
    stored: list[Row] = tables.ask(
        f"select id, time, topic, bare, route, held, content from {tables.messages} order by id"
    )
    messages = {row[ID]: row for row in stored}
    assert len(messages) == len(stored)
    for i, row in messages.items():
        if row[HELD] is not None:
            dropped = sum(
                _needs(cursors, c, routes[row[ROUTE]], e, u, i)
                for c, (e, u) in garbage.items()
                if row[ROUTE] != UNROUTED
            )
            dropped += sum(cursor in garbage for cursor, message in references if message == i)
            dropped += sum(cursor in garbage for cursor, _, message, _, _ in delayed if message == i)
            dropped += sum(cursor in garbage for cursor, _, message, *_ in values if message == i)
            messages[i] = (*row[:HELD], row[HELD] - dropped, row[CONTENT])
    messages = {i: row for i, row in messages.items() if row[HELD] is None or row[HELD] > 0}
    named = {row[ROUTE] for row in messages.values()} - {UNROUTED}
    return State(
        messages=messages,
        routes={number: routes[number] for number in named},
        cursors={key: part for key, part in cursors.items() if key[0] not in garbage},
        references={(cursor, message) for cursor, message in references if cursor not in garbage},
        delayed={found for found in delayed if found[0] not in garbage},
        values={found for found in values if found[0] not in garbage},
        attempts={
            (cursor, message): count for cursor, message, count in rows("attempt") if cursor not in garbage
        },
        endpoints={row[0]: SaveEndpoint(*row) for row in rows("endpoint")},
        subscriptions=set(rows("subscription")),
        dedup={(*row[:3], tuple(split_ids(bytes(row[3])))) for row in rows("dedup")},
        points={row[0]: Point(*row) for row in rows("point")},
        records={row[0]: _record(*row) for row in rows("replay_record")},
        retention={rule: (below, whole_ms) for rule, below, whole_ms in rows("retention")},
        first_id=log.first_id,
        floor_ms=log.floor_time,
        last_id=log.last_id,
        last_time_ms=log.last_time,
        logged_bytes=log.size_bytes,
        largest_bytes=log.largest_bytes,
        next_number=log.next_number,
        archived_id=log.archived_id,
        counted_id=log.counted_id,
    )


def check_state(found: State, model: NaiveStore) -> None:
    """Assert that each field of the state equals the naive store's."""
    known = model.state()
    for field in fields(found):
        assert getattr(found, field.name) == getattr(known, field.name), field.name


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
