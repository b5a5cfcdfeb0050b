"""
A store that is dictionaries: what is durable after some effects, and what a gateway that starts finds of it.

Obviously right rather than fast, and strict: what SQLite would take in silence although it makes no sense (a reference
to nowhere, an id given twice, a settlement of what is not there) is an AssertionError here. Real stores are compared
with it, and the model machines of the core run on it (``tests.gateway.core.machines``).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, assert_never

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
from gateway.core.model import LogState, Row
from gateway.core.recovered import StoredEndpoint
from gateway.core.replay.states import Replay
from store.ports import Recovered


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
    """All that can be seen of a store, to compare two."""

    messages: dict[int, Row]
    references: dict[tuple[int, int], int]
    """(endpoint, message) -> failed deliveries."""
    priorities: dict[tuple[int, int], int]
    """The same -> priority, where it is looked at."""
    endpoints: dict[int, Stored]
    subscriptions: set[tuple[int, str]]
    points: dict[str, Point]
    first_id: int
    floor_ms: int
    last_id: int
    last_time_ms: int
    logged_bytes: int
    largest_bytes: int
    next_number: int
    archived_id: int


@dataclass
class NaiveEndpoint:
    definition: SaveEndpoint
    subscriptions: dict[str, None] = field(default_factory=dict)
    """Patterns, in the order in which they were made."""


class NaiveStore:
    """What is durable; ``made_ms`` is when the log began."""

    def __init__(self, made_ms: int = 0) -> None:
        self.messages: dict[int, Row] = {}
        """Messages that something still refers to."""
        self.references: defaultdict[int, set[int]] = defaultdict(set)
        """What lies on endpoints, by their numbers."""
        self.attempts: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """Failed deliveries of it, where there are any."""
        self.priorities: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """Its priorities, where they are looked at."""
        self.endpoints: dict[int, NaiveEndpoint] = {}
        self.points: dict[str, Point] = {}
        self.first_id = 1
        self.last_id = 0
        self.last_time_ms = self.floor_ms = made_ms
        self.size_bytes = 0
        self.largest_bytes = 0
        self.next_number = 1
        self.archived_id = 0

    def apply(self, effect: Effect) -> None:
        match effect:
            case Publication():
                self._publish(effect)
            case RemoveReferences():
                self._settle(effect)
            case AddReferences():
                self._add(effect)
            case DropReplayed():
                self._drop_replayed(effect)
            case TrimLog():
                self._trim(effect)
            case SaveReplay(number, replay):
                self._save_replay(number, replay)
            case CountAttempts(number, attempts):
                assert {i for i, _ in attempts} <= self.references[number]
                self.attempts[number].update(attempts)
            case SaveEndpoint(number):
                endpoint = self.endpoints.setdefault(number, NaiveEndpoint(effect))
                endpoint.definition = effect
                self.next_number = max(self.next_number, number + 1)
            case RenumberEndpoint():
                self._renumber(effect)
            case DeleteEndpoint(number):
                self._forget(number)
                del self.endpoints[number]
            case SaveSubscription(number, pattern):
                self.endpoints[number].subscriptions[pattern] = None
            case DeleteSubscription(number, pattern):
                self._unsubscribe(number, pattern)
            case SaveArchived(last_id):
                self.archived_id = max(self.archived_id, last_id)
            case SavePoint(point):
                self.points[point.name] = point
                self.last_id = max(self.last_id, point.position - 1)
            case DeletePoint(name):
                self.points.pop(name, None)
            case _:
                assert_never(effect)

    # --- messages, and where they lie -------------------------------------------------------------------------------

    def _publish(self, publication: Publication) -> None:
        rows = publication.rows
        for row in rows:
            assert row[0] > self.last_id, "ids rise, and none is given twice"
            assert row[1] >= self.last_time_ms, "times never go back along ids"
            assert (row[4] is None) == publication.logged
            self.last_id, self.last_time_ms = row[0], row[1]
            self.messages[row[0]] = row
            self.largest_bytes = max(self.largest_bytes, len(row[5]))
        ids = [row[0] for row in rows]
        assert publication.size_bytes == self.size_of(ids)
        assert publication.logged or len(publication.endpoints) == rows[0][4]
        if publication.logged:
            self.size_bytes += publication.size_bytes
        for number in publication.endpoints:
            assert number in self.endpoints
            self.references[number].update(ids)
        if publication.ranked is not None:
            for number in publication.ranked.endpoints:
                self._rank(number, ids, publication.ranked.priorities)

    def _settle(self, effect: RemoveReferences) -> None:
        assert effect.size_bytes == self.size_of(effect.ids)
        for i in effect.ids:
            self._take_off(effect.endpoint, i)
            self._let_go(i)

    def _add(self, effect: AddReferences) -> None:
        number, ids = effect.endpoint, effect.ids
        assert list(ids) == sorted(set(ids)), "replayed in order"
        assert effect.size_bytes == self.size_of(ids)
        for i in ids:
            assert self.is_logged(i), "only logged messages are replayed"
            assert i not in self.references[number], "and each once"
        self.references[number].update(ids)
        self._rank(number, ids, effect.priorities or ())
        self._save_replay(number, effect.replay)

    def _drop_replayed(self, effect: DropReplayed) -> list[int]:
        """Take off what a replay had put there; which messages that were."""
        number = effect.endpoint
        dropped = [i for i in self.references[number] if i < effect.below and self.is_logged(i)]
        for i in dropped:
            self._take_off(number, i)
        self._save_replay(number, effect.replay)
        return dropped

    def _trim(self, effect: TrimLog) -> list[Row]:
        """Take messages out of the log; which, as they were there."""
        assert effect.stop <= self.last_id + 1, "what is committed is trimmed, and nothing else"
        trimmed = [self.messages[i] for i in range(effect.first, effect.stop) if self.is_logged(i)]
        for row in trimmed:
            held = sum(row[0] in ids for ids in self.references.values())
            if held:
                self.messages[row[0]] = (*row[:4], held, row[5])
            else:
                del self.messages[row[0]]
            self.size_bytes -= len(row[5])
            self.floor_ms = max(self.floor_ms, row[1] + 1)
        self.first_id = max(self.first_id, effect.stop)
        return trimmed

    def _rank(self, number: int, ids: Sequence[int], priorities: Sequence[int]) -> None:
        self.priorities[number].update(zip(ids, priorities, strict=False))

    def _take_off(self, number: int, message_id: int) -> None:
        self.references[number].remove(message_id)
        self.attempts[number].pop(message_id, None)
        self.priorities[number].pop(message_id, None)

    def _let_go(self, message_id: int) -> None:
        """One reference less: what the log does not hold goes with its last one."""
        row = self.messages[message_id]
        held = row[4]
        if held is None:
            return
        if held == 1:
            del self.messages[message_id]
        else:
            self.messages[message_id] = (*row[:4], held - 1, row[5])

    def is_logged(self, message_id: int) -> bool:
        """Whether the log holds it now."""
        row = self.messages.get(message_id)
        return row is not None and row[4] is None

    def on(self, number: int) -> list[int]:
        """What lies on an endpoint, in order."""
        return sorted(self.references[number])

    def size_of(self, ids: Iterable[int]) -> int:
        """Bytes of content of messages that are there."""
        return sum(len(self.messages[i][5]) for i in ids)

    # --- endpoints --------------------------------------------------------------------------------------------------

    def _save_replay(self, number: int, replay: str | None) -> None:
        endpoint = self.endpoints[number]
        endpoint.definition = replace(endpoint.definition, replay=replay)

    def _renumber(self, effect: RenumberEndpoint) -> None:
        self._forget(effect.old)
        endpoint = self.endpoints.pop(effect.old)
        assert effect.new not in self.endpoints
        endpoint.definition = replace(endpoint.definition, number=effect.new, replay=effect.replay)
        self.endpoints[effect.new] = endpoint
        self.next_number = max(self.next_number, effect.new + 1)

    def _unsubscribe(self, number: int, pattern: str) -> None:
        self.endpoints[number].subscriptions.pop(pattern, None)

    def _forget(self, number: int) -> None:
        """Nothing lies on the endpoint any more."""
        for i in self.references.pop(number, ()):
            self._let_go(i)
        self.attempts.pop(number, None)
        self.priorities.pop(number, None)

    # --- what is seen of it -----------------------------------------------------------------------------------------

    def recover(self, generation: int) -> Recovered:
        """What a gateway that starts finds."""
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
            self.next_number,
            [point for _, point in sorted(self.points.items())],
        )

    def _recover(self, number: int, endpoint: NaiveEndpoint) -> StoredEndpoint:
        ids = self.on(number)
        found = StoredEndpoint(
            endpoint.definition,
            len(ids),
            self.size_of(ids),
            max(ids, default=0),
            sorted(endpoint.subscriptions),
        )
        text = endpoint.definition.replay
        replay = Replay.from_json(text) if text else None
        if replay is not None and replay.boundary is not None:
            put = [i for i in ids if i < replay.boundary]
            found.replayed = len(put)
            if replay.is_reading:
                found.newest_id = max(put, default=0)
                found.awaiting = ids[len(put) :]
                priorities = self.priorities[number]
                found.awaiting_priorities = [priorities[i] for i in found.awaiting if i in priorities]
        return found

    def state(self) -> State:
        """All of it."""
        return State(
            messages=dict(self.messages),
            references={
                (number, i): self.attempts[number].get(i, 0)
                for number, ids in self.references.items()
                for i in ids
            },
            priorities={
                (number, i): priority
                for number, found in self.priorities.items()
                for i, priority in found.items()
            },
            endpoints={number: self._stored(number) for number in self.endpoints},
            subscriptions={
                (number, pattern)
                for number, found in self.endpoints.items()
                for pattern in found.subscriptions
            },
            points=dict(self.points),
            first_id=self.first_id,
            floor_ms=self.floor_ms,
            last_id=self.last_id,
            last_time_ms=self.last_time_ms,
            logged_bytes=self.size_bytes,
            largest_bytes=self.largest_bytes,
            next_number=self.next_number,
            archived_id=self.archived_id,
        )

    def _stored(self, number: int) -> Stored:
        found, ids = self.endpoints[number].definition, self.on(number)
        return Stored(found.name, found.kind, found.settings, found.replay, len(ids), self.size_of(ids))

    def copy(self) -> Self:
        """One that goes on by itself."""
        return copy.deepcopy(self)
