"""
The last message of each topic: the present state, from the whole history.

python -m spark_bridge.examples.last_values url=amqp://127.0.0.1:5672 'subscribe=orders/>'
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_bridge.examples import options, session


def last_values(spark: SparkSession, **of: str) -> DataFrame:
    """
    One row a topic: ``topic``, and ``offset``, ``enqueuedTime`` and ``body`` of its newest message.

    Over several urls the newest is the one that arrived last: offsets are each log's own.
    """
    log = spark.read.format("rewind").options(**of)
    rows = log.schema("enqueuedTime timestamp, offset bigint, topic string, body binary").load()
    newest = F.max_by(F.struct("offset", "enqueuedTime", "body"), F.struct("enqueuedTime", "offset"))
    return rows.groupBy("topic").agg(newest.alias("newest")).select("topic", "newest.*")


def main() -> None:
    """Print the last messages, by topic."""
    found = last_values(session("last values"), **options(sys.argv[1:])).orderBy("topic")
    found.withColumn("body", F.col("body").cast("string")).show(1_000, truncate=60)


if __name__ == "__main__":
    main()
