"""A Spark driver for tests to kill: it streams into Parquet what the log has at the driver's start.

``python stream_driver.py url|path WHERE OUT CHECKPOINT``; prints a line after each micro-batch.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from spark_bridge import register, set_worker_python


class Tell(StreamingQueryListener):
    """Prints a line on stdout after each batch, for the test that kills this process."""

    def onQueryStarted(self, event: object) -> None:
        """Print nothing."""

    def onQueryProgress(self, event: object) -> None:
        """Print the number of the finished batch."""
        print(f"batch {event.progress.batchId}", flush=True)

    def onQueryTerminated(self, event: object) -> None:
        """Print nothing: the process ends anyway."""


def main(way: str, where: str, out: str, checkpoint: str) -> None:
    """Run the stream until it has read what the log had at the start."""
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
