"""
Group commit: one transaction takes all that arrived while the last one was made durable. What a writer of any engine
does about it: what waits is gathered, of transactions that fail the one at fault is found, and what is owed is kept.
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


class RouteSweep:
    """
    The routes that a writer knows to be stored, and how far they were looked at.

    A round of looks begins when something was committed since the last one began.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.known = set(numbers)
        """Publishing looks here: what is not in it is written, if it is not there."""
        self.after = 0
        """Numbers up to this one were looked at in this round; 0 between rounds."""
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """There is something to be looked at."""
        return self._is_changed or self.after > 0

    def committed(self, numbers: Collection[int]) -> None:
        """A transaction was committed that wrote these routes."""
        self.known.update(numbers)
        self._is_changed = True

    def look(self, tables: ShortTables) -> list[int]:
        """
        Look at some more routes; nobody writes meanwhile.

        Returns:
            Those that no message names, to be deleted. They are forgotten already: whoever publishes on one again
            writes it again.
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
    A writer's queue, and what its thread does with the batches in it.

    Several that fail together, by an error that will not pass by itself, are written apart: who is at fault fails
    alone.
    """

    def __init__(self, on_commit: OnCommit, found: RecoveredStore, on_largest: Callable[[int], None]) -> None:
        """
        Args:
            on_commit: Told of every transaction, from the writer's thread: the batches, in order, and the error when
                nothing of them was written.
            found: What the store had when it was opened.
            on_largest: Told of a transaction's largest content, in bytes, before anybody can read it.
        """
        self._on_commit = on_commit
        self._on_largest = on_largest
        self._garbage = deque(found.garbage)
        """Dropped cursors that are still to be worked off."""
        self._routes = RouteSweep(definition.number for definition, _ in found.routes)
        self._indexed = [span for span in found.indexed if span.end_id is None]
        """Spans of the index that go on: they get what is logged from now on."""
        self._has_held = found.has_held
        """There may be messages that the log does not hold."""
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

    @abstractmethod
    def _work_off(self, found: DroppedCursor) -> bool | None:
        """A piece of what a dropped cursor left; whether nothing is left of it, None where it could not be done."""

    @abstractmethod
    def _sweep_routes(self) -> None:
        """Drop some of the routes that no message names."""

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

    def _before(self) -> Before:
        return Before(self._garbage, self._routes.known, self._indexed, self._has_held)

    def _clean_up(self, commits: int, *, is_idle: bool) -> None:
        """
        Look after what is left behind: when nothing else waits; under load at every few commits, so that it ends there,
        too.
        """
        if self._garbage and (is_idle or commits % GARBAGE_EVERY == 0):
            is_through = self._work_off(self._garbage[0])
            if is_through is None:
                # It stays in the garbage table: the next start, or the next pass, tries again.
                self._garbage.rotate(-1)
            elif is_through:
                self._garbage.popleft()
        if self._routes.is_due and (is_idle or commits % SWEEP_EVERY == 0):
            self._sweep_routes()

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
