"""Effects as a broker would make them, computed from the naive store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat

from amqp_ext.message.fields import priorities_of
from gateway.core.effects import (
    Delays,
    DeleteEndpoint,
    DropCursor,
    Effect,
    EraseMessages,
    HeldRun,
    MoveCursor,
    OpenCursor,
    Publication,
    SaveEndpoint,
    SettleInTransaction,
    TrimLog,
    TrimTopics,
)
from gateway.core.erasing import erased_row
from gateway.core.model import BARE, CONTENT, HELD, ID, ROUTE, UNROUTED, WHOLE, RouteDefinition, Row
from store.cursors import by_priority, runs
from tests.support.naive_store import NaivePart, NaiveStore

BY_PRIORITY = '{"priorities": true}'


def applied(model: NaiveStore, effects: Sequence[Effect]) -> Sequence[Effect]:
    """Apply the effects to the naive store, and return them."""
    for effect in effects:
        model.apply(effect)
    return effects


def route(*endpoints: int, priority: int | None = None) -> RouteDefinition:
    """The route to these endpoints (numbers below 50); the same endpoints always give the same number."""
    number = sum(1 << endpoint for endpoint in endpoints) * 11 + (0 if priority is None else priority + 1)
    return RouteDefinition(number, tuple(sorted(endpoints)), priority)


def queue(
    number: int,
    name: str,
    *,
    cursor: int | None = None,
    settings: str = "{}",
    floor: int = 0,
    kind: str = "queue",
) -> list[Effect]:
    """The effects that create a queue; its cursor has the queue's number unless another is given."""
    cursor = number if cursor is None else cursor
    return [
        OpenCursor(cursor, parts(settings), floor),
        SaveEndpoint(number, cursor, name, kind, settings, None),
    ]


def parts(settings: str) -> tuple[int, ...]:
    """The parts of the cursor of an endpoint with these settings."""
    return tuple(range(10)) if by_priority(settings) else (WHOLE,)


def publication(
    first: int,
    contents: Sequence[bytes],
    *,
    topic: str = "a",
    endpoints: tuple[int, ...] = (),
    logged: bool = True,
    time_ms: int,
    bares: Sequence[int] | None = None,
    ranked: bool = False,
) -> Publication:
    """Messages with ids from ``first`` on; ``ranked``: one of the endpoints delivers by priority."""
    offsets = list(bares or [0] * len(contents))
    priorities = priorities_of(contents, offsets) if ranked and endpoints else None
    if priorities is not None:
        routes = [route(*endpoints, priority=priority) for priority in priorities]
    else:
        routes = [route(*endpoints) if endpoints else RouteDefinition(UNROUTED, (), None)] * len(contents)
    rows: list[Row] = list(
        zip(
            range(first, first + len(contents)),
            repeat(time_ms),
            repeat(topic),
            offsets,
            [definition.number for definition in routes],
            repeat(None if logged else len(endpoints)),
            contents,
            strict=False,
        )
    )
    named = {definition.number: definition for definition in routes} if endpoints else {}
    return Publication(
        rows,
        topic,
        list(named.values()),
        logged,
        list(map(len, contents)),
        None,
    )


def delayed(
    model: NaiveStore,
    first: int,
    contents: Sequence[bytes],
    due_ms: Sequence[int],
    *,
    endpoints: tuple[int, ...],
    logged: bool = True,
    time_ms: int,
) -> Publication:
    """Delayed messages with ids from ``first`` on, published to these endpoints."""
    found = publication(first, contents, time_ms=time_ms)
    found.rows = [(*row[:HELD], None if logged else len(endpoints), row[CONTENT]) for row in found.rows]
    if not logged:
        found.logged, found.logged_bytes = False, 0
    cursors = [model.endpoints[number].definition.cursor for number in endpoints]
    found.delays = Delays(cursors, list(due_ms))
    return found


def waiting(model: NaiveStore, number: int) -> list[tuple[int, int]]:
    """The delayed messages of an endpoint as (due time, id), in rising order."""
    return sorted((due_ms, i) for i, (due_ms, *_) in model.cursor_of(number).delayed.items())


def settled(
    model: NaiveStore,
    number: int,
    ids: Iterable[int],
    kind: type[MoveCursor] = MoveCursor,
    *,
    counted_id: int = 0,
    is_joined: bool = True,
) -> list[MoveCursor]:
    """
    The moves of an endpoint's cursor that settle these messages.

    Args:
        counted_id: The least id up to which the cursor counts its messages.
        is_joined: Raise the floor and join ranges as far as possible; otherwise only add ranges.
    """
    cursor = model.cursor_of(number)
    by_part: dict[int, list[int]] = {}
    for i in ids:
        by_part.setdefault(_part_of(model, number, i), []).append(i)
    return [
        _move(model, number, key, cursor.parts[key], done, kind, counted_id, is_joined)
        for key, done in sorted(by_part.items())
    ]


def counted(model: NaiveStore, number: int, up_to: int) -> list[MoveCursor]:
    """The moves by which an endpoint counts its messages again, up to an id."""
    cursor = model.cursor_of(number)
    return [
        _move(model, number, key, part, [], MoveCursor, up_to, False) for key, part in cursor.parts.items()
    ]


def erasing(model: NaiveStore, ids: Iterable[int], reason: str) -> list[Effect]:
    """The effects that erase these messages' contents, and change the sizes of endpoints that count them."""
    markers = [erased_row(model.messages[i], model.last_time_ms, reason) for i in sorted(ids)]
    effects: list[Effect] = []
    for number, endpoint in model.endpoints.items():
        cursor, lying = model.cursor_of(number), {row[ID] for row in model.routed(number)}
        for key, part in cursor.parts.items():
            change = sum(
                len(marker[CONTENT]) - len(model.messages[marker[ID]][CONTENT])
                for marker in markers
                if marker[ID] in lying
                and marker[ID] <= max(part.counted_id, model.counted_id)
                and cursor.part_of(model.routes[marker[ROUTE]]) is part
            )
            if change:
                effects.append(
                    SettleInTransaction(endpoint.definition.cursor, key, None, {}, None, 0, change)
                )
    return [*effects, EraseMessages(markers)]


def _part_of(model: NaiveStore, number: int, message_id: int) -> int:
    cursor, row = model.cursor_of(number), model.messages[message_id]
    if WHOLE in cursor.parts:
        return WHOLE
    if message_id in cursor.references:
        (priority,) = priorities_of([row[CONTENT]], [row[BARE]])
        return priority
    found = model.routes[row[ROUTE]].priority
    assert found is not None
    return found


def _move(
    model: NaiveStore,
    number: int,
    key: int,
    part: NaivePart,
    done: Sequence[int],
    kind: type[MoveCursor],
    counted_id: int,
    is_joined: bool,
) -> MoveCursor:
    definition, cursor = model.endpoints[number].definition, model.cursor_of(number)
    lying = [row for row in model.routed(number) if cursor.part_of(model.routes[row[ROUTE]]) is part]
    there = {row[ID] for row in lying}
    routed = [i for i in done if i in there]
    counted_id = max([counted_id, part.counted_id, *routed])
    left = [row for row in lying if row[ID] not in routed and row[ID] <= counted_id]
    ranges: dict[int, int | None] = dict(runs(sorted(routed)))
    floor = None
    if is_joined:
        floor, ranges = _joined(part, ranges, [row[ID] for row in left], counted_id)
    return kind(
        definition.cursor,
        key,
        floor,
        ranges,
        None if counted_id == part.counted_id else counted_id,
        len(left) - part.messages,
        sum(len(row[CONTENT]) for row in left) - part.size_bytes,
        list(done),
        [i for i in done if i in cursor.attempts],
        [i for i in done if i in cursor.references],
    )


def _joined(
    part: NaivePart, added: dict[int, int | None], left: Sequence[int], counted_id: int
) -> tuple[int, dict[int, int | None]]:
    """The floor, raised to just below the first message left, and the changes of the ranges."""
    floor = max(part.floor, min(left) - 1 if left else counted_id)
    there = sorted((first, last) for first, last in {**part.ranges, **added}.items() if last is not None)
    joined: list[tuple[int, int]] = []
    for first, last in there:
        if first <= floor + 1:
            floor = max(floor, last)
        elif joined and first == joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    found = dict(joined)
    changed: dict[int, int | None] = {first: None for first in part.ranges if first not in found}
    changed.update({first: last for first, last in joined if part.ranges.get(first) != last})
    return floor, changed


def trimming(model: NaiveStore, stop: int, new_references: Iterable[tuple[int, int]] = ()) -> TrimLog:
    """Trims the log below ``stop``, with the holds and references of the messages that are still needed."""
    first = model.first_id
    held, references = _needed(model, range(first, stop), new_references)
    return TrimLog(first, stop, held, references, counts_topics=True, has_kept=_has_kept(model))


def _has_kept(model: NaiveStore) -> bool:
    return any(cursor.delayed or cursor.values for cursor in model.cursors.values())


def trimming_topics(
    model: NaiveStore, rule: str, ids: Sequence[int], new_references: Iterable[tuple[int, int]] = ()
) -> TrimTopics:
    """Removes these messages from the log by a rule of retention, with the holds and references still needed."""
    held, references = _needed(model, ids, new_references)
    return TrimTopics(
        ids[0],
        ids[-1] + 1,
        held,
        references,
        counts_topics=True,
        has_kept=_has_kept(model),
        ids=list(ids),
        rule=rule,
    )


def _needed(
    model: NaiveStore, ids: Iterable[int], new_references: Iterable[tuple[int, int]]
) -> tuple[list[HeldRun], list[tuple[int, int]]]:
    """The holds and references of messages that are about to leave the log."""
    held: list[HeldRun] = []
    latest: dict[int, int] = {}
    references = list(new_references)
    for i in ids:
        if not model.is_logged(i):
            continue
        row = model.messages[i]
        references += [(cursor, i) for cursor in model._referred_by(i)]
        if row[ROUTE] == UNROUTED:
            continue
        count = len(model._needed_by(row))
        k = latest.get(row[ROUTE])
        if k is not None and held[k].endpoints == count:
            held[k] = held[k]._replace(last=i)
        else:
            latest[row[ROUTE]] = len(held)
            held.append(HeldRun(row[ROUTE], i, i, count))
    return held, references


def purge(model: NaiveStore, number: int) -> list[Effect]:
    """The effects that purge an endpoint: it gets a new cursor and loses its replay."""
    definition = model.endpoints[number].definition
    new, up_to = model.next_number, model.last_id
    return [
        OpenCursor(new, parts(definition.settings), up_to),
        SaveEndpoint(number, new, definition.name, definition.kind, definition.settings, None),
        DropCursor(definition.cursor, number, up_to),
    ]


def keeping(model: NaiveStore, number: int, ids: Iterable[int]) -> list[Effect]:
    """The effects that purge an endpoint except for these messages, which are there by their routes."""
    definition, cursor = model.endpoints[number].definition, model.cursor_of(number)
    opened, *others = purge(model, number)
    assert isinstance(opened, OpenCursor)
    by_part: dict[int, list[int]] = {part: [] for part in opened.parts}
    for i in sorted(ids):
        by_part[_part_of(model, number, i)].append(i)
    left = [MoveCursor(definition.cursor, part, None, {i: i for i in kept}, None, 0, 0)
            for part, kept in by_part.items() if kept]  # fmt: skip
    assert all(not cursor.parts[move.part].is_done(i) for move in left for i in move.ranges)
    up_to = opened.floor
    floor = min((kept[0] for kept in by_part.values() if kept), default=up_to + 1) - 1
    moves = []
    for part, kept in by_part.items():
        pairs = zip(kept, [*kept[1:], up_to + 1], strict=False)
        ranges: dict[int, int | None] = {i + 1: after - 1 for i, after in pairs if i + 1 < after}
        low = kept[0] - 1 if kept else up_to
        moves.append(MoveCursor(opened.number, part, low, ranges, up_to, len(kept), model.size_of(kept)))
    return [*left, replace(opened, floor=floor, given_out=up_to), *moves, *others]


def deletion(model: NaiveStore, number: int) -> list[Effect]:
    """The effects that delete an endpoint and its cursor."""
    definition = model.endpoints[number].definition
    return [DeleteEndpoint(number), DropCursor(definition.cursor, number, model.last_id)]
