"""The publishing half of the load generator: as fast as credit and its own limit allow, each timed."""

from __future__ import annotations

import socket
import time
from array import array
from dataclasses import dataclass

from tests.support.frames import DISPOSITION, FLOW, Frame

from .connection import Connection, Refused
from .dispositions import CODE_OFFSET, acceptance, accepted_range
from .transfers import BLOCK, TransferBlock

MAX_OUTSTANDING = 10_000
"""Dispositions of this many deliveries fit into the socket's buffers: a blocking send cannot deadlock."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a run of publishing came to. ``latencies`` are ns from send to settlement, a message each."""

    count: int
    seconds: float
    latencies: list[int]
    credit: int


class Sender:
    """Sends numbered, time-stamped messages over one link and counts what the peer accepts."""

    def __init__(self, connection: Connection, size: int, *, settled: bool = False) -> None:
        self._connection = connection
        self._block = TransferBlock(size, settled=settled)
        self._settled_mode = settled
        self._sent = 0
        self._settled = 0
        self._credit_limit = 0
        self._window_limit = connection.peer_window
        self._first_credit = 0
        self._sent_at = array("q")
        self._latencies: list[int] = []

    def send(self, count: int, outstanding: int) -> Sent:
        """Send ``count`` messages, at most ``outstanding`` unsettled at a time, and wait until all are accepted.

        The clock starts when the first credit is there. Raises ``Refused`` on any outcome but accepted.
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
                if self._settled_mode:
                    self._settled = self._sent
                self._listen(socket.MSG_DONTWAIT)
            else:
                self._listen()
        return Sent(count, time.perf_counter() - started, self._latencies, self._first_credit)

    def serve(self) -> None:
        """Be an endless source: send whatever credit allows until the peer goes away."""
        sock, fill = self._connection.sock, self._block.fill
        self._take()
        try:
            while True:
                room = min(self._credit_limit - self._sent, BLOCK)
                if room > 0:
                    sock.sendall(fill(self._sent, room, time.monotonic_ns()))
                    self._sent += room
                self._listen(socket.MSG_DONTWAIT if room > 0 else 0)
        except (Refused, ConnectionError):
            return

    def _listen(self, flags: int = 0) -> None:
        """Receive from the peer and take it in. Waits for it unless ``flags`` says otherwise."""
        try:
            self._connection.fill(flags)
        except BlockingIOError:
            return
        self._take()

    def _take(self) -> None:
        """Take in the whole frames that are there: settlements and credit."""
        connection = self._connection
        buffer, now = connection.buffer, time.monotonic_ns()
        for start, stop in connection.frames():
            if buffer[start + CODE_OFFSET] == DISPOSITION and (bounds := accepted_range(buffer, start, stop)):
                self._accepted(*bounds, now)
                continue
            received = connection.control(start, stop)
            if received is None:
                continue
            if received.code == FLOW:
                self._flow(received)
            elif received.code == DISPOSITION:
                decoded = acceptance(received)
                if decoded is None:
                    raise Refused(f"a message was not accepted: {received.field(4)}")
                self._accepted(*decoded, now)

    def _accepted(self, first: int, last: int, now: int) -> None:
        self._settled += last - first + 1
        self._latencies += [now - then for then in self._sent_at[first : last + 1]]

    def _flow(self, flow: Frame) -> None:
        """Section 2.5.6 for the session window, 2.6.7 for link credit; both counted from 0 on this side."""
        self._window_limit = int(flow.field(0, 0)) + int(flow.field(1, 0))
        if flow.field(4) is not None:
            self._credit_limit = int(flow.field(5, 0)) + int(flow.field(6, 0))
            self._first_credit = self._first_credit or self._credit_limit
