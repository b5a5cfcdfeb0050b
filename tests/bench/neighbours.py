"""How much of the machine other processes used during a measurement.

A figure that was disturbed by other processes is useless. It cannot be corrected afterwards, but it can be marked.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

QUIET = 0.3
"""Cores used by others below which a figure is useful: kernel threads and interrupts alone take 0.1 or 0.2."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Neighbours:
    """Measures during its ``with`` block. A child process counts as ours once the block has waited for it."""

    cores: float = 0.0
    """Processors in use by other processes, on average; set after the block."""

    def __enter__(self) -> Neighbours:
        self._before = (time.perf_counter(), _busy_seconds(), _own_seconds())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started, busy, own = self._before
        others = _busy_seconds() - busy - (_own_seconds() - own)
        self.cores = max(0.0, others / (time.perf_counter() - started))


def _busy_seconds() -> float:
    """Processor time of all processors since boot without idling: proc(5), the first line of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_guests = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _own_seconds() -> float:
    return sum(os.times()[:4])
