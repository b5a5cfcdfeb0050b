"""The naive store under the model machines: it tells of every message, and no broker may do anything twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from gateway.core.effects import (
    AddReferences,
    DropReplayed,
    Publication,
    RemoveReferences,
    RenumberEndpoint,
    TrimLog,
)
from gateway.core.model import Row
from store.ports import Recovered
from tests.support.naive_store import NaiveStore

GENERATION = 7


class WatchedStore(NaiveStore):
    """What is durable, and what ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[int, Row] = {}
        """Every message ever committed, by id, rising, as it was published."""
        self.contents: dict[bytes, int] = {}
        """The id of each of them, by content."""
        self.removed: defaultdict[int, set[int]] = defaultdict(set)
        """What was settled for good, by endpoint number."""
        self._renumbered: set[int] = set()
        self.on_row: Callable[[Row], None] = lambda row: None
        """Told of every message that became durable."""
        self.on_dropped: Callable[[int], None] = lambda number: None
        """Told of the endpoint that a failed replay's messages left."""

    def _publish(self, publication: Publication) -> None:
        super()._publish(publication)
        for row in publication.rows:
            assert row[5] not in self.contents, "stored once"
            self.contents[row[5]] = row[0]
            self.published[row[0]] = row
        for row in publication.rows:
            self.on_row(row)

    def _settle(self, effect: RemoveReferences) -> None:
        super()._settle(effect)
        self.removed[effect.endpoint].update(effect.ids)

    def _add(self, effect: AddReferences) -> None:
        assert self.removed[effect.endpoint].isdisjoint(effect.ids), "never again once it was acknowledged"
        super()._add(effect)

    def _drop_replayed(self, effect: DropReplayed) -> list[int]:
        dropped = super()._drop_replayed(effect)
        effect.count, effect.size_bytes = len(dropped), self.size_of(dropped)
        self.on_dropped(effect.endpoint)
        return dropped

    def _trim(self, effect: TrimLog) -> list[Row]:
        trimmed = super()._trim(effect)
        effect.freed_bytes = sum(len(row[5]) for row in trimmed)
        effect.newest_ms = max((row[1] for row in trimmed), default=0)
        return trimmed

    def _renumber(self, effect: RenumberEndpoint) -> None:
        if effect.old not in self.endpoints:
            # After a failed write it is ordered again, and owed all the same: once is enough.
            assert effect.old in self._renumbered
            return
        self._renumbered.add(effect.old)
        super()._renumber(effect)

    def _unsubscribe(self, number: int, pattern: str) -> None:
        assert pattern in self.endpoints[number].subscriptions
        super()._unsubscribe(number, pattern)

    def _forget(self, number: int) -> None:
        super()._forget(number)
        self.removed.pop(number, None)

    def recover(self, generation: int = GENERATION) -> Recovered:
        """What a gateway that starts finds."""
        return super().recover(generation)
