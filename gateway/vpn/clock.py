"""
The clocks. The core is told the time; a Message VPN is given what it reads it from.
"""

from __future__ import annotations

import time
from typing import Protocol

from gateway.core.steady_time import SteadyTime


class Clock(Protocol):
    """What tells a Message VPN the time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def problem(self) -> str | None:
        """What is wrong with it, for an administrator; None while it can be relied on."""

    def seconds(self) -> float:
        """A clock that only goes forward, for how long something takes."""

    def processor_seconds(self) -> float:
        """What the calling thread has had of a processor so far."""


class SystemClock:
    """The machine's clocks, as they are: the time may be set, forward and back."""

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def problem(self) -> str | None:
        """Nobody looks."""
        return None

    seconds = staticmethod(time.perf_counter)
    processor_seconds = staticmethod(time.thread_time)


class SteadyClock(SystemClock):
    """
    The machine's clocks, of which the time neither jumps nor goes back.

    Args:
        at_least_ms: The newest time given out before, in ms since the epoch.
        machine: The clocks it goes by.
    """

    def __init__(self, at_least_ms: int, machine: Clock | None = None) -> None:
        self._machine = machine or SystemClock()
        self._time = SteadyTime(at_least_ms)

    def now_ms(self) -> int:  # type: ignore[override]
        """Milliseconds since the epoch; never less than before."""
        return self._time.read(self._machine.now_ms(), self._machine.seconds())

    def problem(self) -> str | None:
        """What is wrong with the machine's clock."""
        self.now_ms()
        return self._time.problem()

    def seconds(self) -> float:
        """A clock that only goes forward."""
        return self._machine.seconds()

    def processor_seconds(self) -> float:
        """What the calling thread has had of a processor so far."""
        return self._machine.processor_seconds()
