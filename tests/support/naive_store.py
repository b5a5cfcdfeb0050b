"""
A store made of dictionaries: what is durable after some effects, and what a starting gateway recovers from it.

It is obviously right rather than fast, and strict: effects that make no sense but that SQLite would accept silently are
AssertionErrors here (an id assigned twice, a message released twice, a trim with a wrong count of endpoints that need
it). Real stores are compared with it, and the model machines of the core run on it (``tests.gateway.core.machines``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, assert_never

from amqp_ext.message.fields import priorities_of
from gateway.core import effects
from gateway.core.log import RetentionMark
from gateway.core.model import (
    BARE,
    CONTENT,
    HELD,
    ID,
    ROUTE,
    TIME_MS,
    TOPIC,
    UNROUTED,
    WHOLE,
    LogState,
    Point,
    ReplayRecord,
    RouteDefinition,
    Row,
    stored_bytes,
)
from store.ports import Recovered


class StoredPart(NamedTuple):
    """One part of a cursor, as a value for comparison."""

    floor: int
    ranges: tuple[tuple[int, int], ...]
    counted_id: int
    messages: int
    size_bytes: int


@dataclass
class State:
    """Everything that is visible of a store, as a value for comparison."""

    messages: dict[int, Row]
    routes: dict[int, RouteDefinition]
    """The routes that messages name: any other route may be dropped at any time."""
    cursors: dict[tuple[int, int], StoredPart]
    """The parts, by cursor and part number."""
    references: set[tuple[int, int]]
    """(cursor, message)."""
    delayed: set[tuple[int, int, int, int, int]]
    """(cursor, due time, message, bytes, kind): kind 0 is a delayed message, 1 a retry, 2 a retry in order."""
    values: set[tuple[int, bytes, int, int, int | None]]
    """(cursor, key, message, bytes, expiry time)."""
    attempts: dict[tuple[int, int], int]
    """(cursor, message) -> failed deliveries."""
    endpoints: dict[int, effects.SaveEndpoint]
    subscriptions: set[tuple[int, str]]
    dedup: set[tuple[int, int, int, tuple[bytes, ...]]]
    """(endpoint, first message, time, publishers' ids of the messages)."""
    points: dict[str, Point]
    records: dict[int, ReplayRecord]
    retention: dict[str, tuple[int, int]]
    """rule -> (it has trimmed below this id, and what remains is complete from this time on)."""
    first_id: int
    floor_ms: int
    last_id: int
    last_time_ms: int
    logged_bytes: int
    largest_bytes: int
    next_number: int
    archived_id: int
    counted_id: int


@dataclass
class NaivePart:
    """One part of a cursor."""

    floor: int
    counted_id: int
    ranges: dict[int, int] = field(default_factory=dict)
    messages: int = 0
    size_bytes: int = 0

    def is_done(self, message_id: int) -> bool:
        """Whether the endpoint has settled the message."""
        return message_id <= self.floor or any(
            first <= message_id <= last for first, last in self.ranges.items()
        )


@dataclass
class NaiveCursor:
    parts: dict[int, NaivePart]
    references: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    delayed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """message -> (due time, size, kind); kind 0 is a delayed message, 1 a retry, 2 a retry in order."""
    values: dict[bytes, effects.Value] = field(default_factory=dict)

    @property
    def needed(self) -> list[int]:
        """Messages that the cursor needs for another reason than a route; each appears once for each reason."""
        return [*self.references, *self.delayed, *(value.id for value in self.values.values())]

    def part_of(self, route: RouteDefinition) -> NaivePart:
        """The part for messages of a route."""
        if WHOLE in self.parts:
            return self.parts[WHOLE]
        assert route.priority is not None, "who delivers by priority is on routes that have one"
        return self.parts[route.priority]


@dataclass
class NaiveEndpoint:
    definition: effects.SaveEndpoint
    subscriptions: dict[str, None] = field(default_factory=dict)
    """Topic patterns in the order of creation."""
    dedup: dict[int, tuple[int, tuple[bytes, ...]]] = field(default_factory=dict)
    """(time, publishers' ids) by the first message of the publication."""


class NaiveStore:
    """What is durable; the log began at ``made_ms``. It releases a dropped cursor's messages immediately."""

    def __init__(self, made_ms: int = 0) -> None:
        self.messages: dict[int, Row] = {}
        """Messages that the log holds or that an endpoint needs."""
        self.routes: dict[int, RouteDefinition] = {}
        self.cursors: dict[int, NaiveCursor] = {}
        self.endpoints: dict[int, NaiveEndpoint] = {}
        self.points: dict[str, Point] = {}
        self.records: dict[int, ReplayRecord] = {}
        self.retention: dict[str, tuple[int, int]] = {}
        self.first_id = 1
        self.last_id = 0
        self.last_time_ms = self.floor_ms = made_ms
        self.size_bytes = 0
        self.largest_bytes = 0
        self.next_number = 1
        self.archived_id = 0
        self.counted_id = 0

    def apply(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Publication():
                self._publish(effect)
            case effects.MoveCursor():
                if effect.cursor in self.cursors:
                    self._move(effect)
            case effects.OpenCursor():
                self._open(effect)
            case effects.DropCursor():
                self._drop(effect)
            case effects.CountedUpTo(message_id):
                self.counted_id = max(self.counted_id, message_id)
            case effects.AddReferences():
                self._add(effect)
            case effects.ReleaseDelayed(number, entries):
                self._end_delays(number, entries)
                self.cursors[number].references.update(i for _, i in entries)
            case effects.CancelDelayed(number, entries):
                self._end_delays(number, entries)
                for _, i in entries:
                    self.cursors[number].attempts.pop(i, None)
                    self._let_go(i)
            case effects.HoldBack(number, held_back, in_order):
                if number in self.cursors:
                    owner = self._owner(number)
                    assert owner, "it waits on an endpoint"
                    for due_ms, i, size in held_back:
                        assert not self._needs(owner, self.messages[i]), "it would lie there, too"
                        self.cursors[number].delayed[i] = (due_ms, size, 1 + in_order)
            case effects.KeepValues():
                if effect.cursor in self.cursors:
                    self._keep_values(effect, self.cursors[effect.cursor])
            case effects.TrimLog():
                self._trim(effect)
            case effects.EraseMessages():
                self._erase(effect)
            case effects.SaveReplay(number, replay):
                endpoint = self.endpoints[number]
                endpoint.definition = replace(endpoint.definition, replay=replay)
            case effects.CountAttempts(number, attempts):
                if number in self.cursors:
                    assert {i for i, _ in attempts} <= self.messages.keys()
                    self.cursors[number].attempts.update(attempts)
            case effects.SaveEndpoint(number):
                endpoint = self.endpoints.setdefault(number, NaiveEndpoint(effect))
                endpoint.definition = effect
                self.next_number = max(self.next_number, number + 1)
            case effects.ForgetIds(number, None):
                self.endpoints[number].dedup.clear()
            case effects.ForgetIds(number, stay):
                window = self.endpoints[number].dedup
                for first in stay.keys() & window.keys():
                    window[first] = (window[first][0], tuple(stay[first]))
                    if not stay[first]:
                        del window[first]
            case effects.DeleteEndpoint(number):
                self._forget(number)
            case effects.SaveSubscription(number, pattern):
                self.endpoints[number].subscriptions[pattern] = None
            case effects.DeleteSubscription(number, pattern):
                self._unsubscribe(number, pattern)
            case effects.SaveArchived(last_id):
                self.archived_id = max(self.archived_id, last_id)
            case effects.SavePoint(point):
                self.points[point.name] = point
                self.last_id = max(self.last_id, point.position - 1)
            case effects.DeletePoint(name):
                self.points.pop(name, None)
            case effects.SaveReplayRecord(record):
                self.records[record.number] = record
            case effects.DropReplayRecords(numbers):
                for number in numbers:
                    self.records.pop(number, None)
            case _:
                assert_never(effect)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _publish(self, publication: effects.Publication) -> None:
        for definition in publication.routes:
            assert definition.number != UNROUTED
            assert list(definition.endpoints) == sorted(set(definition.endpoints))
            assert self.routes.setdefault(definition.number, definition) == definition
            assert self.endpoints.keys() >= set(definition.endpoints)
        numbers = {definition.number for definition in publication.routes} or {UNROUTED}
        rows = publication.rows
        for row in rows:
            assert row[ID] > self.last_id, "ids rise, and none is given twice"
            assert row[TIME_MS] >= self.last_time_ms, "times never go back along ids"
            assert row[TOPIC] == publication.topic
            assert row[ROUTE] in numbers
            assert (row[HELD] is None) == publication.logged
            self.last_id, self.last_time_ms = row[ID], row[TIME_MS]
            self.messages[row[ID]] = row
            self.largest_bytes = max(self.largest_bytes, len(row[CONTENT]))
            if publication.delays is not None:
                assert row[ROUTE] == UNROUTED
                assert row[HELD] in (None, len(publication.delays.cursors))
            elif not publication.logged:
                assert row[HELD] == len(self._needed_by(row)) == len(self.routes[row[ROUTE]].endpoints)
        if publication.delays is not None:
            for due_ms, row in zip(publication.delays.due_ms, rows, strict=True):
                for cursor in publication.delays.cursors:
                    assert self._owner(cursor), "it waits on an endpoint"
                    self.cursors[cursor].delayed[row[ID]] = (due_ms, len(row[CONTENT]), 0)
        if publication.dedup is not None:
            for number, gone_up_to in publication.dedup.endpoints.items():
                window = self.endpoints[number].dedup
                window[rows[0][ID]] = (rows[0][TIME_MS], tuple(publication.dedup.ids))
                for first in [first for first in window if first <= gone_up_to]:
                    del window[first]
        assert publication.size_bytes == self.size_of(row[ID] for row in rows)
        if publication.logged:
            assert publication.logged_bytes == sum(map(_weight, rows))
            self.size_bytes += publication.logged_bytes

    def _trim(self, effect: effects.TrimLog) -> list[Row]:
        """Remove messages from the log; returns them as they were before."""
        assert effect.stop <= self.last_id + 1, "what is committed is trimmed, and nothing else"
        by_rule = isinstance(effect, effects.TrimTopics)
        leaving = effect.ids if isinstance(effect, effects.TrimTopics) else range(effect.first, effect.stop)
        assert all(effect.first <= i < effect.stop for i in leaving)
        trimmed = [self.messages[i] for i in leaving if self.is_logged(i)]
        ids = {row[ID] for row in trimmed}
        for cursor, message_id in effect.references:
            if message_id in ids:
                self._refer(cursor, message_id)
            else:
                assert message_id in self.cursors[cursor].references, "what a rule took out is held already"
        assert len(set(effect.references)) == len(effect.references)
        for row in trimmed:
            message_id = row[ID]
            runs = [
                run for run in effect.held if run.first <= message_id <= run.last and run.route == row[ROUTE]
            ]
            assert len(runs) <= 1, "one run at most"
            needed_by = len(self._needed_by(row))
            assert needed_by == sum(run.endpoints for run in runs), (
                f"{needed_by} endpoints need {message_id} by its route: {runs}"
            )
            referred = [cursor for cursor, i in effect.references if i == message_id and i in ids]
            assert sorted(referred) == self._referred_by(message_id)
            waiting = sum(found.needed.count(message_id) for found in self.cursors.values())
            waiting -= len(referred)
            assert not waiting or effect.has_kept
            held = needed_by + len(referred) + waiting
            if held:
                self.messages[message_id] = (*row[:HELD], held, row[CONTENT])
            else:
                del self.messages[message_id]
            self.size_bytes -= _weight(row)
            if not by_rule:
                self.floor_ms = max(self.floor_ms, row[TIME_MS] + 1)
        if effect.counts_topics:
            topics = sorted({row[TOPIC] for row in trimmed})
            sizes = {topic: [_weight(row) for row in trimmed if row[TOPIC] == topic] for topic in topics}
            effect.freed = [(topic, len(found), sum(found)) for topic, found in sizes.items()]
        if isinstance(effect, effects.TrimTopics):
            if trimmed:
                below, whole_ms = self.retention.get(effect.rule, (0, 0))
                whole_ms = max(whole_ms, *[row[TIME_MS] + 1 for row in trimmed])
                self.retention[effect.rule] = (max(below, effect.stop), whole_ms)
        else:
            self.first_id = max(self.first_id, effect.stop)
            for rule, (below, whole_ms) in list(self.retention.items()):
                if below <= effect.stop:
                    del self.retention[rule]
                    self.floor_ms = max(self.floor_ms, whole_ms)
        effect.freed_bytes = sum(map(_weight, trimmed))
        effect.newest_ms = max((row[TIME_MS] for row in trimmed), default=0)
        return trimmed

    def _erase(self, effect: effects.EraseMessages) -> None:
        """Replace the contents of messages. Other effects adjust the endpoints' counts."""
        effect.ids = [row[ID] for row in effect.rows if row[ID] in self.messages]
        effect.freed_bytes = 0
        for row in effect.rows:
            self.largest_bytes = max(self.largest_bytes, len(row[CONTENT]))
            before = self.messages.get(row[ID])
            if before is None:
                continue
            assert before[:BARE] == row[:BARE]
            assert before[ROUTE] == row[ROUTE]
            after = (*row[:HELD], before[HELD], row[CONTENT])
            if before[HELD] is None:
                effect.freed_bytes += _weight(before) - _weight(after)
            self.messages[row[ID]] = after
        self.size_bytes -= effect.freed_bytes

    def _let_go(self, message_id: int) -> None:
        """One endpoint fewer needs the message. It is deleted with the last one if the log does not hold it."""
        row = self.messages[message_id]
        held = row[HELD]
        if held is None:
            return
        assert held > 0
        if held == 1:
            del self.messages[message_id]
        else:
            self.messages[message_id] = (*row[:HELD], held - 1, row[CONTENT])

    def is_logged(self, message_id: int) -> bool:
        """Whether the log holds the message now."""
        row = self.messages.get(message_id)
        return row is not None and row[HELD] is None

    def size_of(self, ids: Iterable[int]) -> int:
        """The size in bytes of those messages that exist."""
        return sum(len(self.messages[i][CONTENT]) for i in ids)

    # --- which endpoints need a message -----------------------------------------------------------------------------

    def cursor_of(self, number: int) -> NaiveCursor:
        """An endpoint's cursor."""
        return self.cursors[self.endpoints[number].definition.cursor]

    def _owner(self, cursor: int) -> int:
        """The endpoint to which the cursor belongs; 0 for a replay's cursor."""
        return next((n for n, e in self.endpoints.items() if e.definition.cursor == cursor), 0)

    def _needs(self, number: int, row: Row) -> bool:
        """Whether the message is on the endpoint by its route."""
        if row[ROUTE] == UNROUTED or number not in self.routes[row[ROUTE]].endpoints:
            return False
        return not self.cursor_of(number).part_of(self.routes[row[ROUTE]]).is_done(row[ID])

    def _needed_by(self, row: Row) -> list[int]:
        """The endpoints that the message is on by its route."""
        if row[ROUTE] == UNROUTED:
            return []
        return [n for n in self.routes[row[ROUTE]].endpoints if n in self.endpoints and self._needs(n, row)]

    def _referred_by(self, message_id: int) -> list[int]:
        """The cursors that have a reference to the message."""
        return sorted(number for number, cursor in self.cursors.items() if message_id in cursor.references)

    def routed(self, number: int) -> Iterator[Row]:
        """The messages that are on the endpoint by their routes, in order."""
        return (row for _, row in sorted(self.messages.items()) if self._needs(number, row))

    def on(self, number: int) -> list[int]:
        """The messages that are on the endpoint by route or by reference, in order."""
        return sorted({row[ID] for row in self.routed(number)} | self.cursor_of(number).references)

    # --- cursors ----------------------------------------------------------------------------------------------------

    def _open(self, effect: effects.OpenCursor) -> None:
        assert effect.number not in self.cursors, "a number is given out once"
        self.cursors[effect.number] = NaiveCursor(
            {part: NaivePart(effect.floor, effect.floor) for part in effect.parts}
        )
        self.next_number = max(self.next_number, effect.number + 1)
        self.last_id = max(self.last_id, effect.floor, effect.given_out)

    def _move(self, effect: effects.MoveCursor) -> None:
        cursor = self.cursors[effect.cursor]
        part = cursor.parts[effect.part]
        owner = self._owner(effect.cursor)
        assert len(set(effect.done)) == len(effect.done)
        # A transaction keeps released messages elsewhere from now on: they are still needed.
        kept = set(effect.references).difference(effect.done)
        assert kept <= cursor.references and (not kept or isinstance(effect, effects.SettleInTransaction))
        cursor.references -= kept
        for i in effect.done:
            by_reference = i in effect.references
            # If the trim that was to create the reference failed, there is none, and the log still holds the message.
            assert by_reference == (i in cursor.references) or (by_reference and self.is_logged(i))
            if owner and not by_reference:
                assert self._needs(owner, self.messages[i]), f"{i} is let go of twice"
        if effect.floor is not None:
            assert effect.floor >= part.floor
            part.floor = effect.floor
        for first, last in effect.ranges.items():
            if last is None:
                part.ranges.pop(first, None)
            else:
                assert first <= last
                part.ranges[first] = last
        if effect.counted_id is not None:
            assert effect.counted_id >= part.counted_id
            part.counted_id = effect.counted_id
        part.messages += effect.messages
        part.size_bytes += effect.size_bytes
        for i in effect.attempts:
            cursor.attempts.pop(i, None)
        for i in effect.done:
            if i in effect.references:
                cursor.references.discard(i)
            elif owner:
                assert not self._needs(owner, self.messages[i]), f"{i} is said to be done, and is not"
                assert i <= part.counted_id, "what is done was counted: it may be gone by the next start"
            if owner:
                self._let_go(i)
            else:
                assert i not in self.messages or self.is_logged(i), "a replay's cursor holds nothing"

    def _drop(self, effect: effects.DropCursor) -> None:
        cursor = self.cursors.pop(effect.number)
        if effect.endpoint:
            for row in list(self.messages.values()):
                route = self.routes.get(row[ROUTE])
                if route is None or effect.endpoint not in route.endpoints or row[ID] > effect.up_to:
                    continue
                if not cursor.part_of(route).is_done(row[ID]):
                    self._let_go(row[ID])
            for i in cursor.needed:
                self._let_go(i)
        else:
            assert not cursor.needed

    def _end_delays(self, number: int, entries: Iterable[tuple[int, int]]) -> None:
        cursor = self.cursors[number]
        for due_ms, i in entries:
            assert cursor.delayed.pop(i)[0] == due_ms
            assert i not in cursor.references, "it would lie there twice"

    def _keep_values(self, effect: effects.KeepValues, cursor: NaiveCursor) -> None:
        there = cursor.values
        before = dict(there)
        assert effect.messages == len(before)
        assert effect.size_bytes == sum(value.size_bytes or 0 for value in before.values())
        for value in effect.values:
            if value.key in there and there[value.key].id >= value.id:
                continue
            there.pop(value.key, None)
            if value.size_bytes is not None:
                assert self.is_logged(value.id), "the log is kept until the index has its values"
                there[value.key] = value
        oldest = sorted(there.values(), key=lambda value: value.id)
        gone = [
            v for v in oldest if v.id in effect.gone or (v.expires_ms or effect.now_ms + 1) <= effect.now_ms
        ]
        left = [value for value in oldest if value not in gone]
        effect.dropped = 0
        while len(left) > effect.most or (
            effect.most_bytes and sum(value.size_bytes or 0 for value in left) > effect.most_bytes
        ):
            gone.append(left.pop(0))
            effect.dropped += 1
        for value in gone:
            del there[value.key]
        sizes = [sum(value.size_bytes or 0 for value in values.values()) for values in (before, there)]
        effect.more, effect.more_bytes = len(there) - len(before), sizes[1] - sizes[0]
        effect.next_expiry_ms = min(
            (value.expires_ms for value in left if value.expires_ms is not None), default=None
        )
        cursor.parts[WHOLE].floor = effect.position - 1
        for value in set(before.values()) - set(there.values()):
            self._let_go(value.id)

    def _add(self, effect: effects.AddReferences) -> None:
        for i in effect.ids:
            if i not in self.cursors[effect.cursor].references:
                assert self.is_logged(i), "only logged messages are referred to"
                self._refer(effect.cursor, i)

    def _refer(self, number: int, message_id: int) -> None:
        cursor, owner = self.cursors[number], self._owner(number)
        assert owner, "a replay's cursor has no references"
        assert not self._needs(owner, self.messages[message_id]), "an endpoint has a message once"
        cursor.references.add(message_id)

    # --- endpoints --------------------------------------------------------------------------------------------------

    def _unsubscribe(self, number: int, pattern: str) -> None:
        self.endpoints[number].subscriptions.pop(pattern, None)

    def _forget(self, number: int) -> None:
        """Delete an endpoint; a separate effect drops its cursor."""
        del self.endpoints[number]

    # --- the state as seen from outside -----------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants between commits."""
        for row in self.messages.values():
            needed_by = len(self._needed_by(row))
            needed_by += sum(cursor.needed.count(row[ID]) for cursor in self.cursors.values())
            assert row[HELD] is None or row[HELD] == needed_by > 0, f"{row[:CONTENT]}: needed by {needed_by}"
        assert self.size_bytes == sum(_weight(row) for row in self.messages.values() if row[HELD] is None)
        for number, endpoint in self.endpoints.items():
            assert endpoint.definition.cursor in self.cursors
            self._recover(number, endpoint)

    def recover(self, generation: int) -> Recovered:
        """What a starting gateway recovers."""
        self.check()
        owned = {endpoint.definition.cursor for endpoint in self.endpoints.values()}
        newest = {row[ROUTE]: row[ID] for _, row in sorted(self.messages.items())}
        return Recovered(
            LogState(
                generation=generation,
                first_id=self.first_id,
                next_id=self.last_id + 1,
                last_time_ms=self.last_time_ms,
                floor_ms=self.floor_ms,
                size_bytes=self.size_bytes,
                archived_id=self.archived_id,
            ),
            [self._recover(number, endpoint) for number, endpoint in sorted(self.endpoints.items())],
            [
                effects.StoredRoute(definition, newest.get(number, 0))
                for number, definition in sorted(self.routes.items())
            ],
            {
                number: _recovered(cursor.parts[WHOLE])
                for number, cursor in sorted(self.cursors.items())
                if number not in owned
            },
            self.next_number,
            [point for _, point in sorted(self.points.items())],
            [record for _, record in sorted(self.records.items())],
            [RetentionMark(rule, *mark) for rule, mark in sorted(self.retention.items())],
        )

    def _recover(self, number: int, endpoint: NaiveEndpoint) -> effects.StoredEndpoint:
        cursor = self.cursor_of(number)
        routed = list(self.routed(number))
        parts = {}
        for key, part in sorted(cursor.parts.items()):
            lying = [row for row in routed if cursor.part_of(self.routes[row[ROUTE]]) is part]
            counted_id = max(part.counted_id, self.counted_id)
            after = [len(row[CONTENT]) for row in lying if row[ID] > counted_id]
            sizes = [len(row[CONTENT]) for row in lying]
            assert part.messages + len(after) == len(sizes), "saved, and what came after, is what is there"
            assert part.size_bytes + sum(after) == sum(sizes)
            parts[key] = _recovered(part)._replace(later_messages=len(after), later_bytes=sum(after))
        references = [self.messages[i] for i in sorted(cursor.references)]
        priorities = priorities_of([row[CONTENT] for row in references], [row[BARE] for row in references])
        return effects.StoredEndpoint(
            endpoint.definition,
            parts,
            [
                effects.StoredReference(row[ID], len(row[CONTENT]), priority, cursor.attempts.get(row[ID], 0))
                for row, priority in zip(references, priorities, strict=True)
            ],
            sorted(endpoint.subscriptions),
            effects.StoredDelays(
                len(cursor.delayed),
                sum(size for _, size, _ in cursor.delayed.values()),
                min((due_ms for due_ms, *_ in cursor.delayed.values()), default=None),
                sum(retry > 0 for *_, retry in cursor.delayed.values()),
                tuple(
                    (i, *priorities_of([self.messages[i][CONTENT]], [self.messages[i][BARE]]))
                    for i, (*_, retry) in sorted(cursor.delayed.items())
                    if retry > 1
                ),
            ),
            effects.StoredValues(
                len(cursor.values),
                sum(value.size_bytes or 0 for value in cursor.values.values()),
                min((v.expires_ms for v in cursor.values.values() if v.expires_ms is not None), default=None),
            ),
            [
                effects.StoredIds((first, time_ms), list(ids))
                for first, (time_ms, ids) in sorted(endpoint.dedup.items())
            ],
        )

    def state(self) -> State:
        """The whole visible state."""
        named = {row[ROUTE] for row in self.messages.values()}
        return State(
            messages=dict(self.messages),
            routes={number: route for number, route in self.routes.items() if number in named},
            cursors={
                (number, key): StoredPart(
                    part.floor,
                    tuple(sorted(part.ranges.items())),
                    part.counted_id,
                    part.messages,
                    part.size_bytes,
                )
                for number, cursor in self.cursors.items()
                for key, part in cursor.parts.items()
            },
            references={(number, i) for number, cursor in self.cursors.items() for i in cursor.references},
            delayed={
                (number, due_ms, i, size, retry)
                for number, cursor in self.cursors.items()
                for i, (due_ms, size, retry) in cursor.delayed.items()
            },
            values={(number, *value) for number, c in self.cursors.items() for value in c.values.values()},
            attempts={
                (number, i): count for number, c in self.cursors.items() for i, count in c.attempts.items()
            },
            endpoints={number: endpoint.definition for number, endpoint in self.endpoints.items()},
            subscriptions={
                (number, pattern)
                for number, found in self.endpoints.items()
                for pattern in found.subscriptions
            },
            dedup={
                (number, first, time_ms, ids)
                for number, found in self.endpoints.items()
                for first, (time_ms, ids) in found.dedup.items()
            },
            points=dict(self.points),
            records=dict(self.records),
            retention=dict(self.retention),
            first_id=self.first_id,
            floor_ms=self.floor_ms,
            last_id=self.last_id,
            last_time_ms=self.last_time_ms,
            logged_bytes=self.size_bytes,
            largest_bytes=self.largest_bytes,
            next_number=self.next_number,
            archived_id=self.archived_id,
            counted_id=self.counted_id,
        )

    def copy(self) -> Self:
        """An independent copy."""
        return copy.deepcopy(self)


def _weight(row: Row) -> int:
    return stored_bytes(row[TOPIC], [len(row[CONTENT])])


def _recovered(part: NaivePart) -> effects.StoredCursor:
    return effects.StoredCursor(part.floor, sorted(part.ranges.items()), part.messages, part.size_bytes)
