"""
The wall clock. The core is told the time; this is where it is read.
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def seconds() -> float:
    """A clock that only goes forward, for how long something takes."""
    return time.perf_counter()


def processor_seconds() -> float:
    """What the calling thread has had of a processor so far."""
    return time.thread_time()
