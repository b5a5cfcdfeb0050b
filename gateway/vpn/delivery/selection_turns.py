"""
How long selectors may keep the loop: in each of its turns, all of a Message VPN's feeds together have so much time.

One evaluation is bounded by a count of steps. That leaves a thousand of them, of one consumer or of many, which no one
of them is to blame for. A feed that finds the time of this turn used up goes on in a later one, in the order in which
feeds found that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.vpn.runtime import Runtime

QUICK_SECONDS: Final = 0.001
"""What is chosen from without a look at the time takes about so long."""


class WaitingTurn:
    """A feed that waits for the loop's next turn."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        """It waits no more."""
        self.run = None


class RowsAtOnce:
    """
    How many rows one reader's selector is asked of at once: few where its answers take long.

    Args:
        most: Rows, where they are quick.
    """

    def __init__(self, seconds: Callable[[], float], most: int) -> None:
        self.count = 1
        self._seconds = seconds
        self._most = most
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = self._seconds()

    def __exit__(self, *_: object) -> None:
        taken = self._seconds() - self._began
        if taken < QUICK_SECONDS:
            self.count = min(self.count * 4, self._most)
        elif taken > 2 * QUICK_SECONDS:
            self.count = max(self.count // 4, 1)


class SelectionTurns:
    def __init__(self, runtime: Runtime) -> None:
        self._call_soon = runtime.loop.call_soon
        self._seconds = runtime.clock.seconds
        self._turn_seconds = runtime.tuning.selection_turn_seconds
        self._until: float | None = None
        """When this turn's time is used up; none where nobody has asked for any in this turn."""
        self._waiting: deque[WaitingTurn] = deque()

    def is_over(self) -> bool:
        """Whether the time of this turn of the loop is used up; it begins with whoever asks first."""
        if self._until is None:
            self._until = self._seconds() + self._turn_seconds
            self._call_soon(self._next_turn)
            return False
        return self._seconds() >= self._until

    def wait(self, run: Callable[[], None]) -> WaitingTurn:
        """Go on with a feed in a later turn."""
        waiting = WaitingTurn(run)
        self._waiting.append(waiting)
        if self._until is None:
            self.is_over()
        return waiting

    def _next_turn(self) -> None:
        self._until = None
        for _ in range(len(self._waiting)):
            if self.is_over():
                # Another turn has been asked for already: by the first one here.
                return
            run = self._waiting.popleft().run
            if run is not None:
                run()
