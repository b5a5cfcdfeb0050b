"""Reads as Spark's workers make them, without Spark, and reads by Spark itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming import StreamingQuery

from spark_bridge.columns.message_block import EncodedMessages, Gathered
from spark_bridge.options import Options
from spark_bridge.places.from_options import log_place
from spark_bridge.source import DDL, LogReader, RewindSource
from spark_bridge.stream import LogStream
from store.archive.columns import Columns, arrow_schema
from store.archive.source import IdRange
from tests.spark_bridge.spark_types import struct


def plan(options: Options) -> IdRange:
    """The ids that a read of the first place would give now."""
    return log_place(options, 0).plan(options.selections[0])


def read(options: Options, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range of the first place."""
    return log_place(options, 0).read(options.selections[0], columns, ids)


def source(**options: str) -> RewindSource:
    """A source with the options as Spark passes them."""
    given: Any = CaseInsensitiveDict()
    given.update(options)
    return RewindSource(given)


def rows(reader: LogReader) -> pa.Table:
    """All rows of a reader, partition by partition."""
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, arrow_schema(reader._columns))


def table(ddl: str = DDL, **options: str) -> pa.Table:
    """All rows that a batch with these options reads, in the order of offsets."""
    return rows(source(**options).reader(struct(ddl)))


@contextmanager
def streaming(ddl: str, **options: str) -> Iterator[LogStream]:
    """A stream of these columns, as Spark keeps one while a query runs."""
    reader = source(**options).streamReader(struct(ddl))
    try:
        yield reader
    finally:
        reader.stop()


def delivered(messages: Sequence[bytes]) -> EncodedMessages:
    """Messages as a link brings them, each in a delivery of its own."""
    page = Gathered(in_batches=False)
    for message in messages:
        page.add(message)
    return page.messages()


def load(spark: SparkSession, schema: str | None = None, **options: str) -> DataFrame:
    """A log as a DataFrame."""
    reader = spark.read.format("rewind").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def stream(spark: SparkSession, **options: str) -> DataFrame:
    """A log as a stream, from its beginning."""
    return spark.readStream.format("rewind").options(startingOffsets="earliest", **options).load()


def run(frame: DataFrame, folder: Path, kind: str = "rewind", **options: str) -> StreamingQuery:
    """Write what a stream has now, and continue at the next call; Parquet goes into ``folder/out``."""
    path = {"path": str(folder / "out")} if kind == "parquet" else {}
    writer = frame.writeStream.format(kind).options(**path, **options)
    query = writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    return query
