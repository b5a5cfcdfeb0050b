"""
Group commit: one transaction takes all that arrived while the last one was made durable. What a writer of any engine
does about it: what waits is gathered, of transactions that fail the one at fault is found, and what is owed is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final

from gateway.core.effects import CountedUpTo, Effect, MoveCursor
from store.errors import WriteFailed
from store.ports import UNDONE_BY_FAILURE, Batch, Histogram, OnCommit

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Content after which a transaction is closed, so that its length, and what waits for it, stays bounded."""

COMMIT_BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
"""Seconds: from a disk that syncs to its cache to one that is in trouble."""

GARBAGE_EVERY: Final = 8
"""Commits under load to one piece of garbage: it costs publishers a tenth at most."""

SWEEP_EVERY: Final = 64
"""Commits under load to one look at some routes."""

SWEEP_SECONDS: Final = 0.5
"""How long nothing is to be written before all routes are looked at, some at a time."""

NEVER_AT_FAULT: Final = (MoveCursor, CountedUpTo)
"""Effects that hold nothing that cannot be written."""

NUDGE: Final = Batch((), 0)
"""Makes the writer's thread look around, without anything to commit."""


class GroupCommit(ABC):
    """
    A writer's queue, and what its thread does with the batches in it.

    Several that fail together, by an error that will not pass by itself, are written apart: who is at fault fails
    alone.
    """

    def __init__(self, on_commit: OnCommit) -> None:
        """
        Args:
            on_commit: Told of every transaction, from the writer's thread: the batches, in order, and the error when
                nothing of them was written.
        """
        self._on_commit = on_commit
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._owed: list[Effect] = []
        """What a transaction that failed was to change, and what the broker goes by since: first in the next one."""
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        """How long commits took, each with its sync: for whoever watches."""

    def submit(self, batch: Batch) -> None:
        """Hand over effects to be made durable, in order of submission."""
        self._queue.put(batch)

    # --- what an engine does of it ----------------------------------------------------------------------------------

    @abstractmethod
    def _write_all(self, batches: list[Batch]) -> WriteFailed | None:
        """One transaction: what is owed, and all of these, or nothing."""

    @abstractmethod
    def _can_be_written(self, effects: Sequence[Effect]) -> bool:
        """Try it, and leave nothing of it."""

    @abstractmethod
    def _may_pass(self, error: WriteFailed) -> bool:
        """Whether it is an error of a disk, or of a machine, that may work again: what failed was not at fault."""

    @abstractmethod
    def _patience(self) -> float | None:
        """Seconds to wait for something to be written before what is left behind is looked after; None: for ever."""

    def _has_work(self) -> bool:
        """Whether a nudge has the thread look around at once."""
        return False

    # --- what they have in common -----------------------------------------------------------------------------------

    def _gather(self) -> tuple[list[Batch], bool]:
        """All that waits, or the first that comes, or nothing where else is to do; whether the end was asked for."""
        queue = self._queue
        batch: Batch | None = NUDGE
        while batch is NUDGE:
            try:
                batch = queue.get(timeout=self._patience())
            except Empty:
                return [], False
            if batch is NUDGE and self._has_work():
                return [], False
        if batch is None:
            return [], True
        batches = [batch]
        size = batch.size_bytes
        while size < GROUP_BYTES:
            try:
                batch = queue.get_nowait()
            except Empty:
                break
            if batch is None:
                return batches, True
            if batch is NUDGE:
                continue
            batches.append(batch)
            size += batch.size_bytes
        return batches, False

    def _commit(self, batches: list[Batch]) -> None:
        """Write what was gathered, and tell of it; of several, one that cannot be written fails without the others."""
        error = self._write_all(batches)
        if error is None or len(batches) == 1 or self._may_pass(error):
            if error is not None:
                self._owe(batches, error)
            self._on_commit(batches, error)
            return
        # By halves: a thousand publishers shall not wait for a thousand syncs because one of them is at fault.
        half = len(batches) // 2
        self._commit(batches[:half])
        self._commit(batches[half:])

    def _owe(self, batches: list[Batch], error: WriteFailed) -> None:
        """Remember what a transaction that failed was to change, and what the broker goes by all the same."""
        may_pass = self._may_pass(error)
        for batch in batches:
            effects: list[Effect] = [e for e in batch.effects if not isinstance(e, UNDONE_BY_FAILURE)]
            # Moves hold nothing but numbers; of all else it is to be seen whether it was what failed.
            never_at_fault: list[Effect] = [e for e in effects if isinstance(e, NEVER_AT_FAULT)]
            if not may_pass and len(never_at_fault) < len(effects):
                effects = effects if self._can_be_written([*self._owed, *effects]) else never_at_fault
            self._owed += effects
