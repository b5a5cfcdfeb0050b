"""
A log made anew, or restored from a backup, behind a stream's back, on real gateways: over a url and from the file. What
checkpoints and archives say is of the lost one.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from gateway.cli import main
from spark_bridge.source import RewindSource
from spark_bridge.stream import LogStream, Offsets
from store.archive.errors import DataLoss
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.spark_types import struct
from tests.system.test_copies import rewind

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.parametrize("way", ["url", "path"])]
ALL = ReadAllAvailable()


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


def rows(reader: LogStream, start: Offsets, end: Offsets) -> list[tuple[int, bytes]]:
    """What a micro-batch reads, partition by partition."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [(row["offset"], row["body"]) for batch in batches for row in batch.to_pylist()]


def test_a_log_made_anew_is_not_taken_for_the_old_one(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    30 old messages; then the files are gone, and a new log has the same ids and 10 more. A query that runs stops, as
    does one begun again with its checkpoint, and a micro-batch planned before is not filled from the new log. Who
    accepts the loss gets the new log whole, and is told what is missing of the old.
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
        with pytest.raises(DataLoss, match="was made anew: the query stands at offset 31 of generation"):
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


def test_checkpoints_and_archives_of_the_lost_log_are_refused(tmp_path: Path, way: str) -> None:
    """
    Ten messages are in the backup, and five came after it. A query that has read all fifteen stops, and one that
    accepts the loss gets what there is; nothing is archived on top of what the lost log left in an archive.
    """
    archive = str(tmp_path / "archive")

    def archived(to: str) -> str:
        arguments = ["archive", "--from", gateway.path, "--to", to, "--no-tell"]
        return CliRunner().invoke(main, arguments).output

    with (
        LogGateway(tmp_path / "gateway") as gateway,
        stream(gateway, way) as strict,
        stream(gateway, way, failOnDataLoss="false") as lenient,
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

        with pytest.raises(DataLoss, match="was made anew: the query stands at offset 16 of generation"):
            strict.latestOffset(end, ALL)
        found = rows(lenient, end, lenient.latestOffset(end, ALL))
        assert [body for _, body in found] == [b"kept"] * 10 + [b"new"] * 10
        assert found[10][0] > 15
        refused = archived(archive)
        assert refused.startswith("Error: ")
        assert "the log was made anew since. Archive it to another place" in refused
        assert "archived 20 messages" in archived(f"{archive}-2")
