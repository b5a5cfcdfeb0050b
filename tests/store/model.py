"""What a file must hold after some effects, kept in the plainest way, to compare the store with.

`Model` applies effects to dictionaries; `state_of` reads a file into the same form. What waits for collection counts
as gone in both: nobody can see it any more.
"""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, assert_never

from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    DeleteEndpoint,
    DeletePoint,
    DeleteSubscription,
    DropReplayed,
    Effect,
    Publication,
    RemoveReferences,
    RenumberEndpoint,
    SaveArchived,
    SaveEndpoint,
    SavePoint,
    SaveReplay,
    SaveSubscription,
    TrimLog,
)
from gateway.core.log.point import Point
from gateway.core.model import Row
from store.sqlite.database import connect_reader, connect_writer, open_file
from store.sqlite.transaction import Transaction

MADE_MS = 1_700_000_000_000
"""When the files of these tests were made."""


class Stored(NamedTuple):
    """An endpoint: its definition, and what lies on it."""

    name: str
    kind: str
    settings: str
    replay: str | None
    depth: int
    size_bytes: int


@dataclass
class State:
    """All that can be seen of a file."""

    messages: dict[int, Row] = field(default_factory=dict)
    references: dict[tuple[int, int], int] = field(default_factory=dict)
    """(endpoint, message) -> failed deliveries."""
    priorities: dict[tuple[int, int], int] = field(default_factory=dict)
    """The same -> priority, where it is looked at."""
    endpoints: dict[int, Stored] = field(default_factory=dict)
    subscriptions: set[tuple[int, str]] = field(default_factory=set)
    points: dict[str, Point] = field(default_factory=dict)
    first_id: int = 1
    floor_ms: int = MADE_MS
    last_id: int = 0
    last_time_ms: int = MADE_MS
    logged_bytes: int = 0
    largest_bytes: int = 0
    next_number: int = 1
    archived_id: int = 0


@dataclass
class Model:
    messages: dict[int, Row] = field(default_factory=dict)
    references: dict[tuple[int, int], int] = field(default_factory=dict)
    priorities: dict[tuple[int, int], int] = field(default_factory=dict)
    """Of those, and of some that are gone."""
    endpoints: dict[int, SaveEndpoint] = field(default_factory=dict)
    subscriptions: set[tuple[int, str]] = field(default_factory=set)
    points: dict[str, Point] = field(default_factory=dict)
    first_id: int = 1
    floor_ms: int = MADE_MS
    last_id: int = 0
    last_time_ms: int = MADE_MS
    largest_bytes: int = 0
    next_number: int = 1
    archived_id: int = 0

    def apply(self, effect: Effect) -> None:
        match effect:
            case Publication():
                for row in effect.rows:
                    self.messages[row[0]] = row
                    self.largest_bytes = max(self.largest_bytes, len(row[5]))
                    for number in effect.endpoints:
                        self.references[number, row[0]] = 0
                if effect.ranked is not None:
                    ids = [row[0] for row in effect.rows]
                    for number in effect.ranked.endpoints:
                        self._rank(number, ids, effect.ranked.priorities)
                self.last_id, self.last_time_ms = effect.rows[-1][:2]
            case RemoveReferences():
                for i in effect.ids:
                    del self.references[effect.endpoint, i]
            case AddReferences(endpoint, ids, _, replay, priorities):
                self.references |= {(endpoint, i): 0 for i in ids}
                self._rank(endpoint, ids, priorities or ())
                self._redefine(endpoint, replay=replay)
            case DropReplayed(endpoint, below, replay):
                for i in self.on(endpoint):
                    if i < below and self.messages[i][4] is None:
                        del self.references[endpoint, i]
                self._redefine(endpoint, replay=replay)
            case SaveReplay(endpoint, replay):
                self._redefine(endpoint, replay=replay)
            case CountAttempts(endpoint, attempts):
                self.references |= {(endpoint, i): count for i, count in attempts}
            case SaveEndpoint(number):
                self.endpoints[number] = effect
                self.next_number = max(self.next_number, number + 1)
            case RenumberEndpoint(old, new, replay):
                self._drop(old)
                self._redefine(old, number=new, replay=replay)
                self.endpoints[new] = self.endpoints.pop(old)
                self.subscriptions = {(new if n == old else n, p) for n, p in self.subscriptions}
                self.next_number = max(self.next_number, new + 1)
            case DeleteEndpoint(number):
                self._drop(number)
                del self.endpoints[number]
                self.subscriptions = {(n, p) for n, p in self.subscriptions if n != number}
            case SaveSubscription(endpoint, pattern):
                self.subscriptions.add((endpoint, pattern))
            case DeleteSubscription(endpoint, pattern):
                self.subscriptions.discard((endpoint, pattern))
            case TrimLog(first, stop):
                self._trim(first, stop)
            case SaveArchived(last_id):
                self.archived_id = max(self.archived_id, last_id)
            case SavePoint(point):
                self.points[point.name] = point
                self.last_id = max(self.last_id, point.position - 1)
            case DeletePoint(name):
                self.points.pop(name, None)
            case _:
                assert_never(effect)
        self._let_go()

    def _rank(self, endpoint: int, ids: Sequence[int], priorities: Sequence[int]) -> None:
        self.priorities |= {(endpoint, i): priority for i, priority in zip(ids, priorities, strict=False)}

    def _redefine(self, endpoint: int, **changes: Any) -> None:
        found = self.endpoints[endpoint]
        fields = {name: getattr(found, name) for name in ("number", "name", "kind", "settings", "replay")}
        self.endpoints[endpoint] = SaveEndpoint(**(fields | changes))

    def _drop(self, number: int) -> None:
        self.references = {key: count for key, count in self.references.items() if key[0] != number}

    def _trim(self, first: int, stop: int) -> None:
        for i in range(first, stop):
            if i in self.messages and self.messages[i][4] is None:
                self.floor_ms = max(self.floor_ms, self.messages[i][1] + 1)
                # From now on references alone hold it.
                self.messages[i] = (*self.messages[i][:4], 0, self.messages[i][5])
        self.first_id = max(self.first_id, stop)

    def _let_go(self) -> None:
        """Messages that the log does not hold go with their last reference."""
        referred = {message for _, message in self.references}
        self.messages = {i: row for i, row in self.messages.items() if row[4] is None or i in referred}

    def on(self, endpoint: int) -> list[int]:
        """What lies on an endpoint, in order."""
        return sorted(message for number, message in self.references if number == endpoint)

    def size_of(self, ids: list[int]) -> int:
        return sum(len(self.messages[i][5]) for i in ids)

    def state(self) -> State:
        messages = {}
        for i, (_, time, topic, bare, held, content) in self.messages.items():
            count = sum(1 for _, message in self.references if message == i)
            messages[i] = (i, time, topic, bare, None if held is None else count, content)
        endpoints = {}
        for number, found in self.endpoints.items():
            ids = self.on(number)
            endpoints[number] = Stored(
                found.name, found.kind, found.settings, found.replay, len(ids), self.size_of(ids)
            )
        return State(
            messages=messages,
            references=dict(self.references),
            priorities={key: n for key, n in self.priorities.items() if key in self.references},
            endpoints=endpoints,
            subscriptions=set(self.subscriptions),
            points=dict(self.points),
            first_id=self.first_id,
            floor_ms=self.floor_ms,
            last_id=self.last_id,
            last_time_ms=self.last_time_ms,
            logged_bytes=sum(len(row[5]) for row in messages.values() if row[4] is None),
            largest_bytes=self.largest_bytes,
            next_number=self.next_number,
            archived_id=self.archived_id,
        )

    def copy(self) -> Model:
        return copy.deepcopy(self)


def state_of(path: Path) -> State:
    """The same of a file, with what waits for collection taken away."""
    connection = connect_reader(path)
    try:
        return _state(connection)
    finally:
        connection.close()


def _state(connection: sqlite3.Connection) -> State:
    garbage = {number for (number,) in connection.execute("select number from garbage")}
    messages = {row[0]: row for row in connection.execute("select * from message")}
    references = {}
    priorities = {}
    for endpoint, message, attempts, priority in connection.execute("select * from reference"):
        if endpoint not in garbage:
            references[endpoint, message] = attempts
            if priority is not None:
                priorities[endpoint, message] = priority
            continue
        row = messages[message]
        if row[4] is not None:
            messages[message] = (*row[:4], row[4] - 1, row[5])
    first, floor, last, time, size, largest, number, archived = connection.execute(
        "select first_id, floor_time, last_id, last_time, size_bytes, largest_bytes, next_number, archived_id from log"
    ).fetchone()
    return State(
        messages={i: row for i, row in messages.items() if row[4] is None or row[4] > 0},
        references=references,
        priorities=priorities,
        endpoints={
            row[0]: Stored(*row[1:])
            for row in connection.execute(
                "select number, name, kind, settings, replay, depth, size_bytes from endpoint"
            )
        },
        subscriptions=set(connection.execute("select endpoint, pattern from subscription")),
        points={
            row[0]: Point(*row) for row in connection.execute("select name, position, time, made from point")
        },
        first_id=first,
        floor_ms=floor,
        last_id=last,
        last_time_ms=time,
        logged_bytes=size,
        largest_bytes=largest,
        next_number=number,
        archived_id=archived,
    )


def new_file(path: Path) -> Path:
    """An empty file of a VPN, not synced: these tests pull no plugs."""
    open_file(path, MADE_MS, synchronous="OFF")
    return path


def writing_to(path: Path) -> sqlite3.Connection:
    return connect_writer(path, synchronous="OFF")


def commit(connection: sqlite3.Connection, effects: Iterable[Effect], *, has_held: bool = True) -> list[int]:
    """One transaction; the numbers whose references are to be collected."""
    garbage: list[int] = []
    transaction = Transaction(connection, garbage.append)
    transaction.has_held = has_held
    connection.execute("begin immediate")
    transaction.apply(effects)
    transaction.finish()
    connection.execute("commit")
    return garbage
