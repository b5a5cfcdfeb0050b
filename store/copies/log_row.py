"""
The log's row in a store, whichever engine keeps it, and what it is in a copy that is a log of its own.

In such a log nothing holds that was told of the old one's ids. A consumer that comes with a replay id of before is
refused (``log-modified``), a Spark query finds its log made anew, an archive is of another log. Who kept a plain offset
says nothing of a generation; so ids are left out, as many as may have been given out since the copy was made: such an
offset stands where the new messages begin.
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

SKIP_IDS: Final = 1_000_000
"""Ids that are left out. Readers pass over them in some milliseconds, and the ids of a log last for all that."""


class LogRow(NamedTuple):
    """The log's row, which counts all messages: ``store.sqlite.schema`` says what each is."""

    generation: int
    first_id: int
    last_id: int
    last_time: int
    floor_time: int
    size_bytes: int
    largest_bytes: int
    next_number: int
    archived_id: int
    counted_id: int

    def renewed(self, *, above: int = 0, skip_ids: int = SKIP_IDS) -> LogRow:
        """
        Of another log with the same messages, which no archive has anything of.

        Args:
            above: An id that is known to have been given out, where one is.
            skip_ids: How many ids to leave out behind the highest one known.
        """
        return self._replace(
            generation=secrets.randbits(63), last_id=max(self.last_id, above) + skip_ids, archived_id=0
        )
