"""
What was sent, accepted and received, and the faults in it that no pair of gateways may show.

Each message is sent once. If its outcome was lost with the connection it is in doubt, and is in the log once or not at
all. These are faults: an accepted message that is not in the log; a message that is there twice; ids that do not rise
by publisher; an id that was told for two messages; two gateways that accept in turn; a delivery from a gateway that was
stopped past its lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

PUBLISHER_SHIFT: Final = 40
"""The bits of a message's number from here on are its publisher."""


class Acceptance(NamedTuple):
    """The acceptance of a message: by which gateway, and when."""

    gateway: str
    at: float
    """The time of the acceptance, in seconds of the monotonic clock."""


class Ledger:
    """Publishers, consumers and the reader of the log keep it, each on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.faults: list[str] = []
        self.accepted: dict[int, Acceptance] = {}
        """The acceptances, by message number."""
        self.log: dict[int, int] = {}
        """The content of the log: number by id."""
        self._ids: dict[int, int] = {}
        """Id by number."""
        self._told: dict[int, int] = {}
        """Number by id, as told to consumers."""
        self._received: dict[str, set[int]] = {}
        self._last: dict[int, int] = {}
        """The last number in the log, by publisher."""
        self._last_id = 0
        self._new: list[int] = []
        """Accepted numbers that have not been looked for yet."""
        self._mark = 0.0
        self._first_after_mark: float | None = None

    def fault(self, text: str) -> None:
        """Record a fault."""
        with self._lock:
            self.faults.append(text)

    # --- what clients see ---------------------------------------------------------------------------------------

    def accept(self, numbers: Iterable[int], gateway: str, sent: Iterable[float]) -> None:
        """These messages, sent at these times, were accepted."""
        now = time.monotonic()
        with self._lock:
            for number, sent_at in zip(numbers, sent, strict=True):
                self.accepted[number] = Acceptance(gateway, now)
                self._new.append(number)
                if self._first_after_mark is None and sent_at >= self._mark:
                    self._first_after_mark = now

    def receive(self, consumer: str, message_id: int, number: int) -> None:
        """A message was delivered to a consumer."""
        with self._lock:
            before = self._told.setdefault(message_id, number)
            if before != number:
                self.faults.append(f"id {message_id} was told for {name(before)} and for {name(number)}")
            self._received.setdefault(consumer, set()).add(number)

    def mark(self) -> None:
        """Start measuring ``seconds_without``."""
        with self._lock:
            self._mark = time.monotonic()
            self._first_after_mark = None

    def seconds_without(self) -> float | None:
        """
        Seconds from the mark until the first acceptance of a message that was sent after the mark; None before that.
        """
        with self._lock:
            return None if self._first_after_mark is None else self._first_after_mark - self._mark

    # --- the content of the log ---------------------------------------------------------------------------------

    @property
    def last_id(self) -> int:
        """The last id of the log that was read."""
        return self._last_id

    def read(self, rows: Iterable[tuple[int, int]]) -> None:
        """Enter the log's messages after ``last_id``: (id, number), in the order of ids."""
        with self._lock:
            for message_id, number in rows:
                if message_id <= self._last_id:
                    self.faults.append(f"id {message_id} follows {self._last_id} in the log")
                self._last_id = message_id
                if number in self._ids:
                    self.faults.append(
                        f"{name(number)} is in the log twice: {self._ids[number]}, {message_id}"
                    )
                publisher = number >> PUBLISHER_SHIFT
                if number <= self._last.get(publisher, -1):
                    self.faults.append(f"{name(number)} is behind {name(self._last[publisher])} in the log")
                self._last[publisher] = number
                self._ids[number] = message_id
                self.log[message_id] = number

    def check(self, accepted: Iterable[int]) -> None:
        """Check that these messages, which had been accepted before the log was read, are in the log."""
        with self._lock:
            lost = [number for number in accepted if number not in self._ids]
            if lost:
                self.faults.append(
                    f"{len(lost)} accepted messages are not in the log: {name(lost[0])} the first"
                )

    def check_all(self, takeovers: int) -> None:
        """
        Compare everything that clients were told with the log.

        Args:
            takeovers: How often a gateway has become the active one, the first one included.
        """
        with self._lock:
            for message_id, number in self._told.items():
                found = self.log.get(message_id)
                if found is not None and found != number:
                    self.faults.append(
                        f"id {message_id} was told for {name(number)}; the log has {name(found)}"
                    )
            by_id = [self.accepted[number].gateway for number in self.log.values() if number in self.accepted]
            reigns = sum(one != other for one, other in pairwise(by_id)) + bool(by_id)
            if reigns > takeovers:
                self.faults.append(
                    f"{takeovers} times a gateway took over, and acceptance changed {reigns} times"
                )

    def take_accepted(self) -> list[int]:
        """The numbers that were accepted since the last call."""
        with self._lock:
            taken, self._new = self._new, []
            return taken

    def missing(self, consumer: str) -> list[int]:
        """The numbers of messages in the log that were not delivered to a consumer yet."""
        with self._lock:
            return sorted(set(self.log.values()) - self._received.get(consumer, set()))


def name(number: int) -> str:
    """A message as people read it."""
    return f"{number >> PUBLISHER_SHIFT}/{number & ((1 << PUBLISHER_SHIFT) - 1)}"
