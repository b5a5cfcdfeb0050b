"""
The two sides of the load generator: a publisher that sends prepared transfer frames as fast as credit and its own limit
allow, and a consumer with a credit window that checks and accepts every message.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from amqp_ext.codec import Described, decode
from amqp_ext.message.sections import HEADER
from tests.bench.generator.connection import CODE_OFFSET, Connection, Refused, credit_limit
from tests.support.frames import DISPOSITION, FLOW, TRANSFER, Frame, disposition, parse

NEAR = 96
"""Octets from the start of a transfer frame within which the message's header ends."""


class DurableHeaders:
    """Checks the message header of each delivery of a link."""

    def __init__(self) -> None:
        self._known = b""

    def check(self, buffer: bytearray, start: int, stop: int) -> None:
        """Raise ``Refused`` where the message in a transfer's frame is not durable (section 3.2.1)."""
        if self._known and buffer.find(self._known, start, min(start + NEAR, stop)) >= 0:
            return
        transfer = parse(buffer, start, stop)
        assert transfer is not None
        header, end = decode(transfer.payload)
        is_header = isinstance(header, Described) and header.descriptor == HEADER
        if not is_header or not header.value or header.value[0] is not True:
            raise Refused("a message was received that is not durable")
        self._known = transfer.payload[:end]


BLOCK = 256
"""The number of frames in one write: about 80 KiB with 256-octet bodies, a part of a loopback socket's buffer."""

STAMP = struct.Struct(">QQ")
"""The head of a body: message number, publish time in nanoseconds of the machine's monotonic clock."""

_DURABLE_HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"


_NAMED = b"\x00\x53\x73\xc0\x0b\x01\xa0\x08"
"""Encoded properties with a message-id of eight octets."""


_DELAYED = b"\x00\x53\x72\xc1\x20\x02\xa3\x14x-opt-delivery-delay\x81"
"""Encoded message annotations with a delay in ms of eight octets."""


def message_of(size: int, name: bytes = b"", delay_ms: int = 0) -> tuple[Callable[[int, int], bytes], int]:
    """A function that makes a durable message with a body of ``size`` octets out of its number and time stamp.

    With ``name`` (eight octets) that is its message-id; with ``delay_ms`` it is a delayed message.

    Returns:
        That function, and the offset of the bare message in its result.

    Raises:
        ValueError: The body has no room for both.
    """
    if size < STAMP.size:
        raise ValueError(
            f"a body of {size} octets has no room for its number and time stamp; use {STAMP.size} or more"
        )
    front = _DURABLE_HEADER + (_DELAYED + struct.pack(">q", delay_ms) if delay_ms else b"")
    head = front + (_NAMED + name if name else b"") + b"\x00\x53\x75\xb0" + struct.pack(">I", size)
    rest = bytes(0x61 + index % 26 for index in range(size - STAMP.size))
    pack = STAMP.pack
    return lambda number, stamp: head + pack(number, stamp) + rest, len(front)


class TransferBlock:
    """Up to ``BLOCK`` transfers of ``size``-octet bodies on handle 0, delivery ids counting up."""

    def __init__(self, size: int, *, named: bool = False, delay_ms: int = 0) -> None:
        """``size`` is the body's length in octets, at least 16; ``named``: each has a message-id, of this run."""
        # section 2.7.5: handle 0, delivery-id, delivery-tag (the id again), message-format 0, settled, more
        fields = b"\x43" + b"\x70\0\0\0\0" + b"\xa0\x04\0\0\0\0" + b"\x43" + b"\x42" + b"\x42"
        performative = b"\x00\x53" + bytes([TRANSFER]) + b"\xc0" + bytes([len(fields) + 1, 6]) + fields
        name = os.urandom(4) + bytes(4) if named else b""
        message = message_of(size, name, delay_ms)[0](0, 0)
        self.stride = 8 + len(performative) + len(message)
        frame = struct.pack(">IBBH", self.stride, 2, 0, 0) + performative + message
        identity = 8 + performative.index(b"\x70\0\0\0\0") + 1
        tag = identity + 6
        self._number = self.stride - size
        self._planes: tuple[int, ...] = (identity, tag, self._number + 4)
        if named:
            self._planes += (8 + len(performative) + message.index(_NAMED) + len(_NAMED) + 4,)
        self._frames = bytearray(frame * BLOCK)
        self._view = memoryview(self._frames)

    def fill(self, first: int, count: int, now: int) -> memoryview:
        """Frames of deliveries ``first`` to ``first + count - 1``, stamped ``now`` ns; good until the next call."""
        frames, stride, stop = self._frames, self.stride, count * self.stride
        numbers = array("I", range(first, first + count))
        if sys.byteorder == "little":
            numbers.byteswap()
        octets = numbers.tobytes()
        for index in range(4):
            plane = octets[index::4]
            for start in self._planes:
                frames[start + index : stop : stride] = plane
        stamp = self._number + 8
        for index, octet in enumerate(now.to_bytes(8, "big")):
            frames[stamp + index : stop : stride] = bytes([octet]) * count
        return self._view[:stop]


MAX_OUTSTANDING = 10_000
"""The dispositions of this many deliveries fit into the socket's buffers, so that a blocking send cannot deadlock."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a publishing run. ``latencies`` are ns from send to settlement, one for each message."""

    count: int
    seconds: float
    latencies: list[int]


class Sender:
    """Sends numbered, time-stamped messages over one link and counts what the peer accepts."""

    def __init__(self, connection: Connection, size: int, *, named: bool = False, delay_ms: int = 0) -> None:
        self._connection = connection
        self._block = TransferBlock(size, named=named, delay_ms=delay_ms)
        self._sent = 0
        self._settled = 0
        self._credit_limit = 0
        self._window_limit = connection.peer_window
        self._sent_at = array("q")
        self._latencies: list[int] = []

    def send(self, count: int, outstanding: int) -> Sent:
        """Send ``count`` messages, at most ``outstanding`` unsettled at a time, and wait until all are accepted.

        The clock starts with the first credit. With one outstanding the socket is polled, so that the result does not
        include the time that this machine takes to wake a sleeping client.

        Raises ``Refused`` on any outcome but accepted.
        """
        if not 0 < outstanding <= MAX_OUTSTANDING:
            raise ValueError(f"outstanding is {outstanding}; it must be from 1 to {MAX_OUTSTANDING}")
        self._sent_at = array("q", bytes(8 * count))
        self._take()
        while not self._credit_limit:
            self._listen()
        sock, fill, sent_at = self._connection.sock, self._block.fill, self._sent_at
        started = time.perf_counter()
        while self._settled < count:
            sent = self._sent
            room = min(self._credit_limit, self._window_limit, self._settled + outstanding, count) - sent
            if room > 0:
                room = min(room, BLOCK)
                now = time.monotonic_ns()
                sent_at[sent : sent + room] = array("q", [now]) * room
                sock.sendall(fill(sent, room, now))
                self._sent += room
                self._listen(socket.MSG_DONTWAIT)
            elif outstanding == 1:
                self._connection.poll()
                self._take()
            else:
                self._listen()
        return Sent(count, time.perf_counter() - started, self._latencies)

    def _listen(self, flags: int = 0) -> None:
        """Receive from the peer and process it. Waits unless ``flags`` says otherwise."""
        try:
            self._connection.fill(flags)
        except BlockingIOError:
            return
        self._take()

    def _take(self) -> None:
        """Process the complete frames in the buffer: settlements and credit."""
        now = time.monotonic_ns()
        for told in self._connection.told():
            if not isinstance(told, Frame):
                first, last = told
                self._settled += last - first + 1
                self._latencies += [now - then for then in self._sent_at[first : last + 1]]
            elif told.code == DISPOSITION:
                raise Refused(f"a message was not accepted: {told.field(4)}")
            elif told.code == FLOW:
                # Section 2.5.6 for the session window, 2.6.7 for link credit; this side counts both from 0.
                self._window_limit = int(told.field(0, 0)) + int(told.field(1, 0))
                if told.field(4) is not None:
                    self._credit_limit = credit_limit(told)


_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Received:
    """The result of a consuming run.

    ``seconds`` runs from the first credit to the last message, ``through_seconds`` from the publishing of the
    first message to the receipt of the last. ``in_order`` says that the messages were numbered without a gap or
    a repeat; ``latencies`` are ns from publish to receipt.
    """

    count: int
    seconds: float
    through_seconds: float
    in_order: bool
    latencies: list[int]


class Receiver:
    """Receives over one link, keeps the credit topped up and accepts each delivery.

    Deliveries from one read of the socket are accepted by one disposition with a range, as by proton's engine.
    """

    def __init__(self, connection: Connection, size: int, *, durable: bool = False) -> None:
        """With ``durable``, ``receive`` fails on a message that is not durable."""
        self._headers = DurableHeaders() if durable else None
        self._connection = connection
        self._size = size
        self._received = 0
        self._granted = 0
        self._delivery_id: int | None = None

    def receive(self, count: int, credit: int, *, timed: bool = False) -> Received:
        """Receive and accept ``count`` messages with a window of ``credit``, never more than is still wanted.

        With ``timed``, publish-to-receipt latencies are kept.
        """
        connection = self._connection
        started = time.perf_counter()
        granted = min(credit, count)
        connection.flow(0, 0, granted)
        numbers: list[int] = []
        latencies: list[int] = []
        published = 0
        while self._received < count:
            connection.fill()  # nothing can have arrived before: the link had no credit
            before = len(numbers)
            stamps = self._take(numbers)
            published = published or (stamps[0] if stamps else 0)
            if timed:
                now = time.monotonic_ns()
                latencies += [now - stamp for stamp in stamps]
            self._accept(len(numbers) - before)
            wanted = min(self._received + credit, count)
            if wanted - granted >= max(credit // 2, 1) or wanted == count > granted:
                granted = wanted
                connection.flow(self._received, self._received, granted - self._received)
        seconds = time.perf_counter() - started
        through = (time.monotonic_ns() - published) / 1e9
        in_order = numbers == list(range(numbers[0], numbers[0] + count))
        return Received(self._received, seconds, through, in_order, latencies)

    def grant(self, credit: int) -> None:
        """Grant a window of this much credit; to be called at most once."""
        self._granted = credit
        self._connection.flow(0, 0, credit)

    def read(self) -> list[int]:
        """The numbers of the messages that the next read of the socket brings."""
        self._connection.fill()
        numbers: list[int] = []
        self._take(numbers)
        return numbers

    def accept(self, count: int, credit: int) -> None:
        """
        Accept the first ``count`` messages that are not yet accepted, and top the window up when half of it is used.
        """
        self._accept(count)
        if self._received + credit - self._granted >= credit // 2:
            self._granted = self._received + credit
            self._connection.flow(self._received, self._received, credit)

    def _take(self, numbers: list[int]) -> list[int]:
        """Process every complete frame in the buffer; appends message numbers, and returns publish times."""
        connection, size_of, stamp_of, size = (
            self._connection,
            _SIZE.unpack_from,
            STAMP.unpack_from,
            self._size,
        )
        buffer, at, end = connection.buffer, connection.start, connection.end
        stamps: list[int] = []
        while end - at >= 8:
            stop = at + size_of(buffer, at)[0]
            if stop > end:
                break
            if stop - at > size and buffer[at + CODE_OFFSET] == TRANSFER:
                if self._delivery_id is None:
                    self._first(connection.control(at, stop))
                if self._headers is not None:
                    self._headers.check(buffer, at, stop)
                number, stamp = stamp_of(buffer, stop - size)
                numbers.append(number)
                stamps.append(stamp)
            else:
                connection.start = stop
                connection.control(at, stop)
            at = stop
        connection.start = at
        return stamps

    def _first(self, transfer: Frame | None) -> None:
        if transfer is None or transfer.field(4, False) or transfer.field(5, False):
            raise Refused("the first delivery was settled or in several frames; this generator wants neither")
        self._delivery_id = int(transfer.field(1))

    def _accept(self, count: int) -> None:
        if count and self._delivery_id is not None:
            first = self._delivery_id
            self._connection.sock.sendall(disposition(first, first + count - 1))
            self._delivery_id = first + count
            self._received += count
