"""The bridge in a real Spark, on the test broker and on real gateways, and the examples."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from amqp_ext.codec import Described, encode
from spark_bridge.examples import options
from spark_bridge.examples.differences import differences
from spark_bridge.examples.last_values import last_values
from spark_bridge.examples.recovery import catch_up
from spark_bridge.examples.windows import counts
from spark_bridge.source import DDL
from store.archive.columns import COLUMNS
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.log_peer import LogPeer, annotated, data
from tests.spark_bridge.reading import load, run, stream
from tests.spark_bridge.stored_log import body
from tests.store.effects import publication
from tests.store.postgresql.vpn import PostgresVpn
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


# --- The format "rewind" in a real Spark, reading from the test broker ------------------------------------------------


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
    """Every message is one row, with several partitions, and aggregates over the rows are right."""
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


def test_a_dataframe_does_not_change_when_the_log_grows(spark: SparkSession, peer: LogPeer) -> None:
    """Every action on a DataFrame sees the log as of its load; a new load sees the new messages."""
    frame = load(spark, url=peer.url)
    peer.messages[3_001] = annotated(3_001, data(b""))
    assert frame.count() == 3_000
    peer.messages[3_002] = annotated(3_002, data(b""))
    assert frame.count() == 3_000
    assert load(spark, url=peer.url).count() == 3_002


def test_a_bad_option_is_an_analysis_error_with_our_sentence(spark: SparkSession, peer: LogPeer) -> None:
    """The user gets the error's code and sentence before any job runs."""
    with pytest.raises(AnalysisException, match=r"\[REWIND_OPTION\] Option colour is unknown; known options"):
        load(spark, url=peer.url, colour="red")
    with pytest.raises(AnalysisException, match=r"\[REWIND_SCHEMA\] The log has no column colour"):
        load(spark, "colour string", url=peer.url).count()


def test_a_short_read_fails_the_query(spark: SparkSession, peer: LogPeer) -> None:
    """A link that ends early fails the job with our error, rather than giving a shorter result."""
    frame = load(spark, url=peer.url, minPartitions="1")
    peer.stop_after = 1_200
    with pytest.raises(
        PythonException, match=r"\[REWIND_DATA_LOSS\] The read of offsets 1 to 3000 broke off"
    ):
        frame.count()


def test_sql_and_a_session_without_time_zones_read_the_log(spark: SparkSession, peer: LogPeer) -> None:
    """SQL can read the log through a view; with TIMESTAMP_NTZ as the default type, enqueuedTime keeps its zone."""
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


# --- Spark on a real gateway: batches, streams and writes, over AMQP, from the file and from PostgreSQL ---------------

COUNT = 5_000


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running gateway with 5,000 messages on topics n/0 to n/4; its url and its path."""
    with LogGateway(tmp_path_factory.mktemp("gateway")) as gateway:
        gateway.publish(text(b"%d" % n, f"n/{n % 5}") for n in range(COUNT))
        yield {"url": gateway.url, "path": gateway.path}


@pytest.mark.system
@pytest.mark.parametrize(("way", "pushed"), [("url", "true"), ("path", "true"), ("path", "false")])
def test_filters_are_right_in_both_settings(
    spark: SparkSession, places: dict[str, str], way: str, pushed: str
) -> None:
    """
    A filter gives the same rows whether it is pushed down or not, also on times. A filtered query does not affect later
    queries on the same DataFrame.
    """
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, pushed)
    try:
        frame = load(spark, **{way: places[way]}, endingOffsets=str(COUNT + 1))
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


@pytest.mark.system
def test_a_stream_reads_the_log_in_micro_batches(
    spark: SparkSession, places: dict[str, str], tmp_path: Path
) -> None:
    """AvailableNow reads batches of maxOffsetsPerTrigger, and ends after the last; continuous triggers are refused."""
    frame = stream(spark, url=places["url"], subscribe="n/>", maxOffsetsPerTrigger="2000")
    query = run(frame, tmp_path, "parquet")
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [2_000, 2_000, 1_000]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.agg(F.count("*"), F.countDistinct("offset")).first() == (COUNT, COUNT)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "continuous"))
    with pytest.raises(Exception, match=r"(?i)continuous"):  # the data source supports micro-batches only
        writer.trigger(continuous="1 second").start().awaitTermination(60)


@pytest.mark.system
def test_history_goes_into_a_test_queue(spark: SparkSession, places: dict[str, str]) -> None:
    """Messages of the log are written to another topic with their bodies, and with replayId as message-id."""
    log = load(spark, url=places["url"], endingOffsets="1001")
    log.write.format("rewind").options(url=places["url"], topic="copy/all").mode("append").save()
    copies = load(spark, path=places["path"], subscribe="copy/all")
    pairs = log.join(copies, copies.messageId == log.replayId).where(copies.body == log.body)
    assert (copies.count(), pairs.count()) == (1_000, 1_000)


@pytest.mark.system
def test_a_stream_is_published(spark: SparkSession, places: dict[str, str], tmp_path: Path) -> None:
    """Every row of a stream is published, and exactly once if nothing fails."""
    frame = stream(spark, url=places["url"], subscribe="n/1")
    run(frame, tmp_path, url=places["url"], topic="copy/stream")
    copies = load(spark, path=places["path"], subscribe="copy/stream")
    assert copies.agg(F.count("*"), F.countDistinct("messageId")).first() == (COUNT // 5, COUNT // 5)


@pytest.mark.system
def test_a_bad_write_is_refused_before_anything_is_sent(spark: SparkSession, places: dict[str, str]) -> None:
    """A wrong column and a missing topic are refused with an error each."""
    for frame, sentence in (
        (spark.range(1), r"\[REWIND_SCHEMA\] There is no column id"),
        (
            spark.range(1).selectExpr("cast('x' as binary) as body"),
            "Neither the option topic nor a column topic says where to",
        ),
    ):
        with pytest.raises(AnalysisException, match=sentence):
            frame.write.format("rewind").option("url", places["url"]).mode("append").save()


@pytest.mark.system
@pytest.mark.postgresql
def test_a_batch_in_parallel_and_a_stream_that_goes_on(
    spark: SparkSession, postgresql: Server, tmp_path: Path
) -> None:
    """Several workers read every row once; a restarted query reads the new messages, and none twice."""
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


# --- The examples, on a real gateway ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogGateway]:
    """A running gateway; each test has topics of its own."""
    with LogGateway(tmp_path_factory.mktemp("examples")) as gateway:
        yield gateway


def pay(gateway: LogGateway, topic: str, **amounts: int) -> None:
    """Publish one payment for each account."""
    gateway.publish(
        text(json.dumps({"account": account, "amount": amount}).encode(), topic)
        for account, amount in amounts.items()
    )


def balances(database: Any) -> dict[str, int]:
    """The balances in the table."""
    cursor = database.cursor()
    cursor.execute("select account, amount from balance")
    return dict(cursor.fetchall())


class Torn(sqlite3.Connection):
    """A connection that fails at its second commit, as in a crash with an open transaction."""

    commits = 0

    def commit(self) -> None:
        self.commits += 1
        if self.commits == 2:
            raise OSError("the power is gone")
        super().commit()


@pytest.mark.system
def test_a_table_recovers_from_a_crash_a_backup_and_a_loss(
    spark: SparkSession, gateway: LogGateway, tmp_path: Path
) -> None:
    """After a crash, a restored backup or the loss of the table, the next run makes every payment count once."""
    of = {"path": gateway.path, "subscribe": "payments/lite"}
    file = tmp_path / "balances.db"
    pay(gateway, "payments/lite", ann=5, bob=7)
    gateway.publish([text(b"no payment", "payments/lite")])
    torn = sqlite3.connect(file, factory=Torn)
    with pytest.raises(OSError, match="the power is gone"):
        catch_up(spark, torn, **of)
    torn.close()
    database = sqlite3.connect(file)
    assert balances(database) == {}
    assert (catch_up(spark, database, **of), balances(database)) == (2, {"ann": 5, "bob": 7})
    assert (catch_up(spark, database, **of), balances(database)) == (0, {"ann": 5, "bob": 7})
    shutil.copy(file, tmp_path / "backup.db")
    pay(gateway, "payments/lite", ann=100, eve=1)
    expected = {"ann": 105, "bob": 7, "eve": 1}
    assert (catch_up(spark, database, **of), balances(database)) == (2, expected)
    database.close()
    for lost in ("backup.db", "nothing.db"):
        restored = sqlite3.connect(tmp_path / lost)
        catch_up(spark, restored, **of)
        assert balances(restored) == expected
        restored.close()


@pytest.mark.system
def test_a_table_of_another_log_is_refused(spark: SparkSession, gateway: LogGateway, tmp_path: Path) -> None:
    """A stored position of another generation is an error, and the table stays as it is."""
    pay(gateway, "payments/other", ann=5)
    database = sqlite3.connect(tmp_path / "balances.db")
    of = {"url": gateway.url, "subscribe": "payments/other"}
    catch_up(spark, database, **of)
    [(place,)] = database.execute("select replay_id from place")
    database.execute("update place set replay_id = ?", ["rmid1:00001" + place[11:]])
    with pytest.raises(AnalysisException, match="generation"):
        catch_up(spark, database, **of)
    assert balances(database) == {"ann": 5}
    database.close()


@pytest.mark.system
@pytest.mark.postgresql
def test_a_postgresql_table_recovers(spark: SparkSession, gateway: LogGateway, postgresql: Server) -> None:
    """In PostgreSQL, too, a table that was restored from a backup or lost is right after the next run."""
    import pg8000.dbapi  # noqa: PLC0415 - for this test alone

    of = {"url": gateway.url, "subscribe": "payments/pg"}
    pay(gateway, "payments/pg", ann=5, bob=7)
    database = pg8000.dbapi.connect(
        "postgres", unix_sock=postgresql.socket, database=postgresql.new_database()
    )
    assert catch_up(spark, database, mark="%s", **of) == 2
    cursor = database.cursor()
    cursor.execute("create table backup as select * from balance")
    cursor.execute("create table backup_place as select * from place")
    database.commit()
    pay(gateway, "payments/pg", ann=100, eve=1)
    expected = {"ann": 105, "bob": 7, "eve": 1}
    assert catch_up(spark, database, mark="%s", **of) == 2
    assert catch_up(spark, database, mark="%s", **of) == 0
    assert balances(database) == expected
    for lose in (
        "delete from balance; delete from place; insert into balance select * from backup; "
        "insert into place select * from backup_place",
        "drop table balance; drop table place",
    ):
        for statement in lose.split("; "):
            cursor.execute(statement)
        database.commit()
        catch_up(spark, database, mark="%s", **of)
        assert balances(database) == expected
    database.close()


@pytest.mark.system
def test_the_last_value_of_each_topic(spark: SparkSession, gateway: LogGateway) -> None:
    """The result has the newest message of each topic, not the greatest."""
    gateway.publish(text(b"%d" % (9 - n), f"last/{n % 3}") for n in range(9))
    found = last_values(spark, url=gateway.url, subscribe="last/>", minPartitions="3").collect()
    assert {row.topic: bytes(row.body) for row in found} == {"last/0": b"3", "last/1": b"2", "last/2": b"1"}


@pytest.mark.system
def test_windows_begin_with_history_and_go_live(
    spark: SparkSession, gateway: LogGateway, tmp_path: Path
) -> None:
    """Messages from before the query and live ones are counted in the same windows."""
    gateway.publish(text(b"then", f"windows/{n % 2}") for n in range(100))
    stream = counts(spark, "365 days", url=gateway.url, subscribe="windows/>", maxOffsetsPerTrigger="40")
    writer = stream.writeStream.outputMode("complete").format("memory").queryName("windows")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    totals = "select topic, sum(count) from windows group by topic order by topic"
    try:
        query.processAllAvailable()
        assert [tuple(row) for row in spark.sql(totals).collect()] == [("windows/0", 50), ("windows/1", 50)]
        gateway.publish([text(b"now", "windows/1")] * 7)
        # The accepted messages may not have reached the query's link yet, so Spark cannot wait for them.
        wait_until(lambda: spark.sql(totals).collect()[1]["sum(count)"] == 57, "what came live", 60)
        assert [tuple(row) for row in spark.sql(totals).collect()] == [("windows/0", 50), ("windows/1", 57)]
    finally:
        query.stop()


@pytest.mark.system
def test_two_replays_are_held_against_each_other(spark: SparkSession, gateway: LogGateway) -> None:
    """The result has missing, additional, changed and repeated messages with their side; order does not matter."""

    def message(number: int, body: bytes, topic: str) -> bytes:
        front = Described(0x73, [f"id-{number}", None, f"topic://{topic}"])
        return encode(front) + encode(Described(0x75, body))

    def send(*messages: tuple[int, bytes]) -> dict[str, str]:
        since = spark.read.format("rewind").option("url", gateway.url).load().agg({"offset": "max"}).first()
        assert since is not None
        gateway.publish(message(number, body, "compared") for number, body in messages)
        start = since[0] + 1
        place = {"startingOffsets": f"{start}", "endingOffsets": f"{start + len(messages)}"}
        return place | {"subscribe": "compared"}

    left = send((1, b"a"), (2, b"b"), (3, b"c"), (4, b"d"), (4, b"d")) | {"url": gateway.url}
    right = send((2, b"b"), (1, b"a"), (3, b"C"), (4, b"d"), (5, b"e")) | {"path": gateway.path}
    found = {(row.side, row.messageId, bytes(row.body)) for row in differences(spark, left, right).collect()}
    assert found == {
        ("left", "id-3", b"c"), ("left", "id-4", b"d"), ("right", "id-3", b"C"), ("right", "id-5", b"e"),
    }  # fmt: skip
    assert differences(spark, left, left).isEmpty()


@pytest.mark.system
def test_options_are_written_name_equals_value() -> None:
    """A value may contain ``=``; an argument without ``=`` is an error."""
    assert options(["url=amqp://h:1", "subscribe=a/>,b=c"]) == {"url": "amqp://h:1", "subscribe": "a/>,b=c"}
    with pytest.raises(SystemExit, match="amqp://h:1 is not an option; write name=value"):
        options(["amqp://h:1"])
