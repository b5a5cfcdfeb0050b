"""
A store that is dictionaries: what is durable, and what a gateway that starts finds of it.

Obviously right rather than fast, and strict: what SQLite would take in silence although it makes no sense (a reference
to nowhere, an id given twice, a settlement of what is not there) is an AssertionError here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

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
from store.sqlite.recovery import RecoveredFile

GENERATION = 7


@dataclass
class NaiveEndpoint:
    definition: SaveEndpoint
    depth: int = 0
    size_bytes: int = 0
    subscriptions: dict[str, None] = field(default_factory=dict)


class NaiveStore:
    """What is durable."""

    def __init__(self) -> None:
        self.messages: dict[int, Row] = {}
        """Messages that something still refers to."""
        self.published: dict[int, Row] = {}
        """Every message ever committed, by id, rising, as it was published."""
        self.contents: dict[bytes, int] = {}
        """The id of each of them, by content."""
        self.references: defaultdict[int, set[int]] = defaultdict(set)
        self.attempts: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.removed: defaultdict[int, set[int]] = defaultdict(set)
        """What was settled for good, by endpoint number."""
        self.endpoints: dict[int, NaiveEndpoint] = {}
        self.points: dict[str, Point] = {}
        self.first_id = 1
        self.last_id = 0
        self.last_time_ms = 0
        self.floor_ms = 0
        self.size_bytes = 0
        self.next_number = 1
        self.archived_id = 0
        self._renumbered: set[int] = set()
        self.on_row: Callable[[Row], None] = lambda row: None
        """Told of every message that became durable."""
        self.on_dropped: Callable[[int], None] = lambda number: None
        """Told of the endpoint that a failed replay's messages left."""

    def apply(self, effect: Effect) -> None:
        match effect:
            case Publication():
                self._publish(effect)
            case RemoveReferences():
                for i in effect.ids:
                    self.references[effect.endpoint].remove(i)
                    self.attempts[effect.endpoint].pop(i, None)
                    self.removed[effect.endpoint].add(i)
                    self._let_go(i)
                self._count(effect.endpoint, -len(effect.ids), -effect.size_bytes)
            case AddReferences(number, ids, size_bytes, replay):
                assert list(ids) == sorted(set(ids)), "replayed in order"
                for i in ids:
                    assert self.messages[i][4] is None, "only logged messages are replayed"
                    assert i not in self.references[number], "and each once"
                    assert i not in self.removed[number], "and never again once it was acknowledged"
                self.references[number].update(ids)
                self._count(number, len(ids), size_bytes)
                self._save_replay(number, replay)
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
            case RenumberEndpoint(old, new, replay):
                self._renumber(old, new, replay)
            case DeleteEndpoint(number):
                self._forget(number)
                del self.endpoints[number]
            case SaveSubscription(number, pattern):
                self.endpoints[number].subscriptions[pattern] = None
            case DeleteSubscription(number, pattern):
                del self.endpoints[number].subscriptions[pattern]
            case SaveArchived(last_id):
                self.archived_id = max(self.archived_id, last_id)
            case SavePoint(point):
                self.points[point.name] = point
                self.last_id = max(self.last_id, point.position - 1)
            case DeletePoint(name):
                self.points.pop(name, None)
            case _:
                assert_never(effect)

    def _publish(self, publication: Publication) -> None:
        for row in publication.rows:
            assert row[0] > self.last_id, "ids rise, and none is given twice"
            assert row[1] >= self.last_time_ms, "times never go back along ids"
            assert (row[4] is None) == publication.logged
            assert row[5] not in self.contents, "stored once"
            self.last_id, self.last_time_ms = row[0], row[1]
            self.messages[row[0]] = self.published[row[0]] = row
            self.contents[row[5]] = row[0]
        ids = [row[0] for row in publication.rows]
        assert publication.size_bytes == sum(len(row[5]) for row in publication.rows)
        assert publication.logged or len(publication.endpoints) == publication.rows[0][4]
        if publication.logged:
            self.size_bytes += publication.size_bytes
        for number in publication.endpoints:
            self.references[number].update(ids)
            self._count(number, len(ids), publication.size_bytes)
        for row in publication.rows:
            self.on_row(row)

    def _trim(self, effect: TrimLog) -> None:
        assert effect.stop <= self.last_id + 1, "what is committed is trimmed, and nothing else"
        trimmed = [i for i in range(effect.first, effect.stop) if self.is_logged(i)]
        effect.freed_bytes = sum(len(self.messages[i][5]) for i in trimmed)
        effect.newest_ms = max((self.messages[i][1] for i in trimmed), default=0)
        for i in trimmed:
            held = sum(i in ids for ids in self.references.values())
            if held:
                row = self.messages[i]
                self.messages[i] = (*row[:4], held, row[5])
            else:
                del self.messages[i]
        self.first_id = max(self.first_id, effect.stop)
        self.size_bytes -= effect.freed_bytes
        if effect.newest_ms:
            self.floor_ms = max(self.floor_ms, effect.newest_ms + 1)

    def _drop_replayed(self, effect: DropReplayed) -> None:
        number = effect.endpoint
        dropped = [i for i in self.references[number] if i < effect.below and self.is_logged(i)]
        effect.count = len(dropped)
        effect.size_bytes = sum(len(self.messages[i][5]) for i in dropped)
        self.references[number].difference_update(dropped)
        for i in dropped:
            self.attempts[number].pop(i, None)
        self._count(number, -effect.count, -effect.size_bytes)
        self._save_replay(number, effect.replay)
        self.on_dropped(number)

    def _renumber(self, old: int, new: int, replay: str | None) -> None:
        if old not in self.endpoints:
            # After a failed write it is ordered again, and owed all the same: once is enough.
            assert old in self._renumbered
            return
        self._renumbered.add(old)
        self._forget(old)
        endpoint = self.endpoints.pop(old)
        assert new not in self.endpoints
        endpoint.definition = replace(endpoint.definition, number=new, replay=replay)
        endpoint.depth = endpoint.size_bytes = 0
        self.endpoints[new] = endpoint
        self.next_number = max(self.next_number, new + 1)

    def _count(self, number: int, count: int, size_bytes: int) -> None:
        endpoint = self.endpoints[number]
        endpoint.depth += count
        endpoint.size_bytes += size_bytes
        assert endpoint.depth == len(self.references[number])
        assert endpoint.size_bytes == sum(len(self.published[i][5]) for i in self.references[number])

    def _save_replay(self, number: int, replay: str | None) -> None:
        endpoint = self.endpoints[number]
        endpoint.definition = replace(endpoint.definition, replay=replay)

    def _forget(self, number: int) -> None:
        for i in self.references.pop(number, ()):
            self._let_go(i)
        self.attempts.pop(number, None)
        self.removed.pop(number, None)

    def _let_go(self, message_id: int) -> None:
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

    # --- a start ----------------------------------------------------------------------------------------------------

    def recover(self) -> RecoveredFile:
        """What a gateway that starts finds."""
        return RecoveredFile(
            LogState(
                generation=GENERATION,
                first_id=self.first_id,
                next_id=self.last_id + 1,
                last_time_ms=self.last_time_ms,
                floor_ms=self.floor_ms,
                size_bytes=self.size_bytes,
                archived_id=self.archived_id,
            ),
            [self._recover(number, endpoint) for number, endpoint in self.endpoints.items()],
            self.next_number,
            list(self.points.values()),
        )

    def _recover(self, number: int, endpoint: NaiveEndpoint) -> StoredEndpoint:
        references = sorted(self.references[number])
        found = StoredEndpoint(
            endpoint.definition,
            endpoint.depth,
            endpoint.size_bytes,
            max(references, default=0),
            list(endpoint.subscriptions),
        )
        text = endpoint.definition.replay
        replay = Replay.from_json(text) if text else None
        if replay is not None and replay.boundary is not None:
            put = [i for i in references if i < replay.boundary]
            found.replayed = len(put)
            if replay.is_reading:
                found.newest_id = max(put, default=0)
                found.awaiting = references[len(put) :]
        return found
