"""What happens to each message of one queue: an account that its publisher and its consumers keep together.

A message is identified by its publisher's number. An accepted message is owed until a consumer has acknowledged it. The
account keeps only open messages, so that it does not grow with the time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MOST_FAULTS = 20
"""The number of faults that an account keeps: the first ones are enough."""

RECENT = 1_000
"""The number of acknowledged messages that a consumer remembers, to rewind to one of them."""


class Delivery(NamedTuple):
    """A message as it was delivered."""

    delivery_id: int
    number: int
    """The publisher's number."""
    message_id: int
    """The gateway's id."""
    replay_id: str
    delivery_count: int
    """From the header: the failed deliveries before this one."""


class Numbers:
    """A set of numbers that are added roughly in order: a floor, below which it has all, and the numbers above it."""

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def add(self, number: int) -> None:
        """Add one."""
        if number >= self._floor:
            self._above.add(number)
            while self._floor in self._above:
                self._above.remove(self._floor)
                self._floor += 1

    def __contains__(self, number: int) -> bool:
        return number < self._floor or number in self._above


class Account:
    """The messages of one publisher on one queue. Its methods may be called from any thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted_count = self.rejected_count = self.received_count = self.redelivered_count = 0
        self.faults: list[str] = []
        self.lock = threading.RLock()
        self.owed: set[int] = set()
        self.refused: set[int] = set()
        self.done = Numbers()
        """Numbers that are acknowledged or will never come."""
        self.doubtful: set[int] = set()
        """Numbers that probably are done; it is no fault if they come."""
        self.early: set[int] = set()
        """Numbers that were acknowledged before the publisher heard that they were accepted."""
        self.deliveries: dict[int, int] = {}
        """How often each message was delivered, as long as it may come again."""

    def fault(self, text: str) -> None:
        """Record a fault."""
        with self.lock:
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(f"{self.name}: {text}")

    def accepted(self, first: int, last: int) -> None:
        """The gateway accepted these messages, ``last`` included."""
        with self.lock:
            self.accepted_count += last - first + 1
            for number in range(first, last + 1):
                if number in self.early:
                    self.early.remove(number)
                else:
                    self.owed.add(number)

    def rejected(self, number: int) -> None:
        """The gateway rejected the message, or its transaction was rolled back: it must not be delivered."""
        with self.lock:
            self.rejected_count += 1
            self.refused.add(number)
            self.done.add(number)
            if number in self.early or number in self.deliveries:
                self.fault(f"{number} was delivered, and rejected")

    def in_doubt(self, first: int, last: int) -> None:
        """The publisher died before it heard of these messages, ``last`` included: they may be delivered or not."""
        with self.lock:
            for number in range(first, last + 1):
                if number not in self.early:
                    self.doubtful.add(number)
                    self.done.add(number)
                self.early.discard(number)

    def lost(self) -> list[int]:
        """The messages that were accepted and not acknowledged, lowest first."""
        with self.lock:
            return sorted(self.owed)

    def consumer(self) -> Consumption:
        """The account's view of one consumer of the queue. Several consumers have messages of different selectors."""
        return Consumption(self)


class Consumption:
    """What one consumer receives in all its lives: it dies and comes back."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._newest_id = self._newest = -1
        self._maybe_again: deque[int] = deque()
        """Acknowledged in the previous life by a disposition that may have died with its connection; lowest first."""
        self._acknowledged: list[int] = []
        self.recent: deque[Delivery] = deque(maxlen=RECENT)
        """The messages acknowledged last, in order."""

    def begun(self) -> None:
        """The consumer has attached: a new life begins."""
        self._newest_id = self._newest = -1

    def rewound(self, after: int) -> None:
        """The consumer has attached with a replay that begins after this id, which is in ``recent``."""
        account = self._account
        with account.lock:
            self.begun()
            while self.recent and self.recent[-1].message_id > after:
                account.owed.add(self.recent.pop().number)
            # All messages after the start are delivered again as if for the first time.
            account.deliveries.clear()
            self._maybe_again.clear()

    def delivered(self, batch: Iterable[Delivery]) -> None:
        """These messages were delivered, in this order."""
        account = self._account
        with account.lock:
            for one in batch:
                self._delivered(account, one)

    def _delivered(self, account: Account, one: Delivery) -> None:
        number = one.number
        if one.message_id <= self._newest_id or number <= self._newest:
            account.fault(
                f"{number} (id {one.message_id}) came after {self._newest} (id {self._newest_id}) on one link"
            )
        self._newest_id, self._newest = max(one.message_id, self._newest_id), max(number, self._newest)
        if number in account.refused:
            account.fault(f"{number} was rejected, and delivered")
        while self._maybe_again and self._maybe_again[0] < number:
            # Messages come in order: those that are not delivered now will not come any more.
            account.deliveries.pop(self._maybe_again.popleft(), None)
        if self._maybe_again and self._maybe_again[0] == number:
            self._maybe_again.popleft()
            account.owed.add(number)
        elif number in account.done and number not in account.owed and number not in account.doubtful:
            account.fault(f"{number} came again after it was acknowledged")
        before = account.deliveries.get(number, 0)
        if one.delivery_count < before:
            account.fault(
                f"{number} was delivered {before} times before, its header says {one.delivery_count}"
            )
        account.deliveries[number] = before + 1
        account.received_count += 1
        account.redelivered_count += before > 0

    def acknowledged(self, batch: Iterable[Delivery]) -> None:
        """These messages were settled as accepted."""
        account = self._account
        with account.lock:
            for one in batch:
                account.doubtful.discard(one.number)
                if one.number in account.owed:
                    account.owed.remove(one.number)
                elif one.number not in account.done:
                    account.early.add(one.number)
                account.done.add(one.number)
                self._acknowledged.append(one.number)
                self.recent.append(one)

    def ended(self, *, reset: bool) -> None:
        """The life is over. After a ``reset`` acknowledgements may be lost; after a clean close they have arrived."""
        account = self._account
        with account.lock:
            if reset:
                self._maybe_again = deque(sorted({*self._maybe_again, *self._acknowledged}))
            else:
                for number in (*self._maybe_again, *self._acknowledged):
                    account.deliveries.pop(number, None)
                self._maybe_again.clear()
            self._acknowledged.clear()
