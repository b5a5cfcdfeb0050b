"""Spark reads a log by path and by URL; compared with SQLite and Arrow for the same rows without Spark."""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.filled import fill_log, message_file
from tests.bench.processes import ROOT, LoadFailed, Process, gateway

from .company import live
from .sizes import Figures, Sizes

PAGE = 2_000


def spark(folder: Path, sizes: Sizes) -> Figures:
    """
    Seconds in which Spark reads all rows of a log in each way, and the rate of live traffic while it reads by URL.
    """
    data = folder / "data"
    fill_log(data, sizes.read)
    figures = {"spark-raw": raw_seconds(data)}
    with spark_reads("path", str(data), sizes.read) as reads:
        figures |= first_line(reads)
    with gateway(data) as server:
        url = f"amqp://{server.address}"
        with spark_reads("url", url, sizes.read) as reads:
            figures |= first_line(reads)
        live(server.address, sizes.history // 4)
        alone = live(server.address, sizes.history)
        with spark_reads("url", url, sizes.read, "--forever") as reads:
            first_line(reads)
            # Its next query begins at full speed, until the gateway sees live traffic.
            live(server.address, sizes.history // 4)
            figures["spark-live"] = live(server.address, sizes.history)
        # Before and after: the speed of a virtual machine changes from minute to minute.
        figures["spark-live-alone"] = (alone + live(server.address, sizes.history)) / 2
    return figures


def spark_reads(way: str, where: str, last: int, *options: str) -> Process:
    """A process with a Spark session that reads a log."""
    command = [sys.executable, "-m", "tests.bench.spark_reads", way, where, str(last), *options]
    return Process(command, environment={"PYTHONPATH": str(ROOT)})


def first_line(reads: Process) -> Any:
    """The first line of its output: its measurements, or that it has begun to read."""
    if (line := reads.line()) is None:
        raise LoadFailed(f"Spark ended early: {reads.said()}")
    return line


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
