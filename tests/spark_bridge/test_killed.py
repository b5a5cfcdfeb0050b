"""Kills of the gateway or of a driver during a read, and logs that were replaced: no row is lost or repeated."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable

from gateway.cli import main
from spark_bridge.options import parse
from spark_bridge.stream import LogStream, Offsets
from store.archive.errors import ConnectionFailed, DataLoss
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.reading import plan, read, streaming
from tests.system.test_life import rewind

pytestmark = [pytest.mark.spark, pytest.mark.system]


# --- The gateway is killed during a read: the read fails with an error, or continues once it is back ------------------

COUNT = 20_000  # messages of 1 KiB: more than sockets and credit hold
COLUMNS = (("offset", "offset"),)
EVERY_OFFSET = list(range(1, COUNT + 1))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogGateway]:
    """A gateway with 20,000 messages of 1 KiB in its log; a test may have killed it."""
    with LogGateway(tmp_path_factory.mktemp("filled")) as gateway:
        gateway.publish(text(b"x" * 1024, "t") for _ in range(COUNT))
        yield gateway


@pytest.fixture
def gateway(filled: LogGateway) -> LogGateway:
    """The gateway ``filled``, running."""
    if not filled.is_running:
        filled.start()
    return filled


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LogGateway]:
    """A second gateway with five messages, which is not killed."""
    with LogGateway(tmp_path / "other") as gateway:
        gateway.publish([text(b"y", "t")] * 5)
        yield gateway


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_gateway_killed_in_mid_read_never_makes_a_short_read(gateway: LogGateway, comes_back: bool) -> None:
    """If the gateway comes back, every row comes once; otherwise the read fails and names the broker."""
    options = parse({"url": gateway.url})
    batches = read(options, COLUMNS, plan(options))
    found = next(batches).column(0).to_pylist()
    gateway.kill()
    if not comes_back:
        with pytest.raises(ConnectionFailed, match="cannot be reached"):
            list(batches)
        return
    gateway.start()
    found += [offset for batch in batches for offset in batch.column(0).to_pylist()]
    assert found == EVERY_OFFSET


@pytest.mark.slow
def test_a_file_is_read_on_without_its_gateway(gateway: LogGateway) -> None:
    """A read by path does not depend on the gateway, so a kill does not affect it."""
    options = parse({"path": gateway.path})
    batches = read(options, COLUMNS, plan(options))
    found = next(batches).column(0).to_pylist()
    gateway.kill()
    assert found + [offset for batch in batches for offset in batch.column(0).to_pylist()] == EVERY_OFFSET


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_job_over_several_logs_is_whole_or_fails(
    spark: SparkSession, gateway: LogGateway, other: LogGateway, comes_back: bool
) -> None:
    """One of two gateways is killed between two tasks: if it comes back, all rows are read; otherwise the job fails."""
    reader = spark.read.format("rewind").option("url", f"{other.url},{gateway.url}")
    rows = reader.schema("partition int, offset bigint").load().toLocalIterator()  # partition by partition
    first = next(rows)
    gateway.kill()
    if not comes_back:
        with pytest.raises(Py4JJavaError, match=r"\[REWIND_CONNECTION\] .* cannot be reached"):
            list(rows)
        return
    gateway.start()
    found = [tuple(row) for row in (first, *rows)]
    assert found == [(0, offset) for offset in range(1, 6)] + [(1, offset) for offset in EVERY_OFFSET]


@pytest.mark.slow
@pytest.mark.parametrize(("ways", "comes_back"), [("url", True), ("path", False), ("several", False)])
def test_a_stream_goes_on_where_the_kill_left_it(
    spark: SparkSession, gateway: LogGateway, other: LogGateway, tmp_path: Path, ways: str, comes_back: bool
) -> None:
    """A gateway killed in a micro-batch makes the query complete or fail; started again, it misses no row."""
    places = {"url": gateway.url, "path": gateway.path, "several": f"{gateway.url},{other.url}"}
    reader = spark.readStream.format("rewind").option("path" if ways == "path" else "url", places[ways])
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "8000")
    found: dict[int, list[tuple[int, int]]] = {}  # by micro-batch: the last run of each counts

    def take(batch: DataFrame, number: int) -> None:
        if not found and gateway.is_running:
            gateway.kill()
            if comes_back:
                gateway.start()
        found[number] = [(row["partition"], row["offset"]) for row in batch.collect()]

    writer = reader.schema("partition int, offset bigint").load().writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    if comes_back or ways == "path":
        assert writer.start().awaitTermination(60)
    else:
        with pytest.raises(StreamingQueryException, match="REWIND_CONNECTION"):
            writer.start().awaitTermination(60)
        assert found == {}
        gateway.start()
        found[-1] = []  # so that ``take`` kills no more
        assert writer.start().awaitTermination(60)
    rows = sorted(row for batch in found.values() for row in batch)
    expected = [(0, offset) for offset in EVERY_OFFSET]
    assert rows == expected + ([(1, offset) for offset in range(1, 6)] if ways == "several" else [])


# --- kill -9 of a driver during a stream: every row is in the sink exactly once ---------------------------------------

ROOT = Path(__file__).parents[2]
KILLS = int(
    os.environ.get("REWIND_SPARK_KILLS", "0")
)  # kills of the driver in each run; each costs a start of Spark
HISTORY = 20_000  # messages before the first driver: more batches than one driver lives through
BATCH = 50  # messages published at a time while drivers are killed and started
PAUSE = 0.1  # seconds between publications: about the rate that two busy cores can stream
LIFE = 3.0  # most seconds that a driver lives after its first micro-batch


class Load:
    """Publishes messages for the duration of a ``with`` block."""

    def __init__(self, gateway: LogGateway) -> None:
        self._gateway = gateway
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.published = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            self.published += self._gateway.publish([text(b"more", "t")] * BATCH)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[LogGateway]:
    """A gateway with ``HISTORY`` messages."""
    with LogGateway(tmp_path / "gateway") as gateway:
        gateway.publish(text(b"%d" % n, "t") for n in range(HISTORY))
        yield gateway


@pytest.mark.slow
@pytest.mark.skipif(not KILLS, reason="takes minutes: ./run soak spark")
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("way", ["url", "path", "several"])
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, growing: LogGateway, tmp_path: Path, way: str
) -> None:
    """Each driver continues from the last one's checkpoint; after the final one each row is in the sink once."""
    several = f"{growing.url},{growing.url.replace('127.0.0.1', 'localhost')}"
    where = {"url": growing.url, "path": growing.path, "several": several}[way]
    command = [sys.executable, str(Path(__file__).parent / "stream_driver.py")]
    command += [
        "path" if way == "path" else "url",
        where,
        str(tmp_path / "out"),
        str(tmp_path / "checkpoint"),
    ]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    chance = random.Random(seed)
    batches = 0
    with Load(growing) as load:
        for _ in range(KILLS):
            batches += killed(command, chance.uniform(0, LIFE))
    with started(command) as driver:
        assert driver.stdout is not None
        batches += driver.stdout.read().count(b"batch")
        assert driver.wait() == 0
    rows = HISTORY + load.published
    print(
        f"{way}: {KILLS} kills, {batches} micro-batches told of, {rows} messages, {load.published} of them meanwhile"
    )
    found = spark.read.parquet(str(tmp_path / "out")).groupBy("partition")
    found = found.agg(F.count("*"), F.countDistinct("offset"), F.min("offset"), F.max("offset"))
    expected = [(part, rows, rows, 1, rows) for part in range(2 if way == "several" else 1)]
    assert sorted(map(tuple, found.collect())) == expected


def started(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a driver in a process group of its own, so that its JVM can be killed with it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )


def killed(command: list[str], life: float) -> int:
    """Kill a driver so many seconds after its first micro-batch; returns how many micro-batches it reported."""
    with started(command) as driver:
        assert driver.stdout is not None
        told = driver.stdout.readline()
        assert told.startswith(b"batch"), "the driver ended before its first micro-batch"
        with pytest.raises(subprocess.TimeoutExpired):  # it must not have ended by itself
            driver.wait(life)
        os.killpg(driver.pid, signal.SIGKILL)
        return (told + driver.stdout.read()).count(b"batch")


# --- A log that is recreated, or restored from a backup, under a running stream ---------------------------------------

ALL = ReadAllAvailable()


def stream(gateway: LogGateway, way: str, **options: str) -> AbstractContextManager[LogStream]:
    """A stream from the beginning."""
    place = gateway.url if way == "url" else gateway.path
    return streaming("offset bigint, body binary", **{way: place}, startingOffsets="earliest", **options)


def rows(reader: LogStream, start: Offsets, end: Offsets) -> list[tuple[int, bytes]]:
    """The rows of a micro-batch, partition by partition."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [(row["offset"], row["body"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("way", ["url", "path"])
def test_a_log_made_anew_is_not_taken_for_the_old_one(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The old log has 30 messages, and a recreated one has their ids and ten more. A running query fails, one restarted
    with its checkpoint fails, and an already planned micro-batch is not read from the new log. With
    failOnDataLoss=false a query gets the whole new log, and a warning about the lost offsets.
    """
    with (
        LogGateway(tmp_path / "gateway") as gateway,
        stream(gateway, way) as strict,
        stream(gateway, way, failOnDataLoss="false") as lenient,
    ):
        gateway.publish(text(b"old", "t") for _ in range(30))
        start = strict.initialOffset()
        end = strict.latestOffset(start, ALL)
        assert lenient.latestOffset(start, ALL) == end
        gateway.kill()
        shutil.rmtree(gateway.data)
        gateway.start()
        gateway.publish(text(b"new", "t") for _ in range(40))
        with pytest.raises(DataLoss, match="was recreated: the query is at offset 31 of generation"):
            strict.latestOffset(end, ALL)
        with (
            stream(gateway, way) as again,
            pytest.raises(DataLoss, match="Set failOnDataLoss to false"),
        ):
            again.latestOffset(end, ALL)
        with pytest.raises(DataLoss):
            rows(strict, start, end)
        found = rows(lenient, end, lenient.latestOffset(end, ALL))
        assert found == [(offset, b"new") for offset in range(1, 41)]
        assert rows(lenient, start, end) == []
        assert "are no longer in the log; they are left out" in capsys.readouterr().err


def test_checkpoints_and_archives_of_the_lost_log_are_refused(tmp_path: Path) -> None:
    """
    Ten messages are in the backup that is restored, and five came after it. A query that has read all fifteen fails;
    with failOnDataLoss=false it gets the restored log. The archiver does not add to the archive of the lost log.
    """
    archive = str(tmp_path / "archive")

    def archived(to: str) -> str:
        arguments = ["archive", "--from", gateway.path, "--to", to, "--no-tell"]
        return CliRunner().invoke(main, arguments).output

    with (
        LogGateway(tmp_path / "gateway") as gateway,
        stream(gateway, "path") as strict,
        stream(gateway, "path", failOnDataLoss="false") as lenient,
    ):
        gateway.publish(text(b"kept", "t") for _ in range(10))
        rewind("backup", tmp_path / "b.db", "--data", gateway.data)
        gateway.publish(text(b"lost", "t") for _ in range(5))
        end = strict.latestOffset(strict.initialOffset(), ALL)
        assert "archived 15 messages" in archived(archive)
        gateway.kill()
        rewind("restore", tmp_path / "b.db", "--data", gateway.data, "--replace")
        gateway.start()
        gateway.publish(text(b"new", "t") for _ in range(10))

        with pytest.raises(DataLoss, match="was recreated: the query is at offset 16 of generation"):
            strict.latestOffset(end, ALL)
        found = rows(lenient, end, lenient.latestOffset(end, ALL))
        assert [body for _, body in found] == [b"kept"] * 10 + [b"new"] * 10
        assert found[10][0] > 15
        refused = archived(archive)
        assert refused.startswith("Error: ")
        assert "the log was recreated since. Archive it to another place" in refused
        assert "archived 20 messages" in archived(f"{archive}-2")
