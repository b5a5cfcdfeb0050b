"""The measurements of each broker: rates, time to ``accepted``, memory, processor time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import limits
from tests.bench.generator.client import percentile
from tests.bench.measured.sizes import Figures
from tests.bench.peers.broker import WARM, Broker, Running
from tests.bench.processes import MEGABYTE, Load, recv, send
from tests.support import proc

COMMIT = "commit-p50"


def measure(broker: Broker, folder: Path, count: int, single: int) -> Figures:
    """
    One run of a broker in a new folder.

    Args:
        count: The number of messages for rates.
        single: The number of messages sent one by one.

    Raises:
        tests.bench.processes.LoadFailed: A message was refused, lost, repeated, out of order or not durable.
        PeerFailed: The broker does not become ready.
    """
    with broker.started(folder) as running:
        figures = _run(broker, running, count, single)
    commits = limits.commit_latencies(folder / "commits.db", single)
    return figures | {COMMIT: percentile(commits, 0.5)}


def _run(broker: Broker, running: Running, count: int, single: int) -> Figures:
    bench, alone = broker.queue("bench"), broker.queue("single")
    for warm in map(broker.queue, WARM):
        send(running.address, warm, count)
        if broker.is_consumed:
            recv(running.address, warm, count, durable=True)
    send(running.address, alone, single, outstanding=1)
    figures = _charged("publish", running, count, lambda: send(running.address, bench, count))
    if broker.is_consumed:
        figures |= _charged(
            "consume", running, count, lambda: recv(running.address, bench, count, durable=True)
        )
    if broker.replay is not None:
        address, filters = broker.replay.address, broker.replay.filters
        figures |= _charged(
            "replay",
            running,
            count,
            lambda: recv(running.address, address, count, durable=True, filters=filters),
        )
    one = Load("send", running.address, alone, single, outstanding=1).result()
    return figures | {"single-p50": one["p50_ms"], "single-p99": one["p99_ms"]}


def _charged(name: str, running: Running, count: int, run: Callable[[], dict[str, Any]]) -> Figures:
    """Rate, the broker's processor time for each message in microseconds, and its memory afterwards in MB."""
    before = proc.cpu_seconds(running.pids())
    rate = run()["rate"]
    return {
        name: rate,
        f"{name}-cpu": (proc.cpu_seconds(running.pids()) - before) / count * 1e6,
        f"{name}-memory": proc.resident_bytes(running.pids()) / MEGABYTE,
    }
