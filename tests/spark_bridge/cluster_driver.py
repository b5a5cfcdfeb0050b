"""A driver on a cluster, whose executors read, stream and write the log with the bridge from a wheel only.

``spark-submit --master M --py-files ZIP cluster_driver.py URL PATH FOLDER``; the last line on stdout is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from spark_bridge.examples import session


def where(rows: Iterator[Row]) -> Iterator[tuple[str, str, int]]:
    """Runs in an executor: its work folder, the place of its bridge, and the number of its rows."""
    import spark_bridge  # noqa: PLC0415 - must be imported in the executor

    yield os.getcwd(), str(spark_bridge.__file__), sum(1 for _ in rows)


def totals(frame: DataFrame) -> list[int]:
    """The numbers of rows and of different offsets."""
    return list(frame.agg(F.count("*"), F.countDistinct("offset")).first() or ())


def main(url: str, path: str, folder: str) -> None:
    """Read by url and by path, stream, and write back; print what each gave."""
    spark = session("cluster")
    log = spark.read.format("rewind").option("subscribe", "cluster/>").option("minPartitions", "8")
    by_url = log.option("url", url).load()
    found: dict[str, object] = {"read": by_url.select("offset").rdd.mapPartitions(where).collect()}
    found["url"] = totals(by_url)
    reader = spark.read.format("rewind").option("subscribe", "cluster/>").option("minPartitions", "8")
    found["path"] = totals(reader.option("path", path).load())
    stream = spark.readStream.format("rewind").options(
        url=url, subscribe="cluster/>", startingOffsets="earliest"
    )
    writer = stream.option("maxOffsetsPerTrigger", "4000").load().writeStream.format("parquet")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    found["stream"] = totals(spark.read.parquet(f"{folder}/out"))
    by_url.write.format("rewind").options(url=url, topic="copy").mode("append").save()
    copies = spark.read.format("rewind").options(url=url, subscribe="copy").load()
    found["copies"] = totals(
        copies.join(by_url, copies.messageId == by_url.replayId).select(copies["offset"])
    )
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
