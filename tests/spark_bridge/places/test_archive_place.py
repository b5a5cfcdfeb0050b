"""A log and its archive are read as one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_bridge.errors import OptionError
from store.archive.archiver import Archiver, Limits
from store.archive.errors import ArchiveError, DataLoss
from store.archive.maintenance import compact
from store.archive.storage import storage_at
from tests.spark_bridge.reading import rows, source, streaming, table
from tests.spark_bridge.spark_types import struct
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import IDS, archiver, ids, log_of, two_days
from tests.store.vpn_file import MADE_MS
from tests.support.ports import free_port
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def log(tmp_path: Path) -> StoredLog:
    return two_days(tmp_path / "data")


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def test_each_id_is_read_once_while_it_is_archived_and_trimmed(tmp_path: Path) -> None:
    """After each batch of a read the log is archived, trimmed and compacted: still each id is read once."""
    log, to = StoredLog(tmp_path / "data"), str(tmp_path / "archive")
    log.publish(3_000)
    archiver(log, to, rows=1_000).run()
    log.publish(5_000)
    reader = source(path=log.path, archive=to, minPartitions="2").reader(struct(IDS))
    expected = list(log.logged)
    found: list[int] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            found += batch.column(0).to_pylist()
            log.publish(100)
            archiver(log, to, rows=1_000).run()
            log.trim(log.archived + 1)
            compact(storage_at(to), is_all=True)
    assert found == expected
    assert ids(path=log.path, archive=to) == log.logged


def test_a_read_planned_on_the_log_finishes_in_the_archive(log: StoredLog, to: str) -> None:
    """All messages of a planned read are archived and trimmed before its first row is read."""
    log.publish(5)
    reader = source(path=log.path, archive=to).reader(struct(IDS))
    archiver(log, to).run()
    log.trim(56)
    assert rows(reader).column(0).to_pylist() == log.logged


def test_what_a_rule_took_out_unarchived_is_data_loss_or_left_out(
    log: StoredLog, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages removed before the plan do not fail a read; later removals do, or are left out with one warning."""
    log.take_out(22)
    strict, lenient = (
        source(path=log.path, archive=to, minPartitions="1", failOnDataLoss=loss).reader(struct(IDS))
        for loss in ("true", "false")
    )
    log.take_out(25, 28)
    with pytest.raises(DataLoss, match="A retention rule removed messages"):
        rows(strict)
    assert rows(lenient).column(0).to_pylist() == [i for i in log.logged if i not in (22, 25, 28)]
    assert capsys.readouterr().err.count("a retention rule removed some from the log") == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 71)),
        ({"startingOffsets": "5", "endingOffsets": "68"}, range(5, 68)),
        ({"replayStart": "#60"}, range(60, 71)),
        ({"replayStart": "last"}, range(69, 71)),
        ({"startingTimestamp": str(MADE_MS + 1)}, range(21, 71)),
        ({"startingTimestamp": str(MADE_MS + 86_400_001)}, range(51, 71)),
        ({"endingTimestamp": str(MADE_MS + 86_400_000)}, range(1, 21)),
        ({"endingTimestamp": str(MADE_MS + 2 * 86_400_000)}, range(1, 51)),
        ({"replayStart": "2001-01-01T00:00:00Z"}, range(1, 71)),
    ],
    ids=str,
)
def test_starts_and_ends_are_found_on_both_sides(
    log: StoredLog, to: str, options: dict[str, str], expected: range
) -> None:
    """Offsets and times are found in the archive and in the log alike."""
    archiver(log, to).run()
    log.publish(20, day=2)
    log.trim(41)
    assert ids(path=log.path, archive=to, **options) == [i for i in log.logged if i in expected]


def test_an_archive_alone_is_a_log_that_ended(log: StoredLog, to: str) -> None:
    """An archive is read without a gateway; starts that only a gateway can look up, and empty places, are refused."""
    archiver(log, to).run()
    assert ids(archive=to, startingOffsets="45") == [i for i in log.logged if i >= 45]
    with pytest.raises(OptionError, match="has to be resolved by a gateway; give a url, too"):
        ids(archive=to, replayStart="message-id:x")
    with pytest.raises(DataLoss, match="#99 is not in them"):
        ids(archive=to, startingOffsets="99")
    with pytest.raises(ArchiveError, match="There is no archive at"):
        ids(archive=to + "none")
    with pytest.raises(OptionError, match="archive goes with one url"):
        ids(archive=to, url="amqp://a,amqp://b")


def test_a_stream_goes_on_from_the_archive_into_the_log(log: StoredLog, to: str) -> None:
    """Micro-batches read the archive and then the log, while the log is archived and trimmed, each id once."""
    archiver(log, to).run()
    log.trim(51)
    log.publish(10)
    with streaming(IDS, path=log.path, archive=to, startingOffsets="earliest") as stream:
        found: list[int] = []
        position = stream.initialOffset()
        for _ in range(3):
            end = stream.latestOffset(position, ReadAllAvailable())
            for part in stream.partitions(position, end):
                found += [i for batch in stream.read(part) for i in batch.column(0).to_pylist()]
            position = end
            log.publish(10)
            archiver(log, to).run()
            log.trim(log.archived + 1)
        assert found == [i for i in log.logged if i <= 80]


def test_an_archive_that_is_not_there_is_told_where_the_log_is_not_whole(log: StoredLog, to: str) -> None:
    """A missing archive is an error if the log was trimmed, as its name may be mistyped; otherwise the log suffices."""
    assert ids(path=log.path, archive=to) == log.logged
    log.trim(31)
    with pytest.raises(ArchiveError, match=r"There is no archive at .*, and the log itself begins at 31"):
        ids(path=log.path, archive=to)
    assert ids(path=log.path, archive=to, failOnDataLoss="false") == [n for n in log.logged if n > 30]


def test_the_last_message_may_be_in_the_archive(log: StoredLog, to: str) -> None:
    """replayStart=last finds the newest message in the archive if the log has none on the topics."""
    archiver(log, to).run()
    log.trim(49)
    for options in ({"archive": to}, {"archive": to, "path": log.path}):
        assert ids(replayStart="last", **options) == [49]
        assert ids(replayStart="last", subscribe="n/0", **options) == [48]
        assert ids(replayStart="last", subscribe="none", **options) == []


@pytest.mark.parametrize("subscribe", [">", "n/0", "none"])
def test_the_newest_may_be_in_log_and_archive(log: StoredLog, to: str, subscribe: str) -> None:
    """replayStart=last:N counts messages of log and archive, each once; if there are fewer, it gives them all."""
    whole = ids(path=log.path, subscribe=subscribe)
    archiver(log, to).run()
    for trimmed in (1, 21, 45):
        log.trim(trimmed)
        for count in (1, 2, 7, 30, 1_000):
            found = ids(path=log.path, archive=to, subscribe=subscribe, replayStart=f"last:{count}")
            assert found == whole[-count:]
    assert ids(archive=to, subscribe=subscribe, replayStart="last:7") == whole[-7:]


def test_spark_reads_log_and_archive_as_one(spark: SparkSession, log: StoredLog, to: str) -> None:
    """The data source gives log and archive as one DataFrame, and Spark's own Parquet reader reads the archive."""
    archiver(log, to).run()
    log.trim(31)
    log.publish(10)
    frame = spark.read.format("rewind").option("path", log.path).option("archive", to).load()
    assert sorted(row.offset for row in frame.select("offset").collect()) == log.logged
    assert spark.read.parquet(to).count() == 45


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on an S3 server in a process of its own."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")

        def has_made_a_bucket() -> bool:
            with suppress(httpx.TransportError):
                return httpx.put(f"http://127.0.0.1:{port}/bucket", **PLAIN_HTTP).is_success
            return False

        wait_until(has_made_a_bucket, "the server has begun")
        yield f"s3://bucket/archive?scheme=http&endpoint_override=127.0.0.1%3A{port}&region=us-east-1"
    finally:
        server.kill()
        server.wait()


def test_an_object_store_is_a_place_as_good(log: StoredLog, store: str) -> None:
    """An archive in S3 can be written, compacted and read, alone and with the log."""
    Archiver(log_of({"path": log.path}), storage_at(store), Limits(rows=10)).run()
    expected = table(path=log.path).to_pylist()
    log.trim(31)
    log.publish(10)
    assert ids(path=log.path, archive=store) == log.logged
    assert len(compact(storage_at(store), is_all=True).segments) < 5
    assert table(archive=store).to_pylist() == expected


def test_archivers_compactions_and_readers_work_at_once(log: StoredLog, store: str) -> None:
    """Readers of a bucket find a beginning of the log without gaps, each id once, during archiving and compactions."""
    done = threading.Event()
    seen: list[list[int]] = []

    def archive() -> None:
        Archiver(log_of({"path": log.path}), storage_at(store), Limits(rows=8)).run()

    def compact_on() -> None:
        while not done.is_set():
            compact(storage_at(store), is_all=True)

    def read_on() -> None:
        while not done.is_set():
            with suppress(ArchiveError):  # nothing is there yet
                seen.append(ids(archive=store))

    with ThreadPoolExecutor() as beside:
        others = [beside.submit(work) for work in (compact_on, read_on)]
        archivers = [beside.submit(archive) for _ in range(2)]
        try:
            for archiver in archivers:
                archiver.result()
        finally:
            done.set()
        for other in others:
            other.result()
    assert ids(archive=store) == log.logged
    assert [part for part in seen if part != log.logged[: len(part)]] == []
