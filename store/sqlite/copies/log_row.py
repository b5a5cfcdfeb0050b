"""The log's row in a file, as copies have it (``store.copies.log_row``)."""

from __future__ import annotations

from typing import Any, Final

import apsw

from store.copies.log_row import LogRow
from store.sqlite.log_tail import read_tail

COLUMNS: Final = LogRow._fields


def read_log(connection: apsw.Connection) -> LogRow | None:
    """With what was published since the row was written; None where there is none yet."""
    rows: list[Any] = connection.execute(f"select {', '.join(COLUMNS)} from log").fetchall()
    if not rows:
        return None
    log, tail = LogRow(*rows[0]), read_tail(connection)
    return log._replace(
        last_id=max(log.last_id, tail.last_id),
        last_time=max(log.last_time, tail.last_time),
        size_bytes=log.size_bytes + tail.logged_bytes,
        largest_bytes=max(log.largest_bytes, tail.largest_bytes),
    )


def write_log(connection: apsw.Connection, log: LogRow) -> None:
    """In the caller's transaction."""
    marks = ", ".join("?" * len(COLUMNS))
    connection.execute(f"insert or replace into log (only, {', '.join(COLUMNS)}) values (1, {marks})", log)
