"""
Messages by topic and minute: begins with the log's history and goes on with live messages, as one query.

python -m spark_bridge.examples.windows url=amqp://127.0.0.1:5672 'subscribe=orders/>'
"""

from __future__ import annotations

import sys
from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_bridge.examples import options, session

BITE = "200000"  # offsets of the history in a micro-batch, so that results show on the way
LATENESS = "1 minute"  # in one log times never go back; the clocks of several gateways differ


def counts(spark: SparkSession, width: str = "1 minute", **of: str) -> DataFrame:
    """A stream of ``window``, ``topic``, ``count``, by the time the gateway took each message."""
    log = spark.readStream.format("rewind").option("startingOffsets", "earliest")
    rows = (
        log.option("maxOffsetsPerTrigger", BITE).options(**of).schema("enqueuedTime timestamp, topic string")
    )
    window = F.window("enqueuedTime", width)
    return rows.load().withWatermark("enqueuedTime", LATENESS).groupBy(window, "topic").count()


def main() -> None:
    """Print each window anew when its count has changed, until Ctrl-C."""
    found = counts(session("windows"), **options(sys.argv[1:]))
    query = found.select("window.start", "topic", "count").writeStream.outputMode("update").format("console")
    with suppress(KeyboardInterrupt):
        query.option("truncate", "false").start().awaitTermination()


if __name__ == "__main__":
    main()
