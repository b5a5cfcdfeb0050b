"""
The lease of a gateway on a store that another gateway may take over: how long after a commit it still delivers.

Whatever is accepted is safe without it: no commit of a gateway that was deposed succeeds. But a gateway that was
stopped, or cut off from its store, has messages in memory that the new one delivers as well. So nothing is delivered
when the newest commit known to have succeeded began longer ago than the lease lasts, until one succeeds again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.1
"""How often it is looked at whether a lease that ran out holds again."""


class Lease:
    """
    Args:
        confirmed_at: ``store.ports.Writer.confirmed_at``.
        seconds: How long it lasts.
        loop: Where it is asked for.
        monotonic: The clock of ``confirmed_at``.
    """

    def __init__(
        self,
        confirmed_at: Callable[[], float],
        seconds: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._confirmed_at = confirmed_at
        self._seconds = seconds
        self._loop = loop
        self._monotonic = monotonic
        self._has_ended = False
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def age_seconds(self) -> float:
        """Since the newest commit that is known to have succeeded began."""
        return max(0.0, self._monotonic() - self._confirmed_at())

    def holds(self) -> bool:
        """Whether something may be delivered now. Asked once a batch."""
        return not self._has_ended and self._monotonic() - self._confirmed_at() < self._seconds()

    def wait(self, resume: Callable[[], None]) -> None:
        """It does not hold: ``resume`` is called once it does again, however often it was given."""
        self._waiting[resume] = None
        if self._timer is None and not self._has_ended:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def forget(self, resume: Callable[[], None]) -> None:
        """Nobody waits with this any more."""
        self._waiting.pop(resume, None)

    def end(self) -> None:
        """Another gateway has the store: it never holds again."""
        self._has_ended = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if not self.holds():
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
            return
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()
