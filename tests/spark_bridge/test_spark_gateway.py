"""A real Spark on a real gateway: batch, stream and back, over AMQP and from the file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark_bridge.log_gateway import LogGateway, text

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
    """With filters pushed down or not, the rows are those of the filter, times included."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, pushed)
    try:
        frame = spark.read.format("rewind").option(way, gateway[way]).load()
        [(middle,)] = frame.where("offset = 2500").select("enqueuedTime").collect()
        ours = frame.where(
            (F.col("topic") == "n/1") & (F.col("offset") > 100) & (F.col("enqueuedTime") <= middle)
        )
        everything = frame.select("offset", "topic", "enqueuedTime").collect()
        expected = [
            r.offset for r in everything if r.topic == "n/1" and r.offset > 100 and r.enqueuedTime <= middle
        ]
        assert sorted(r.offset for r in ours.collect()) == expected
    finally:
        spark.conf.unset(setting)


def test_several_logs_are_one_dataframe(spark: SparkSession, gateway: dict[str, str]) -> None:
    """The column partition tells the urls apart."""
    twice = f"{gateway['url']},{gateway['url'].replace('127.0.0.1', 'localhost')}"
    frame = spark.read.format("rewind").option("url", twice).load()
    assert {tuple(row) for row in frame.groupBy("partition").count().collect()} == {(0, COUNT), (1, COUNT)}


def test_a_stream_reads_the_log_in_micro_batches(
    spark: SparkSession, gateway: dict[str, str], tmp_path: Path
) -> None:
    """AvailableNow keeps to maxOffsetsPerTrigger and ends when all is read; the progress tells of the rest."""
    reader = spark.readStream.format("rewind").option("url", gateway["url"]).option("subscribe", "n/>")
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2000").load()
    out = tmp_path / "out"
    writer = frame.writeStream.format("parquet").option("path", str(out))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [2_000, 2_000, 1_000]
    assert spark.read.parquet(str(out)).agg(F.count("*"), F.countDistinct("offset")).first() == (COUNT, COUNT)


def test_history_goes_into_a_test_queue(spark: SparkSession, gateway: dict[str, str]) -> None:
    """What was read is written again with its body, its properties and an id that tells duplicates."""
    log = spark.read.format("rewind").option("url", gateway["url"]).option("endingOffsets", "1001").load()
    writer = log.write.format("rewind").option("url", gateway["url"]).mode("append")
    writer.option("topic", "copy/all").save()
    copies = (
        spark.read.format("rewind").option("path", gateway["path"]).option("subscribe", "copy/all").load()
    )
    pairs = log.join(copies, copies.messageId == log.replayId).where(copies.body == log.body)
    assert (copies.count(), pairs.count()) == (1_000, 1_000)


def test_a_stream_is_published(spark: SparkSession, gateway: dict[str, str], tmp_path: Path) -> None:
    """Every row of a stream is sent, and once where nothing fails."""
    reader = spark.readStream.format("rewind").option("url", gateway["url"]).option("subscribe", "n/1")
    frame = reader.option("startingOffsets", "earliest").load()
    writer = frame.writeStream.format("rewind").option("url", gateway["url"]).option("topic", "copy/stream")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert writer.start().awaitTermination(60)
    copies = spark.read.format("rewind").option("path", gateway["path"]).option("subscribe", "copy/stream")
    assert copies.load().agg(F.count("*"), F.countDistinct("messageId")).first() == (COUNT // 5, COUNT // 5)


def test_a_bad_write_is_refused_before_anything_is_sent(spark: SparkSession, gateway: dict[str, str]) -> None:
    """Columns, options and mode each get a sentence."""
    frame = spark.range(1)
    with pytest.raises(AnalysisException, match=r"\[REWIND_SCHEMA\] There is no column id"):
        frame.write.format("rewind").option("url", gateway["url"]).mode("append").save()
    body = frame.selectExpr("cast('x' as binary) as body")
    with pytest.raises(AnalysisException, match="Neither the option topic nor a column topic says where to"):
        body.write.format("rewind").option("url", gateway["url"]).mode("append").save()


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_a_filter_leaves_the_dataframe_as_it_was(
    spark: SparkSession, gateway: dict[str, str], pushed: str
) -> None:
    """After a query with a filter, one without it on the same DataFrame has all rows again, in both settings."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, pushed)
    try:
        log = (
            spark.read.format("rewind")
            .option("path", gateway["path"])
            .option("endingOffsets", str(COUNT + 1))
        )
        frame = log.load()
        assert [frame.where("offset <= 10").count(), frame.count(), frame.where("offset > 10").count()] == [
            10,
            COUNT,
            COUNT - 10,
        ]
    finally:
        spark.conf.unset(setting)


def test_a_continuous_trigger_is_refused(
    spark: SparkSession, gateway: dict[str, str], tmp_path: Path
) -> None:
    """Continuous processing is for sources that never end a batch; here Spark says that it is not supported."""
    frame = spark.readStream.format("rewind").option("url", gateway["url"]).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match=r"(?i)continuous"):
        writer.trigger(continuous="1 second").start().awaitTermination(60)
