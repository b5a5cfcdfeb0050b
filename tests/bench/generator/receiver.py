"""The consuming half of the load generator: a credit window, every message looked at and accepted."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from tests.support.frames import TRANSFER, Frame, disposition

from .connection import Connection, Refused
from .dispositions import CODE_OFFSET
from .durability import DurableHeaders
from .transfers import STAMP

_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Received:
    """What a run of consuming came to.

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

    The acceptances of what one read of the socket brought leave as one ranged disposition, as proton's engine
    sends them too.
    """

    def __init__(self, connection: Connection, size: int, *, durable: bool = False) -> None:
        """With ``durable`` every message has to be that."""
        self._headers = DurableHeaders() if durable else None
        self._connection = connection
        self._size = size
        self._received = 0
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
            connection.fill()  # nothing can be there before it: the link had no credit
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

    def serve(self, credit: int) -> None:
        """Be an endless sink: accept everything until the peer goes away."""
        connection = self._connection
        connection.flow(0, 0, credit)
        granted = credit
        try:
            while True:
                connection.fill()
                numbers: list[int] = []
                self._take(numbers)
                self._accept(len(numbers))
                if self._received + credit - granted >= credit // 2:
                    granted = self._received + credit
                    connection.flow(self._received, self._received, credit)
        except (Refused, ConnectionError):
            return

    def _take(self, numbers: list[int]) -> list[int]:
        """Take every whole frame out of the buffer; append message numbers, return publish times."""
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
