"""
The load generator's AMQP connection: one session and one link on a blocking socket, with only what the load needs; it
recognizes accepted dispositions by their bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from amqp_ext.codec import Described, Symbol, UInt
from tests.support import frames as amqp

CODE_OFFSET = 10
"""Offset of the performative's code in a frame with an 8-byte header: after the header, 0x00 and 0x53."""

_UINT = struct.Struct(">I")
_ACCEPTED_TAILS = tuple(
    bytes([settled]) + b"\x00\x53" + bytes([amqp.ACCEPTED]) + empty_list
    for settled in (0x41, 0x42)
    for empty_list in (b"\x45", b"\xc0\x01\x00")
)


def acceptance(disposition: amqp.Frame) -> tuple[int, int] | None:
    """First and last delivery id of a decoded disposition (section 2.7.6) with outcome ``accepted``; else None."""
    state = disposition.field(4)
    if not isinstance(state, Described) or state.descriptor != amqp.ACCEPTED:
        return None
    first = int(disposition.field(1))
    return first, int(disposition.field(2, first))


def accepted_range(buffer: bytearray, start: int, stop: int) -> tuple[int, int] | None:
    """First and last delivery id of a plain ``accepted`` disposition; None where it must be decoded in full.

    Brokers that answer every message with a frame of its own are why this exists: a full decode would be the
    larger part of the generator's time then.
    """
    at = start + CODE_OFFSET + 1
    if buffer[start + 4] != 2 or buffer[at] != 0xC0:
        return None
    at += 4  # list8: constructor, size, count; then the role, one octet
    bounds = [0, 0]
    for which in (0, 1):
        constructor = buffer[at]
        if constructor == 0x52:
            bounds[which] = buffer[at + 1]
            at += 2
        elif constructor == 0x70:
            bounds[which] = _UINT.unpack_from(buffer, at + 1)[0]
            at += 5
        elif constructor == 0x43:
            at += 1
        elif constructor == 0x40 and which:
            bounds[1] = bounds[0]
            at += 1
        else:
            return None
    return (bounds[0], bounds[1]) if buffer[at:stop] in _ACCEPTED_TAILS else None


BUFFER = 1 << 18
TIMEOUT = 120
"""After this many seconds without a byte from the peer the run fails instead of hanging."""


class Refused(Exception):
    """The peer refused or ended the connection, session or link, or did not accept a message."""


class Connection:
    """A socket, its receive buffer, and the session's numbers in both directions."""

    def __init__(self, sock: socket.socket, timeout: int = TIMEOUT) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Time-outs of the kernel: Python's own would poll before every call, and make MSG_DONTWAIT wait.
        sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", timeout, 0))
        self.sock = sock
        self.buffer = bytearray(BUFFER)
        self.start = 0
        self.end = 0
        self.peer_window = 0
        self.peer_next_outgoing = 0
        self._view = memoryview(self.buffer)

    @classmethod
    def connect(cls, host: str, port: int, container: str, timeout: int = TIMEOUT) -> Connection:
        """Connect, authenticate as ANONYMOUS, open the connection and begin a session; ``timeout`` in seconds."""
        self = cls(socket.create_connection((host, port), timeout), timeout)
        try:
            self._open(container)
        except BaseException:
            self.sock.close()
            raise
        return self

    @classmethod
    def to(cls, server: str, container: str) -> Connection:
        """``connect`` to ``HOST:PORT``."""
        host, _, port = server.rpartition(":")
        return cls.connect(host, int(port), container)

    def attach(
        self,
        *,
        sender: bool,
        address: str,
        handle: int = 0,
        name: str = "bench",
        **fields: Any,
    ) -> None:
        """
        Attach a link and wait for the answer. The message link has handle 0.

        Args:
            fields: More arguments of ``attach_frame``: ``filters``, ``settled``, ``expiry``.

        Raises:
            Refused: The peer refuses the link.
        """
        attach = amqp.attach_frame(handle, receiver=not sender, address=address, name=name, **fields)
        self.sock.sendall(attach)
        terminus = 6 if sender else 5
        if self._expect(amqp.ATTACH).field(terminus) is None:
            self._expect(amqp.DETACH)  # raises with the reason: a detach follows the null terminus
            raise Refused(f"the link to {address} was refused without a reason")

    def fill(self, flags: int = 0) -> int:
        """Receive once. Moves an unfinished frame to the front of the buffer; returns octets received.

        Raises ``Refused`` at end of file, ``BlockingIOError`` with ``MSG_DONTWAIT`` when nothing is there.
        """
        if self.start:
            left = self.end - self.start
            self.buffer[:left] = self.buffer[self.start : self.end]
            self.start, self.end = 0, left
        try:
            received = self.sock.recv_into(self._view[self.end :], 0, flags)
        except BlockingIOError:
            if flags & socket.MSG_DONTWAIT:
                raise
            raise Refused("the peer sent nothing for too long") from None
        if not received:
            raise Refused("the peer closed the socket")
        self.end += received
        return received

    def poll(self) -> None:
        """Receive as ``fill`` does, but wait busily, without sleeping."""
        given_up = time.monotonic() + TIMEOUT
        while True:
            try:
                self.fill(socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic() > given_up:
                    raise Refused("the peer sent nothing for too long") from None
            else:
                return

    def frames(self) -> Iterator[tuple[int, int]]:
        """Start and stop of every complete frame in the buffer; a frame is consumed when the next one is asked for."""
        buffer = self.buffer
        while self.end - self.start >= 8:
            stop = self.start + int.from_bytes(buffer[self.start : self.start + 4], "big")
            if stop > self.end:
                return
            start, self.start = self.start, stop
            yield start, stop

    def control(self, start: int, stop: int) -> amqp.Frame | None:
        """Decode a frame that is no transfer; None is a heartbeat. A detach, end or close raises ``Refused``."""
        received = amqp.parse(self.buffer, start, stop)
        if received is not None and received.code in (amqp.DETACH, amqp.END, amqp.CLOSE):
            error = received.field(0 if received.code != amqp.DETACH else 2)
            raise Refused(
                _describe(error) if error is not None else "the peer ended the link, session or connection"
            )
        return received

    def told(self) -> Iterator[tuple[int, int] | amqp.Frame]:
        """The first and last delivery id of each acceptance, and every other frame decoded."""
        for start, stop in self.frames():
            is_disposition = self.buffer[start + CODE_OFFSET] == amqp.DISPOSITION
            if is_disposition and (bounds := accepted_range(self.buffer, start, stop)):
                yield bounds
            elif (found := self.control(start, stop)) is not None:
                yield (acceptance(found) or found) if is_disposition else found

    def flow(self, received: int, delivery_count: int, credit: int) -> None:
        """Grant ``credit`` as the link's receiver, having seen ``received`` transfers in this session."""
        next_incoming = self.peer_next_outgoing + received
        self.sock.sendall(amqp.flow_frame(0, delivery_count, credit, next_incoming=next_incoming))

    def release_buffer(self) -> None:
        """Free the receive buffer, as an idle connection needs none. Nothing can be received afterwards."""
        self._view.release()
        self.buffer = bytearray()

    def close(self) -> None:
        """Detach, end and close, and wait for the peer's answers: then it has handled everything before."""
        self.sock.sendall(amqp.frame(amqp.DETACH, [UInt(0), True]))
        self.end_all()

    def end_all(self) -> None:
        """The same without closing the link: the peer keeps what outlives a link that is lost."""
        self.sock.sendall(amqp.frame(amqp.END, []) + amqp.frame(amqp.CLOSE, []))
        try:
            while True:
                for start, stop in self.frames():
                    received = amqp.parse(self.buffer, start, stop)
                    if received is not None and received.code == amqp.CLOSE:
                        return
                self.fill()
        except (Refused, ConnectionError):
            return
        finally:
            self.sock.close()

    def _open(self, container: str) -> None:
        self.sock.sendall(amqp.SASL_HEADER)
        self._expect_header(amqp.SASL_HEADER)
        self._expect(amqp.SASL_MECHANISMS)
        self.sock.sendall(amqp.frame(amqp.SASL_INIT, [Symbol("ANONYMOUS"), b"bench"], kind=amqp.SASL_FRAME))
        if (code := self._expect(amqp.SASL_OUTCOME).field(0)) != 0:
            raise Refused(f"SASL ANONYMOUS was not accepted: outcome code {code}")
        self.sock.sendall(amqp.AMQP_HEADER)
        self._expect_header(amqp.AMQP_HEADER)
        self.sock.sendall(amqp.open_frame(container=container) + amqp.begin_frame())
        self._expect(amqp.OPEN)
        self._begun(self._expect(amqp.BEGIN))

    def _begun(self, begin: amqp.Frame) -> None:
        self.peer_next_outgoing = int(begin.field(1, 0))
        self.peer_window = int(begin.field(2, 0))

    def _expect_header(self, header: bytes) -> None:
        while self.end - self.start < len(header):
            self.fill()
        got = bytes(self.buffer[self.start : self.start + len(header)])
        if got != header:
            raise Refused(f"the peer answered protocol header {header!r} with {got!r}")
        self.start += len(header)

    def _expect(self, code: int) -> amqp.Frame:
        while True:
            for start, stop in self.frames():
                received = self.control(start, stop)
                if received is None:
                    continue
                if received.code != code:
                    raise Refused(f"expected performative {code:#04x}, the peer sent {received.code:#04x}")
                return received
            self.fill()


def credit_limit(flow: amqp.Frame) -> int:
    """The delivery count of a link up to which its receiver has granted credit (section 2.6.7), from 0."""
    return int(flow.field(5, 0)) + int(flow.field(6, 0))


def _describe(error: Any) -> str:
    condition, *rest = error.value
    return ": ".join(str(part) for part in (condition, *rest[:1]) if part)
