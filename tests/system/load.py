"""
Clients for tests of a gateway process: a well-behaved bystander that notices whether it is harmed, and publishers, a
consumer and a log reader that work until their gateway dies and remember what they were told.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from amqp_ext.codec import Described, Symbol
from amqp_ext.replay_id import format_replay_id, parse_replay_id
from tests.bench.generator.connection import Connection
from tests.soak.account import Delivery
from tests.soak.client import GONE, SILENCE_SECONDS, TAIL, Outcomes, accept, delivery, message, received
from tests.support.client import Client as AmqpClient
from tests.support.peer import Peer
from tests.support.waiting import wait_until
from tests.system.gateway_process import Address, GatewayProcess

PAUSE_S: Final = 0.005
"""Seconds between the bystander's messages: without a pause it would use all of the processor. It may miss a
disturbance that is shorter, which no test asks for."""


class Bystander:
    """
    A well-behaved client that uses its own queue while a block runs; the block fails if the client is harmed.

    Args:
        peer: Its connection, with a session; by default it opens its own.
        pause_s: Seconds between its messages.

    Attributes:
        count: The number of messages that it has published and received back.
        longest_s: The longest time for one of them; readers may reset it to 0.
    """

    def __init__(
        self, gateway: GatewayProcess, peer: Peer | None = None, *, pause_s: float = PAUSE_S
    ) -> None:
        self._peer = Peer.opened(gateway.address) if peer is None else peer
        self._peer.attach_sender("queue://bystander")
        self._peer.attach_receiver("queue://bystander", credit=2**31 - 1)
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.longest_s = 0.0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                body = b"%d" % self.count
                began = time.monotonic()
                self._peer.publish(body)
                assert self._peer.receive() == body
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.count += 1
                self._stop.wait(self._pause_s)
            self._peer.close()
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        before = self.count
        try:
            wait_until(lambda: self.count > before or self._errors, "a message of the bystander's")
        finally:
            self._stop.set()
            self._thread.join()
            self._peer.sock.close()
        assert not self._errors, self._errors


OUTSTANDING = 24
BURST = 8
CREDIT = 200
PUBLISHER_SHIFT = 40
"""The bits of a message's number from here on are its publisher."""

REPLAY_START = Symbol("rewind:replay-start")

Name = tuple[int, int]
"""A message: its publisher, and its number at that publisher."""


class Named:
    """
    Which message each replay id names: the first client that sees an id fixes it; later differences are conflicts.
    """

    def __init__(self) -> None:
        self.messages: dict[int, Name] = {}
        self.generations: set[int] = set()
        self.conflicts: list[tuple[int, Name, Name]] = []

    def see(self, one: Delivery) -> tuple[int, Name]:
        """Record a delivery; returns its message id and the message."""
        name = divmod(one.number, 1 << PUBLISHER_SHIFT)
        self.generations.add(parse_replay_id(one.replay_id)[0])
        known = self.messages.setdefault(one.message_id, name)
        if known != name:
            self.conflicts.append((one.message_id, known, name))
        return one.message_id, name


class Client:
    """
    A client with one thread for each life of a gateway: ``start`` it with an address, ``join`` it after that life.
    """

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        """What the client was told that no gateway may say."""
        self.is_busy = threading.Event()
        """Set once the client has achieved something in this life."""
        self._thread: threading.Thread | None = None

    def start(self, where: Any) -> None:
        self.is_busy.clear()
        self._thread = threading.Thread(target=self._live, args=(where,))
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()

    def _live(self, where: Any) -> None:
        try:
            self.run(where)
        except (*GONE, httpx.TransportError):
            pass
        except Exception as error:
            self.mistakes.append(f"{type(self).__name__}: {error!r}")

    def run(self, where: Any) -> None:
        """The work of one life, until the gateway is gone."""
        raise NotImplementedError

    @contextmanager
    def attached(self, where: Address, *, sender: bool, **fields: Any) -> Iterator[Connection]:
        """A connection with one link."""
        connection = Connection.connect(*where, type(self).__name__)
        with connection.sock:
            connection.attach(sender=sender, **fields)
            yield connection


class Publisher(Client):
    """Sends rising numbers, each once, and remembers those that were accepted."""

    def __init__(self, publisher: int, address: str, chance: random.Random) -> None:
        super().__init__()
        self.publisher = publisher
        self.told: set[Name] = set()
        """The messages that were accepted."""
        self._address = address
        self._chance = chance
        self._next = publisher << PUBLISHER_SHIFT

    def run(self, where: Address) -> None:
        with self.attached(where, sender=True, address=self._address) as connection:
            outcomes = Outcomes(connection, self._next, self)
            try:
                while True:
                    count = min(outcomes.room(OUTSTANDING), self._chance.randint(1, BURST))
                    numbers = range(outcomes.next, outcomes.next + count)
                    outcomes.send(*(message(number, TAIL.size) for number in numbers))
                    outcomes.listen(0 if outcomes.room(OUTSTANDING) else SILENCE_SECONDS)
            finally:
                # A number that was sent is never used again, whatever its outcome.
                self._next = outcomes.next

    def accepted(self, first: int, last: int) -> None:
        """See ``Told``."""
        self.told.update(divmod(number, 1 << PUBLISHER_SHIFT) for number in range(first, last + 1))
        self.is_busy.set()

    def rejected(self, number: int) -> None:
        """A mistake: no restart of the gateway justifies a rejection."""
        self.mistakes.append(f"not accepted: {number}")


class Consumer(Client):
    """
    Consumes from the queue and settles some of the messages: those in ``settled`` may be gone, the others must not be.
    """

    def __init__(self, address: str, named: Named, chance: random.Random) -> None:
        super().__init__()
        self.settled: set[int] = set()
        self._address = address
        self._named = named
        self._chance = chance

    def run(self, where: Address) -> None:
        newest = 0
        with self.attached(where, sender=False, address=self._address) as connection:
            for batch in received(connection, CREDIT):
                for number, _ in map(self._named.see, batch):
                    if number <= newest:
                        self.mistakes.append(f"{number} was delivered after {newest} on one link")
                    newest = number
                # A batch that is left unsettled uses up a part of the credit; the next life gets it again.
                if batch and self._chance.random() < 0.8:
                    self.settled.update(one.message_id for one in batch)
                    accept(connection, batch)
                    self.is_busy.set()


class LogReader(Client):
    """Reads the log to its end and on live; in the next life it starts after the last replay id that it saw."""

    def __init__(self, named: Named, credit: int = 1_000) -> None:
        super().__init__()
        self.newest = 0
        self._named = named
        self._credit = credit

    def run(self, where: Address) -> None:
        generation = next(iter(self._named.generations), 0)
        start = format_replay_id(generation, self.newest) if self.newest else "beginning"
        filters = {REPLAY_START: Described(REPLAY_START, start)}
        with self.attached(where, sender=False, address="log://>", filters=filters) as connection:
            for batch in received(connection, self._credit):
                for number, _ in map(self._named.see, batch):
                    if number != self.newest + 1:
                        self.mistakes.append(f"the log goes on with {number} after {self.newest}")
                    self.newest = number
                    self.is_busy.set()


# --- checks after the kills ---------------------------------------------------------------------------------------


def read_log(gateway: GatewayProcess, named: Named) -> list[tuple[int, Name]]:
    """Read the whole log as it is now."""
    with AmqpClient(gateway.url) as client:
        return [named.see(delivery(0, one.raw)) for one in client.read_log()]


def drain_queue(gateway: GatewayProcess, queue: str, named: Named) -> list[tuple[int, Name]]:
    """Take all messages off a queue."""
    with AmqpClient(gateway.url) as client:
        receiver, found = client.receiver(queue), []
        while taken := receiver.drain():
            receiver.settle(taken)
            found += [named.see(delivery(0, one.raw)) for one in taken]
        client.close()
    return found
