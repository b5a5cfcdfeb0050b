"""Spark itself over a log in PostgreSQL: workers in parallel, and a stream that goes on from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_bridge.stored_log import body
from tests.store.effects import publication
from tests.store.postgresql.vpn import PostgresVpn
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.postgresql]


def test_a_batch_in_parallel_and_a_stream_that_goes_on(
    spark: SparkSession, postgresql: Server, tmp_path: Path
) -> None:
    """Every row once, by several workers; a query that is started again reads what came since, and nothing twice."""
    database = postgresql.new_database()
    vpn = PostgresVpn(postgresql, database, "spark")
    options = {"dsn": postgresql.tcp_url(database), "messageVpn": "spark"}
    try:
        gateway = vpn.gateway()

        def publish(first: int, count: int) -> None:
            contents = [body(number) for number in range(first, first + count)]
            assert gateway.commit(publication(first, contents, time_ms=MADE_MS)) is None

        publish(1, 3_000)
        batch = spark.read.format("rewind").options(**options).option("minPartitions", 4).load()
        assert batch.rdd.getNumPartitions() == 4
        assert sorted(row.offset for row in batch.select("offset").collect()) == list(range(1, 3_001))

        def run() -> None:
            stream = spark.readStream.format("rewind").options(**options, startingOffsets="earliest").load()
            query = (
                stream.select("offset", "messageId")
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        run()
        publish(3_001, 500)
        run()
        found = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted((row.offset, row.messageId) for row in found) == [
            (number, f"id-{number}") for number in range(1, 3_501)
        ]
    finally:
        vpn.close()
