"""
Measurements of a gateway every ten seconds of a run: samples, whether their curves stay flat, and the final report.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean

from tests.bench.report import columns
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Bystander

_LINE = re.compile(r"^(\w+?)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LE = re.compile(r'le="([^"]+)"')
RATES = {
    "published_per_second": "rewind_published_messages_total",
    "settled_per_second": "rewind_settled_messages_total",
    "replayed_per_second": "rewind_replayed_messages_total",
    "trimmed_per_second": "rewind_trimmed_ids_total",
}
LAG = "rewind_loop_lag_seconds"


Sample = Mapping[str, float]
"""One moment: ``seconds`` since the run began, and a value for each of ``CURVES``. Rates, lags and waits cover the time
since the previous sample. ``loop_lag_most_ms`` is the upper bound of the bucket of the longest lag."""


class Sampler:
    """Takes samples of one gateway."""

    def __init__(self, gateway: GatewayProcess, bystander: Bystander) -> None:
        self._gateway = gateway
        self._bystander = bystander
        self._started = self._last = time.monotonic()
        self._processor = gateway.cpu_seconds()
        self._metrics: Mapping[str, float] = {}

    def sample(self, metrics: str) -> Sample:
        """Take a sample; ``metrics`` is a scrape of this moment."""
        gateway = self._gateway
        now, processor = time.monotonic(), gateway.cpu_seconds()
        elapsed = max(now - self._last, 1e-9)
        found = totals(metrics)
        before = self._metrics
        delta = {name: value - before.get(name, 0.0) for name, value in found.items()}
        process = Path(f"/proc/{gateway.pid}")
        sizes = [(path.name, path.stat().st_size) for path in gateway.data.iterdir() if path.is_file()]
        sample = {
            "seconds": round(now - self._started, 1),
            "resident_bytes": gateway.resident_bytes(),
            "file_bytes": sum(size for name, size in sizes if not name.endswith(("-wal", "-shm"))),
            "wal_bytes": sum(size for name, size in sizes if name.endswith("-wal")),
            "descriptors": len(os.listdir(process / "fd")),
            "threads": len(os.listdir(process / "task")),
            "processor_share": (processor - self._processor) / elapsed,
            "loop_lag_mean_ms": 1000 * delta.get(f"{LAG}_sum", 0) / max(delta.get(f"{LAG}_count", 0), 1),
            "loop_lag_most_ms": 1000 * _highest_bucket(delta),
            "longest_wait_ms": 1000 * self._bystander.longest_s,
            **{field: max(delta.get(metric, 0.0), 0.0) / elapsed for field, metric in RATES.items()},
        }
        self._bystander.longest_s = 0.0
        self._last, self._processor, self._metrics = now, processor, found
        return sample


def totals(metrics: str) -> dict[str, float]:
    """The series of a scrape: for each name the sum over its labels; for a histogram, the buckets by their bounds."""
    found: dict[str, float] = {}
    for name, labels, value in _LINE.findall(metrics):
        bound = _LE.search(labels)
        key = f"{name}:{bound.group(1)}" if bound else name
        found[key] = found.get(key, 0.0) + float(value)
    return found


def _highest_bucket(delta: Mapping[str, float]) -> float:
    """The lowest bound, in seconds, that all measurements of the time are below; 0 if there were none."""
    count = delta.get(f"{LAG}_count", 0)
    bounds = sorted(
        float(name.rpartition(":")[2])
        for name, value in delta.items()
        if name.startswith(f"{LAG}_bucket:") and value >= count
    )
    return bounds[0] if bounds and count else 0.0


LEAST_SAMPLES = 8
"""Two for each quarter. A run with fewer says nothing about growth."""

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Curve:
    """
    One field of a sample: how it is shown, and how much higher its last quarter may be than its second.

    Attributes:
        share: The growth that is allowed, as a share of the second quarter; None: no bound.
        allowance: Additional growth in the field's unit, for small values.
    """

    field: str
    title: str
    unit: float = 1.0
    of: Callable[[Sequence[float]], float] = fmean
    share: float | None = None
    allowance: float = 0.0


CURVES = (
    Curve("resident_bytes", "memory MB", MEGABYTE, share=0.10, allowance=10 * MEGABYTE),
    Curve("file_bytes", "file MB", MEGABYTE, share=0.10, allowance=20 * MEGABYTE),
    Curve("wal_bytes", "WAL MB", MEGABYTE, share=0.50, allowance=20 * MEGABYTE),
    Curve("descriptors", "descriptors", share=0.10, allowance=8),
    Curve("threads", "threads", share=0.0, allowance=4),
    Curve("processor_share", "processor %", 0.01),
    Curve("loop_lag_mean_ms", "lag ms"),
    Curve("loop_lag_most_ms", "most lag ms <", of=max),
    Curve("longest_wait_ms", "most wait ms", of=max),
    Curve("published_per_second", "in/s"),
    Curve("settled_per_second", "settled/s"),
    Curve("replayed_per_second", "replayed/s"),
    Curve("trimmed_per_second", "trimmed/s"),
)
"""A leak during an hour exceeds a bound; the variations of an allocator or of checkpoints do not."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one resource."""

    curve: Curve
    second: float
    """The mean of the second quarter."""
    last: float
    """The mean of the last quarter."""

    @property
    def is_flat(self) -> bool:
        """Whether the last quarter is within the bound."""
        return self.last <= self.second * (1 + (self.curve.share or 0.0)) + self.curve.allowance


def verdict(curve: Curve, values: Sequence[float]) -> Verdict:
    """
    Compare the last quarter of a curve with its second.

    Args:
        values: The values of a run, evenly spaced in time, at least ``LEAST_SAMPLES``.
    """
    if len(values) < LEAST_SAMPLES:
        raise ValueError(f"{len(values)} samples say nothing about growth; {LEAST_SAMPLES} are the least")
    quarter = len(values) // 4
    second, last = values[quarter : 2 * quarter], values[-quarter:]
    return Verdict(curve, fmean(second), fmean(last))


ROWS = 24
"""Rows of the table. Each is the mean of several samples; for waits and lags it is the maximum."""


WIDTH, HEIGHT, GAP = 900, 90, 26
"""Size of a panel in the picture in pixels, and the space for its title."""


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """A verdict for each curve with a bound; empty if the run was too short."""
    if len(samples) < LEAST_SAMPLES:
        return []
    return [
        verdict(curve, [sample[curve.field] for sample in samples])
        for curve in CURVES
        if curve.share is not None
    ]


def table(samples: Sequence[Sample]) -> str:
    """The curves as text; each row covers a part of the time."""
    rows = [["minute", *(curve.title for curve in CURVES)]]
    each = max(1, -(-len(samples) // ROWS))
    for start in range(0, len(samples), each):
        stretch = samples[start : start + each]
        cells = [f"{stretch[-1]['seconds'] / 60:.1f}"]
        for curve in CURVES:
            value = curve.of([sample[curve.field] for sample in stretch]) / curve.unit
            cells.append(f"{value:.1f}" if value < 10 else f"{value:,.0f}")
        rows.append(cells)
    return "\n".join(columns(rows, right=range(len(rows[0]))))


def picture(samples: Sequence[Sample]) -> str:
    """The curves as SVG, each in a panel from 0 to its highest value."""
    end = max((sample["seconds"] for sample in samples), default=0.0) or 1.0
    panels = []
    for index, curve in enumerate(CURVES):
        values = [sample[curve.field] / curve.unit for sample in samples]
        values = [value if value < float("inf") else 0.0 for value in values]
        most = max(values, default=0.0) or 1.0
        top = index * (HEIGHT + GAP) + GAP
        points = " ".join(
            f"{WIDTH * sample['seconds'] / end:.1f},{top + HEIGHT * (1 - value / most):.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        panels.append(
            f'<text x="0" y="{top - 6}">{escape(curve.title)}: 0 to {most:,.1f}</text>'
            f'<rect x="0" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>'
            f'<polyline points="{points}" fill="none" stroke="#06c"/>'
        )
    height = len(CURVES) * (HEIGHT + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 0 {WIDTH + 20} {height + 10}" '
        f'font-family="sans-serif" font-size="13">{"".join(panels)}</svg>\n'
    )


def sentences(found: Sequence[Verdict]) -> list[str]:
    """The verdicts as sentences."""
    return [
        f"{one.curve.field}: {_number(one.second)} in the second quarter, {_number(one.last)} in the last: "
        f"{'flat' if one.is_flat else 'NOT FLAT'}"
        for one in found
    ]


def _number(value: float) -> str:
    return f"{value / MEGABYTE:,.1f} MB" if value >= MEGABYTE else f"{value:,.1f}"
