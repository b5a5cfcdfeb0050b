"""A writer of SQLite under test, and what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.core.effects import Effect
from store.errors import WriteFailed
from store.ports import Batch, StoreOptions
from store.sqlite.store import recover
from store.sqlite.writer import SqliteWriter
from tests.store.effects import applied
from tests.store.told import PATIENCE_SECONDS, Told, batch_of
from tests.support.naive_store import NaiveStore


class Writing(Told):
    """A writer of a file, with a record of its reports."""

    writer: SqliteWriter

    def __init__(self, on_told: Callable[[], None]) -> None:
        super().__init__()
        self.hold = threading.Event()
        """While it is cleared, the writer waits after it has reported a transaction."""
        self.hold.set()
        self._on_told = on_told

    def on_commit(self, batches: list[Batch], error: WriteFailed | None) -> None:
        self._on_told()
        super().on_commit(batches, error)
        assert self.hold.wait(PATIENCE_SECONDS)

    def commit_now(self, *effects: Effect, answer: Callable[[], None] = lambda: None) -> WriteFailed | None:
        """Commit a small batch on this thread, as soon as the writer's own thread is idle."""
        batch = batch_of(*effects)
        while True:
            is_tried, error = self.writer.commit_now(batch, answer)
            if is_tried:
                return error

    def write_now(self, *effects: Effect) -> None:
        """Commit a small batch on this thread without an error, in the naive store as well."""
        assert self.commit_now(*applied(self.model, effects)) is None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop the writer after a commit, so that the batches submitted meanwhile wait together."""
        self.hold.clear()
        self.commit()
        yield
        self.hold.set()


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
    """A writer of a file, closed at the end; not synced by default. ``model``: what the file already has."""
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
