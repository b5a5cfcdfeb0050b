"""
Turns: of users at long reads, of selectors on the event loop, of history during live traffic.

- ``UserTurns``: one page at a time, and users one after the other. However many searches or archive readers one user
  has, another user waits for one page of that user, and not for a page of each.
- ``SelectionTurns``: in each turn of the loop the selectors of all consumers together have a limited time. A single
  evaluation is bounded by a number of steps, but there may be a thousand of them, of one consumer or of many. A feed
  that finds the time of this turn used up continues in a later one.
- ``HistoryPace``: after each turn, a log reader that is behind pauses for a multiple of the time that its turn took.
  The multiple rises with the share of the loop that live traffic takes. So a queue under full load keeps most of its
  throughput, a reader during light traffic is hardly slowed down, and neither depends on the speed of the machine.
  Without live traffic no reader waits; a pause ends when live traffic does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from gateway.vpn.runtime import Clock, Counters, Runtime

ADMINISTRATION: Final = ""
"""The user of reads that no client asks for: all administrators together."""

QUICK_SECONDS: Final = 0.001
"""About how long a selector works on a slice of rows before the time is looked at."""

WINDOW_SECONDS: Final = 0.02
"""The window over which live traffic is measured: a few group commits. A window without any ends it."""

STALE_SECONDS: Final = 1.0
"""If no reader had a turn for so long, the messages that came meanwhile say nothing about the present traffic."""

PAUSE_PER_LIVE = 80
"""How the multiple rises: this times the live messages that come in the time of sending one row. Steep on purpose:
traffic that history slows down must not look like little traffic."""

LONGEST_TURN: Final = 0.005
"""Seconds; a turn that took longer was interrupted, and the excess causes no pause."""

FEW_ROWS: Final = 16
"""A turn that sent fewer rows does not show how long sending one takes: most of it was a search for them."""

SHORT_PAUSE_SECONDS: Final = 0.5
"""A reader with so little left to wait asks after each window whether there is still live traffic. Others ask after a
quarter of their wait, so that thousands of readers do not keep the loop busy by asking."""


class UserTurns:
    """
    The turns of one Message VPN's users at one kind of work.

    Args:
        at_once: How many turns there are at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.free = at_once
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Requests for a turn, by user."""
        self._turns = 0
        self._last: dict[str, int] = {}
        """The number of each user's last turn; emptied when nobody waits."""

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """One page for this user."""
        await self.take(user)
        try:
            yield
        finally:
            self.pass_on()

    async def take(self, user: str) -> None:
        """Wait for a turn of this user, which ``pass_on`` ends."""
        if self.free:
            self.give_to(user)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was given the turn and cancelled at the same time.
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """A turn is over."""
        self.free += 1
        while self._waiting:
            # The user whose last turn was the longest ago.
            user = min(self._waiting, key=lambda user: self._last.get(user, 0))
            queue = self._waiting[user]
            turn = queue.popleft()
            if not queue:
                del self._waiting[user]
            if not turn.done():
                self.give_to(user)
                turn.set_result(None)
                return
        self._last.clear()

    def give_to(self, user: str) -> None:
        """Give this user a free turn."""
        self.free -= 1
        self._turns += 1
        self._last[user] = self._turns


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
    How many rows one reader's selector gets in one slice: few if its evaluations take long.

    Args:
        most: Rows of a slice, at most.
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
        """When this turn's time is used up; None if no selector has run in this turn yet."""
        self._waiting: deque[WaitingTurn] = deque()

    def is_over(self) -> bool:
        """Whether the time of this turn of the loop is used up; it begins with the first call in a turn."""
        if self._until is None:
            self._until = self._seconds() + self._turn_seconds
            self._call_soon(self._next_turn)
            return False
        return self._seconds() >= self._until

    def wait(self, run: Callable[[], None]) -> WaitingTurn:
        """Continue a feed in a later turn."""
        waiting = WaitingTurn(run)
        self._waiting.append(waiting)
        if self._until is None:
            self.is_over()
        return waiting

    def _next_turn(self) -> None:
        self._until = None
        for _ in range(len(self._waiting)):
            if self.is_over():
                # The first call of ``is_over`` in this turn has scheduled the next one.
                return
            run = self._waiting.popleft().run
            if run is not None:
                run()


class HistoryPace:
    """
    The turns of all log readers of a Message VPN that are behind.

    Args:
        counters: Where live traffic is seen: messages published, and settled.
        longest_pause: See ``Tuning``.
    """

    def __init__(self, counters: Counters, clock: Clock, longest_pause: int) -> None:
        self._counters = counters
        self._seconds = clock.seconds
        self._longest_pause = longest_pause
        self._messages = 0
        self._measured = 0.0
        self._per_second = 0.0
        self._row_seconds = 0.0
        self._free = 0.0

    def spent(self, started: float, rows: int, reading: float = 0.0) -> float:
        """
        Count a turn that begins at ``started`` and ends now, and in which so many rows were sent.

        Args:
            reading: Seconds of a processor that its pages took in another thread.

        Returns:
            When its reader may take the next one; the readers' turns follow each other.
        """
        now = self._seconds()
        if started - self._measured > STALE_SECONDS:
            self._see(now)
            self._per_second = 0.0
        self._measure(now)
        taken = min(now - started, LONGEST_TURN)
        if rows >= FEW_ROWS:
            row_seconds = taken / rows
            self._row_seconds += (row_seconds - self._row_seconds) / 8 if self._row_seconds else row_seconds
        live = PAUSE_PER_LIVE * self._per_second * self._row_seconds
        self._free = max(self._free, now) + (taken + reading) * min(live, self._longest_pause)
        return self._free

    def wait(self, due: float) -> float:
        """
        How long a reader whose turn is due then waits now; it asks again afterwards.

        Returns:
            Seconds; 0 or less once it may take its turn.
        """
        now = self._seconds()
        left = due - now
        if left <= 0:
            return 0.0
        self._measure(now)
        if not self._per_second:
            self._free = now
            return 0.0
        return min(left, WINDOW_SECONDS if left <= SHORT_PAUSE_SECONDS else left / 4)

    def _measure(self, now: float) -> None:
        """Measure the live traffic. The result rises immediately and falls slowly, as commits come in bursts."""
        elapsed = now - self._measured
        if elapsed < WINDOW_SECONDS:
            return
        came = self._see(now)
        self._per_second = max(came / elapsed, self._per_second / 2) if came else 0.0

    def _see(self, now: float) -> int:
        """How many live messages came since the last call."""
        counters = self._counters
        messages = counters.published_messages - counters.copied_messages + counters.settled_messages
        came, self._messages, self._measured = messages - self._messages, messages, now
        return came
