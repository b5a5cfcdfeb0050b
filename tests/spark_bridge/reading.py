"""Reads as Spark's workers do them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_bridge.columns.message_block import EncodedMessages, Gathered
from spark_bridge.options import Options
from spark_bridge.places.from_options import log_place
from store.archive.columns import Columns
from store.archive.source import IdRange


def plan(options: Options) -> IdRange:
    """What a read of the first place means now."""
    return log_place(options, 0).plan(options.selections[0])


def read(options: Options, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range of the first place."""
    return log_place(options, 0).read(options.selections[0], columns, ids)


def delivered(messages: Sequence[bytes]) -> EncodedMessages:
    """Messages as a link brings them, each in a delivery of its own."""
    page = Gathered(in_batches=False)
    for message in messages:
        page.add(message)
    return page.messages()
