"""A log restored from a backup behind its readers' backs: Spark's checkpoints, and archives, are of the lost one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql.streaming.datasource import ReadAllAvailable

from gateway.cli import main
from store.archive.errors import DataLoss
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.test_generation import rows, stream
from tests.system.test_copies import rewind

pytestmark = [pytest.mark.spark, pytest.mark.system]


@pytest.mark.parametrize("way", ["url", "path"])
def test_checkpoints_and_archives_of_the_lost_log_are_refused(tmp_path: Path, way: str) -> None:
    """
    Ten messages are in the backup, and five came after it. A query that has read all fifteen stops, and one that
    accepts the loss gets what there is; nothing is archived on top of what the lost log left in an archive.
    """
    archive = str(tmp_path / "archive")
    with (
        LogGateway(tmp_path / "gateway") as gateway,
        stream(gateway, way) as strict,
        stream(gateway, way, failOnDataLoss="false") as lenient,
    ):
        gateway.publish(text(b"kept", "t") for _ in range(10))
        rewind("backup", tmp_path / "b.db", "--data", gateway.data)
        gateway.publish(text(b"lost", "t") for _ in range(5))
        start = strict.initialOffset()
        end = strict.latestOffset(start, ReadAllAvailable())
        archiving = ["archive", "--from", gateway.path, "--to", archive, "--no-tell"]
        archived = CliRunner().invoke(main, archiving)
        assert "archived 15 messages" in archived.output
        gateway.kill()
        rewind("restore", tmp_path / "b.db", "--data", gateway.data, "--replace")
        gateway.start()
        gateway.publish(text(b"new", "t") for _ in range(10))

        with pytest.raises(DataLoss, match="was made anew: the query stands at offset 16 of generation"):
            strict.latestOffset(end, ReadAllAvailable())
        later = lenient.latestOffset(end, ReadAllAvailable())
        found = rows(lenient, end, later)
        assert [body for _, body in found] == [b"kept"] * 10 + [b"new"] * 10
        assert found[10][0] > 15
        archived = CliRunner().invoke(main, archiving)
        assert archived.exit_code == 1
        assert "the log was made anew since. Archive it to another place" in archived.output
        other = CliRunner().invoke(main, [*archiving[:4], f"{archive}-2", "--no-tell"])
        assert "archived 20 messages" in other.output
