"""A Spark driver of its own, to be killed: streams a log into Parquet until what there was at its start is there.

``python stream_driver.py url|path WHERE OUT CHECKPOINT``; prints a line when a micro-batch is done.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from spark_bridge import register, set_worker_python


class Tell(StreamingQueryListener):
    """One line a batch on stdout, for who holds the gun."""

    def onQueryStarted(self, event: object) -> None:
        """Nothing is done yet."""

    def onQueryProgress(self, event: object) -> None:
        """A batch is done."""
        print(f"batch {event.progress.batchId}", flush=True)

    def onQueryTerminated(self, event: object) -> None:
        """The line after the last batch is the process's end."""


def main(way: str, where: str, out: str, checkpoint: str) -> None:
    """Run until what there was at the start is read."""
    set_worker_python()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.streams.addListener(Tell())
    reader = spark.readStream.format("rewind").option(way, where)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "500")
    frame = reader.schema("partition int, offset bigint, body binary").load()
    writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
