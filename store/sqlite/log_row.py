"""
The log's row in a Message VPN's file, and the messages that were published since the row was written.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import apsw

from store.copies import LogRow
from store.sqlite.schema import SIZE_ON_DISK

MOST_UNSAVED: Final = 1_000
"""Published messages after which the row is written anyway: a page now and then, and little for a start to scan."""


class LogTail(NamedTuple):
    """
    The messages above the row's ``last_id``.

    A commit of one message would write three pages. One of them is the page of the log's row, which repeats what the
    messages say themselves. So publishing does not change the row: it holds for all ids up to its ``last_id``, and
    readers that need the rest look at the few messages above. If those messages were deleted, nothing would record that
    their ids were given out. So a transaction that deletes messages also brings the row up to date.
    """

    messages: int
    last_id: int
    """The id of the newest; 0 if there is none. The other columns are 0 then, too."""
    last_time: int
    """The arrival time of the newest, in ms since the epoch."""
    logged_bytes: int
    """The disk space of the logged messages among them."""
    largest_bytes: int
    """The size of their largest content."""

    def save(self, connection: apsw.Connection) -> None:
        """Bring the row up to date, in the caller's transaction. After its commit, the tail is ``EMPTY``."""
        if self.messages:
            connection.execute(
                "update log set last_id = max(last_id, ?), last_time = max(last_time, ?), "
                "size_bytes = size_bytes + ?, largest_bytes = max(largest_bytes, ?)",
                self[1:],
            )


EMPTY: Final = LogTail(0, 0, 0, 0, 0)


def read_tail(connection: apsw.Connection) -> LogTail:
    """Read the tail from the file, without contents."""
    (row,) = connection.execute(
        "select count(*), coalesce(max(id), 0), coalesce(max(time), 0), "
        f"coalesce({SIZE_ON_DISK} filter (where held is null), 0), coalesce(max(length(content)), 0) "
        "from message where id > (select last_id from log)"
    )
    return LogTail(*row)


COLUMNS: Final = LogRow._fields


def read_log(connection: apsw.Connection) -> LogRow | None:
    """The log's row, with what was published since it was written; None if there is no row yet."""
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
    """Write the log's row, in the caller's transaction."""
    marks = ", ".join("?" * len(COLUMNS))
    connection.execute(f"insert or replace into log (only, {', '.join(COLUMNS)}) values (1, {marks})", log)
