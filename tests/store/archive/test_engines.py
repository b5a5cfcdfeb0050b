"""Engines that know nothing of Rewind read the archive, with SQL and without: the same rows as its own reader."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars
import pytest
from deltalake import DeltaTable

from tests.spark_bridge.places.test_log_file import table
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import archiver, two_days

pytestmark = pytest.mark.spark

GUIDE = Path(__file__).parents[3] / "docs/guides/archive.md"
COLUMNS = ("offset", "topic", "body", "messageId")
(EXTENSION,) = (Path(duckdb_extension_delta.__file__).parent / "extensions").glob("*/delta.duckdb_extension")


def of_duckdb(place: str) -> list[dict[str, Any]]:
    with duckdb.connect() as database:
        database.load_extension(str(EXTENSION))
        wanted = ", ".join(f'"{name}"' for name in COLUMNS)  # offset is a word of SQL
        rows = database.execute(f"select {wanted} from delta_scan('{place}')").fetchall()
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def of_polars(place: str) -> list[dict[str, Any]]:
    return polars.scan_delta(place).select(COLUMNS).collect().to_dicts()


def of_pyarrow(place: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        DeltaTable(place).to_pyarrow_dataset().to_table(columns=list(COLUMNS)).to_pylist()
    )
    return rows


@pytest.fixture
def log(tmp_path: Path) -> StoredLog:
    log = two_days(tmp_path / "data")
    archiver(log, str(tmp_path / "archive")).run()
    return log


@pytest.mark.parametrize("read", [of_duckdb, of_polars, of_pyarrow])
@pytest.mark.usefixtures("log")
def test_an_engine_reads_what_was_archived(
    tmp_path: Path, read: Callable[[str], list[dict[str, Any]]]
) -> None:
    place = str(tmp_path / "archive")
    expected = table("offset bigint, topic string, body binary, messageId string", archive=place).to_pylist()
    assert sorted(read(place), key=lambda row: int(row["offset"])) == expected


def test_the_guides_sql_runs(tmp_path: Path, log: StoredLog) -> None:
    """As it is printed, on an archive with the orders of last week."""
    found = re.search(r"```python\n(import duckdb.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    script = found[1].replace("orders/%", "n/%").replace("interval 7 day", "interval 9000 day")
    load = f"import duckdb\nduckdb.load_extension({str(EXTENSION)!r})\n"
    command = [sys.executable, "-c", load + script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout, done.stdout
    counts = [int(line.split("│")[2]) for line in done.stdout.splitlines() if re.match(r"│ \d{4}-", line)]
    assert sum(counts) == len(log.logged), done.stdout
