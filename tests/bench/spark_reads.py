"""``python -m tests.bench.spark_reads WAY WHERE LAST``: one Spark session reads a log in the ways that are measured.

WAY is path or url. It prints one JSON line with the seconds of each query by row; the first runs of each query are a
warm-up. ``floor`` is Spark's own time: for as many rows as in the range, from a data source that makes them up. A wrong
count of rows is an error. With ``--forever`` it reads bodies until SIGTERM, and prints a line when it begins.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from statistics import median

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_bridge import register, set_worker_python
from tests.bench.filled import BODY_BYTES

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
RANGE = 10_000
WARMING = 2  # runs until the JVM has compiled what a query needs
RUNS = 3
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class MadeUp(DataSource):
    """``RANGE`` rows in one batch: the cost of Spark itself for any data source in Python."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "made-up"

    def schema(self) -> str:
        """A body, and nothing else."""
        return "body binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader with one partition."""
        return MadeUpReader()


class MadeUpReader(DataSourceReader):
    """The reader of ``MadeUp``."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the one batch."""
        yield pa.RecordBatch.from_arrays([pa.array([bytes(BODY_BYTES)] * RANGE)], names=["body"])


def session() -> SparkSession:
    """Spark on two cores, with the data source."""
    set_worker_python()
    spark = SparkSession.builder.master("local[2]").appName("rewind-bench").config(map=SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(MadeUp)
    return spark


def read(spark: SparkSession, way: str, where: str, schema: str | None = None, **options: str) -> DataFrame:
    """The log with all its columns, or those of the schema."""
    reader = spark.read.format("rewind").options(**{way: where}, **options)
    return (reader.schema(schema) if schema else reader).load()


def seconds(frame: DataFrame, expected: int) -> float:
    """Seconds for counting the rows and adding up the lengths of their bodies."""
    started = time.perf_counter()
    row = frame.agg(F.count("*"), F.sum(F.length("body"))).first()
    passed = time.perf_counter() - started
    if row is None or row[0] != expected:
        raise SystemExit(f"{row} was read where {expected} rows are in the log")
    return passed


def measure(spark: SparkSession, way: str, where: str, last: int) -> dict[str, float]:
    """The seconds of each query: the median of the runs after the warm-up."""
    middle = max(last // 2, 1)
    stop = min(middle + RANGE, last + 1)
    queries = {
        "": lambda: seconds(read(spark, way, where, "body binary"), last),
        "-all": lambda: seconds(read(spark, way, where), last),
        "-range": lambda: seconds(
            read(spark, way, where, startingOffsets=str(middle), endingOffsets=str(stop)), stop - middle
        ),
        "-floor": lambda: seconds(spark.read.format("made-up").load(), RANGE),
    }
    return {
        f"spark-{way}{name}": median([query() for _ in range(WARMING + RUNS)][WARMING:])
        for name, query in queries.items()
    }


def adopt() -> None:
    """Become the parent of processes that Spark leaves behind, so that their processor time counts as ours."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def stop(_number: int, _frame: object) -> None:
    """Stop reading."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def end() -> None:
    """End Spark's processes, and wait for each."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def main() -> None:
    """Measure, or read until SIGTERM."""
    way, where, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
    adopt()
    spark = session()
    try:
        if "--forever" in sys.argv:
            signal.signal(signal.SIGTERM, stop)
            seconds(read(spark, way, where, "body binary", endingOffsets="2"), 1)
            print(json.dumps({"event": "reading"}), flush=True)
            while True:
                read(spark, way, where, "body binary", endingOffsets=str(last + 1)).agg(F.count("*")).first()
        figures = measure(spark, way, where, last)
        # The reader of the figures may end this process, but not while it waits for its children.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(json.dumps(figures), flush=True)
        spark.stop()
    finally:
        end()


if __name__ == "__main__":
    main()
