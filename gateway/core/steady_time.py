"""
The time of a Message VPN: what messages are stamped with, and what they expire by. It neither jumps nor goes back.

It goes on with a clock that only goes forward, and follows the machine's calendar clock, which people and time servers
set. Set back, that is waited for, a tenth slower, so that a time to live stays what it was but for that tenth. Set
forward by much, it is not followed until it has stayed so: a clock that is wrong for a moment expires nothing, and
stamps nothing that all later messages would have to be stamped behind.
"""

from __future__ import annotations

from typing import Final

STEP_MS: Final = 60_000
"""A difference between the clocks below this is followed at once: drift, or a busy machine."""

SETTLE_SECONDS: Final = 300.0
"""How long the calendar clock has to say the same until a jump forward is believed: a machine that slept, say."""

WAITING_PACE: Final = 0.9
"""How quickly time goes on while it is ahead of the calendar clock."""


class SteadyTime:
    """
    Args:
        at_least_ms: The newest time given out before, in ms since the epoch.
    """

    def __init__(self, at_least_ms: int) -> None:
        self._now = float(at_least_ms)
        self._read: float | None = None
        """When it was read last, by the clock that only goes forward."""
        self._jump_ms = 0.0
        """How far the calendar clock is ahead, where that is not believed yet."""
        self._jumped = 0.0
        self._ahead_ms = 0.0
        """How far this time is ahead of the calendar clock."""

    def read(self, wall_ms: int, seconds: float) -> int:
        """
        The time, in ms since the epoch; never less than before.

        Args:
            wall_ms: What the calendar clock says, in ms since the epoch.
            seconds: What a clock says that only goes forward.
        """
        if self._read is None:
            self._now = max(self._now, float(wall_ms))
        else:
            elapsed_ms = (seconds - self._read) * 1_000
            jump_ms = wall_ms - self._now - elapsed_ms
            if jump_ms <= 0:
                self._jump_ms = 0.0
                self._now = max(float(wall_ms), self._now + elapsed_ms * WAITING_PACE)
            elif jump_ms <= STEP_MS or self._is_believed(jump_ms, seconds):
                self._jump_ms = 0.0
                self._now = float(wall_ms)
            else:
                self._now += elapsed_ms
        self._read = seconds
        self._ahead_ms = self._now - wall_ms
        return int(self._now)

    def _is_believed(self, jump_ms: float, seconds: float) -> bool:
        if abs(jump_ms - self._jump_ms) > STEP_MS:
            self._jump_ms, self._jumped = jump_ms, seconds
        return seconds - self._jumped >= SETTLE_SECONDS

    def problem(self) -> str | None:
        """What an administrator should know of the clocks; None while they agree."""
        if self._jump_ms:
            return (
                f"the machine's clock is {self._jump_ms / 1_000:,.0f} s ahead of the time that has passed; "
                f"it is followed once it has stayed so for {SETTLE_SECONDS:.0f} s"
            )
        if self._ahead_ms > STEP_MS:
            return (
                f"messages are stamped {self._ahead_ms / 1_000:,.0f} s ahead of the machine's clock, "
                "which was set back: times in the log never fall"
            )
        return None
