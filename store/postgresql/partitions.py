"""
Partitions of ``message``: they are created in advance of the ids that are given out, and dropped once the log begins
after them.

A partition's name says which ids it holds: ``message_FIRST_END`` has the ids from FIRST on, below END. Partitions are
attached and detached without blocking readers. Nothing of this is done inside a transaction that somebody waits for,
except if ids have overtaken the partitions.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg import errors

from store.postgresql.database import LOST_SECONDS, Connection, Database, bounded, cut

PARTITION_BITS: Final = 14
"""Ids of a partition in a short log, as a power of two. A partition is dropped as a whole; until then, its trimmed
messages take space: a gigabyte, for messages of 64 KiB."""

MOST_BITS: Final = 24

PARTITIONS: Final = 32
"""Partitions of a log, about. Partitions created for a longer log are larger, so that a log of any length has few.
Space that was trimmed but not freed is a thirty-second of the log."""

RETRY_SECONDS: Final = 5.0
"""The pause after a failure."""

LOCK_SECONDS: Final = 1.0
"""How long the writer waits for a partition that is being created."""

PATIENCE_MS: Final = 2_000
"""How long the thread waits for a lock. Readers of the same partition queue up after it: so it gives up, lets them
pass, and tries again."""

ALREADY_THERE: Final = (errors.DuplicateTable, errors.UniqueViolation, errors.WrongObjectType)
"""The server's errors if another session has created the partition, or is just creating it."""

ATTACHED: Final = b"""
    select relname, inhdetachpending from pg_inherits join pg_class on pg_class.oid = inhrelid
    where inhparent = to_regclass('message') order by relname
"""

LEFT_OVER: Final = rb"""
    select relname from pg_class
    where relnamespace = (select relnamespace from pg_class where oid = to_regclass('message'))
        and relkind = 'r' and relname ~ '^message_\d+_\d+$'
        and not exists (select 1 from pg_inherits where inhrelid = pg_class.oid)
"""
"""Partitions that were detached, and not dropped yet."""


class Span(NamedTuple):
    """The ids of a partition: from ``first`` on, below ``end``."""

    first: int
    end: int

    @property
    def name(self) -> str:
        """The name of the partition's table."""
        return f"message_{self.first}_{self.end}"


def span_of(name: str) -> Span:
    """The span in a partition's name."""
    found = re.fullmatch(r"message_(\d+)_(\d+)", name)
    assert found is not None, name
    return Span(int(found[1]), int(found[2]))


def attached_spans(connection: Connection) -> list[Span]:
    """The spans of all partitions, in the order of their first ids, without those that are being detached."""
    return sorted(span_of(name) for name, is_going in connection.execute(ATTACHED).fetchall() if not is_going)


def partition_size(ids: int, bits: int = PARTITION_BITS) -> int:
    """
    How many ids a new partition has.

    Args:
        ids: The length of the log, about.
        bits: The smallest size, as a power of two.
    """
    return max(1 << bits, min(1 << MOST_BITS, 1 << (ids // PARTITIONS).bit_length()))


def missing_spans(spans: Sequence[Span], first: int, last: int, size: int) -> list[Span]:
    """The partitions to create so that every id from ``first`` to ``last`` has one."""
    found: list[Span] = []
    position = first
    while position <= last:
        there = next((span for span in spans if span.first <= position < span.end), None)
        if there is None:
            begin = position // size * size
            end = begin + size
            # If older partitions have another size, the new one fills the gap.
            begin = max([begin, *[span.end for span in spans if span.end <= position]])
            end = min([end, *[span.first for span in spans if span.first > position]])
            there = Span(begin, end)
            found.append(there)
        position = there.end
    return found


def make(connection: Connection, span: Span) -> None:
    """
    Create a partition while others read and write. It gets all indexes of ``message``.

    Raises:
        psycopg.Error: It cannot be created, or another session has just created it.
    """
    with connection.transaction():
        connection.execute(f"create table {span.name} (like message including all)".encode())
        connection.execute(
            f"alter table message attach partition {span.name} "
            f"for values from ({span.first}) to ({span.end})".encode()
        )


def drop_below(connection: Connection, first_id: int) -> None:
    """
    Drop the partitions whose ids are all below ``first_id``. Waits for their readers, as long as the session's
    ``lock_timeout``. What was begun is completed the next time.

    Raises:
        psycopg.Error: It cannot be done now: another session has a lock on a partition, say.
    """
    for name, is_going in connection.execute(ATTACHED).fetchall():
        if is_going:
            connection.execute(f"alter table message detach partition {name} finalize".encode())
        elif span_of(name).end <= first_id:
            connection.execute(f"alter table message detach partition {name} concurrently".encode())
    for (name,) in connection.execute(LEFT_OVER).fetchall():
        if span_of(name).end <= first_id:
            connection.execute(f"drop table {name}".encode())


class Partitions:
    """Which partitions there are, and a thread that creates the next ones and drops those that are trimmed."""

    def __init__(
        self, database: Database, vpn: str, spans: Iterable[Span], *, bits: int = PARTITION_BITS
    ) -> None:
        self._database = database
        self._vpn = vpn
        self._bits = bits
        self._spans = sorted(spans)
        self._lock = threading.Lock()
        """Held while a partition is created."""
        self._wake = threading.Event()
        self._last_id = 0
        self._first_id = 0
        self.erased_ids: set[int] = set()
        """Ids of erased messages whose old row versions may still be in their partitions, until a vacuum."""
        self._has_looked = False
        """Whether partitions that an earlier gateway detached were dropped."""
        self._is_closing = False
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=f"partitions {vpn}", daemon=True)
        self._thread.start()

    def has(self, first: int, last: int) -> bool:
        """Whether all ids from ``first`` to ``last`` have a partition."""
        return not missing_spans(self._spans, first, last, self._size)

    def make_now(self, connection: Connection, first: int, last: int) -> None:
        """
        Create the partitions of these ids that are missing, on the writer's connection, between two of its
        transactions.

        Raises:
            psycopg.Error: A partition cannot be created.
        """
        if self.has(first, last):
            return
        # The holder of the lock may wait for a lost server. If two create the same partition, the server tells.
        is_mine = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            self._make(connection, first, last)
        finally:
            if is_mine:
                self._lock.release()

    def goes_on(self, last_id: int, first_id: int) -> None:
        """Note that ids up to ``last_id`` are given out, and that the log begins at ``first_id``; 0: as before."""
        self._last_id = max(self._last_id, last_id)
        self._first_id = max(self._first_id, first_id)
        if self._is_due():
            self._wake.set()

    def with_erased(self) -> tuple[frozenset[int], list[Span]]:
        """The ids of ``erased_ids``, and the partitions that they are in."""
        ids = frozenset(self.erased_ids)
        return ids, [span for span in self._spans if any(span.first <= i < span.end for i in ids)]

    def connect_anew(self) -> None:
        """The writer has connected again: this thread may be waiting for a server that was stopped."""
        connection = self._connection
        if connection is not None:
            cut(connection)

    def close(self) -> None:
        """End the thread. The next gateway does what is left."""
        self._is_closing = True
        self._wake.set()
        self.connect_anew()
        self._thread.join(LOST_SECONDS)

    @property
    def _size(self) -> int:
        """The size of a partition that is created now."""
        return partition_size(self._last_id - self._first_id, self._bits)

    def _is_due(self) -> bool:
        spans = self._spans
        return bool(
            not self._has_looked
            or (self._last_id and not self.has(self._last_id, self._last_id + self._size))
            or (spans and spans[0].end <= self._first_id)
        )

    def _make(self, connection: Connection, first: int, last: int) -> None:
        for span in missing_spans(self._spans, first, last, self._size):
            try:
                make(connection, span)
            except ALREADY_THERE:
                self._spans = attached_spans(connection)
                if not self.has(span.first, span.end - 1):
                    raise
            else:
                self._spans = sorted([*self._spans, span])

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait()
            self._wake.clear()
            while not self._is_closing and self._is_due():
                try:
                    self._look_after()
                except (psycopg.Error, OSError):
                    self._disconnect()
                    self._wake.wait(RETRY_SECONDS)
                    self._wake.clear()
            self._disconnect()

    def _look_after(self) -> None:
        if self._connection is None:
            self._connection = self._database.connect(self._vpn, "partitions", lock_timeout=str(PATIENCE_MS))
        connection = self._connection
        if self._last_id:
            # With the lock: the writer may have to wait for a partition that is being created here.
            with self._lock, bounded(connection):
                self._make(connection, self._last_id, self._last_id + self._size)
        drop_below(connection, self._first_id)
        self._spans = attached_spans(connection)
        self._has_looked = True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
