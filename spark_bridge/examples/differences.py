"""
The differences of two replays: of two gateways, two days, a log and its restored copy.

python -m spark_bridge.examples.differences url=amqp://127.0.0.1:5672 -- path=/restored/rewind-data
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_bridge.examples import options, session

SAME = "topic string, messageId string, body binary"  # messages are the same if these are


def differences(spark: SparkSession, left: Mapping[str, str], right: Mapping[str, str]) -> DataFrame:
    """The messages of only one side, which ``side`` names. Their order does not matter; how often each comes does."""
    ours, theirs = (spark.read.format("rewind").options(**side).schema(SAME).load() for side in (left, right))
    only_ours = ours.exceptAll(theirs).withColumn("side", F.lit("left"))
    return only_ours.unionByName(theirs.exceptAll(ours).withColumn("side", F.lit("right")))


def main() -> None:
    """Print the differences; the exit status is 0 if there are none."""
    if "--" not in sys.argv:
        raise SystemExit("usage: differences NAME=VALUE... -- NAME=VALUE...")
    middle = sys.argv.index("--")
    left, right = options(sys.argv[1:middle]), options(sys.argv[middle + 1 :])
    found = differences(session("differences"), left, right).cache()
    found.withColumn("body", F.col("body").cast("string")).orderBy("topic", "messageId").show(
        1_000, truncate=60
    )
    raise SystemExit(0 if found.isEmpty() else 1)


if __name__ == "__main__":
    main()
