"""Publishers and consumers with several addresses: when one gateway goes away, they connect to the next."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

from tests.bench.generator.connection import Connection, Refused
from tests.soak.client import Outcomes, accept, message, received, reset

from .ledger import PUBLISHER_SHIFT, Ledger, name

Address = tuple[str, int]

GONE: Final = (Refused, OSError, struct.error)
ATTEMPT_SECONDS: Final = 2
"""Time-out for answers while a connection is made: the kernel accepts connections for a stopped process."""
BETWEEN_SECONDS: Final = 0.05
TICK_SECONDS: Final = 0.02
OUTSTANDING: Final = 200
BODY_BYTES: Final = 256
CREDIT: Final = 100


class Pace(NamedTuple):
    """How a publisher publishes."""

    rate: float
    """Messages a second."""
    every: float
    """Seconds between two bursts."""
    patience: float | None
    """The ``patience`` of ``Client``."""


class Client:
    """Tries the addresses in turn, on a thread of its own, until it is told to end."""

    def __init__(
        self, addresses: Sequence[Address], name: str, ledger: Ledger, patience: float | None
    ) -> None:
        """
        Args:
            patience: Seconds of silence, where something is due, after which it tries the next address;
                None waits for ever, like a client without heartbeats.
        """
        self._addresses = addresses
        self._name = name
        self._ledger = ledger
        self._patience = patience
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell it to stop; ``join`` waits for its end."""
        self._ending.set()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        for turn in count():
            if self._ending.is_set():
                return
            host, port = self._addresses[turn % len(self._addresses)]
            connection: Connection | None = None
            try:
                connection = Connection.connect(host, port, f"{self._name}-{turn}", ATTEMPT_SECONDS)
                self._use(connection, f"{host}:{port}")
            except GONE:
                self._ending.wait(BETWEEN_SECONDS)
            except Exception as error:
                self._ledger.fault(f"{self._name}: {error!r}")
                return
            finally:
                if connection is not None:
                    reset(connection)

    def _use(self, connection: Connection, gateway: str) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Sends numbered messages, each once, whatever the outcome."""

    def __init__(self, addresses: Sequence[Address], index: int, ledger: Ledger, pace: Pace) -> None:
        self._next = index << PUBLISHER_SHIFT
        self._pace = pace
        self._topic = f"topic://ha/{index}"
        self.pauses = threading.Event()
        """While this is set, nothing is sent."""
        self.waiting = 0
        """The number of messages that await their outcomes."""
        super().__init__(addresses, f"publisher-{index}", ledger, pace.patience)

    def _use(self, connection: Connection, gateway: str) -> None:
        connection.attach(sender=True, address=self._topic)
        rate, every = self._pace.rate, self._pace.every
        first, told = self._next, Answers(self._ledger, gateway)
        outcomes = Outcomes(connection, first, told)
        began = alive = time.monotonic()
        allowed = 0
        try:
            while not (self._ending.is_set() and not outcomes.open):
                now = time.monotonic()
                if not outcomes.open:
                    alive = now
                elif self._patience is not None and now - alive > self._patience:
                    return
                bursts = (now - began) // every
                allowed = max(allowed, int(bursts * every * rate))
                room = 0 if self._ending.is_set() or self.pauses.is_set() else outcomes.room(OUTSTANDING)
                burst = range(outcomes.next, outcomes.next + min(first + allowed - outcomes.next, room))
                told.sent |= dict.fromkeys(burst, now)
                self.waiting = len(outcomes.open) + len(burst)
                if burst:
                    outcomes.send(*(message(number, BODY_BYTES) for number in burst))
                # Messages that could not be sent in time are not sent later.
                if outcomes.next - first < allowed - rate:
                    began += (allowed - (outcomes.next - first)) / rate
                    allowed = outcomes.next - first
                if outcomes.listen(TICK_SECONDS):
                    alive = time.monotonic()
                if burst:
                    time.sleep(TICK_SECONDS)
        finally:
            self._next = outcomes.next
            self.waiting = 0


class Answers:
    """Enters the outcomes of one connection's messages into the ledger."""

    def __init__(self, ledger: Ledger, gateway: str) -> None:
        self._ledger = ledger
        self._gateway = gateway
        self.sent: dict[int, float] = {}
        """When each message that awaits its outcome was sent."""

    def accepted(self, first: int, last: int) -> None:
        """See ``Told``."""
        numbers = range(first, last + 1)
        self._ledger.accept(numbers, self._gateway, [self.sent.pop(number) for number in numbers])

    def rejected(self, number: int) -> None:
        """A fault: none of the faults of a run justifies a rejection."""
        self._ledger.fault(f"message {name(number)} was not accepted")


class Consumer(Client):
    """Consumes and accepts all messages of a queue."""

    def __init__(
        self, addresses: Sequence[Address], queue: str, ledger: Ledger, patience: float | None
    ) -> None:
        self._queue = queue
        self.stopped: str | None = None
        """A gateway that was stopped past its lease and continued: its deliveries on an old connection are faults."""
        self.count = 0
        super().__init__(addresses, f"consumer-{queue}", ledger, patience)

    def _use(self, connection: Connection, gateway: str) -> None:
        connection.attach(sender=False, address=f"queue://{self._queue}")
        last, alive, is_old = 0, time.monotonic(), self.stopped != gateway
        for batch in received(connection, CREDIT):
            if self._ending.is_set():
                return
            now = time.monotonic()
            if batch:
                alive = now
                if self.stopped == gateway and is_old:
                    self._ledger.fault(
                        f"{gateway} delivered {len(batch)} messages after it was stopped past its lease"
                    )
                for one in batch:
                    if one.message_id <= last:
                        self._ledger.fault(
                            f"{self._queue}: id {one.message_id} came after {last} on one link"
                        )
                    last = one.message_id
                    self._ledger.receive(self._queue, one.message_id, one.number)
                self.count += len(batch)
                accept(connection, batch)
            elif self._patience is not None and now - alive > self._patience:
                return
