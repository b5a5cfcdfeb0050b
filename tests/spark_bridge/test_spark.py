"""The format "rewind" in a real Spark, reading from the test broker."""

import json
from datetime import datetime

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from amqp_ext.codec import Described
from spark_bridge.source import DDL
from store.archive.columns import COLUMNS
from tests.spark_bridge.log_peer import LogPeer, annotated, data
from tests.spark_bridge.reading import load

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def peer(log_peer: LogPeer) -> LogPeer:
    """A log of 3,000 messages with JSON bodies, even ids under "flights"."""
    log_peer.messages = {
        n: annotated(
            n,
            Described(0x74, {"n": n}),
            data(json.dumps({"delay": n % 7}).encode()),
            topic="flights/JFK" if n % 2 == 0 else "other",
        )
        for n in range(1, 3_001)
    }
    return log_peer


def test_the_whole_log_as_a_dataframe(spark: SparkSession, peer: LogPeer) -> None:
    """Every message is one row, whatever the number of partitions, and SQL works on it."""
    frame = load(spark, url=peer.url, minPartitions="3")
    assert frame.columns == list(COLUMNS)
    delay = F.from_json(F.col("body").cast("string"), "delay int").delay
    [found] = frame.agg(
        F.count("*"), F.countDistinct("offset"), F.sum(delay), F.sum(F.col("properties")["n"].cast("int"))
    ).collect()
    assert tuple(found) == (3_000, 3_000, sum(n % 7 for n in range(1, 3_001)), sum(range(1, 3_001)))
    assert frame.rdd.getNumPartitions() == 3


def test_a_row_has_sparks_own_types(spark: SparkSession, peer: LogPeer) -> None:
    """Timestamps, binaries and maps arrive as Spark's, not as text."""
    frame = load(spark, url=peer.url, startingOffsets="2", endingOffsets="3")
    assert frame.schema == spark.createDataFrame([], DDL).schema
    row = frame.withColumn("enqueuedTime", F.date_format("enqueuedTime", "yyyy-MM-dd HH:mm:ss.SSS")).first()
    assert row is not None
    assert row.enqueuedTime == str(datetime(2023, 11, 14, 22, 13, 20, 2000))[:-3]
    assert (row.offset, row.topic, bytes(row.body), row.partition) == (2, "flights/JFK", b'{"delay": 2}', 0)
    assert row.properties == {"n": "2"}


def test_a_user_schema_chooses_columns(spark: SparkSession, peer: LogPeer) -> None:
    """A subset in another order is what Spark gets: the only column pruning there is."""
    frame = load(spark, "topic string, offset bigint", url=peer.url, subscribe="flights/>,none")
    assert frame.columns == ["topic", "offset"]
    assert frame.agg(F.count("*"), F.min("offset"), F.max("offset")).first() == (1_500, 2, 3_000)


def test_a_dataframe_does_not_change_when_the_log_grows(spark: SparkSession, peer: LogPeer) -> None:
    """A DataFrame is the log as it was at load, in every later action; a new load sees the new rows."""
    frame = load(spark, url=peer.url)
    peer.messages[3_001] = annotated(3_001, data(b""))
    assert frame.count() == 3_000
    peer.messages[3_002] = annotated(3_002, data(b""))
    assert frame.count() == 3_000
    assert load(spark, url=peer.url).count() == 3_002


def test_an_empty_log_is_an_empty_dataframe(spark: SparkSession, log_peer: LogPeer) -> None:
    """No rows, all columns, no error."""
    frame = load(spark, url=log_peer.url)
    assert (frame.count(), frame.columns) == (0, list(COLUMNS))


def test_a_bad_option_is_an_analysis_error_with_our_sentence(spark: SparkSession, peer: LogPeer) -> None:
    """The user sees code and sentence before anything runs."""
    with pytest.raises(AnalysisException, match=r"\[REWIND_OPTION\] Option colour is unknown; known options"):
        load(spark, url=peer.url, colour="red")
    with pytest.raises(AnalysisException, match=r"\[REWIND_SCHEMA\] The log has no column colour"):
        load(spark, "colour string", url=peer.url).count()


def test_a_short_read_fails_the_query(spark: SparkSession, peer: LogPeer) -> None:
    """A link that ends early fails the job with our sentence; no shorter result is ever given."""
    frame = load(spark, url=peer.url, minPartitions="1")
    peer.stop_after = 1_200
    with pytest.raises(
        PythonException, match=r"\[REWIND_DATA_LOSS\] The read of offsets 1 to 3000 broke off"
    ):
        frame.count()


def test_sql_and_a_session_without_time_zones_read_the_log(spark: SparkSession, peer: LogPeer) -> None:
    """A view names the source and its options; and where plain timestamps have no zone, times are moments yet."""
    setting = "spark.sql.timestampType"
    spark.sql(f"create temporary view log using rewind options (url '{peer.url}', subscribe 'flights/>')")
    spark.conf.set(setting, "TIMESTAMP_NTZ")
    try:
        assert spark.sql("select count(distinct offset) from log").first() == (3_000,)
        frame = load(spark, url=peer.url)
        assert dict(frame.dtypes)["enqueuedTime"] == "timestamp"
        assert frame.where("offset = 5").count() == 1
    finally:
        spark.conf.unset(setting)
        spark.catalog.dropTempView("log")
