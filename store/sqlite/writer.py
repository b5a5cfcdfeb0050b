"""
The writer thread: group commit. One transaction takes everything that arrived while the last one was being synced.

Commit, then tell: ``on_commit`` is called on this thread, in order, once its batches are durable (or have failed).
Nothing else writes to the file. Between commits, the thread cleans up dropped cursors in small pieces, deletes routes
that no message names any more, and restarts the WAL after checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from gateway.core.effects import Effect
from store.cursors import DroppedCursor
from store.errors import WriteFailed
from store.group_commit import NUDGE, SWEEP_SECONDS, GroupCommit
from store.ports import Batch, OnCommit, StoreOptions
from store.recovery import RecoveredStore
from store.sqlite.checkpointer import Checkpointer
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_writer
from store.sqlite.log_row import EMPTY, LogTail, read_tail
from store.sqlite.statements import marks
from store.sqlite.transaction import Transaction, few_messages
from store.sqlite.trimming import is_in_the_wal

RETRY_SECONDS: Final = 0.004
"""The pause after a piece of a dropped cursor that could not be cleaned up."""

SCRUB_SECONDS: Final = 0.01
"""Between two looks whether the WAL was truncated."""

GARBAGE_BYTES: Final = 32 * 1024
"""What cleaning up a piece writes, roughly, without the WAL's overhead."""

COMMIT_NOW_SECONDS: Final = 0.001
"""If most commits take longer than this, they are left to the writer's thread, because the loop has others to serve. A
commit that takes long now and then does not count: a checkpoint, or the disk's own housekeeping."""

LET_GO_NOW: Final = 64
"""Messages settled that may be held, each a row to update: batches with more are left to the writer's thread, too."""

MAY_PASS: Final = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.FullError,
    apsw.InterruptError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.ReadOnlyError,
    MemoryError,
)
"""Errors of a disk, or of a machine, that may work again: the batch was not at fault."""


class SqliteWriter(GroupCommit):
    """Writes one file."""

    def __init__(
        self,
        path: Path,
        on_commit: OnCommit,
        options: StoreOptions,
        found: RecoveredStore,
        on_largest: Callable[[int], None] = lambda size: None,
    ) -> None:
        """See ``GroupCommit``."""
        super().__init__(on_commit, found, on_largest)
        self.confirmed_at = None  # no other gateway can have the file: this one holds the folder's lock
        self._connection = connect_writer(path, synchronous=options.synchronous)
        self._checkpointer = Checkpointer(path, options.checkpoint_bytes)
        self._tables = SqliteShortTables(self._connection)
        self._execute = self._connection.cursor().execute
        """Prepared here, so that ``commit_now`` on the loop's thread creates no cursor."""
        self._connection.execute(f"pragma journal_size_limit = {options.wal_limit_bytes}")
        self._tail = read_tail(self._connection)
        self._lock = threading.Lock()
        """Held by the thread that writes."""
        self._slow_share = 0.0
        """The share of recent commits, about, that took longer than ``COMMIT_NOW_SECONDS``."""
        if is_in_the_wal(self._connection):  # left by a gateway that was killed
            self._checkpointer.scrub_now(self._connection)
        self._thread = threading.Thread(target=self._run, name=f"writer {path.stem}", daemon=True)
        self._thread.start()

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        """
        See ``store.ports.Writer``. The two thread switches that it saves are a third of the time that a publisher with
        one outstanding message waits.
        """
        if self._slow_share > 0.5 or not self._lock.acquire(blocking=False):
            return False, None
        if self._has_held and batch.settled > LET_GO_NOW:
            self._lock.release()
            return False, None
        try:
            was_due = self._routes.is_due
            error = self._write_few(batch, answer)
        finally:
            self._lock.release()
        if self._checkpointer.is_ready or not was_due:
            # If nothing was due, the thread may sleep without a timeout.
            self._queue.put(NUDGE)
        return True, error

    def scrub(self, seconds: float) -> bool:
        """See ``store.ports.Store.scrub``."""
        checkpointer = self._checkpointer
        checkpointer.scrub()
        end = time.monotonic() + seconds
        while not checkpointer.scrubbed.wait(SCRUB_SECONDS):
            if time.monotonic() > end:
                return False
            checkpointer.wake()
            self._queue.put(NUDGE)
        return True

    def close(self) -> None:
        """Commit what was submitted, and end. Blocks until done."""
        self._queue.put(None)
        self._thread.join()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        commits = 0
        while not closing:
            batches, closing = self._gather()
            if closing and not batches:
                break
            with self._lock:
                if batches:
                    self._commit(batches)
                    commits += 1
                if not closing:
                    self._clean_up(commits, is_idle=not batches)
                self._checkpointer.restart_wal(self._connection)
            # The batches' receipts refer to links, which may be detached long before the next batch comes.
            del batches
        if self._owed:
            self._write([])
        self._checkpointer.close()
        with suppress(apsw.Error):
            # SQLite does this by itself only if no reader is connected. The file of a stopped gateway is then complete
            # without its WAL.
            ((busy, _, _),) = self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()
            if not busy:
                self._checkpointer.scrubbed.set()
        self._connection.close()

    def _patience(self) -> float | None:
        """See ``GroupCommit``."""
        if self._garbage:
            return 0
        return SWEEP_SECONDS if self._routes.is_due else None

    def _has_work(self) -> bool:
        """Whether a checkpoint waits for the writer to restart the WAL."""
        return self._checkpointer.is_ready

    def _may_pass(self, error: WriteFailed) -> bool:
        """See ``GroupCommit``."""
        return isinstance(error.__cause__, MAY_PASS)

    def _transaction(self) -> Transaction:
        return Transaction(self._connection, self._tail, self._before())

    def _write_few(self, batch: Batch, answer: Callable[[], None]) -> WriteFailed | None:
        """Commit a small batch: by one statement if that is enough."""
        few = None
        started = time.monotonic()
        try:
            if not (self._owed or self._indexed) and self._checkpointer.is_ahead:
                few = few_messages(batch.effects, self._tail, self._routes.known)
            if few is not None:
                self._on_largest(few.tail.largest_bytes)
                self._execute(few.statement, few.values)
        except Exception as error:
            # A batch of publications owes nothing when it fails.
            return self._failed(error)
        if few is None:
            failed = self._write([batch], is_small=True)
            if failed is None:
                answer()
            return failed
        took = time.monotonic() - started
        try:
            answer()
        finally:
            self._committed(took, few.tail, (), has_held=few.has_held or self._has_held)
            self._checkpointer.written(batch.size_bytes)
        return None

    def _write(self, batches: list[Batch], *, is_small: bool = False) -> WriteFailed | None:
        """One transaction. If it fails, its effects that must not be lost are kept for the next one."""
        error = self._write_all(batches, is_small=is_small)
        if error is not None:
            self._owe(batches, error)
        return error

    def _write_all(self, batches: list[Batch], *, is_small: bool = False) -> WriteFailed | None:
        """One transaction: everything or nothing."""
        connection = self._connection
        transaction = self._transaction()
        try:
            connection.execute("begin immediate")
            transaction.apply(self._owed)
            for batch in batches:
                transaction.apply(batch.effects)
            transaction.finish()
            self._on_largest(transaction.largest_bytes)
            if is_small:
                self._checkpointer.lengthen_wal()
            started = time.monotonic()
            connection.execute("commit")
        except Exception as error:
            return self._failed(error)
        took = time.monotonic() - started
        self._owed = []
        self._garbage.extend(transaction.new_garbage)
        self._committed(took, transaction.tail, transaction.new_routes, has_held=transaction.has_held)
        self._checkpointer.written(sum(batch.size_bytes for batch in batches))
        return None

    def _failed(self, error: Exception) -> WriteFailed:
        """Roll back. Returns the error to be reported."""
        self._roll_back()
        # Not every error is SQLite's: for a text that cannot be encoded, it is Python's.
        failed = WriteFailed(str(error))
        failed.__cause__ = error
        return failed

    def _committed(self, took: float, tail: LogTail, routes: Collection[int], *, has_held: bool) -> None:
        """
        A transaction is durable.

        Args:
            took: The duration of its commit, in seconds.
            routes: The routes that were written with it.
        """
        self.commit_seconds.add(took)
        self._slow_share += ((took > COMMIT_NOW_SECONDS) - self._slow_share) / 16
        self._tail = tail
        self._has_held = has_held
        self._routes.committed(routes)

    def _can_be_written(self, effects: Sequence[Effect]) -> bool:
        """See ``GroupCommit``."""
        try:
            self._connection.execute("begin immediate")
            transaction = self._transaction()
            transaction.apply(effects)
            transaction.finish()
        except Exception:
            return False
        finally:
            self._roll_back()
        return True

    def _roll_back(self) -> None:
        """End the failed transaction, unless SQLite has done so."""
        if self._connection.in_transaction:
            with suppress(apsw.Error):
                self._connection.execute("rollback")

    def _work_off(self, found: DroppedCursor) -> bool | None:
        """See ``GroupCommit``."""
        try:
            self._connection.execute("begin immediate")
            self._tail.save(self._connection)
            is_through = found.work_off(self._tables, has_held=self._has_held)
            self._connection.execute("commit")
        except apsw.Error:
            self._roll_back()
            time.sleep(RETRY_SECONDS)
            return None
        self._tail = EMPTY
        self._checkpointer.written(GARBAGE_BYTES)
        return is_through

    def _sweep_routes(self) -> None:
        """See ``GroupCommit``."""
        with suppress(apsw.Error):
            unnamed = self._routes.look(self._tables)
            if unnamed:
                self._connection.execute(
                    f"delete from route where number in ({marks(len(unnamed))})", unnamed
                )
