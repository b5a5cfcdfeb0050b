"""
What the machine itself can do, measured next to every figure: SQLite with the gateway's tables, PostgreSQL with its
rows.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

import sqlite_utils
from psycopg import Connection, connect

from store.postgresql.packed import copied
from store.postgresql.schema import MESSAGE_COLUMNS
from store.sqlite.schema import migrations

BODY = bytes(280)
"""As many bytes as a stored message of the generator has: its sections with a body of 256 octets."""

ROWS_PER_STATEMENT = 250
PAGE = 1000
TIME = 1_700_000_000_000
CHECKSUM = 1 << 46
"""A checksum of the usual length; nobody checks whether it is right."""


def database(path: Path) -> sqlite3.Connection:
    """A new file with the gateway's tables, which syncs at every commit."""
    migrations().apply(sqlite_utils.Database(path))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection


def insert(connection: sqlite3.Connection, first: int, count: int) -> None:
    """One transaction: messages ``first`` to ``first + count - 1``, each with a route."""
    connection.execute("begin immediate")
    for start in range(first, first + count, ROWS_PER_STATEMENT):
        ids = range(start, min(start + ROWS_PER_STATEMENT, first + count))
        messages = [value for number in ids for value in (number, TIME, "#queue/bench", 7, 1, CHECKSUM, BODY)]
        columns = "id, time, topic, bare, route, checksum, content"
        statement = f"insert into message ({columns}) values {_rows(7, len(ids))}"
        connection.execute(statement, messages)
    connection.execute("commit")


def _rows(columns: int, rows: int) -> str:
    return ",".join([f"({','.join('?' * columns)})"] * rows)


def write_rate(path: Path, count: int, per_commit: int = 500) -> float:
    """Messages a second into a new file at ``path``, ``per_commit`` messages a transaction."""
    connection = database(path)
    started = time.perf_counter()
    for first in range(1, count + 1, per_commit):
        insert(connection, first, min(per_commit, count + 1 - first))
    seconds = time.perf_counter() - started
    connection.close()
    return count / seconds


def commit_latencies(path: Path, count: int) -> list[int]:
    """Nanoseconds of each of ``count`` transactions of one message."""
    connection = database(path)
    latencies = []
    for number in range(1, count + 1):
        started = time.perf_counter_ns()
        insert(connection, number, 1)
        latencies.append(time.perf_counter_ns() - started)
    connection.close()
    return latencies


def read_rate(path: Path) -> float:
    """Messages a second out of the file at ``path``, from the first on, in pages of 1,000."""
    connection = sqlite3.connect(path)
    statement = "select id, time, topic, bare, content from message where id > ? order by id limit ?"
    started = time.perf_counter()
    count = last = 0
    while page := connection.execute(statement, (last, PAGE)).fetchall():
        count += len(page)
        last = page[-1][0]
    seconds = time.perf_counter() - started
    connection.close()
    return count / seconds


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
    """A table in a database of its own; each call continues with the next ids."""

    def __init__(self, url: str) -> None:
        """``url`` is the URL of a database in which no other table has this name."""
        self._connection: Connection = connect(url, autocommit=True)
        self._connection.execute(_TABLE)
        self._next = 1

    def copy_rate(self, count: int, per_commit: int) -> float:
        """Messages a second by COPY, ``per_commit`` a transaction; the time for encoding them does not count."""
        ids = range(self._next, self._next + count)
        self._next = ids.stop
        rows = [(number, TIME, TOPIC, BARE, ROUTE, None, BODY) for number in ids]
        pieces = [copied(rows[at : at + per_commit], len(BODY)) for at in range(0, count, per_commit)]
        statement = f"copy raw ({MESSAGE_COLUMNS}) from stdin (format binary)".encode()
        started = time.perf_counter()
        for piece in pieces:
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
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

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
