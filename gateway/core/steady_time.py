"""
The time of a Message VPN, for the time stamps and the expiry of messages. It neither jumps nor goes back.

It advances with a monotonic clock, and follows the machine's calendar clock, which people and time servers set. After
the calendar clock was set back, this time advances a tenth slower until the calendar clock has caught up: a time to
live is longer by about a tenth at most. After the calendar clock was set far forward, this time follows only when the
difference has lasted. So a clock that is wrong for a moment expires no message, and gives no message a future time that
all later messages would have to exceed.
"""

from __future__ import annotations

from typing import Final

STEP_MS: Final = 60_000
"""A difference between the clocks up to this is followed immediately: drift, or a busy machine."""

SETTLE_SECONDS: Final = 300.0
"""How long a jump forward of the calendar clock has to last before it is followed: after a machine slept, for
example."""

WAITING_PACE: Final = 0.9
"""The pace of this time while it is ahead of the calendar clock."""


class SteadyTime:
    """
    Args:
        at_least_ms: The newest time given out before, in ms since the epoch.
    """

    def __init__(self, at_least_ms: int) -> None:
        self._now = float(at_least_ms)
        self._read: float | None = None
        """The monotonic clock, in seconds, at the last ``read``."""
        self._jump_ms = 0.0
        """How far the calendar clock is ahead, while that is not followed yet; else 0."""
        self._jumped = 0.0
        self._ahead_ms = 0.0
        """How far this time is ahead of the calendar clock."""

    def read(self, wall_ms: int, seconds: float) -> int:
        """
        Return the time, in ms since the epoch; never less than before.

        Args:
            wall_ms: The calendar clock, in ms since the epoch.
            seconds: The monotonic clock.
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
        """What an administrator should know about the clocks; None while they agree."""
        if self._jump_ms:
            return (
                f"the machine's clock is {self._jump_ms / 1_000:,.0f} s ahead of the time that has passed; "
                f"the gateway follows it once it has stayed so for {SETTLE_SECONDS:.0f} s"
            )
        if self._ahead_ms > STEP_MS:
            return (
                f"messages are stamped {self._ahead_ms / 1_000:,.0f} s ahead of the machine's clock, which "
                "was set back: times in the log never go back"
            )
        return None
