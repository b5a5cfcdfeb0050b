"""The clients of a soak run: frames on blocking sockets, each client on a thread of its own."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from amqp_ext.codec import decode, encode
from amqp_ext.replay_id import format_replay_id, parse_replay_id
from tests.bench.generator.connection import Connection, Refused, credit_limit
from tests.support.frames import DISPOSITION, FLOW, TRANSFER, Frame, disposition, transfer_frame

from .account import Account, Delivery

TAIL = struct.Struct(">QQ")
"""The end of a body: the message's number, and when it was published, in ns of the machine's monotonic clock."""

BODY_BYTES = (40, 20_000)
"""Sizes of bodies; as many between 40 and 400 as between 2,000 and 20,000."""

ID_LENGTH = len(format_replay_id(0, 0))
SILENCE_SECONDS = 0.2
"""How long a client waits for something before it looks whether the run is over."""

GONE = (Refused, OSError)
HEADER = 0x70


class Run:
    """What all clients of a run share: where the gateway is, when to stop, what went wrong, what was counted."""

    def __init__(self, address: tuple[str, int], body_bytes: tuple[int, int] = BODY_BYTES) -> None:
        self.address = address
        self.body_bytes = body_bytes
        self.accounts: list[Account] = []
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}
        self.publishing_ends = threading.Event()
        """Publishers stop."""
        self.is_draining = threading.Event()
        """Publishers have stopped and know all outcomes; consumers take what they are owed."""
        self._lock = threading.Lock()

    def account(self, name: str) -> Account:
        """A new account."""
        account = Account(name)
        self.accounts.append(account)
        return account

    def add(self, **counts: int) -> None:
        """Count these, from any thread."""
        with self._lock:
            for name, count in counts.items():
                self.counts[name] = self.counts.get(name, 0) + count

    def faults(self) -> list[str]:
        """All that no gateway may do."""
        return [*self.problems, *(fault for account in self.accounts for fault in account.faults)]

    def start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Do a client's work on a thread; whatever ends it before its time is a problem."""

        def run() -> None:
            try:
                work(self, *arguments)
            except Exception as error:
                self.problems.append(f"{work.__name__}{arguments[:1]}: {error!r}")

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        thread.start()
        return thread

    def end(self, publishers: Iterable[threading.Thread], consumers: Iterable[threading.Thread]) -> None:
        """Have publishing end, and then consumers take what they are owed; returns when all have ended."""
        for event, threads in ((self.publishing_ends, publishers), (self.is_draining, consumers)):
            event.set()
            for thread in threads:
                thread.join()

    def close_accounts(self, *unread: Account) -> None:
        """What is still owed is lost, but for these accounts, which nobody consumes."""
        for account in self.accounts:
            if account not in unread and (lost := account.lost()):
                self.problems.append(
                    f"{account.name}: {len(lost)} accepted messages were lost, the first is {lost[0]}"
                )

    def connect(self, container: str) -> Connection:
        """A new connection with a session."""
        return Connection.connect(*self.address, container)


def message(number: int, size: int, properties: dict[str, str] | None = None) -> bytes:
    """A durable message whose body has ``size`` octets, 16 at least, and ends with its number and the time."""
    sections = b"\x00\x53\x70\xc0\x02\x01\x41"
    if properties:
        sections += b"\x00\x53\x74" + encode(properties)
    body = bytes(size - TAIL.size) + TAIL.pack(number, time.monotonic_ns())
    return sections + b"\x00\x53\x75\xb0" + struct.pack(">I", size) + body


def delivery(delivery_id: int, payload: bytes) -> Delivery:
    """Read a message. Its annotations are searched, not decoded: the generator shares the machine with the gateway."""
    number, _ = TAIL.unpack(payload[-TAIL.size :])
    at = payload.index(b"rmid1:")
    replay_id = payload[at : at + ID_LENGTH].decode()
    count = 0
    if payload[2] == HEADER:
        fields = decode(payload)[0].value
        count = int(fields[4] or 0) if len(fields) > 4 else 0
    _, message_id = parse_replay_id(replay_id)
    return Delivery(delivery_id, number, message_id, replay_id, count)


def listen(connection: Connection, seconds: float) -> None:
    """Receive what is there, or what comes first within this time."""
    if select.select([connection.sock], [], [], seconds)[0]:
        with suppress(BlockingIOError):
            connection.fill(socket.MSG_DONTWAIT)


def received(connection: Connection, credit: int) -> Iterator[list[Delivery]]:
    """What each read of the socket brought, an empty list where nothing came for a while. Credit is kept up."""
    connection.flow(0, 0, credit)
    count, granted = 0, credit
    while True:
        batch = [
            delivery(int(frame.field(1)), frame.payload)
            for start, stop in connection.frames()
            if (frame := connection.control(start, stop)) is not None and frame.code == TRANSFER
        ]
        count += len(batch)
        if count + credit - granted > credit // 2:
            granted = count + credit
            connection.flow(count, count, credit)
        yield batch
        listen(connection, SILENCE_SECONDS)


def accept(connection: Connection, batch: list[Delivery]) -> None:
    """Settle these, which came one after another."""
    connection.sock.sendall(disposition(batch[0].delivery_id, batch[-1].delivery_id))


def reset(connection: Connection) -> None:
    """Die: the peer sees a reset, and what lies in the socket's buffers is gone."""
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sock.close()


class Told(Protocol):
    """Whoever keeps what the gateway says of a publisher's messages, by their numbers."""

    def accepted(self, first: int, last: int) -> None:
        """These, inclusive."""

    def rejected(self, number: int) -> None:
        """This one, or it was released or modified."""


class Outcomes:
    """A publisher's credit, and what the gateway says of its messages; deliveries are numbered from 0 on a link."""

    def __init__(self, connection: Connection, first: int, told: Told) -> None:
        self._connection = connection
        self._first = first
        self._told = told
        self.credit_limit = 0
        self.next = first
        """The number of the message that is sent next."""
        self.open: set[int] = set()
        """Numbers that are on their way."""

    def room(self, most: int) -> int:
        """How many more may be sent now, if this many may be on their way."""
        return max(0, min(self._first + self.credit_limit - self.next, most - len(self.open)))

    def send(self, *contents: bytes) -> None:
        """Send the next messages at once, for which there is room; sent is spent, whatever becomes of them."""
        first, self.next = self.next, self.next + len(contents)
        self.open.update(range(first, self.next))
        frames = (transfer_frame(0, each - self._first, one) for each, one in enumerate(contents, first))
        self._connection.sock.sendall(b"".join(frames))

    def publish(self, size: int) -> None:
        """Send the next message, with a body of this size, as soon as there is credit."""
        while not self.room(len(self.open) + 1):
            self.listen(SILENCE_SECONDS)
        self.send(message(self.next, size))

    def finish(self, seconds: float) -> None:
        """Wait until nothing is on its way; TimeoutError where that takes too long."""
        deadline = time.monotonic() + seconds
        while self.open:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.open)} messages have no outcome")
            self.listen(SILENCE_SECONDS)

    def listen(self, seconds: float) -> bool:
        """Take what is there, or what comes first within this time; whether anything came."""
        listen(self._connection, seconds)
        has_come = False
        for told in self._connection.told():
            has_come = True
            if not isinstance(told, Frame):
                self._settle(*told, is_accepted=True)
            elif told.code == DISPOSITION:
                first = int(told.field(1))
                self._settle(first, int(told.field(2, first)), is_accepted=False)
            elif told.code == FLOW and told.field(4) is not None:
                self.credit_limit = credit_limit(told)
        return has_come

    def _settle(self, first: int, last: int, *, is_accepted: bool) -> None:
        numbers = range(self._first + first, self._first + last + 1)
        self.open.difference_update(numbers)
        if is_accepted:
            self._told.accepted(numbers[0], numbers[-1])
        else:
            for number in numbers:
                self._told.rejected(number)
