"""What the machine itself can do, measured beside every figure: SQLite with the gateway's tables, a socket.

The SQLite limits write the rows the gateway writes (a message, in the index of its route) into the schema
of ``store``, in WAL mode with ``synchronous=FULL`` and SQLite's own checkpoints. Nothing here knows AMQP.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from pathlib import Path

import sqlite_utils

from store.sqlite.migrations import migrations

BODY = bytes(280)
"""A stored message of the generator: its sections with a body of 256 octets."""

CHECKSUM = (1 << 47) - 1
"""As long as a message's is; nobody looks at it."""

ROWS_PER_STATEMENT = 250
PAGE = 1000
TIME = 1_700_000_000_000
CHECKSUM = 1 << 46
"""As long as one is; nobody looks whether it is right."""
LOOPBACK_CHUNK = 65536


def database(path: Path) -> sqlite3.Connection:
    """A new file with the gateway's tables, synced at every commit."""
    migrations.apply(sqlite_utils.Database(path))
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


def loopback_rate(count: int, size: int) -> float:
    """Messages of ``size`` octets a second over a loopback TCP socket, as bytes alone."""
    total = count * size
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_pour, args=(listener.getsockname()[1], total))
        sender.start()
        sock, _ = listener.accept()
        buffer, received = bytearray(1 << 18), 0
        started = time.perf_counter()
        with sock:
            while received < total:
                received += sock.recv_into(buffer)
        seconds = time.perf_counter() - started
        sender.join()
    return count / seconds


def _pour(port: int, total: int) -> None:
    chunk = bytes(LOOPBACK_CHUNK)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for start in range(0, total, LOOPBACK_CHUNK):
            sock.sendall(chunk[: total - start])
