"""
The log's row in a Message VPN's file, and what was published since it was written.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import apsw

from store.copies import LogRow
from store.sqlite.schema import SIZE_ON_DISK

MOST_UNSAVED: Final = 1_000
"""Messages after which the row is written all the same: a page more now and then, and little to look at for a start."""


class LogTail(NamedTuple):
    """
    The messages above the row's ``last_id``.

    The row is a page: of the three that a commit of one message would write, this one says nothing that the messages
    do not say themselves. So publishing leaves it as it is. It holds for all ids up to its ``last_id``; whoever has to
    know the rest looks at the few messages above. If these were deleted, nothing would tell any more that their ids
    were given out: so whatever deletes messages brings the row up to date in the same transaction.
    """

    messages: int
    last_id: int
    """Of the newest; 0 where there is none, as in what follows."""
    last_time: int
    """Of the newest, ms since the epoch."""
    logged_bytes: int
    """What those of them take of the disk that the log holds."""
    largest_bytes: int
    """Of their contents."""

    def save(self, connection: apsw.Connection) -> None:
        """Bring the row up to date, inside the caller's transaction: the tail is ``EMPTY`` once that is committed."""
        if self.messages:
            connection.execute(
                "update log set last_id = max(last_id, ?), last_time = max(last_time, ?), "
                "size_bytes = size_bytes + ?, largest_bytes = max(largest_bytes, ?)",
                self[1:],
            )


EMPTY: Final = LogTail(0, 0, 0, 0, 0)


def read_tail(connection: apsw.Connection) -> LogTail:
    """The tail as it is in the file; contents are not read for it."""
    (row,) = connection.execute(
        "select count(*), coalesce(max(id), 0), coalesce(max(time), 0), "
        f"coalesce({SIZE_ON_DISK} filter (where held is null), 0), coalesce(max(length(content)), 0) "
        "from message where id > (select last_id from log)"
    )
    return LogTail(*row)


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
