"""The replay log that is archived, as the archiver asks it: a gateway over AMQP, or a gateway's file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from store.archive.id_range import IdRange


class LogWatch(Protocol):
    """Tells again and again where a log stands; for one thread. It keeps a connection open between two questions."""

    def extent(self) -> IdRange:
        """
        The ids the log holds; last < first when there are none.

        Raises:
            LogUnavailable: It is away, also after one new try.
        """

    def close(self) -> None:
        """Let go of connection or file; the next question opens them anew."""


class ArchivableLog(Protocol):
    """A log whose messages can be had as they are stored or delivered, bit for bit."""

    def watch(self) -> LogWatch:
        """Begin to ask where it stands."""

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """
        The logged messages of a range in order: all columns, and each one's bytes.

        Raises:
            DataLoss: The log no longer holds the range.
            LogUnavailable: It went away.
        """
