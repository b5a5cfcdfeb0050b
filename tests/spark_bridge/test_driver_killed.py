"""kill -9 of a driver in mid-stream, again and again, while the log grows: every row is in the sink exactly once."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark_bridge.log_gateway import LogGateway, text

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]
ROOT = Path(__file__).parents[2]
KILLS = int(
    os.environ.get("REWIND_SPARK_KILLS", "0")
)  # of the driver in each run; each costs the start of a Spark
HISTORY = 20_000  # messages there before the first driver: more batches than one of them lives through
BATCH = 50  # messages published at a time while drivers come and go
PAUSE = 0.1  # seconds between them: about as many as two cores stream beside all this
LIFE = 3.0  # seconds a driver lives at most after its first micro-batch


class Load:
    """Goes on publishing numbered messages from the beginning of a ``with`` block to its end."""

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
def gateway(tmp_path: Path) -> Iterator[LogGateway]:
    """A gateway with a history."""
    with LogGateway(tmp_path / "gateway") as gateway:
        gateway.publish(text(b"%d" % n, "t") for n in range(HISTORY))
        yield gateway


@pytest.mark.skipif(not KILLS, reason="takes minutes: ./run soak spark")
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("way", ["url", "path", "several"])
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, gateway: LogGateway, tmp_path: Path, way: str
) -> None:
    """Each driver goes on from the checkpoint of the one before; the last one may end by itself."""
    several = f"{gateway.url},{gateway.url.replace('127.0.0.1', 'localhost')}"
    where = {"url": gateway.url, "path": gateway.path, "several": several}[way]
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
    with Load(gateway) as load:
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
    """A driver in a process group of its own: its JVM dies with it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )


def killed(command: list[str], life: float) -> int:
    """Kill a driver so many seconds after its first micro-batch, wherever it is then; how many it told of."""
    with started(command) as driver:
        assert driver.stdout is not None
        told = driver.stdout.readline()
        assert told.startswith(b"batch"), "the driver ended before its first micro-batch"
        with pytest.raises(subprocess.TimeoutExpired):  # it has more to do than that
            driver.wait(life)
        os.killpg(driver.pid, signal.SIGKILL)
        return (told + driver.stdout.read()).count(b"batch")
