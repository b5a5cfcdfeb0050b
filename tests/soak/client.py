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
"""The end of a body: the message's number, and its publishing time in ns of the machine's monotonic clock."""

BODY_BYTES = (40, 20_000)
"""The range of body sizes; small ones (40 to 400) are as frequent as large ones (2,000 to 20,000)."""

ID_LENGTH = len(format_replay_id(0, 0))
SILENCE_SECONDS = 0.2
"""How long a client waits for data before it checks whether the run is over."""

GONE = (Refused, OSError)
HEADER = 0x70


class Run:
    """The state that all clients of a run share: the gateway's address, when to stop, faults, counts."""

    def __init__(self, address: tuple[str, int], body_bytes: tuple[int, int] = BODY_BYTES) -> None:
        self.address = address
        self.body_bytes = body_bytes
        self.accounts: list[Account] = []
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}
        self.publishing_ends = threading.Event()
        """Set when publishers must stop."""
        self.is_draining = threading.Event()
        """Set when publishers have stopped and know all outcomes; consumers then take what they are owed."""
        self._lock = threading.Lock()

    def account(self, name: str) -> Account:
        """Create an account."""
        account = Account(name)
        self.accounts.append(account)
        return account

    def add(self, **counts: int) -> None:
        """Add to the counts; callable from any thread."""
        with self._lock:
            for name, count in counts.items():
                self.counts[name] = self.counts.get(name, 0) + count

    def faults(self) -> list[str]:
        """Everything that no gateway may do."""
        return [*self.problems, *(fault for account in self.accounts for fault in account.faults)]

    def start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Run a client's work on a thread; an exception in it is a fault."""

        def run() -> None:
            try:
                work(self, *arguments)
            except Exception as error:
                self.problems.append(f"{work.__name__}{arguments[:1]}: {error!r}")

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        thread.start()
        return thread

    def end(self, publishers: Iterable[threading.Thread], consumers: Iterable[threading.Thread]) -> None:
        """End publishing, then let consumers take what they are owed; returns when all threads have ended."""
        for event, threads in ((self.publishing_ends, publishers), (self.is_draining, consumers)):
            event.set()
            for thread in threads:
                thread.join()

    def close_accounts(self, *unread: Account) -> None:
        """Report what is still owed as lost, except on ``unread`` accounts, which nobody consumes."""
        for account in self.accounts:
            if account not in unread and (lost := account.lost()):
                self.problems.append(
                    f"{account.name}: {len(lost)} accepted messages were lost, the first is {lost[0]}"
                )

    def connect(self, container: str) -> Connection:
        """Open a connection with a session."""
        return Connection.connect(*self.address, container)


def message(number: int, size: int, properties: dict[str, str] | None = None) -> bytes:
    """A durable message with a body of ``size`` octets, at least 16, that ends with its number and the time."""
    sections = b"\x00\x53\x70\xc0\x02\x01\x41"
    if properties:
        sections += b"\x00\x53\x74" + encode(properties)
    body = bytes(size - TAIL.size) + TAIL.pack(number, time.monotonic_ns())
    return sections + b"\x00\x53\x75\xb0" + struct.pack(">I", size) + body


def delivery(delivery_id: int, payload: bytes) -> Delivery:
    """Parse a message. Annotations are searched, not decoded: the generator shares the machine with the gateway."""
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
    """Receive what is there, or what arrives first within this time."""
    if select.select([connection.sock], [], [], seconds)[0]:
        with suppress(BlockingIOError):
            connection.fill(socket.MSG_DONTWAIT)


def received(connection: Connection, credit: int) -> Iterator[list[Delivery]]:
    """The messages of each read of the socket, or an empty list after a silence. It keeps the credit up."""
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
    """Accept and settle these consecutive deliveries."""
    connection.sock.sendall(disposition(batch[0].delivery_id, batch[-1].delivery_id))


def reset(connection: Connection) -> None:
    """Reset the connection: data in the socket's buffers is lost."""
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sock.close()


class Told(Protocol):
    """Receives the outcomes of a publisher's messages, by number."""

    def accepted(self, first: int, last: int) -> None:
        """These messages were accepted, ``last`` included."""

    def rejected(self, number: int) -> None:
        """This message was rejected, released or modified."""


class Outcomes:
    """A publisher's credit and the outcomes of its messages; a link's deliveries are numbered from 0."""

    def __init__(self, connection: Connection, first: int, told: Told) -> None:
        self._connection = connection
        self._first = first
        self._told = told
        self.credit_limit = 0
        self.next = first
        """The number of the next message to send."""
        self.open: set[int] = set()
        """The numbers of messages that await their outcomes."""

    def room(self, most: int) -> int:
        """How many more messages may be sent now, if ``most`` may await their outcomes."""
        return max(0, min(self._first + self.credit_limit - self.next, most - len(self.open)))

    def send(self, *contents: bytes) -> None:
        """
        Send the next messages together; there must be room for them. Their numbers are used up, whatever the outcomes.
        """
        first, self.next = self.next, self.next + len(contents)
        self.open.update(range(first, self.next))
        frames = (transfer_frame(0, each - self._first, one) for each, one in enumerate(contents, first))
        self._connection.sock.sendall(b"".join(frames))

    def publish(self, size: int) -> None:
        """Send the next message, with a body of this size, as soon as there is credit for it."""
        while not self.room(len(self.open) + 1):
            self.listen(SILENCE_SECONDS)
        self.send(message(self.next, size))

    def finish(self, seconds: float) -> None:
        """Wait for all outcomes; TimeoutError if that takes too long."""
        deadline = time.monotonic() + seconds
        while self.open:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.open)} messages have no outcome")
            self.listen(SILENCE_SECONDS)

    def listen(self, seconds: float) -> bool:
        """Receive what is there, or what arrives first within this time; returns whether anything arrived."""
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
