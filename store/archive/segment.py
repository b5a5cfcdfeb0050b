"""
One file of an archive: plain Parquet with the data source's columns, and two more that make it lossless.

``envelope`` is the message without its body, and ``bodyAt`` where the body belongs in it:
``envelope[:bodyAt] + body + envelope[bodyAt:]`` is the message bit for bit. Where the body does not stand in it in one
piece (several data sections, no body, a message that cannot be decoded), ``bodyAt`` is null and the envelope is the
whole message. Archived from a data folder that is the message as the publisher sent it; archived from a url, as a log
reader gets it, with the gateway's annotations.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqp_ext.topics import TopicFilter
from store.archive.columns import ALL, Columns, arrow_schema
from store.archive.erasures import Erasures
from store.archive.errors import ArchiveError
from store.archive.manifest import Segment
from store.archive.storage import ArchiveStorage

SCHEMA: Any = pa.schema(
    [*arrow_schema(ALL), pa.field("envelope", pa.binary()), pa.field("bodyAt", pa.int32())]
)
"""The schema of every file."""

GROUP_ROWS = 20_000
GROUP_BYTES = 16 << 20  # of messages in a row group: what a reader of one holds in memory
BATCH_ROWS = 2_000  # measured fastest into Spark, probably by the CPU's caches
_PLAIN = ["topic", "bodyType", "contentType", "subject", "groupId", "replyTo", "properties.key_value.key"]


def with_envelopes(batch: pa.RecordBatch, messages: Sequence[bytes]) -> pa.RecordBatch:
    """A batch of all columns, with what its messages have around their bodies."""
    envelopes: list[bytes] = []
    places: list[int | None] = []
    for message, body in zip(messages, batch.column("body").to_pylist(), strict=True):
        at = message.rfind(body) if body else -1
        places.append(at if at >= 0 else None)
        envelopes.append(message[:at] + message[at + len(body) :] if at >= 0 else message)
    arrays = [*batch.columns, pa.array(envelopes, pa.binary()), pa.array(places, pa.int32())]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def messages_of(table: pa.Table) -> list[bytes]:
    """The messages of rows that have the columns body, envelope and bodyAt, bit for bit."""
    found = []
    for row in table.select(["body", "envelope", "bodyAt"]).to_pylist():
        envelope, at = row["envelope"], row["bodyAt"]
        found.append(envelope if at is None else envelope[:at] + row["body"] + envelope[at:])
    return found


@dataclass
class SegmentWriter:
    """Puts batches into one Parquet file on a stream, and counts what is in it. Memory: one row group."""

    stream: Any
    rows: int = 0
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def __post_init__(self) -> None:
        self._writer = pq.ParquetWriter(
            self.stream,
            SCHEMA,
            compression="zstd",
            use_dictionary=_PLAIN,  # columns with few values; on bodies and ids a dictionary is only overhead
            write_statistics=["offset", "enqueuedTime", "topic"],
            write_page_checksum=True,  # so that a byte that is not what was written is noticed
        )
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows with rising offsets."""
        if not batch.num_rows:
            return
        times = batch.column("enqueuedTime").cast(pa.int64())
        if not self.rows:
            self.first_ms = times[0].as_py() // 1000
        self.last_ms = times[-1].as_py() // 1000
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._end_group()

    def close(self) -> None:
        """Write what is left and the footer."""
        self._end_group()
        self._writer.close()

    def _end_group(self) -> None:
        if self._group:
            table = pa.Table.from_batches(self._group, SCHEMA)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._group, self._group_rows, self._group_bytes = [], 0, 0


def batches(
    storage: ArchiveStorage,
    segment: Segment,
    columns: Sequence[str],
    first: int,
    last: int,
    erasures: Erasures,
) -> Iterator[pa.RecordBatch]:
    """
    The rows of ids ``first`` to ``last`` in order, with these columns; ``offset`` has to be one of them.

    Args:
        erasures: What the contents are not given of.

    Raises:
        FileNotFoundError: The file is gone.
        ArchiveError: It is not the one that the manifest names.
    """
    with storage.open(segment.file) as source:
        file = pq.ParquetFile(source)
        if file.metadata.num_rows != segment.rows:
            raise ArchiveError(
                f"{segment.file} of the archive {storage.where} has {file.metadata.num_rows} rows, and the manifest "
                f"says {segment.rows}."
            )
        offset = file.schema_arrow.get_field_index("offset")
        groups = []
        for group in range(file.metadata.num_row_groups):
            stored = file.metadata.row_group(group).column(offset).statistics
            if stored is None or not stored.has_min_max or (stored.max >= first and stored.min <= last):
                groups.append(group)
        for batch in file.iter_batches(
            BATCH_ROWS, row_groups=groups, columns=list(columns), use_threads=False
        ):
            ids = batch.column("offset")
            if ids[0].as_py() >= first and ids[-1].as_py() <= last:
                yield erasures.blanked(batch)
                continue
            wanted = batch.filter(pc.and_(pc.greater_equal(ids, first), pc.less_equal(ids, last)))
            if wanted.num_rows:
                yield erasures.blanked(wanted)


def read_footer(source: Any) -> bytes:
    """
    The footer of a file, with its length and the mark at the end.

    Raises:
        ArchiveError: It has none.
    """
    size = source.size()
    source.seek(max(size - 8, 0))
    end = source.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length + 8 > size:
        raise ArchiveError("it has no footer of a Parquet file")
    source.seek(size - 8 - length)
    return bytes(source.read(length + 8))


def footer_checksum(storage: ArchiveStorage, name: str) -> int:
    """CRC-32 of the footer of a published file: what says where all else is, and has no checksum of its own in it."""
    with storage.open(name) as source:
        return zlib.crc32(read_footer(source))


class Chooser:
    """Brings rows of a file to the columns of a read: topics that match, names of the user, the partition."""

    def __init__(self, columns: Columns, topics: TopicFilter | None = None, partition: int = 0) -> None:
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._topics = topics
        self._partition = partition
        needed = {name for name, _ in columns} - {"partition"}
        self.needed = sorted(needed | {"offset"} | ({"topic"} if topics is not None else set()))
        """The columns to be read of a file."""

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows and columns that are wanted."""
        if self._topics is not None:
            found = batch.column("topic").dictionary_encode()
            matching = [self._topics.matches(topic or "") for topic in found.dictionary.to_pylist()]
            batch = batch.filter(pa.array(matching, pa.bool_()).take(found.indices))
        arrays = [
            pa.repeat(pa.scalar(self._partition, pa.int32()), batch.num_rows)
            if name == "partition"
            else batch.column(name)
            for name, _ in self._columns
        ]
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
