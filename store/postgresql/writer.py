"""
The writer thread: group commit over one connection, which is made again when it is lost.

Commit, then tell: ``on_commit`` is called on this thread, in order, once its batches are durable (or have failed).
Nobody else writes to the schema: the fence at the beginning of every transaction ensures that (``schema.FENCE``).

How the result of a transaction is determined. It is committed if the server has said so, and the session is idle then.
An error proves nothing, whether it comes from the server or the client, before or after the COMMIT was sent. So after
every error the number of the last commit is read, and the transaction is not reported before that number is known.

- An error of the server, or of the client's conversion of values, in a session that still answers. The session rolls
  back and is asked for the number: it has then finished everything that was sent before. If the number is the one
  before this transaction's, nothing of the transaction is there, nor will be: it has failed with that error.
- Everything else is unknown: the connection is lost or may be, the server shuts down, the session does not answer, is
  not idle, or has another number. The thread connects again, takes the lock, which no earlier session can hold then,
  commits a barrier, and reads the number. It tries for as long as it takes; publishers wait. If it finds this
  transaction's number, the transaction is done, and is reported. If it finds the number before, the transaction is not
  done, and is executed again. With any other number, another gateway has taken over.
- The fence refuses a transaction that was never sent before, and the row has its number: an earlier transaction has
  that number. This transaction is not done; it gets the next number.
- If the client fails again on new connections (``CLIENT_TRIES``), the transaction fails with that error. It is known by
  then that nothing of it is there.

In two cases a batch is reported as failed although its result is unknown: when the gateway was deposed, and when the
writer is closed while the database cannot be reached.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from psycopg import errors, pq

from gateway.core.effects import Effect
from store.cursors import DroppedCursor
from store.errors import Deposed, WriteFailed
from store.group_commit import SWEEP_SECONDS, GroupCommit
from store.ports import Batch, OnCommit
from store.postgresql import takeover
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import (
    BEGIN,
    LOST_SECONDS,
    MAY_PASS,
    Connection,
    Database,
    Statement,
    Step,
    carry_out,
    commit,
    cut,
    is_lost,
    make_idle_sure,
)
from store.postgresql.partitions import Partitions
from store.postgresql.transaction import ROW, Transaction, fenced
from store.recovery import RecoveredStore

HEARTBEAT_SECONDS: Final = 1.0
"""An idle writer commits after so many seconds: this proves that no other gateway has taken over."""

RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between tries to connect: longer each time, up to the last."""

LOCK_SECONDS: Final = 0.1
"""Between two looks at a lock that another session holds."""

CLIENT_TRIES: Final = 5
"""How often a transaction is tried on new connections if the client fails and the connection does not seem at fault."""

CLOSE_SECONDS: Final = 5.0
"""How long a writer that is being closed keeps trying to reach the database."""

NUMBER_HERE: Final = b"select commit_no, %s::bigint from log"
"""The number of the last commit, and the given value."""

AT_WORK: Final = b"""
    select 1 from pg_stat_activity where pid = %s and application_name = %s
        and state = 'active' and coalesce(wait_event_type, '') <> 'Client'
"""
"""A session that is at work, and does not wait for its client."""


class _Unreachable(Exception):
    """The database could not be reached while the writer was being closed."""


class PostgresWriter(GroupCommit):
    """Writes one schema."""

    def __init__(
        self,
        database: Database,
        vpn: str,
        taken: takeover.TakenOver,
        found: RecoveredStore,
        partitions: Partitions,
        on_commit: OnCommit,
        on_largest: Callable[[int], None] = lambda size: None,
    ) -> None:
        """
        See ``GroupCommit``.

        Args:
            taken: The writer owns its connection from now on.
            partitions: They have a thread of their own; the caller closes them.
        """
        super().__init__(on_commit, found, on_largest)
        self._database = database
        self._vpn = vpn
        self._connection = taken.connection
        self._epoch = taken.epoch
        self._commit_no = taken.commit_no
        self._known = taken.known
        self.confirmed_at = taken.began
        self._partitions = partitions
        self._warnings: list[str] = []
        self._deposed: Deposed | None = None
        self._closing = threading.Event()
        self._closed_at = 0.0
        self._waits_since: float | None = None
        """Since when an answer of the server is awaited; None if none is."""
        self._connection.add_notice_handler(self._warned)
        self._watch = threading.Thread(target=self._watch_server, name=f"watch {vpn}", daemon=True)
        self._watch.start()
        self._thread = threading.Thread(target=self._run, name=f"writer {vpn}", daemon=True)
        self._thread.start()

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        """See ``Writer``. It never tries: the answer comes from another machine, and the loop has others to serve."""
        return False, None

    def close(self) -> None:
        """Commit what was submitted, and end. Blocks until done; a database that cannot be reached is soon given up."""
        self._closed_at = time.monotonic()
        self._closing.set()
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
        while self._thread.is_alive():
            # It waits for a server that does not answer.
            cut(self._connection)
            self._thread.join(CLOSE_SECONDS)
        self._watch.join()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_closing = has_told = False
        commits = 0
        while not is_closing:
            batches, is_closing = self._gather()
            if is_closing and not batches:
                break
            if batches:
                self._commit(batches)
                commits += 1
            elif time.monotonic() - self.confirmed_at >= HEARTBEAT_SECONDS:
                self._write_all([])  # an empty commit proves that no other gateway has taken over
            if self._deposed is None and not is_closing:
                self._clean_up(commits, is_idle=not batches)
            if self._deposed is not None and not has_told:
                has_told = True
                self._on_commit([], self._deposed)
            # The batches' receipts refer to links, which may be detached long before the next batch comes.
            del batches
        if self._owed and self._deposed is None:
            self._write_all([])
        with suppress(psycopg.Error):
            if self._deposed is None:
                # The session outlives its connection by some moments: the next gateway need not wait for that.
                self._connection.execute(b"select pg_advisory_unlock_all()")
            self._connection.close()

    def _patience(self) -> float | None:
        """See ``GroupCommit``."""
        if self._deposed is not None:
            return None
        if self._garbage:
            return 0
        beat = max(0.0, self.confirmed_at + HEARTBEAT_SECONDS - time.monotonic())
        return min(beat, SWEEP_SECONDS) if self._routes.is_due else beat

    def _may_pass(self, error: WriteFailed) -> bool:
        """See ``GroupCommit``."""
        cause = error.__cause__
        if isinstance(error, Deposed) or isinstance(cause, MemoryError | OSError | _Unreachable):
            return True
        if not isinstance(cause, psycopg.Error):
            return False
        state = cause.sqlstate
        return _is_client_failure(cause) if state is None else state[:2] in MAY_PASS

    def _write_all(self, batches: list[Batch]) -> WriteFailed | None:
        """See ``GroupCommit``."""
        transaction = Transaction(self._before())
        try:
            transaction.apply(self._owed)
            for batch in batches:
                transaction.apply(batch.effects)
            steps = transaction.finish()
            self._on_largest(transaction.largest_bytes)
        except Exception as error:
            # A text that cannot be encoded, say.
            return _failed(error)
        took = self._transact(steps, transaction)
        if isinstance(took, WriteFailed):
            return took
        self.commit_seconds.add(took)
        self._owed = []
        self._garbage.extend(transaction.new_garbage)
        self._has_held = transaction.has_held
        if batches:
            self._routes.committed(transaction.new_routes)
        self._partitions.goes_on(transaction.last_id, transaction.trimmed_to)
        self._partitions.erased_ids.update(transaction.erased_ids)
        return None

    def _can_be_written(self, effects: Sequence[Effect]) -> bool:
        """See ``GroupCommit``."""
        while True:
            transaction = Transaction(self._before())
            try:
                transaction.apply(effects)
                with self._answer_awaited():
                    carry_out(self._connection, [BEGIN, *transaction.finish()])
            except Exception as error:
                if not is_lost(error, self._connection):
                    # An error that may pass is not the effects' fault. The next transaction will meet it.
                    return self._may_pass(_failed(error))
                try:
                    self._connect_anew()
                except (Deposed, _Unreachable):
                    return True  # the next transaction will find out
            else:
                return True
            finally:
                self._roll_back()

    def _work_off(self, found: DroppedCursor) -> bool | None:
        """See ``GroupCommit``."""
        is_through = False

        def work_off(connection: Connection) -> None:
            nonlocal is_through
            is_through = found.work_off(PostgresShortTables(connection), has_held=self._has_held)

        if isinstance(self._transact([work_off]), WriteFailed):
            self._closing.wait(RETRY_SECONDS[0])
            return None
        return is_through

    def _sweep_routes(self) -> None:
        """See ``GroupCommit``."""
        # If the connection is lost, the next commit connects again.
        with suppress(psycopg.Error):
            with self._answer_awaited():
                unnamed = self._routes.look(PostgresShortTables(self._connection))
            if unnamed:
                self._transact([Statement("delete from route where number = any(%s::bigint[])", (unnamed,))])

    # --- one transaction ------------------------------------------------------------------------------------------

    def _transact(self, steps: Sequence[Step], transaction: Transaction | None = None) -> float | WriteFailed:
        """
        Execute a transaction until its result is known.

        Args:
            steps: Without the fence and the commit.
            transaction: The transaction of these steps, for the log's row; None if they do not change the row.

        Returns:
            The duration of its commit in seconds, or why nothing of it was written.
        """
        if self._deposed is not None:
            return self._deposed
        row = [0] * len(ROW) if transaction is None else transaction.log_row()
        number = self._commit_no + 1
        whole = fenced((self._epoch, self._commit_no, number, *row), steps)
        was_sent = False
        client_failures = 0
        while True:
            started = time.monotonic()
            try:
                with self._answer_awaited():
                    # Partitions created inside a transaction that was left open would be rolled back with it.
                    make_idle_sure(self._connection)
                    if transaction is not None and transaction.last_id:
                        self._partitions.make_now(self._connection, transaction.first_id, transaction.last_id)
                    commit(self._connection, whole)
                    if not self._warnings:
                        break
                    # Somebody cancelled the wait for the standby: the commit may be on the primary alone.
                    self._warnings.clear()
                    if takeover.barrier(self._connection, self._epoch) == number:
                        break
                return self._was_deposed()
            except Deposed:
                return self._was_deposed()
            except Exception as error:
                is_lost_now = is_lost(error, self._connection)
                is_client = not is_lost_now and _is_client_failure(error)
                is_refused = _is_fence(error)
                if not (is_lost_now or is_client or is_refused) and self._is_undone_here(number):
                    return _failed(error)
                try:
                    is_done = self._is_done(number)
                except Deposed:
                    return self._was_deposed()
                except _Unreachable as unreachable:
                    return _failed(unreachable)
                if is_done and is_refused and not was_sent:
                    # An earlier transaction has this number. It was taken for failed; this one was never done.
                    self._commit_no, number = number, number + 1
                    whole = fenced((self._epoch, self._commit_no, number, *row), steps)
                    continue
                if is_done:
                    break
                client_failures += is_client
                if client_failures >= CLIENT_TRIES:
                    return _failed(error)
                was_sent = True
        self._commit_no = self._known.commit_no = number
        self._known.last_id = max(self._known.last_id, row[0])
        self.confirmed_at = started
        return time.monotonic() - started

    def _is_done(self, number: int) -> bool:
        """
        Whether a transaction is committed, found out on a new connection.

        Raises:
            Deposed: Another gateway has taken over.
            _Unreachable: It cannot be found out any more.
        """
        found = self._connect_anew()
        if found not in (number - 1, number):
            raise Deposed("commits that are not this gateway's are in the store")
        return found == number

    def _is_undone_here(self, number: int) -> bool:
        """
        Whether the session in which a transaction failed says that nothing of it is there. False: that is unknown, or
        it is there.
        """
        self._roll_back()
        # A random value identifies the answer to this very question.
        token = secrets.randbits(62)
        try:
            with self._answer_awaited():
                found = self._connection.execute(NUMBER_HERE, (token,)).fetchall()
        except Exception:
            return False
        return found == [(number - 1, token)]

    @contextmanager
    def _answer_awaited(self) -> Iterator[None]:
        """While the block runs, the server's answer is watched for."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = None

    def _roll_back(self) -> None:
        """End the failed transaction; if that is impossible, close the connection."""
        connection = self._connection
        if connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            return
        with suppress(Exception), self._answer_awaited():
            connection.execute(b"rollback")
        if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.close()

    def _was_deposed(self) -> Deposed:
        self._deposed = Deposed("another gateway has taken the store over")
        with suppress(psycopg.Error):
            self._connection.close()
        return self._deposed

    # --- the connection -------------------------------------------------------------------------------------------

    def _connect_anew(self) -> int:
        """
        Connect to the server that takes writes, take the lock, and find out what is committed.

        Returns:
            The number of the last commit.

        Raises:
            Deposed: Another gateway has taken over.
            _Unreachable: The writer was closed meanwhile.
        """
        tries = 0
        while True:
            with suppress(psycopg.Error):
                self._connection.close()
            try:
                connection = self._database.connect(self._vpn, takeover.WRITER)
                self._connection = connection
                self._have_lock()
                with self._answer_awaited():
                    found = takeover.barrier(connection, self._epoch)
                self._warnings.clear()
                connection.add_notice_handler(self._warned)
                self._partitions.connect_anew()
                return found
            except (psycopg.Error, OSError, MemoryError) as error:
                self._pause(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)], error)
                tries += 1

    def _have_lock(self) -> None:
        """Wait for the lock, unless another gateway has taken over."""
        connection = self._connection
        with self._answer_awaited():
            takeover.end_own_sessions(connection, self._database, self._vpn)
        while True:
            with self._answer_awaited():
                if takeover.try_lock(connection, self._vpn):
                    return
                if takeover.is_deposed(connection, self._epoch):
                    raise Deposed("another gateway has taken the store over")
            self._pause(LOCK_SECONDS, None)

    def _pause(self, seconds: float, error: Exception | None) -> None:
        """
        Wait before the next try.

        Raises:
            _Unreachable: The writer is being closed, and has tried for long enough.
        """
        if not self._closing.wait(seconds):
            return
        if time.monotonic() - self._closed_at > CLOSE_SECONDS:
            raise _Unreachable(f"the database cannot be reached: {error or 'another session has its lock'}")
        time.sleep(seconds)

    def _warned(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "")

    # --- the watch over the server --------------------------------------------------------------------------------

    def _watch_server(self) -> None:
        """
        A server that was stopped and replaced does not answer, and keeps its connections. So if an answer takes long,
        another connection looks whether this session is on the present server and still at work. If not, its connection
        is broken.
        """
        looked_at = 0.0
        while not self._closing.wait(1.0):
            waits_since = self._waits_since
            now = time.monotonic()
            if waits_since is None or now - max(waits_since, looked_at) < LOST_SECONDS:
                continue
            connection = self._connection
            looked_at = now
            with suppress(psycopg.Error, OSError):
                if not self._is_at_work(connection) and self._waits_since == waits_since:
                    cut(connection)

    def _is_at_work(self, connection: Connection) -> bool:
        """Whether a session is on the server that takes writes now, and is at work for its client."""
        session = (connection.info.backend_pid, self._database.session_name(self._vpn, takeover.WRITER))
        return bool(self._database.ask(self._vpn, "watch", AT_WORK, session))


def _is_client_failure(error: Exception) -> bool:
    """
    Whether the client had trouble with the connection or with itself, and not with a value. Then it is unknown how much
    was sent, and whether the connection's next answers can be trusted.
    """
    return (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
        and error.sqlstate is None
    )


def _is_fence(error: Exception) -> bool:
    """Whether the fence refused the transaction: the epoch, or the number of the last commit, differs."""
    return isinstance(error, errors.NotNullViolation) and error.diag.table_name == "log"


def _failed(error: Exception) -> WriteFailed:
    # Without the server's details, which may quote what a publisher has sent.
    told = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    failed = WriteFailed(told or str(error))
    failed.__cause__ = error
    return failed
