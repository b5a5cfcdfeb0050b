"""Reading a log from Spark: over path and url, beside what SQLite and Arrow need for the same rows without Spark."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.filled import message_file
from tests.bench.processes import ROOT, LoadFailed

PAGE = 2_000
SECONDS = 900


class SparkReads:
    """A process with a Spark session that reads a log; see ``tests.bench.spark_reads``."""

    def __init__(self, way: str, where: str, last: int, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.spark_reads", way, where, str(last), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
        )

    def line(self) -> Any:
        """The next line it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise LoadFailed("Spark ended early; run python -m tests.bench.spark_reads to see why")
        return json.loads(line)

    def __enter__(self) -> SparkReads:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.terminate()
        self._process.wait(SECONDS)
        self._process.stdout.close()


def raw_seconds(data: Path) -> float:
    """SQLite to Arrow without Spark, in one process: id, time, topic and the encoded message of every row, in pages."""
    import pyarrow as pa  # noqa: PLC0415 - all other benchmarks run without it

    connection = sqlite3.connect(message_file(data))
    statement = "select id, time, topic, content from message where id > ? order by id limit ?"
    kinds = (pa.int64(), pa.int64(), pa.string(), pa.binary())
    started = time.perf_counter()
    last = 0
    while page := connection.execute(statement, (last, PAGE)).fetchall():
        columns = zip(*page, strict=True)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        pa.RecordBatch.from_arrays(arrays, names=["id", "time", "topic", "content"])
        last = page[-1][0]
    seconds = time.perf_counter() - started
    connection.close()
    return seconds
