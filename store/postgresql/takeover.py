"""
One active gateway at a time. It holds an advisory lock as long as its session lasts, and it has raised the epoch in the
log's row, which every transaction of the gateway must match. The lock keeps other gateways waiting. The epoch keeps a
gateway that was taken over from committing anything.

A gateway whose process was stopped (SIGSTOP, say) keeps its session and the lock, and commits nothing. So a gateway
that waits watches the number of the last commit, which rises every second as long as the active gateway is well. If the
number has not changed for longer than any gateway delivers messages without a commit, and the session is idle, the
waiting gateway ends the session. If the stopped gateway goes on later, its epoch is refused.

A barrier is a commit whose answer is awaited. The database has one write-ahead log: if a standby has the barrier, it
has everything before the barrier, too.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg

from store.copies import SKIP_IDS
from store.errors import Deposed
from store.postgresql.database import Connection, Database, cut, lock_key

WRITER: Final = "writer"
"""The purpose of the session that holds the lock."""

BEYOND_LEASE_SECONDS: Final = 1.0
"""How long an idle session is left alone after its gateway's lease must have ended."""

HOLDER: Final = b"""
    select pid, state <> 'active' or coalesce(wait_event_type, '') = 'Client'
    from pg_locks join pg_stat_activity using (pid)
    where locktype = 'advisory' and granted and objsubid = 1
        and pg_locks.database = (select oid from pg_database where datname = current_database())
        and classid = %s::bigint::oid and objid = %s::bigint::oid
"""
"""The session that holds a lock, and whether it is idle. A session whose commit waits for a standby is not idle."""


def try_lock(connection: Connection, vpn: str) -> bool:
    """Take the lock of a Message VPN if it is free. It is held as long as the session lasts."""
    ((is_mine,),) = connection.execute(b"select pg_try_advisory_lock(%s)", (lock_key(vpn),)).fetchall()
    return bool(is_mine)


STANDBY_SECONDS: Final = 10.0
"""How long the commits of a takeover may wait for a synchronous standby before the takeover is given up for now."""

LOOK_SECONDS: Final = 1.0

WAITS: Final = b"""
    select exists (select 1 from pg_stat_activity where application_name = %s and wait_event = 'SyncRep')
"""

NO_STANDBY: Final = "its commits wait for a synchronous standby, but none answers"


@contextmanager
def standby_awaited(connection: Connection, database: Database, vpn: str) -> Iterator[None]:
    """
    Give up the block once its commits have waited for a standby for ``STANDBY_SECONDS``. The commits are not cancelled:
    the session goes on waiting at the server, and holds the lock until there is a standby.

    Raises:
        TimeoutError: The block was given up.
    """
    ended = threading.Event()
    waited = 0.0

    def watch() -> None:
        nonlocal waited
        while not ended.wait(LOOK_SECONDS):
            try:
                waited = waited + LOOK_SECONDS if waits_for_standby(database, vpn) else 0.0
            except (psycopg.Error, OSError):
                continue  # the block notices a lost server itself
            if waited >= STANDBY_SECONDS:
                cut(connection)
                return

    watching = threading.Thread(target=watch, name=f"takeover's watch {vpn}", daemon=True)
    watching.start()
    try:
        yield
    except psycopg.Error as error:
        if waited >= STANDBY_SECONDS:
            raise TimeoutError(NO_STANDBY) from error
        raise
    finally:
        ended.set()


def waits_for_standby(database: Database, vpn: str) -> bool:
    """
    Whether a commit of this gateway's writer, in this session or an earlier one, waits for a standby.

    Raises:
        psycopg.Error, OSError: The server cannot be asked.
    """
    ((waits,),) = database.ask(vpn, "standbys", WAITS, (database.session_name(vpn, WRITER),))
    return bool(waits)


NEWEST: Final = b"select generation, commit_no, last_id from log"

MOST_STEP: Final = 1 << 32
"""The highest step between two epochs."""


@dataclass
class Known:
    """
    The newest commit that a gateway knows of, its own or another's. A database that has less has lost it: a failover
    went to a standby that was behind.
    """

    generation: int = 0
    commit_no: int = 0
    last_id: int = 0

    def saw(self, generation: int, commit_no: int, last_id: int) -> None:
        """Note that this is committed."""
        if generation != self.generation:
            self.generation, self.commit_no, self.last_id = generation, commit_no, last_id
        else:
            self.commit_no = max(self.commit_no, commit_no)
            self.last_id = max(self.last_id, last_id)


class TakenOver(NamedTuple):
    """A store that this gateway has taken over."""

    connection: Connection
    """Holds the lock, and has raised the epoch."""
    epoch: int
    commit_no: int
    """The number of the last commit."""
    known: Known
    """Is updated with each commit."""
    began: float
    """``time.monotonic`` before the takeover began."""


class Successor:
    """A gateway that waits for the store of a Message VPN, and what it has seen of the gateway that has it."""

    def __init__(self, vpn: str, lease_seconds: float, known: Known) -> None:
        """
        Args:
            lease_seconds: No gateway delivers messages for longer than this after its last commit.
            known: Is updated with what it sees.
        """
        self._known = known
        self._key = lock_key(vpn)
        self._patience = lease_seconds + BEYOND_LEASE_SECONDS
        self._seen: tuple[int, int] | None = None
        """The process id of the session that holds the lock, and the number of the last commit."""
        self._seen_at = 0.0

    def look(self, connection: Connection) -> None:
        """Look at the holder of the lock. If its gateway has stopped committing, end its session."""
        high, low = self._key >> 32 & 0xFFFFFFFF, self._key & 0xFFFFFFFF
        holders = connection.execute(HOLDER, (high, low)).fetchall()
        rows = _rows_of_log(connection, NEWEST)
        for generation, commit_no, last_id in rows:
            self._known.saw(generation, commit_no, last_id)
        if not holders:
            return
        ((pid, is_idle),) = holders
        seen = (pid, rows[0][1] if rows else 0)
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        elif is_idle and now - self._seen_at > self._patience:
            connection.execute(b"select pg_terminate_backend(%s::integer)", (pid,))


def active_gateway(connection: Connection) -> str | None:
    """HOST:PORT of the active gateway for clients, if known."""
    rows = _rows_of_log(connection, b"select active from log")
    return rows[0][0] or None if rows else None


def raise_epoch(connection: Connection, active: str, known: Known) -> tuple[int, int]:
    """
    Make this gateway the only one that can commit, in the caller's transaction. If the database has lost commits that
    were known, ids that clients know could be given out again: then the log gets another generation, and skips ids.

    Returns:
        (epoch, number of the last commit).
    """
    ((generation, commit_no, last_id),) = connection.execute(NEWEST + b" for update").fetchall()
    if generation == known.generation and commit_no < known.commit_no:
        generation = secrets.randbits(63)
        connection.execute(
            b"update log set generation = %s, last_id = %s, archived_id = 0",
            (generation, max(last_id, known.last_id) + SKIP_IDS),
        )
    # The step is random: if the database has lost a takeover, no gateway gets the epoch that another believes it has.
    ((epoch, commit_no, last_id),) = connection.execute(
        b"update log set epoch = epoch + %s, active = %s returning epoch, commit_no, last_id",
        (secrets.randbelow(MOST_STEP) + 1, active),
    ).fetchall()
    known.saw(generation, commit_no, last_id)
    return epoch, commit_no


def barrier(connection: Connection, epoch: int) -> int:
    """
    Make a commit, and wait for it: everything found afterwards is as durable as any commit.

    Returns:
        The number of the last commit.

    Raises:
        Deposed: The epoch has changed.
        psycopg.Error: It is unknown whether the commit succeeded.
    """
    warnings: list[str] = []

    def warned(notice: object) -> None:
        warnings.append(str(getattr(notice, "message_primary", "")))

    connection.add_notice_handler(warned)
    try:
        while True:
            with connection.transaction():
                rows = connection.execute(
                    b"update log set active = active where epoch = %s returning commit_no", (epoch,)
                ).fetchall()
            if not rows:
                raise Deposed("another gateway has taken the store over")
            # If somebody cancels the wait for the standby, the answer is a warning, and proves nothing.
            if not warnings:
                break
            warnings.clear()
    finally:
        connection.remove_notice_handler(warned)
    ((commit_no,),) = rows
    return int(commit_no)


def end_own_sessions(connection: Connection, database: Database, vpn: str) -> None:
    """
    End this gateway's earlier sessions. Their connections are lost, but while the server does not know that, they hold
    the lock.
    """
    connection.execute(
        b"select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s "
        b"and pid <> pg_backend_pid() and usename = current_user",
        (database.session_name(vpn, WRITER),),
    )


def is_deposed(connection: Connection, epoch: int) -> bool:
    """Whether another gateway has taken over, as far as the server knows."""
    rows = connection.execute(b"select epoch from log").fetchall()
    return [(epoch,)] != rows


def _rows_of_log(connection: Connection, sql: bytes) -> list[Any]:
    """The rows of a query on ``log``; none while the schema is being created."""
    ((is_there,),) = connection.execute(b"select to_regclass('log') is not null").fetchall()
    return connection.execute(sql).fetchall() if is_there else []
