"""Files as past versions left them, one for each migration, and how they were made.

After a migration was added, `python -m tests.store.old_files` makes the file of the version that has it; keep it. The
files of the versions before stay as they are.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import sqlite_utils

from gateway.core.effects import (
    CountAttempts,
    DeleteEndpoint,
    Effect,
    Publication,
    RemoveReferences,
    RenumberEndpoint,
    SaveEndpoint,
    SaveSubscription,
)
from store.sqlite.database import connect_writer, open_file
from store.sqlite.schema import migrations
from store.sqlite.transaction import Transaction

FILES = Path(__file__).parent / "files"
MADE_MS = 1_700_000_000_000
GENERATION = 1_234_567_890


def _messages(
    first: int, count: int, topic: str, endpoints: tuple[int, ...], time_ms: int, *, logged: bool = True
) -> Publication:
    held = None if logged else len(endpoints)
    rows = [(first + k, time_ms, topic, k % 2, held, b"content %d\0" % (first + k)) for k in range(count)]
    return Publication(rows, topic, endpoints, logged, sum(len(row[5]) for row in rows), None)


def _settled(endpoint: int, ids: list[int]) -> RemoveReferences:
    return RemoveReferences(endpoint, ids, sum(len(b"content %d\0" % i) for i in ids))


SETTINGS = (
    '{"exclusive": "wait", "temporary": false, "quota_bytes": 0, "quota_messages": 9, "default_start": "", '
    '"declared": false}'
)
REPLAY = (
    '{"position": %d, "state": "active", "started_ms": 5, "live_from": null, "put": 3, "acknowledged": 1}'
)

HISTORY: list[list[Effect]] = [
    [
        SaveEndpoint(1, "orders", "queue", SETTINGS, None),
        SaveEndpoint(2, "reports", "topic-endpoint", SETTINGS, REPLAY % 4),
        SaveEndpoint(3, "gone", "queue", SETTINGS, None),
        SaveSubscription(1, "a/>"),
        SaveSubscription(1, "!a/x"),
        SaveSubscription(2, "ä/*"),
    ],
    [_messages(1, 20, "a/b", (1, 2, 3), MADE_MS + 5)],
    [_messages(21, 5, "ä/€", (2,), MADE_MS + 5, logged=False), _messages(26, 5, "a", (), MADE_MS + 9)],
    [_settled(1, [1, 2, 3, 5, 8]), _settled(2, [21]), CountAttempts(1, [(4, 2), (6, 1)])],
    [
        DeleteEndpoint(3),
        RenumberEndpoint(2, 4, REPLAY % 7),
        _messages(31, 3, "a/b", (1, 4), MADE_MS + 9),
    ],
]
"""What is in each file."""


def make(folder: Path) -> Path:
    """The file as this version makes it, in a folder."""
    names = [migration.name for migration in migrations.pending(sqlite_utils.Database(memory=True))]
    path = folder / f"{names[-1]}.db"
    path.unlink(missing_ok=True)
    open_file(path, MADE_MS, synchronous="FULL")
    with closing(connect_writer(path, synchronous="FULL")) as connection:
        _fill(connection)
    return path


def _fill(connection: sqlite3.Connection) -> None:
    connection.execute("update log set generation = ?", (GENERATION,))
    for effects in HISTORY:
        transaction = Transaction(connection, lambda _: None)
        transaction.has_held = True
        connection.execute("begin immediate")
        transaction.apply(effects)
        transaction.finish()
        connection.execute("commit")


if __name__ == "__main__":
    print(make(FILES))
