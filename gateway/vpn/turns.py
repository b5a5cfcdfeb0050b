"""
Who may go on, and who waits: users at long reads, selectors on the event loop, history beside live traffic.

- ``UserTurns``: one page at a time, and users one after the other. However many searches, or readers of an archive, one
  user has, another's waits for one page of that user's, and not for one of each.
- ``SelectionTurns``: in each turn of the loop the selectors of all consumers together have so much time. One evaluation
  is bounded by a count of steps; that leaves a thousand of them, of one consumer or of many. A feed that finds the time
  of this turn used up goes on in a later one.
- ``HistoryPace``: after each turn a log reader that is behind leaves the gateway to others for a multiple of the time
  that its turn took. The multiple rises with the share of the loop that live traffic takes, so that a queue under full
  load keeps most of its throughput, a reader beside a trickle hardly notices it, and neither depends on how quick the
  machine is. Where nothing is live, nobody waits; a pause that was begun ends once live traffic has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from gateway.vpn.runtime import Clock, Counters, Runtime

ADMINISTRATION: Final = ""
"""Who reads where no user of a listener does: administrators, together."""

QUICK_SECONDS: Final = 0.001
"""What is chosen from without a look at the time takes about so long."""

WINDOW_SECONDS: Final = 0.02
"""Over this live traffic is measured: a few group commits. A window without any is the end of it."""

STALE_SECONDS: Final = 1.0
"""Since so long nobody has read: what came meanwhile says nothing of what comes now."""

PAUSE_PER_LIVE = 80
"""How that rises: times the live messages that come in the time of sending one row. Steep on purpose: traffic that
history slows down must not look like little traffic."""

LONGEST_TURN: Final = 0.005
"""Seconds; a turn that took longer was interrupted, and nobody has to wait for that."""

FEW_ROWS: Final = 16
"""A turn that sent fewer does not show what sending one takes: most of it was a search for them."""

SHORT_PAUSE_SECONDS: Final = 0.5
"""Who has so little left to wait asks after each window whether anything is live still; others after a quarter of it,
so that thousands of them do not keep the loop busy by asking."""


class UserTurns:
    """
    The turns of one Message VPN's users at one thing.

    Args:
        at_once: How many have a turn at the same time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.free = at_once
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Those that wait, by user."""
        self._turns = 0
        self._last: dict[str, int] = {}
        """Which turn was the last one of a user; nothing is known where nobody waits."""

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
                # It was given the turn, and is gone.
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """A turn is over."""
        self.free += 1
        while self._waiting:
            # Whoever has not had one for the longest.
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
        """This user has a turn that is free."""
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
        How long a reader is to wait now whose turn is due then: it asks again afterwards.

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
        """See how much live traffic there is. It rises at once and falls slowly here, as commits come in bursts."""
        elapsed = now - self._measured
        if elapsed < WINDOW_SECONDS:
            return
        came = self._see(now)
        self._per_second = max(came / elapsed, self._per_second / 2) if came else 0.0

    def _see(self, now: float) -> int:
        """How many live messages came since this was asked last."""
        counters = self._counters
        messages = counters.published_messages - counters.copied_messages + counters.settled_messages
        came, self._messages, self._measured = messages - self._messages, messages, now
        return came
