"""
What was published since the log's row was written.

That row is a page: of the three that a commit of one message would write, this one says nothing that the messages do
not say themselves. So publishing leaves it as it is. It holds for all ids up to its ``last_id``, and the messages
above, few of them, are looked at by whoever has to know the rest. Messages above it that are deleted could tell nothing
any more, not even that their ids were given out: whatever deletes messages brings the row up to date in the same
transaction.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import apsw

from store.sqlite.schema import SIZE_ON_DISK

MOST_UNSAVED: Final = 1_000
"""Messages after which the row is written all the same: a page more now and then, and little to look at for a start."""


class LogTail(NamedTuple):
    """The messages above the row's ``last_id``."""

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
