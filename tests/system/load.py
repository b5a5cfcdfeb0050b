"""
Clients beside a gateway process: a well-behaved one that tells whether anything elsewhere harms it, and publishers, a
consumer and a log reader that go on until their gateway dies, and remember.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from amqp_ext.codec import Described, Symbol
from amqp_ext.replay_id import format_replay_id, parse_replay_id
from tests.bench.generator.connection import CODE_OFFSET, Connection, Refused, accepted_range
from tests.bench.generator.links import STAMP, TransferBlock
from tests.support.client import Client as AmqpClient
from tests.support.frames import DISPOSITION, FLOW, TRANSFER, disposition, parse
from tests.support.peer import Peer
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess

PAUSE_S: Final = 0.005
"""Seconds between its messages: without them it takes as much of the processor as there is. What harms it for less than
that may be missed; nobody asks for so little."""


class Bystander:
    """
    A well-behaved client, busy with its own queue while a block runs; what harms it fails the block.

    Args:
        peer: Its connection, with a session; without one it makes its own.
        pause_s: Seconds between its messages.

    Attributes:
        count: Messages that it has published and received back.
        longest_s: The longest that one of them took; whoever looks at it may set it to 0.
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
REPLAY_START = Symbol("rewind:replay-start")
ID_LENGTH = len(format_replay_id(0, 0))
GONE = (Refused, OSError)
"""What a client sees of a gateway's death."""

Name = tuple[int, int]
"""A message: its publisher, and its number there."""


class Named:
    """Which message a replay id names: the first client that sees an id fixes it."""

    def __init__(self) -> None:
        self.messages: dict[int, Name] = {}
        self.generations: set[int] = set()
        self.conflicts: list[tuple[int, Name, Name]] = []

    def see(self, replay_id: str, name: Name) -> int:
        generation, number = parse_replay_id(replay_id)
        self.generations.add(generation)
        known = self.messages.setdefault(number, name)
        if known != name:
            self.conflicts.append((number, known, name))
        return number


class Client:
    """One thread a life: ``start`` it on an address, ``join`` it once the gateway is gone."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        """What a client was told that no gateway may say."""
        self.is_busy = threading.Event()
        """Set once it has had an effect in this life."""
        self._thread: threading.Thread | None = None

    def start(self, address: tuple[str, int]) -> None:
        self.is_busy.clear()
        self._thread = threading.Thread(target=self._live, args=address)
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()

    def _live(self, host: str, port: int) -> None:
        connection: Connection | None = None
        try:
            connection = Connection.connect(host, port, type(self).__name__)
            self.run(connection)
        except GONE:
            pass
        except Exception as error:
            self.mistakes.append(f"{type(self).__name__}: {error!r}")
        finally:
            if connection is not None:
                connection.sock.close()

    def run(self, connection: Connection) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Sends its numbers upwards, each once, and remembers those that were accepted."""

    def __init__(self, publisher: int, address: str, chance: random.Random) -> None:
        super().__init__()
        self.publisher = publisher
        self.accepted: set[int] = set()
        self._address = address
        self._chance = chance
        self._next = 0
        self._block = TransferBlock(STAMP.size)

    def run(self, connection: Connection) -> None:
        connection.attach(sender=True, address=self._address)
        first = self._next
        settled = credit = 0
        while True:
            # Credit may have come along with the attach, so what is there is looked at before more is waited for.
            for start, stop in connection.frames():
                if connection.buffer[start + CODE_OFFSET] == DISPOSITION:
                    bounds = accepted_range(connection.buffer, start, stop)
                    if bounds is None:
                        self.mistakes.append(f"not accepted: {connection.control(start, stop)}")
                        return
                    self.accepted.update(range(bounds[0], bounds[1] + 1))
                    settled += bounds[1] - bounds[0] + 1
                    self.is_busy.set()
                    continue
                received = connection.control(start, stop)
                if received is not None and received.code == FLOW:
                    credit = int(received.field(5, 0)) + int(received.field(6, 0))
            sent = self._next - first
            room = min(credit - sent, OUTSTANDING - (sent - settled))
            if room > 0:
                count = min(room, self._chance.randint(1, BURST))
                burst = self._block.fill(self._next, count, self.publisher)
                # Sent is spent, whatever becomes of it: a number is never used twice.
                self._next += count
                connection.sock.sendall(burst)
            else:
                connection.fill()


def deliveries(connection: Connection, named: Named, credit: int) -> Iterator[list[tuple[int, int, Name]]]:
    """What each read of the socket brought: (delivery id, replay id's number, message). Credit is kept up."""
    connection.flow(0, 0, credit)
    received, granted = 0, credit
    while True:
        connection.fill()
        batch = []
        end: Refused | None = None
        for start, stop in connection.frames():
            if connection.buffer[start + CODE_OFFSET] == TRANSFER:
                transfer = parse(connection.buffer, start, stop)
                assert transfer is not None
                batch.append((int(transfer.field(1)), *read(transfer.payload, named)))
                continue
            try:
                connection.control(start, stop)
            except Refused as refused:
                end = refused
        if end is not None:
            # What came before the detach counts.
            yield batch
            raise end
        received += len(batch)
        if received + credit - granted > credit // 2:
            granted = received + credit
            connection.flow(received, received, credit)
        yield batch


def read(payload: bytes, named: Named) -> tuple[int, Name]:
    """Replay id and name of a message. Its annotations are searched, not decoded: this happens once a message."""
    number, publisher = STAMP.unpack(payload[-STAMP.size :])
    at = payload.index(b"rmid1:")
    replay_id = payload[at : at + ID_LENGTH].decode()
    return named.see(replay_id, (publisher, number)), (publisher, number)


class Consumer(Client):
    """Takes messages off the queue and settles some of them: its ``settled`` may be gone, the rest must not."""

    def __init__(self, address: str, named: Named, chance: random.Random) -> None:
        super().__init__()
        self.settled: set[int] = set()
        self._address = address
        self._named = named
        self._chance = chance

    def run(self, connection: Connection) -> None:
        connection.attach(sender=False, address=self._address)
        newest = 0
        for batch in deliveries(connection, self._named, CREDIT):
            for _, number, _ in batch:
                if number <= newest:
                    self.mistakes.append(f"{number} was delivered after {newest} on one link")
                newest = number
            # Left unsettled, a batch takes a part of the credit with it; the next life has it back.
            if batch and self._chance.random() < 0.8:
                self.settled.update(number for _, number, _ in batch)
                connection.sock.sendall(disposition(batch[0][0], batch[-1][0]))
                self.is_busy.set()


class LogReader(Client):
    """Reads the log to its end and goes on live; starts again after the last replay id it saw, as one does."""

    def __init__(self, named: Named, credit: int = 1_000) -> None:
        super().__init__()
        self.newest = 0
        self._named = named
        self._credit = credit

    def run(self, connection: Connection) -> None:
        generation = next(iter(self._named.generations), 0)
        start = format_replay_id(generation, self.newest) if self.newest else "beginning"
        filters = {REPLAY_START: Described(REPLAY_START, start)}
        connection.attach(sender=False, address="log://>", filters=filters)
        for batch in deliveries(connection, self._named, self._credit):
            for _, number, _ in batch:
                if number != self.newest + 1:
                    self.mistakes.append(f"the log goes on with {number} after {self.newest}")
                self.newest = number
                self.is_busy.set()


# --- afterwards ---------------------------------------------------------------------------------------------------


def read_log(gateway: GatewayProcess, named: Named) -> list[tuple[int, Name]]:
    """The whole log as it is now."""
    with AmqpClient(gateway.url) as client:
        return [read(message.raw, named) for message in client.read_log()]


def drain_queue(gateway: GatewayProcess, queue: str, named: Named) -> list[tuple[int, Name]]:
    """Everything on a queue; it is empty then."""
    with AmqpClient(gateway.url) as client:
        receiver, found = client.receiver(queue), []
        while taken := receiver.drain():
            receiver.settle(taken)
            found += [read(message.raw, named) for message in taken]
        client.close()
    return found
