"""A real Spark on a real gateway: batch, stream and back, over AMQP and from the file."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from amqp_ext.codec import Described, encode
from spark_bridge.links import Sender
from spark_bridge.options import parse
from spark_bridge.wire import Wire

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]
ROOT = Path(__file__).parents[2]
COUNT = 5_000
KILLS = int(os.environ.get("REWIND_SPARK_KILLS", "0"))  # of the driver; each costs the start of a Spark


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running gateway with 5,000 messages on topics n/0 to n/4; its url and its path."""
    folder = tmp_path_factory.mktemp("gateway")
    command = [sys.executable, "-m", "gateway", "serve", "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            url: str = json.loads(line)["amqp"][0]
            with Wire(parse({"url": url}).broker) as wire:
                Sender(wire, None).send(
                    encode(Described(0x73, [None, None, f"topic://n/{n % 5}"]))
                    + encode(Described(0x75, b"%d" % n))
                    for n in range(COUNT)
                )
            yield {"url": url, "path": str(folder / "data")}
        finally:
            process.terminate()


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


@pytest.mark.skipif(not KILLS, reason="takes a minute; REWIND_SPARK_KILLS says how many kills")
@pytest.mark.timeout(60 + 60 * KILLS)
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, gateway: dict[str, str], tmp_path: Path
) -> None:
    """kill -9 in mid-stream, then on from the checkpoint: every row is in the sink exactly once."""
    command = [sys.executable, str(Path(__file__).parent / "stream_driver.py"), gateway["url"]]
    command += [str(tmp_path / "out"), str(tmp_path / "checkpoint")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for kill in range(KILLS + 1):
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        ) as driver:
            assert driver.stdout is not None
            if kill < KILLS:
                assert driver.stdout.readline().startswith(b"batch") or kill
                os.killpg(driver.pid, signal.SIGKILL)
            else:
                assert b"batch" in driver.stdout.read()
                assert driver.wait() == 0
    found = spark.read.parquet(str(tmp_path / "out")).agg(
        F.count("*"), F.countDistinct("offset"), F.max("offset")
    )
    assert found.first() == (COUNT, COUNT, COUNT)


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


def test_a_bad_write_is_refused_before_anything_is_sent(spark: SparkSession, gateway: dict[str, str]) -> None:
    """Columns, options and mode each get a sentence."""
    frame = spark.range(1)
    with pytest.raises(AnalysisException, match=r"\[REWIND_SCHEMA\] There is no column id"):
        frame.write.format("rewind").option("url", gateway["url"]).mode("append").save()
    body = frame.selectExpr("cast('x' as binary) as body")
    with pytest.raises(AnalysisException, match="Neither the option topic nor a column topic says where to"):
        body.write.format("rewind").option("url", gateway["url"]).mode("append").save()
