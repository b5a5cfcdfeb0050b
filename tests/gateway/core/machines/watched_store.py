"""The naive store under the model machines: it tells of every message, and no broker may do anything twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from gateway.core.effects import AddReferences, MoveCursor, Publication
from gateway.core.model import CONTENT, Row
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
        """What was settled for good, by cursor."""
        self.on_row: Callable[[Row], None] = lambda row: None
        """Told of every message that became durable."""

    def is_removed(self, cursors: Iterable[int], message_id: int) -> bool:
        """Whether a message was settled by one of these cursors."""
        return any(message_id in self.removed[number] for number in cursors)

    def _publish(self, publication: Publication) -> None:
        super()._publish(publication)
        for row in publication.rows:
            assert row[CONTENT] not in self.contents, "stored once"
            self.contents[row[CONTENT]] = row[0]
            self.published[row[0]] = row
        for row in publication.rows:
            self.on_row(row)

    def _move(self, effect: MoveCursor) -> None:
        super()._move(effect)
        assert self.removed[effect.cursor].isdisjoint(effect.done), "settled once"
        self.removed[effect.cursor].update(effect.done)

    def _add(self, effect: AddReferences) -> None:
        assert self.removed[effect.cursor].isdisjoint(effect.ids), "never again once it was acknowledged"
        super()._add(effect)

    def _unsubscribe(self, number: int, pattern: str) -> None:
        assert pattern in self.endpoints[number].subscriptions
        super()._unsubscribe(number, pattern)

    def recover(self, generation: int = GENERATION) -> Recovered:
        """What a gateway that starts finds."""
        return super().recover(generation)
