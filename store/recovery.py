"""
What a gateway needs to know of a store to continue. It is read at every start, from short rows, however much is stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from amqp_ext.message.fields import priorities_of, split_ids
from gateway.core import effects
from gateway.core.log import RetentionMark
from gateway.core.model import WHOLE, LogState, Point, ReplayRecord, RouteDefinition
from store.copies import LogRow
from store.cursors import DroppedCursor, dropped_cursors, header_priority
from store.ports import Recovered
from store.property_index import IndexedSpan
from store.tables import ShortTables


@dataclass(frozen=True, slots=True)
class RecoveredStore(Recovered):
    """The same, with what the store's own reader and writer need."""

    garbage: list[DroppedCursor] = field(default_factory=list)
    """Dropped cursors that are still to be cleaned up."""
    largest_bytes: int = 0
    """The size of the largest content ever stored, which bounds the size of a page."""
    indexed: list[IndexedSpan] = field(default_factory=list)
    has_held: bool = True
    """There are held messages."""


class _Part(NamedTuple):
    """One part of a cursor, as it was saved."""

    cursor: effects.StoredCursor
    counted_id: int


_Cursors: TypeAlias = "dict[int, dict[int, _Part]]"


def recovered(tables: ShortTables, log: LogRow) -> RecoveredStore:
    """
    The state that a crash or a stop left behind, read from one snapshot. Nothing needs repair: every transaction leaves
    a complete state.

    Args:
        log: The log's row, with what was published since it was written.
    """
    ask = tables.ask
    routes = [
        effects.StoredRoute(RouteDefinition(number, tables.numbers(endpoints), priority), newest_id or 0)
        for number, priority, endpoints, newest_id in ask(tables.newest_of_routes.format(first=log.first_id))
    ]
    cursors = _cursors(tables)
    endpoints = {
        row[0]: effects.StoredEndpoint(effects.SaveEndpoint(*row), {})
        for row in ask("select number, cursor, name, kind, settings, replay from endpoint order by number")
    }
    by_cursor = {found.definition.cursor: found for found in endpoints.values()}
    _count_what_came_after(tables.newcomers(log.counted_id), routes, endpoints, cursors)
    for number, found in by_cursor.items():
        found.parts = {part: saved.cursor for part, saved in cursors.pop(number, {}).items()}
    garbage = dropped_cursors(tables)
    for dropped in garbage:
        cursors.pop(dropped.cursor, None)
    _add_references(tables.referred(), by_cursor)
    in_order: dict[int, list[tuple[int, int]]] = {}
    for cursor, message_id, bare, front in tables.retries_in_order():
        in_order.setdefault(cursor, []).append((message_id, header_priority(front, bare)))
    for cursor, count, size, due, retries in ask(
        "select cursor, count(*), sum(size_bytes), min(due), count(*) filter (where retry <> 0) "
        "from delayed group by cursor"
    ):
        if cursor in by_cursor:
            by_cursor[cursor].delays = effects.StoredDelays(
                int(count), int(size), due, retries, tuple(in_order.get(cursor, ()))
            )
    for cursor, *values in ask(
        "select cursor, count(*), sum(size_bytes), min(expires) from last_value group by cursor"
    ):
        if cursor in by_cursor:
            messages, size_bytes, next_expiry_ms = values
            by_cursor[cursor].values = effects.StoredValues(messages, int(size_bytes), next_expiry_ms)
    for endpoint, pattern in ask("select endpoint, pattern from subscription order by endpoint, pattern"):
        endpoints[endpoint].subscriptions.append(pattern)
    for number, first, time_ms, joined in ask(
        "select endpoint, first, time, ids from dedup order by endpoint, first"
    ):
        endpoints[number].dedup.append(effects.StoredIds((first, time_ms), split_ids(bytes(joined))))
    ((has_held,),) = ask(f"select exists ({tables.held_ids})")
    return RecoveredStore(
        LogState(
            generation=log.generation,
            first_id=log.first_id,
            next_id=log.last_id + 1,
            last_time_ms=log.last_time,
            floor_ms=log.floor_time,
            size_bytes=log.size_bytes,
            archived_id=log.archived_id,
        ),
        list(endpoints.values()),
        routes,
        {number: parts[WHOLE].cursor for number, parts in sorted(cursors.items()) if WHOLE in parts},
        log.next_number,
        [Point(*point) for point in ask("select name, position, time, made from point order by name")],
        [ReplayRecord.from_json(text) for (text,) in ask("select record from replay_record order by number")],
        [RetentionMark(*mark) for mark in ask("select rule, below, whole_time from retention order by rule")],
        garbage,
        log.largest_bytes,
        tables.indexed_spans(),
        bool(has_held),
    )


def _cursors(tables: ShortTables) -> _Cursors:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, part, first, last in tables.ask(
        "select number, part, first, last from cursor_range order by number, part, first"
    ):
        ranges.setdefault((number, part), []).append((first, last))
    found: _Cursors = {}
    for number, part, floor, counted_id, messages, size_bytes in tables.ask(
        "select number, part, floor, counted_id, messages, size_bytes from cursor"
    ):
        cursor = effects.StoredCursor(floor, ranges.get((number, part), []), messages, size_bytes)
        found.setdefault(number, {})[part] = _Part(cursor, counted_id)
    return found


def _count_what_came_after(
    newcomers: Iterable[tuple[int, int, int]],
    routes: Iterable[effects.StoredRoute],
    endpoints: Mapping[int, effects.StoredEndpoint],
    cursors: _Cursors,
) -> None:
    """Add the messages above ``counted_id`` to the counts of the cursors."""
    came: dict[int, tuple[list[int], list[int]]] = {}
    for message_id, route, length in newcomers:
        ids, lengths = came.setdefault(route, ([], []))
        ids.append(message_id)
        lengths.append(length)
    for definition, _ in routes:
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


def _add_references(rows: list[Any], by_cursor: Mapping[int, effects.StoredEndpoint]) -> None:
    priorities = priorities_of([row[4] for row in rows], [row[3] for row in rows])
    for (cursor, message_id, size_bytes, _, _, attempts), priority in zip(rows, priorities, strict=True):
        if cursor in by_cursor:
            by_cursor[cursor].references.append(
                effects.StoredReference(message_id, size_bytes, priority, attempts)
            )
