"""Reads as Spark's workers do them, without Spark; and by Spark itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

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


def load(spark: SparkSession, schema: str | None = None, **options: str) -> DataFrame:
    """A log as a DataFrame."""
    reader = spark.read.format("rewind").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def stream(spark: SparkSession, **options: str) -> DataFrame:
    """A log as a stream, from its beginning."""
    return spark.readStream.format("rewind").options(startingOffsets="earliest", **options).load()


def run(frame: DataFrame, folder: Path, kind: str = "rewind", **options: str) -> StreamingQuery:
    """Write what there is of a stream, and go on next time; as Parquet into ``folder/out``."""
    path = {"path": str(folder / "out")} if kind == "parquet" else {}
    writer = frame.writeStream.format(kind).options(**path, **options)
    query = writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    return query
