"""A real Spark on a real gateway: batch, stream and back, over AMQP, from the file and from PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.reading import load, run, stream
from tests.spark_bridge.stored_log import body
from tests.store.effects import publication
from tests.store.postgresql.vpn import PostgresVpn
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]
COUNT = 5_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running gateway with 5,000 messages on topics n/0 to n/4; its url and its path."""
    with LogGateway(tmp_path_factory.mktemp("gateway")) as gateway:
        gateway.publish(text(b"%d" % n, f"n/{n % 5}") for n in range(COUNT))
        yield {"url": gateway.url, "path": gateway.path}


@pytest.mark.parametrize("way", ["url", "path"])
@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_are_right_in_both_settings(
    spark: SparkSession, gateway: dict[str, str], way: str, pushed: str
) -> None:
    """
    With filters pushed down or not, the rows are those of the filter, times included; and after a query with a filter
    one without it on the same DataFrame has all rows again.
    """
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, pushed)
    try:
        frame = load(spark, **{way: gateway[way]}, endingOffsets=str(COUNT + 1))
        [(middle,)] = frame.where("offset = 2500").select("enqueuedTime").collect()
        ours = frame.where(
            (F.col("topic") == "n/1") & (F.col("offset") > 100) & (F.col("enqueuedTime") <= middle)
        )
        everything = frame.select("offset", "topic", "enqueuedTime").collect()
        assert len(everything) == COUNT
        expected = [
            r.offset for r in everything if r.topic == "n/1" and r.offset > 100 and r.enqueuedTime <= middle
        ]
        assert sorted(r.offset for r in ours.collect()) == expected
        counts = [found.count() for found in (frame.where("offset <= 10"), frame, frame.where("offset > 10"))]
        assert counts == [10, COUNT, COUNT - 10]
    finally:
        spark.conf.unset(setting)


def test_several_logs_are_one_dataframe(spark: SparkSession, gateway: dict[str, str]) -> None:
    """The column partition tells the urls apart."""
    frame = load(spark, url=f"{gateway['url']},{gateway['url'].replace('127.0.0.1', 'localhost')}")
    assert {tuple(row) for row in frame.groupBy("partition").count().collect()} == {(0, COUNT), (1, COUNT)}


def test_a_stream_reads_the_log_in_micro_batches(
    spark: SparkSession, gateway: dict[str, str], tmp_path: Path
) -> None:
    """AvailableNow keeps to maxOffsetsPerTrigger and ends when all is read; the progress tells of the rest."""
    frame = stream(spark, url=gateway["url"], subscribe="n/>", maxOffsetsPerTrigger="2000")
    query = run(frame, tmp_path, "parquet")
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [2_000, 2_000, 1_000]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.agg(F.count("*"), F.countDistinct("offset")).first() == (COUNT, COUNT)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "continuous"))
    with pytest.raises(Exception, match=r"(?i)continuous"):  # it is for sources that never end a batch
        writer.trigger(continuous="1 second").start().awaitTermination(60)


def test_history_goes_into_a_test_queue(spark: SparkSession, gateway: dict[str, str]) -> None:
    """What was read is written again with its body, its properties and an id that tells duplicates."""
    log = load(spark, url=gateway["url"], endingOffsets="1001")
    log.write.format("rewind").options(url=gateway["url"], topic="copy/all").mode("append").save()
    copies = load(spark, path=gateway["path"], subscribe="copy/all")
    pairs = log.join(copies, copies.messageId == log.replayId).where(copies.body == log.body)
    assert (copies.count(), pairs.count()) == (1_000, 1_000)


def test_a_stream_is_published(spark: SparkSession, gateway: dict[str, str], tmp_path: Path) -> None:
    """Every row of a stream is sent, and once where nothing fails."""
    frame = stream(spark, url=gateway["url"], subscribe="n/1")
    run(frame, tmp_path, url=gateway["url"], topic="copy/stream")
    copies = load(spark, path=gateway["path"], subscribe="copy/stream")
    assert copies.agg(F.count("*"), F.countDistinct("messageId")).first() == (COUNT // 5, COUNT // 5)


def test_a_bad_write_is_refused_before_anything_is_sent(spark: SparkSession, gateway: dict[str, str]) -> None:
    """Columns, options and mode each get a sentence."""
    for frame, sentence in (
        (spark.range(1), r"\[REWIND_SCHEMA\] There is no column id"),
        (
            spark.range(1).selectExpr("cast('x' as binary) as body"),
            "Neither the option topic nor a column topic says where to",
        ),
    ):
        with pytest.raises(AnalysisException, match=sentence):
            frame.write.format("rewind").option("url", gateway["url"]).mode("append").save()


@pytest.mark.postgresql
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
        batch = load(spark, **options, minPartitions="4")
        assert batch.rdd.getNumPartitions() == 4
        assert sorted(row.offset for row in batch.select("offset").collect()) == list(range(1, 3_001))
        run(stream(spark, **options).select("offset", "messageId"), tmp_path, "parquet")
        publish(3_001, 500)
        run(stream(spark, **options).select("offset", "messageId"), tmp_path, "parquet")
        found = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted(map(tuple, found)) == [(number, f"id-{number}") for number in range(1, 3_501)]
    finally:
        vpn.close()
