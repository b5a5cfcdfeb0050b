"""A writer under test: what it told, in order, and waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.core.effects import Effect, Publication
from store.errors import WriteFailed
from store.ports import Batch, StoreOptions
from store.sqlite.store import recover
from store.sqlite.writer import SqliteWriter
from tests.store.effects import applied
from tests.store.vpn_file import empty_model
from tests.support.naive_store import NaiveStore

PATIENCE_SECONDS = 60.0
"""What never takes long is waited for so long, before the test is given up."""


class Told(NamedTuple):
    batches: list[Batch]
    error: WriteFailed | None


class Writing:
    """Submits effects and remembers, transaction by transaction, what the writer told."""

    def __init__(self, on_told: Callable[[], None] = lambda: None) -> None:
        self.told: list[Told] = []
        self.model = empty_model()
        """What was written, and told of without an error."""
        self.hold = threading.Event()
        """While it is cleared, the writer waits after the transaction it has just told of."""
        self.hold.set()
        self.writer: SqliteWriter
        self._on_told = on_told
        self._changed = threading.Condition()

    def on_commit(self, batches: list[Batch], error: WriteFailed | None) -> None:
        self._on_told()
        with self._changed:
            self.told.append(Told(batches, error))
            self._changed.notify_all()
        assert self.hold.wait(PATIENCE_SECONDS)

    def submit(self, *effects: Effect) -> Batch:
        size = sum(effect.size_bytes for effect in effects if isinstance(effect, Publication))
        batch = Batch(effects, size)
        self.writer.submit(batch)
        return batch

    def wait(self, batch: Batch) -> Told:
        """The transaction that held this batch."""

        def found() -> Told | None:
            return next((t for t in self.told if any(b is batch for b in t.batches)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, PATIENCE_SECONDS)
        result = found()
        assert result is not None
        return result

    def commit(self, *effects: Effect) -> Told:
        """One batch, and what became of it."""
        return self.wait(self.submit(*effects))

    def write(self, *effects: Effect) -> None:
        """One batch, which is durable then; the naive store has it as well."""
        assert self.commit(*applied(self.model, effects)).error is None

    def commit_now(self, *effects: Effect, answer: Callable[[], None] = lambda: None) -> WriteFailed | None:
        """A small batch on this thread, as soon as the writer's own is not at work."""
        batch = Batch(
            effects, sum(effect.size_bytes for effect in effects if isinstance(effect, Publication))
        )
        while True:
            is_tried, error = self.writer.commit_now(batch, answer)
            if is_tried:
                return error

    def write_now(self, *effects: Effect) -> None:
        """The same, which the naive store has as well."""
        assert self.commit_now(*applied(self.model, effects)) is None

    @contextmanager
    def held(self) -> Iterator[None]:
        """The writer is stopped after it has committed something; what is submitted meanwhile waits together."""
        self.hold.clear()
        self.commit()
        yield
        self.hold.set()

    @property
    def batches(self) -> list[Batch]:
        """All that was told of, in the order it was told."""
        return [batch for told in self.told for batch in told.batches]


@contextmanager
def writing(
    path: Path,
    *,
    checkpoint_bytes: int = 1 << 24,
    wal_limit_bytes: int = -1,
    synchronous: str = "OFF",
    on_told: Callable[[], None] = lambda: None,
    model: NaiveStore | None = None,
) -> Iterator[Writing]:
    """A writer on a file, closed at the end; not synced unless the test asks for it. ``model``: what is there."""
    found = Writing(on_told)
    found.model = model or found.model
    options = StoreOptions(
        page_rows=0,
        page_bytes=0,
        read_threads=1,
        checkpoint_bytes=checkpoint_bytes,
        wal_limit_bytes=wal_limit_bytes,
        synchronous=synchronous,
    )
    found.writer = SqliteWriter(path, found.on_commit, options, recover(path))
    try:
        yield found
    finally:
        found.hold.set()
        found.writer.close()
