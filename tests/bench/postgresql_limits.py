"""
What PostgreSQL itself can do with the gateway's rows, on the server that the gateway uses: a binary COPY, one commit
for each of many rows, a commit of one row.

The rows go into a table as one partition of the log is, with its two indexes. Nothing here knows AMQP.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from psycopg import Connection, connect

from store.postgresql.copy_rows import copied
from store.postgresql.schema import MESSAGE_COLUMNS

from .limits import BODY, CHECKSUM, TIME

TOPIC: Final = "#queue/bench"
ROUTE: Final = 1
BARE: Final = 7

_TABLE: Final = """
create table raw (
    id bigint not null, time bigint not null, checksum bigint not null, route bigint not null, bare integer not null,
    topic text not null, content bytea not null, primary key (id)
);
create index on raw (route, id) where route <> 0
"""


class RawTable:
    """A table in a database of its own, as a context manager; each use goes on with the next ids."""

    def __init__(self, url: str) -> None:
        """``url``: of the database, in which nobody else has a table of this name."""
        self._connection: Connection = connect(url, autocommit=True)
        self._connection.execute(_TABLE)
        self._next = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def copy_rate(self, count: int, per_commit: int) -> float:
        """Messages a second by COPY, ``per_commit`` a transaction; that they are encoded is not counted."""
        pieces = [self._encoded(min(per_commit, count - done)) for done in range(0, count, per_commit)]
        started = time.perf_counter()
        for piece in pieces:
            with (
                self._connection.cursor() as cursor,
                cursor.copy(f"copy raw ({MESSAGE_COLUMNS}) from stdin (format binary)".encode()) as copy,
            ):
                copy.write(piece)
        return count / (time.perf_counter() - started)

    def commit_latencies(self, count: int) -> list[int]:
        """Nanoseconds of each of ``count`` transactions of one message."""
        statement = f"insert into raw ({MESSAGE_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s)".encode()
        latencies = []
        for _ in range(count):
            row = (self._next, TIME, CHECKSUM, ROUTE, BARE, TOPIC, BODY)
            self._next += 1
            started = time.perf_counter_ns()
            self._connection.execute(statement, row)
            latencies.append(time.perf_counter_ns() - started)
        return latencies

    def _encoded(self, rows: int) -> bytes:
        first, self._next = self._next, self._next + rows
        return copied(
            [(number, TIME, TOPIC, BARE, ROUTE, None, BODY) for number in range(first, self._next)], len(BODY)
        )
