"""A log made anew behind a stream's back, on real gateways: over a url and from the file."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_bridge.source import RewindSource
from spark_bridge.stream import LogStream, Offsets
from store.archive.errors import DataLoss
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.spark_types import struct

pytestmark = [pytest.mark.spark, pytest.mark.system]


@dataclass(frozen=True)
class Replaced:
    """A log that was made anew, and the streams that were on its predecessor then; ``end`` is how far they were."""

    gateway: LogGateway
    way: str
    strict: LogStream
    lenient: LogStream
    start: Offsets
    end: Offsets


@contextmanager
def stream(gateway: LogGateway, way: str, **options: str) -> Iterator[LogStream]:
    """A stream from the beginning, as Spark keeps one while a query runs."""
    given: Any = CaseInsensitiveDict()
    given.update(
        {way: gateway.url if way == "url" else gateway.path, "startingOffsets": "earliest", **options}
    )
    reader = RewindSource(given).streamReader(struct("offset bigint, body binary"))
    try:
        yield reader
    finally:
        reader.stop()


@pytest.fixture(scope="module", params=["url", "path"])
def replaced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaced]:
    """30 old messages; then the files are gone, and a new log has the same ids and 10 more."""
    way = request.param
    with (
        LogGateway(tmp_path_factory.mktemp(way)) as gateway,
        stream(gateway, way) as strict,
        stream(gateway, way, failOnDataLoss="false") as lenient,
    ):
        gateway.publish(text(b"old", "t") for _ in range(30))
        start = strict.initialOffset()
        end = strict.latestOffset(start, ReadAllAvailable())
        assert lenient.latestOffset(start, ReadAllAvailable()) == end
        gateway.kill()
        shutil.rmtree(gateway.data)
        gateway.start()
        gateway.publish(text(b"new", "t") for _ in range(40))
        yield Replaced(gateway, way, strict, lenient, start, end)


def rows(reader: LogStream, start: Offsets, end: Offsets) -> list[tuple[int, bytes]]:
    """What a micro-batch reads, partition by partition."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [(row["offset"], row["body"]) for batch in batches for row in batch.to_pylist()]


def test_a_running_stream_stops_at_another_generation(replaced: Replaced) -> None:
    """No message of the new log passes for the next one of the old."""
    with pytest.raises(DataLoss, match="was made anew: the query stands at offset 31 of generation"):
        replaced.strict.latestOffset(replaced.end, ReadAllAvailable())


def test_a_checkpoint_of_another_generation_is_refused(replaced: Replaced) -> None:
    """A query begun again with its checkpoint holds that against the log it finds."""
    with (
        stream(replaced.gateway, replaced.way) as again,
        pytest.raises(DataLoss, match="Set failOnDataLoss to false"),
    ):
        again.latestOffset(replaced.end, ReadAllAvailable())


def test_who_accepts_the_loss_gets_the_new_log_whole(replaced: Replaced) -> None:
    """With failOnDataLoss=false the stream goes on at the new log's first message, and misses none of it."""
    later = replaced.lenient.latestOffset(replaced.end, ReadAllAvailable())
    found = rows(replaced.lenient, replaced.end, later)
    assert found == [(offset, b"new") for offset in range(1, 41)]


def test_a_batch_planned_before_fails(replaced: Replaced) -> None:
    """A micro-batch between offsets of the old log is not filled from the new one."""
    with pytest.raises(DataLoss):
        rows(replaced.strict, replaced.start, replaced.end)


def test_a_batch_planned_before_is_left_out_in_words(
    replaced: Replaced, capsys: pytest.CaptureFixture[str]
) -> None:
    """With failOnDataLoss=false it has no rows, and stderr says which offsets are missing."""
    assert rows(replaced.lenient, replaced.start, replaced.end) == []
    assert "are no longer in the log; they are left out" in capsys.readouterr().err
