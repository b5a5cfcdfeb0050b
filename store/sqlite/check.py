"""
Whether a file keeps the promises of its writer: a check of everything, for tests and for operators in doubt.

``store.promises`` has the promises. The file is only read, and may be in use: all queries see one state of it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from store.cursors import by_priority, header_priority
from store.promises import DAMAGED, MOST_EXAMPLES, Promise, promises, version_problem
from store.sqlite import schema
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import applied_migrations, connect_reader
from store.sqlite.packed import CHECKED, sound_row

PROMISES: Final = (
    *promises(SqliteShortTables),
    Promise(
        "message {} is neither held nor in the log, which begins at {}",
        "select id, first_id from message, log where id < first_id and held is null",
    ),
)


def check(path: Path) -> list[str]:
    """
    What is wrong with a file, a sentence each; empty if all is well. Reads the whole file: some seconds per gigabyte.
    """
    if not path.is_file():
        return ["it is a folder; name a file in it" if path.is_dir() else f"there is no file {path}"]
    try:
        with closing(connect_reader(path)) as connection:
            connection.create_scalar_function("header_priority", header_priority, 2, deterministic=True)
            connection.create_scalar_function("by_priority", by_priority, 1, deterministic=True)
            connection.create_scalar_function("is_as_written", _is_as_written, 8, deterministic=True)
            connection.execute("begin")
            return _check(connection)
    except apsw.Error as error:
        return [f"it cannot be read: {error}"]


def _check(connection: apsw.Connection) -> list[str]:
    found = [
        f"SQLite: {finding}"
        for (finding,) in connection.execute(f"pragma integrity_check({MOST_EXAMPLES})")
        if finding != "ok"
    ]
    if found:
        return found
    applied = applied_migrations(connection)
    if schema.NEVER_RELEASED.intersection(applied):
        return ["it was written by a version that was never released"]
    lacking = "it is not a gateway's file, or a gateway has to open it once"
    found = version_problem(applied, schema.MIGRATIONS, lacking)
    if found:
        return found
    damaged: list[Any] = connection.execute(
        f"select id from message where not is_as_written({CHECKED}) order by id"
    ).fetchall()
    found = DAMAGED.told(damaged)
    for promise in PROMISES:
        try:
            rows = connection.execute(promise.query).fetchall()
        except Exception:
            if damaged:  # Queries that parse contents fail on damaged ones.
                continue
            raise
        found += promise.told(rows)
    return found


def _is_as_written(*checked: Any) -> bool:
    """SQL's ``is_as_written``: whether a row, with its topic as bytes, has the right checksum."""
    return sound_row(checked) is not None
