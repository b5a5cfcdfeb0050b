"""Rows for Spark out of a log's pages as they are stored, whichever engine keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from amqp_ext.message.annotations import Splicer
from spark_bridge.columns.record_batches import STORED, BatchBuilder
from spark_bridge.places.selection import Selection, topic_filter
from store.archive.columns import ALL, Columns
from store.archive.id_range import IdRange


class StoredLog(Protocol):
    """A log that is read where it is stored."""

    def pages(
        self,
        ids: IdRange,
        columns: Collection[str] = STORED,
        *,
        whole: bool = False,
        patterns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        The logged messages of a range in order, some thousand at a time: the id, those columns of ``STORED``, and what
        they were checked by: contents wherever they are read. What is beside them is checked where ``whole`` says so:
        it takes two columns more, and a twentieth of a row's time in Spark.

        Args:
            whole: Check all that is stored of a message, which is then all that is read.
            patterns: The topics of which every message is due that was there when the range was planned; None for
                what there is, where rules of retention took some out.

        Raises:
            DataLoss: The log no longer holds the range.
            ConnectionFailed: It cannot be read, or a message is not what was written.
        """


def stored_batches(
    log: StoredLog, selection: Selection, columns: Columns, ids: IdRange
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """``ReadableLog.batches`` of it."""
    assert ids.generation is not None
    patterns = selection.patterns
    is_whole = ">" in patterns and not any(pattern.startswith("!") for pattern in patterns)
    builder = BatchBuilder(columns, None if is_whole else topic_filter(patterns), selection.partition)
    splicer = Splicer(ids.generation)
    for page in log.pages(ids, builder.stored_columns, patterns=patterns):
        yield builder.stored(page, splicer, ids.generation), page.column("id")[-1].as_py() + 1


def stored_messages(log: StoredLog, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
    """``store.archive.source.ArchivableLog.with_messages`` of it: messages as the publisher sent them."""
    assert ids.generation is not None
    builder, splicer = BatchBuilder(ALL), Splicer(ids.generation)
    for page in log.pages(ids, whole=True):
        yield builder.stored(page, splicer, ids.generation), page.column("content").to_pylist()
