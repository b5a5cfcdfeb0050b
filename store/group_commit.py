"""
Group commit: one transaction takes everything that arrived while the last one was made durable. What the writers of all
engines share: gathering batches, finding the one that makes a transaction fail, and keeping the effects that are owed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from gateway.core.effects import CountedUpTo, Effect, MoveCursor
from store.cursors import DroppedCursor
from store.errors import WriteFailed
from store.ports import UNDONE_BY_FAILURE, Batch, Histogram, OnCommit
from store.recovery import RecoveredStore
from store.tables import ShortTables
from store.transaction import Before

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Content at which a transaction is closed: this bounds its length, and how long later batches wait."""

COMMIT_BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
"""Seconds: from a disk that syncs to its cache to a disk in trouble."""

GARBAGE_EVERY: Final = 8
"""Under load, a piece of a dropped cursor is cleaned up every so many commits: publishers lose a tenth at most."""

SWEEP_EVERY: Final = 64
"""Under load, some routes are checked every so many commits."""

SWEEP_SECONDS: Final = 0.5
"""How long the writer must be idle before it checks all routes, some at a time."""

NEVER_AT_FAULT: Final = (MoveCursor, CountedUpTo)
"""Effects that contain numbers alone, and so never make a transaction fail."""

NUDGE: Final = Batch((), 0)
"""Wakes the writer's thread, without anything to commit."""


class RouteSweep:
    """
    The routes that a writer knows to be stored, and how far they were checked for messages.

    A round of checks begins if something was committed since the last round began.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.known = set(numbers)
        """Routes that are surely stored. Publishing on any other route writes it if it is not there."""
        self.after = 0
        """Routes up to this number were checked in this round; 0 between rounds."""
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """Whether there are routes to check."""
        return self._is_changed or self.after > 0

    def committed(self, numbers: Collection[int]) -> None:
        """A transaction that wrote these routes was committed."""
        self.known.update(numbers)
        self._is_changed = True

    def look(self, tables: ShortTables) -> list[int]:
        """
        Check some more routes; nobody may write meanwhile.

        Returns:
            The routes that no message names, to be deleted. They are not ``known`` any more: the next publication on
            such a route writes it again.
        """
        if not self.after:
            self._is_changed = False
        found = tables.ask(tables.unnamed_routes, self.after, tables.swept_routes)
        self.after = found[-1][0] if len(found) == tables.swept_routes else 0
        unnamed = [number for number, is_unnamed in found if is_unnamed]
        self.known.difference_update(unnamed)
        return unnamed


class GroupCommit(ABC):
    """
    A writer's queue of batches, and what its thread does with them.

    If several batches fail together, by an error that will not pass by itself, they are written separately: only the
    batch at fault fails.
    """

    def __init__(self, on_commit: OnCommit, found: RecoveredStore, on_largest: Callable[[int], None]) -> None:
        """
        Args:
            on_commit: Called for every transaction, on the writer's thread: the batches, in order, and the error if
                nothing of them was written.
            found: What the store had when it was opened.
            on_largest: Called with the size of a transaction's largest content, in bytes, before anybody can read it.
        """
        self._on_commit = on_commit
        self._on_largest = on_largest
        self._garbage = deque(found.garbage)
        """Dropped cursors that are still to be cleaned up."""
        self._routes = RouteSweep(definition.number for definition, _ in found.routes)
        self._indexed = [span for span in found.indexed if span.end_id is None]
        """Spans of the property index that still grow: they get the messages that are logged from now on."""
        self._has_held = found.has_held
        """There may be held messages."""
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._owed: list[Effect] = []
        """Effects of failed transactions that the broker has done in memory: the next transaction writes them first."""
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        """How long commits took, each with its sync."""

    def submit(self, batch: Batch) -> None:
        """Hand over effects to be made durable, in order of submission."""
        self._queue.put(batch)

    # --- what an engine implements ----------------------------------------------------------------------------------

    @abstractmethod
    def _write_all(self, batches: list[Batch]) -> WriteFailed | None:
        """Write one transaction: what is owed, and all of these batches, or nothing."""

    @abstractmethod
    def _can_be_written(self, effects: Sequence[Effect]) -> bool:
        """Try whether the effects can be written, in a transaction that is rolled back."""

    @abstractmethod
    def _may_pass(self, error: WriteFailed) -> bool:
        """Whether the error is of a disk or a machine that may work again: the batches were not at fault."""

    @abstractmethod
    def _patience(self) -> float | None:
        """Seconds to wait for a batch before background work is done; None: wait for ever."""

    @abstractmethod
    def _work_off(self, found: DroppedCursor) -> bool | None:
        """Clean up a piece of a dropped cursor. Returns whether nothing is left of it; None if the piece failed."""

    @abstractmethod
    def _sweep_routes(self) -> None:
        """Delete some of the routes that no message names."""

    def _has_work(self) -> bool:
        """Whether the thread has something to do when it is nudged."""
        return False

    # --- what engines share -----------------------------------------------------------------------------------------

    def _gather(self) -> tuple[list[Batch], bool]:
        """The batches to commit (none if there is background work to do), and whether the writer is to end."""
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

    def _before(self) -> Before:
        return Before(self._garbage, self._routes.known, self._indexed, self._has_held)

    def _clean_up(self, commits: int, *, is_idle: bool) -> None:
        """
        Do background work: whenever the writer is idle, and under load every few commits, so that it ends there, too.
        """
        if self._garbage and (is_idle or commits % GARBAGE_EVERY == 0):
            is_through = self._work_off(self._garbage[0])
            if is_through is None:
                # It stays in the garbage table: the next start, or the next round, tries again.
                self._garbage.rotate(-1)
            elif is_through:
                self._garbage.popleft()
        if self._routes.is_due and (is_idle or commits % SWEEP_EVERY == 0):
            self._sweep_routes()

    def _commit(self, batches: list[Batch]) -> None:
        """Commit batches, and report them. If one of several cannot be written, it fails without the others."""
        error = self._write_all(batches)
        if error is None or len(batches) == 1 or self._may_pass(error):
            if error is not None:
                self._owe(batches, error)
            self._on_commit(batches, error)
            return
        # In halves: a thousand publishers must not wait for a thousand syncs because of one batch.
        half = len(batches) // 2
        self._commit(batches[:half])
        self._commit(batches[half:])

    def _owe(self, batches: list[Batch], error: WriteFailed) -> None:
        """Keep the effects of a failed transaction that the broker has already done in memory."""
        may_pass = self._may_pass(error)
        for batch in batches:
            effects: list[Effect] = [e for e in batch.effects if not isinstance(e, UNDONE_BY_FAILURE)]
            # Cursor moves contain numbers alone. Any other effect may be what failed: that is tried.
            never_at_fault: list[Effect] = [e for e in effects if isinstance(e, NEVER_AT_FAULT)]
            if not may_pass and len(never_at_fault) < len(effects):
                effects = effects if self._can_be_written([*self._owed, *effects]) else never_at_fault
            self._owed += effects
