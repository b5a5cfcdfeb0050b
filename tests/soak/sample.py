"""What a gateway weighs and does at a moment of a run, every ten seconds."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.system.gateway_process import GatewayProcess

from .client import Run

_LINE = re.compile(r"^(\w+?)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LE = re.compile(r'le="([^"]+)"')
RATES = {
    "published_per_second": "rewind_published_messages_total",
    "settled_per_second": "rewind_settled_messages_total",
    "replayed_per_second": "rewind_replayed_messages_total",
    "trimmed_per_second": "rewind_trimmed_ids_total",
}
LAG = "rewind_loop_lag_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A moment; rates, lags and waits are of the time since the one before."""

    seconds: float
    """Since the run began."""
    resident_bytes: int
    file_bytes: int
    """Of the Message VPN's file, without its WAL."""
    wal_bytes: int
    descriptors: int
    threads: int
    processor_share: float
    """Of one core."""
    loop_lag_mean_ms: float
    loop_lag_most_ms: float
    """The bound of the histogram's bucket that the longest fell into; infinite past the last one."""
    longest_wait_ms: float
    """Of the bystander, from publish to receipt."""
    published_per_second: float
    settled_per_second: float
    replayed_per_second: float
    trimmed_per_second: float

    def fields(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


class Sampler:
    """Takes samples of one gateway."""

    def __init__(self, gateway: GatewayProcess, run: Run) -> None:
        self._gateway = gateway
        self._run = run
        self._started = self._last = time.monotonic()
        self._processor = gateway.cpu_seconds()
        self._metrics: Mapping[str, float] = {}

    def sample(self, metrics: str) -> Sample:
        """A sample; ``metrics`` is a scrape of now."""
        gateway = self._gateway
        now, processor = time.monotonic(), gateway.cpu_seconds()
        elapsed = max(now - self._last, 1e-9)
        found = totals(metrics)
        before = self._metrics
        delta = {name: value - before.get(name, 0.0) for name, value in found.items()}
        process = Path(f"/proc/{gateway.pid}")
        sizes = [(path.name, path.stat().st_size) for path in gateway.data.iterdir() if path.is_file()]
        sample = Sample(
            seconds=round(now - self._started, 1),
            resident_bytes=gateway.resident_bytes(),
            file_bytes=sum(size for name, size in sizes if not name.endswith(("-wal", "-shm"))),
            wal_bytes=sum(size for name, size in sizes if name.endswith("-wal")),
            descriptors=len(os.listdir(process / "fd")),
            threads=len(os.listdir(process / "task")),
            processor_share=(processor - self._processor) / elapsed,
            loop_lag_mean_ms=1000 * delta.get(f"{LAG}_sum", 0) / max(delta.get(f"{LAG}_count", 0), 1),
            loop_lag_most_ms=1000 * _highest_bucket(delta),
            longest_wait_ms=1000 * self._run.take_longest_wait(),
            **{field: max(delta.get(metric, 0.0), 0.0) / elapsed for field, metric in RATES.items()},
        )
        self._last, self._processor, self._metrics = now, processor, found
        return sample


def totals(metrics: str) -> dict[str, float]:
    """The series of a scrape: the sum over its labels of each name; of a histogram's buckets by their bound."""
    found: dict[str, float] = {}
    for name, labels, value in _LINE.findall(metrics):
        bound = _LE.search(labels)
        key = f"{name}:{bound.group(1)}" if bound else name
        found[key] = found.get(key, 0.0) + float(value)
    return found


def _highest_bucket(delta: Mapping[str, float]) -> float:
    """Seconds: the least bound that all of the time's measurements are within; 0 where there were none."""
    count = delta.get(f"{LAG}_count", 0)
    bounds = sorted(
        float(name.rpartition(":")[2])
        for name, value in delta.items()
        if name.startswith(f"{LAG}_bucket:") and value >= count
    )
    return bounds[0] if bounds and count else 0.0
