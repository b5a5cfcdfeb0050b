"""
The clocks. The core is told the time; a Message VPN is given what it reads it from.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells a Message VPN the time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may be set back."""

    def seconds(self) -> float:
        """A clock that only goes forward, for how long something takes."""

    def processor_seconds(self) -> float:
        """What the calling thread has had of a processor so far."""


class SystemClock:
    """The machine's clocks."""

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    seconds = staticmethod(time.perf_counter)
    processor_seconds = staticmethod(time.thread_time)
