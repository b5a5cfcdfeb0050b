"""The examples do what they say, on a real gateway."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from amqp_ext.codec import Described, encode
from spark_bridge.examples import options
from spark_bridge.examples.differences import differences
from spark_bridge.examples.last_values import last_values
from spark_bridge.examples.recovery import catch_up
from spark_bridge.examples.windows import counts
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.support.postgresql import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogGateway]:
    """A running gateway; each test has topics of its own."""
    with LogGateway(tmp_path_factory.mktemp("examples")) as gateway:
        yield gateway


def pay(gateway: LogGateway, topic: str, **amounts: int) -> None:
    """One payment for each account."""
    gateway.publish(
        text(json.dumps({"account": account, "amount": amount}).encode(), topic)
        for account, amount in amounts.items()
    )


def balances(database: Any) -> dict[str, int]:
    """What the table says."""
    cursor = database.cursor()
    cursor.execute("select account, amount from balance")
    return dict(cursor.fetchall())


class Torn(sqlite3.Connection):
    """A database that dies with a transaction open: its second commit from now on never comes."""

    commits = 0

    def commit(self) -> None:
        self.commits += 1
        if self.commits == 2:
            raise OSError("the power is gone")
        super().commit()


@pytest.mark.parametrize("way", ["url", "path"])
def test_a_table_recovers_from_a_crash_a_backup_and_a_loss(
    spark: SparkSession, gateway: LogGateway, tmp_path: Path, way: str
) -> None:
    """Whatever became of the table, after the next run every payment counts once."""
    of = {way: gateway.url if way == "url" else gateway.path, "subscribe": f"payments/{way}"}
    file = tmp_path / "balances.db"
    pay(gateway, f"payments/{way}", ann=5, bob=7)
    gateway.publish([text(b"no payment", f"payments/{way}")])
    torn = sqlite3.connect(file, factory=Torn)
    with pytest.raises(OSError, match="the power is gone"):
        catch_up(spark, torn, **of)
    torn.close()
    database = sqlite3.connect(file)
    assert balances(database) == {}
    assert (catch_up(spark, database, **of), balances(database)) == (2, {"ann": 5, "bob": 7})
    assert (catch_up(spark, database, **of), balances(database)) == (0, {"ann": 5, "bob": 7})
    shutil.copy(file, tmp_path / "backup.db")
    pay(gateway, f"payments/{way}", ann=100, eve=1)
    expected = {"ann": 105, "bob": 7, "eve": 1}
    assert (catch_up(spark, database, **of), balances(database)) == (2, expected)
    database.close()
    for lost in ("backup.db", "nothing.db"):
        restored = sqlite3.connect(tmp_path / lost)
        catch_up(spark, restored, **of)
        assert balances(restored) == expected
        restored.close()


def test_a_table_of_another_log_is_refused(spark: SparkSession, gateway: LogGateway, tmp_path: Path) -> None:
    """A place of another generation is not taken for one of this log."""
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


@pytest.mark.postgresql
def test_a_postgresql_table_recovers(spark: SparkSession, gateway: LogGateway, postgresql: Server) -> None:
    """The same statements, the same result: rolled back as a crash would, then caught up."""
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


def test_the_last_value_of_each_topic(spark: SparkSession, gateway: LogGateway) -> None:
    """The newest message of a topic, not the greatest; and none of another topic."""
    gateway.publish(text(b"%d" % (9 - n), f"last/{n % 3}") for n in range(9))
    found = last_values(spark, url=gateway.url, subscribe="last/>", minPartitions="3").collect()
    assert {row.topic: bytes(row.body) for row in found} == {"last/0": b"3", "last/1": b"2", "last/2": b"1"}


def test_windows_begin_with_history_and_go_live(
    spark: SparkSession, gateway: LogGateway, tmp_path: Path
) -> None:
    """What was there and what comes while the query runs are counted in the same windows."""
    gateway.publish(text(b"then", f"windows/{n % 2}") for n in range(100))
    stream = counts(spark, "365 days", url=gateway.url, subscribe="windows/>", maxOffsetsPerTrigger="40")
    writer = stream.writeStream.outputMode("complete").format("memory").queryName("windows")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    totals = "select topic, sum(count) from windows group by topic order by topic"
    try:
        query.processAllAvailable()
        assert [tuple(row) for row in spark.sql(totals).collect()] == [("windows/0", 50), ("windows/1", 50)]
        gateway.publish([text(b"now", "windows/1")] * 7)
        query.processAllAvailable()
        assert [tuple(row) for row in spark.sql(totals).collect()] == [("windows/0", 50), ("windows/1", 57)]
    finally:
        query.stop()


def test_two_replays_are_held_against_each_other(spark: SparkSession, gateway: LogGateway) -> None:
    """Missing, additional, changed and repeated messages show, each with its side; another order does not."""

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


def test_options_are_written_name_equals_value() -> None:
    """A value may hold what a name may not; anything else gets a sentence."""
    assert options(["url=amqp://h:1", "subscribe=a/>,b=c"]) == {"url": "amqp://h:1", "subscribe": "a/>,b=c"}
    with pytest.raises(SystemExit, match="amqp://h:1 is no option; write name=value"):
        options(["amqp://h:1"])
