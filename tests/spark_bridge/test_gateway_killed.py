"""The gateway dies in mid-read: the read fails in a sentence, or goes on whole once it is back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_bridge.options import parse
from store.archive.errors import ConnectionFailed
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.reading import plan, read

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.slow]
COUNT = 20_000  # of 1 KiB: more than sockets and credit hold
COLUMNS = (("offset", "offset"),)
EVERY_OFFSET = list(range(1, COUNT + 1))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogGateway]:
    """A gateway with 20,000 messages of 1 KiB in its log; it may be down."""
    with LogGateway(tmp_path_factory.mktemp("filled")) as gateway:
        gateway.publish(text(b"x" * 1024, "t") for _ in range(COUNT))
        yield gateway


@pytest.fixture
def gateway(filled: LogGateway) -> LogGateway:
    """The same, running."""
    if not filled.is_running:
        filled.start()
    return filled


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LogGateway]:
    """A second gateway, with five messages, which nobody kills."""
    with LogGateway(tmp_path / "other") as gateway:
        gateway.publish([text(b"y", "t")] * 5)
        yield gateway


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_gateway_killed_in_mid_read_never_makes_a_short_read(gateway: LogGateway, comes_back: bool) -> None:
    """Back on the same file, every row comes once; gone, the read ends in an error that names the broker."""
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


def test_a_file_is_read_on_without_its_gateway(gateway: LogGateway) -> None:
    """What was committed is in the file, whoever is alive: a read by path does not notice the kill."""
    options = parse({"path": gateway.path})
    batches = read(options, COLUMNS, plan(options))
    found = next(batches).column(0).to_pylist()
    gateway.kill()
    assert found + [offset for batch in batches for offset in batch.column(0).to_pylist()] == EVERY_OFFSET


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_job_over_several_logs_is_whole_or_fails(
    spark: SparkSession, gateway: LogGateway, other: LogGateway, comes_back: bool
) -> None:
    """One gateway of two is killed between two tasks: without it no DataFrame, with it all rows of both."""
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


@pytest.mark.parametrize(
    ("ways", "comes_back"), [("url", True), ("url", False), ("path", False), ("several", False)]
)
def test_a_stream_goes_on_where_the_kill_left_it(
    spark: SparkSession, gateway: LogGateway, other: LogGateway, tmp_path: Path, ways: str, comes_back: bool
) -> None:
    """Killed in a micro-batch, the query ends with every row or in an error; begun again, it misses none."""
    places = {"url": gateway.url, "path": gateway.path, "several": f"{gateway.url},{other.url}"}
    reader = spark.readStream.format("rewind").option("path" if ways == "path" else "url", places[ways])
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "8000")
    found: dict[int, list[tuple[int, int]]] = {}  # by micro-batch: the last run of one is the one that counts

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
        found[-1] = []  # nobody is killed any more
        assert writer.start().awaitTermination(60)
    rows = sorted(row for batch in found.values() for row in batch)
    expected = [(0, offset) for offset in EVERY_OFFSET]
    assert rows == expected + ([(1, offset) for offset in range(1, 6)] if ways == "several" else [])
