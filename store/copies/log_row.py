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
"""Ids that are left out where a log does not say how fast it gives them out."""

LEAST_SKIPPED: Final = 10_000
MOST_SKIPPED: Final = 100_000_000
"""Readers pass over them in a second or two, and the ids of a log last for all that."""

MARGIN: Final = 4
"""For each id that a log gives out on average in the time that has gone by."""


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

    def ids_since(self, now_ms: int) -> int:
        """How many ids may have been given out, at most, since the newest message: by the pace that the log has had."""
        ids, took = self.last_id - self.first_id + 1, self.last_time - self.floor_time
        if ids <= 0 or took <= 0:
            return SKIP_IDS
        since = max(now_ms - self.last_time, 0)
        return min(max(MARGIN * ids * since // took, LEAST_SKIPPED), MOST_SKIPPED)

    def renewed(self, *, above: int = 0, skip_ids: int) -> LogRow:
        """
        Of another log with the same messages, which no archive has anything of.

        Args:
            above: An id that is known to have been given out, where one is.
            skip_ids: How many ids to leave out behind the highest one known.
        """
        return self._replace(
            generation=secrets.randbits(63), last_id=max(self.last_id, above) + skip_ids, archived_id=0
        )
