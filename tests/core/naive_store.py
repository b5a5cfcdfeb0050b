"""
A store that is dictionaries, with the outside of ``store``: its writer commits, and its reader reads, when told to.

Obviously right rather than fast, and strict: what SQLite would take in silence although it makes no sense (a reference
to nowhere, an id given twice, a settlement of what is not there) is an AssertionError here.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gateway.core.broker import LogState, StoredEndpoint
from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    DeleteEndpoint,
    DeleteSubscription,
    Effect,
    Publication,
    RemoveReferences,
    RenumberEndpoint,
    Row,
    SaveEndpoint,
    SaveReplay,
    SaveSubscription,
)
from store.reader import LogPage
from store.recovery import Recovered
from store.writer import Batch

T = TypeVar("T")

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
        """Every message ever committed, by id, rising."""
        self.references: defaultdict[int, set[int]] = defaultdict(set)
        self.removed: defaultdict[int, set[int]] = defaultdict(set)
        """What was settled for good, by endpoint number."""
        self.endpoints: dict[int, NaiveEndpoint] = {}
        self.last_id = 0
        self.last_time_ms = 0
        self.size_bytes = 0
        self.next_number = 1

    def apply(self, effect: Effect) -> None:
        match effect:
            case Publication():
                self._publish(effect)
            case RemoveReferences():
                for i in effect.ids:
                    self.references[effect.endpoint].remove(i)
                    self.removed[effect.endpoint].add(i)
                    self._let_go(i)
                self._count(effect.endpoint, -len(effect.ids), -effect.size_bytes)
            case AddReferences(number, ids, size_bytes, replay):
                assert list(ids) == sorted(set(ids)), "replayed in order"
                for i in ids:
                    assert self.messages[i][4] is None, "only logged messages are replayed"
                    assert i not in self.references[number], "and each once"
                self.references[number].update(ids)
                self._count(number, len(ids), size_bytes)
                self._save_replay(number, replay)
            case SaveReplay(number, replay):
                self._save_replay(number, replay)
            case CountAttempts():
                assert {i for i, _ in effect.attempts} <= self.references[effect.endpoint]
            case SaveEndpoint():
                endpoint = self.endpoints.setdefault(effect.number, NaiveEndpoint(effect))
                endpoint.definition = effect
                self.next_number = max(self.next_number, effect.number + 1)
            case RenumberEndpoint(old, new, replay):
                self._forget(old)
                endpoint = self.endpoints.pop(old)
                assert new not in self.endpoints
                endpoint.definition = replace(endpoint.definition, number=new, replay=replay)
                endpoint.depth = endpoint.size_bytes = 0
                self.endpoints[new] = endpoint
                self.next_number = max(self.next_number, new + 1)
            case DeleteEndpoint(number):
                self._forget(number)
                del self.endpoints[number]
            case SaveSubscription(number, pattern):
                self.endpoints[number].subscriptions[pattern] = None
            case DeleteSubscription(number, pattern):
                del self.endpoints[number].subscriptions[pattern]

    def _publish(self, publication: Publication) -> None:
        for row in publication.rows:
            assert row[0] > self.last_id, "ids rise, and none is given twice"
            assert row[1] >= self.last_time_ms, "times never go back along ids"
            assert (row[4] is None) == publication.logged
            self.last_id, self.last_time_ms = row[0], row[1]
            self.messages[row[0]] = self.published[row[0]] = row
        ids = [row[0] for row in publication.rows]
        assert publication.size_bytes == sum(len(row[5]) for row in publication.rows)
        assert publication.logged or len(publication.endpoints) == publication.rows[0][4]
        if publication.logged:
            self.size_bytes += publication.size_bytes
        for number in publication.endpoints:
            self.references[number].update(ids)
            self._count(number, len(ids), publication.size_bytes)

    def _count(self, number: int, count: int, size_bytes: int) -> None:
        endpoint = self.endpoints[number]
        endpoint.depth += count
        endpoint.size_bytes += size_bytes
        assert endpoint.depth == len(self.references[number])
        assert endpoint.size_bytes == sum(len(self.messages[i][5]) for i in self.references[number])

    def _save_replay(self, number: int, replay: str | None) -> None:
        endpoint = self.endpoints[number]
        endpoint.definition = replace(endpoint.definition, replay=replay)

    def _forget(self, number: int) -> None:
        for i in self.references.pop(number, ()):
            self._let_go(i)

    def _let_go(self, message_id: int) -> None:
        row = self.messages[message_id]
        held = row[4]
        if held is None:
            return
        if held == 1:
            del self.messages[message_id]
        else:
            self.messages[message_id] = (*row[:4], held - 1, row[5])

    def recover(self) -> Recovered:
        """What a gateway that starts finds."""
        return Recovered(
            LogState(
                generation=GENERATION,
                first_id=1,
                next_id=self.last_id + 1,
                last_time_ms=self.last_time_ms,
                floor_ms=0,
                size_bytes=self.size_bytes,
            ),
            [self._recover(number, endpoint) for number, endpoint in self.endpoints.items()],
            self.next_number,
            [],
            0,
        )

    def _recover(self, number: int, endpoint: NaiveEndpoint) -> StoredEndpoint:
        return StoredEndpoint(
            endpoint.definition,
            endpoint.depth,
            endpoint.size_bytes,
            max(self.references[number], default=0),
            list(endpoint.subscriptions),
        )


class NaiveWriter:
    """Commits when told to, as many batches at once as it is told."""

    def __init__(
        self, store: NaiveStore, on_commit: Callable[[list[Batch], sqlite3.Error | None], None]
    ) -> None:
        self._store = store
        self._on_commit = on_commit
        self.waiting: deque[Batch] = deque()

    def submit(self, batch: Batch) -> None:
        self.waiting.append(batch)

    def commit(self, count: int) -> None:
        batches = self._take(count)
        for batch in batches:
            for effect in batch.effects:
                self._store.apply(effect)
        self._on_commit(batches, None)

    def fail(self, count: int) -> None:
        """A transaction that is rolled back, as when the disk is full."""
        self._on_commit(self._take(count), sqlite3.OperationalError("database or disk is full"))

    def _take(self, count: int) -> list[Batch]:
        return [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]


class NaiveReader:
    """Reads when told to; what it reads is what is durable at that moment."""

    def __init__(self, store: NaiveStore, page_rows: int) -> None:
        self._store = store
        self._page_rows = page_rows
        self.largest_bytes = 0
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, read: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self.waiting.append((future, read))
        return future

    def read(self, count: int) -> None:
        for future, read in self._take(count):
            future.set_result(read())

    def fail(self, count: int) -> None:
        for future, _ in self._take(count):
            future.set_exception(sqlite3.OperationalError("disk I/O error"))

    def _take(self, count: int) -> list[tuple[Future[Any], Callable[[], Any]]]:
        return [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]

    # --- pages ----------------------------------------------------------------------------------------------------

    def _logged(self) -> list[Row]:
        return [row for _, row in sorted(self._store.messages.items()) if row[4] is None]

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        rows = [row for row in self._logged() if position <= row[0] < end]
        page = rows[: self._page_rows]
        return LogPage(page, end if len(page) == len(rows) else page[-1][0] + 1)

    def endpoint_page(self, endpoint: int, after: int) -> list[Row]:
        ids = sorted(i for i in self._store.references[endpoint] if i > after)
        return [self._store.messages[i] for i in ids[: self._page_rows]]

    def messages(self, ids: Sequence[int]) -> list[Row]:
        rows = [self._store.messages[i] for i in ids]
        return rows[: self._page_rows]

    # --- probes ---------------------------------------------------------------------------------------------------

    def first_since(self, time_ms: int) -> int | None:
        return next((row[0] for row in self._logged() if row[1] >= time_ms), None)

    def time_of(self, message_id: int) -> int | None:
        return next((row[1] for row in self._logged() if row[0] == message_id), None)

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        logged = reversed(self._logged())
        return next((row[0] for row in logged if matches is None or matches(row[2])), None)
