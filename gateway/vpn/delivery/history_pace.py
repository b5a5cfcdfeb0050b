"""
How quickly log readers go through history beside live traffic: one pace for all of a Message VPN's readers together.

History waits for the present, not the other way round, but only as long as it has to. After each turn a reader leaves
the gateway to others for a multiple of the time that the turn took, and the reading of its page in another thread. The
multiple rises with the share of the loop that live traffic takes, so that a queue under full load keeps most of its
throughput, a reader beside a trickle hardly notices it, and neither depends on how quick the machine is. Where nothing
is live, nobody waits; a pause that was begun ends once live traffic has.
"""

from __future__ import annotations

from typing import Final

from gateway.vpn.clock import Clock
from gateway.vpn.counters import Counters

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
