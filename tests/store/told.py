"""Records what a writer under test reports, transaction by transaction, and waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from gateway.core.effects import Effect, Publication
from store.errors import WriteFailed
from store.ports import Batch, Writer
from tests.store.effects import applied
from tests.store.vpn_file import empty_model

PATIENCE_SECONDS = 60.0
"""How long a test waits for a report that normally comes immediately, before it fails."""


def batch_of(*effects: Effect) -> Batch:
    return Batch(effects, sum(effect.size_bytes for effect in effects if isinstance(effect, Publication)))


class Transaction(NamedTuple):
    batches: list[Batch]
    error: WriteFailed | None


class Told:
    """Submits effects, and records what their writer reports."""

    writer: Writer

    def __init__(self) -> None:
        self.told: list[Transaction] = []
        self.model = empty_model()
        """The effects that ``write`` has committed."""
        self._changed = threading.Condition()

    def on_commit(self, batches: list[Batch], error: WriteFailed | None) -> None:
        with self._changed:
            self.told.append(Transaction(batches, error))
            self._changed.notify_all()

    def submit(self, *effects: Effect) -> Batch:
        batch = batch_of(*effects)
        self.writer.submit(batch)
        return batch

    def transaction_of(self, batch: Batch) -> Transaction:
        """The transaction that held this batch."""
        return self._wait_for(lambda told: any(b is batch for b in told.batches))

    def wait_for_error(self) -> WriteFailed:
        """The first error that the writer reports, of whatever batch."""
        error = self._wait_for(lambda told: told.error is not None).error
        assert error is not None
        return error

    def _wait_for(self, is_it: Callable[[Transaction], bool]) -> Transaction:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(is_it, self.told)), PATIENCE_SECONDS)
        return next(filter(is_it, self.told))

    def commit(self, *effects: Effect) -> WriteFailed | None:
        """Submit one batch, wait for its transaction, and return the transaction's error."""
        return self.transaction_of(self.submit(*effects)).error

    def write(self, *effects: Effect) -> None:
        """Commit one batch without an error, in the naive store as well."""
        assert self.commit(*applied(self.model, effects)) is None

    @property
    def batches(self) -> list[Batch]:
        """The reported batches, in the order of the reports."""
        return [batch for told in self.told for batch in told.batches]
