"""
Partitions of ``message``: made ahead of the ids that are given out, and dropped once the log begins behind them.

Their names say which ids they hold: ``message_FIRST_END`` has those from FIRST on, below END. They are attached, and
detached, without keeping readers out; nothing of it is done inside a transaction that somebody waits for, except where
ids have overtaken what was made ahead.
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
"""Ids of a partition, as a power of two, where the log is short: a partition is dropped as a whole, and what is trimmed
of it takes its place until then. A gigabyte, of messages of 64 KiB."""

MOST_BITS: Final = 24

PARTITIONS: Final = 32
"""That a log consists of, about: partitions made for a longer one are larger, so that a log of any length has few. What
is trimmed and not dropped yet is a thirty-second of the log."""

RETRY_SECONDS: Final = 5.0
"""From what could not be done to the next time."""

LOCK_SECONDS: Final = 1.0
"""For which the writer waits for a partition that is just being made."""

PATIENCE_MS: Final = 2_000
"""For which the thread waits for somebody's lock. Behind it wait those who want to read the same partition: it lets
them by, and tries again."""

ALREADY_THERE: Final = (errors.DuplicateTable, errors.UniqueViolation, errors.WrongObjectType)
"""What a server says where somebody else has made it, or is just doing so."""

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
        """Of its table."""
        return f"message_{self.first}_{self.end}"


def span_of(name: str) -> Span:
    """The span that a partition's name says."""
    found = re.fullmatch(r"message_(\d+)_(\d+)", name)
    assert found is not None, name
    return Span(int(found[1]), int(found[2]))


def attached_spans(connection: Connection) -> list[Span]:
    """Of all partitions, by their first ids; those that are about to go are left out."""
    return sorted(span_of(name) for name, is_going in connection.execute(ATTACHED).fetchall() if not is_going)


def partition_size(ids: int, bits: int = PARTITION_BITS) -> int:
    """
    How many ids a partition has that is made now.

    Args:
        ids: Of the log, about.
        bits: Of the smallest size, as a power of two.
    """
    return max(1 << bits, min(1 << MOST_BITS, 1 << (ids // PARTITIONS).bit_length()))


def missing_spans(spans: Sequence[Span], first: int, last: int, size: int) -> list[Span]:
    """What is to be made so that every id from ``first`` to ``last`` has its partition."""
    found: list[Span] = []
    position = first
    while position <= last:
        there = next((span for span in spans if span.first <= position < span.end), None)
        if there is None:
            begin = position // size * size
            end = begin + size
            # Where they were of another size before, it fills what is free.
            begin = max([begin, *[span.end for span in spans if span.end <= position]])
            end = min([end, *[span.first for span in spans if span.first > position]])
            there = Span(begin, end)
            found.append(there)
        position = there.end
    return found


def make(connection: Connection, span: Span) -> None:
    """
    Make a partition, beside whoever reads and writes. It gets the indexes of all.

    Raises:
        psycopg.Error: It cannot be made, or somebody else just did.
    """
    with connection.transaction():
        connection.execute(f"create table {span.name} (like message including all)".encode())
        connection.execute(
            f"alter table message attach partition {span.name} "
            f"for values from ({span.first}) to ({span.end})".encode()
        )


def drop_below(connection: Connection, first_id: int) -> None:
    """
    Drop the partitions whose ids are all below ``first_id``. Waits for whoever reads them, as long as the session's
    ``lock_timeout`` says; what was begun is ended the next time.

    Raises:
        psycopg.Error: It cannot be done now: somebody has a lock on one, say.
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
    """Which partitions there are, and a thread that makes those that come next and drops those that are over."""

    def __init__(
        self, database: Database, vpn: str, spans: Iterable[Span], *, bits: int = PARTITION_BITS
    ) -> None:
        self._database = database
        self._vpn = vpn
        self._bits = bits
        self._spans = sorted(spans)
        self._lock = threading.Lock()
        """Held while one is made."""
        self._wake = threading.Event()
        self._last_id = 0
        self._first_id = 0
        self.erased_ids: set[int] = set()
        """Of messages whose old rows may be in their partitions still: what is left of them is to be taken out."""
        self._has_looked = False
        """Whether what an earlier gateway has left behind was dropped."""
        self._is_closing = False
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=f"partitions {vpn}", daemon=True)
        self._thread.start()

    def has(self, first: int, last: int) -> bool:
        """Whether all ids from ``first`` to ``last`` have their partition."""
        return not missing_spans(self._spans, first, last, self._size)

    def make_now(self, connection: Connection, first: int, last: int) -> None:
        """
        Make what these ids need, on the writer's connection, between two of its transactions.

        Raises:
            psycopg.Error: It cannot be done.
        """
        # Whoever has the lock may wait for a server that is lost; that two make the same is seen by the server.
        is_mine = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            self._make(connection, first, last)
        finally:
            if is_mine:
                self._lock.release()

    def goes_on(self, last_id: int, first_id: int) -> None:
        """Ids up to ``last_id`` are given out, and the log begins at ``first_id``, as far as is said (0: it is not)."""
        self._last_id = max(self._last_id, last_id)
        self._first_id = max(self._first_id, first_id)
        if self._is_due():
            self._wake.set()

    def with_erased(self) -> tuple[frozenset[int], list[Span]]:
        """Ids whose rows may have left something, and the partitions that they are in."""
        ids = frozenset(self.erased_ids)
        return ids, [span for span in self._spans if any(span.first <= i < span.end for i in ids)]

    def connect_anew(self) -> None:
        """The writer had to: what is waited for here may be a server that was stopped."""
        connection = self._connection
        if connection is not None:
            cut(connection)

    def close(self) -> None:
        """End; what is not done will be by the next gateway."""
        self._is_closing = True
        self._wake.set()
        self.connect_anew()
        self._thread.join(LOST_SECONDS)

    @property
    def _size(self) -> int:
        """Of what is made now."""
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
            # The writer may have to wait for what is half made here.
            with self._lock, bounded(connection):
                self._make(connection, self._last_id, self._last_id + self._size)
        drop_below(connection, self._first_id)
        self._spans = attached_spans(connection)
        self._has_looked = True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
