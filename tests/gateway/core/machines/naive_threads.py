"""The store under the model machines, which reports every message, and the threads that write and read it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from gateway.core.effects import AddReferences, Effect, MoveCursor, Publication
from gateway.core.model import CONTENT, Row
from store.errors import ReadFailed, WriteFailed
from store.ports import UNDONE_BY_FAILURE, Batch, LengthPage, Recovered, TopicPage
from tests.support.naive_reader import NaivePages
from tests.support.naive_store import NaiveStore

GENERATION = 7


class WatchedStore(NaiveStore):
    """What is durable, and everything that ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[int, Row] = {}
        """Every message ever committed, by rising id, as it was published."""
        self.contents: dict[bytes, int] = {}
        """The id of each message, by its content."""
        self.removed: defaultdict[int, set[int]] = defaultdict(set)
        """The ids that were settled durably, by cursor."""
        self.on_row: Callable[[Row], None] = lambda row: None
        """Called for every message that becomes durable."""

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
        """What a gateway finds at its start."""
        return super().recover(generation)


T = TypeVar("T")


class NaiveWriter:
    """Commits as many batches as the test says; with ``is_quick``, small ones immediately."""

    def __init__(
        self,
        store: WatchedStore,
        on_commit: Callable[[list[Batch], WriteFailed | None], None],
        *,
        is_quick: bool,
    ) -> None:
        self._store = store
        self._on_commit = on_commit
        self._is_quick = is_quick
        self.owed: list[Effect] = []
        self.waiting: deque[Batch] = deque()

    confirmed_at = None

    def submit(self, batch: Batch) -> None:
        self.waiting.append(batch)

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        if not self._is_quick:
            return False, None
        assert not self.waiting, "everything submitted was reported"
        self._write([batch])
        answer()
        return True, None

    def commit_owed(self) -> None:
        """Write what is owed, as a clean stop does."""
        self._write([])

    def commit(self, count: int) -> None:
        batches = self._take(count)
        if batches:
            self._write(batches)
            self._on_commit(batches, None)

    def fail(self, count: int) -> None:
        """Roll back, as when the disk is full; effects that only record what has happened are written later."""
        batches = self._take(count)
        if batches:
            self.owed += [
                e for batch in batches for e in batch.effects if not isinstance(e, UNDONE_BY_FAILURE)
            ]
            self._on_commit(batches, WriteFailed("database or disk is full"))

    def _write(self, batches: list[Batch]) -> None:
        owed, self.owed = self.owed, []
        for effect in owed:
            self._store.apply(effect)
        for batch in batches:
            for effect in batch.effects:
                self._store.apply(effect)

    def _take(self, count: int) -> list[Batch]:
        return [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]


class NaiveReader(NaivePages):
    """Reads when the test says so, and finds what is durable at that moment."""

    damage: str | None = None
    standby_damage: str | None = None

    def __init__(self, store: WatchedStore, page_rows: int) -> None:
        super().__init__(store, page_rows)
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, read: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self.waiting.append((future, read))
        return future

    def read(self, count: int) -> None:
        for future, read in self._take(count):
            try:
                found = read()
            except AssertionError:
                raise
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(found)

    def fail(self, count: int) -> None:
        for future, _ in self._take(count):
            future.set_exception(ReadFailed("disk I/O error"))

    def _take(self, count: int) -> list[tuple[Future[Any], Callable[[], Any]]]:
        """The next reads, except cancelled ones, which a thread pool skips, too."""
        taken = [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]
        return [(future, read) for future, read in taken if future.set_running_or_notify_cancel()]

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """No more than fit into a page: the gateway asks for the rest."""
        whole = super().topics_below(before, first, patterns)
        page = whole.found[: self._page_rows]
        return TopicPage(page, page[-1][0]) if len(page) < len(whole.found) else whole

    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """No more than fit into a page: the gateway asks for the rest."""
        whole = super().lengths_page(position, end, patterns)
        page = whole.found[: self._page_rows]
        return LengthPage(page, page[-1][0] + 1) if len(page) < len(whole.found) else whole
