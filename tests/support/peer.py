"""A scripted AMQP client: frames written and read one by one, also wrong ones, over a socket that the test gives.

It works below ``tests.support.client``, whose engine neither says what is wrong nor shows every frame that comes.
Reads give up after ``TIMEOUT`` seconds: a gateway that says nothing fails a test and does not hang it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from scramp import ScramClient

from amqp_ext.codec import Symbol
from tests.support.frames import (
    ACCEPTED,
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    OPEN,
    SASL_CHALLENGE,
    SASL_FRAME,
    SASL_HEADER,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    SASL_RESPONSE,
    TRANSFER,
    Frame,
    attach_frame,
    begin_frame,
    disposition,
    flow_frame,
    frame,
    open_frame,
    parse,
    transfer_frame,
)
from tests.support.messages import body_of, data

TIMEOUT = 15
OK = 0
SYS_TEMP = 4


class Closed(Exception):
    """The gateway has closed the socket."""


class Peer:
    """One socket to the gateway, with channel 0 and handles counted from 0."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        self._kept: list[Frame] = []
        self._handles = 0
        self._deliveries = 0

    @classmethod
    def connect(
        cls,
        address: tuple[str, int],
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = TIMEOUT,
        source: str | None = None,
    ) -> Peer:
        """
        Connect, and shake hands in TLS where a context is given; nothing of AMQP is said yet.

        Args:
            source: The IP address to come from; 127.0.0.0/8 has some.
        """
        sock = socket.create_connection(address, timeout, None if source is None else (source, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                sock = tls.wrap_socket(sock, server_hostname="localhost")
            except BaseException:
                sock.close()
                raise
        return cls(sock)

    @classmethod
    def opened(cls, address: tuple[str, int], **fields: Any) -> Peer:
        """A connection as a well-behaved client has it: ANONYMOUS, open, one session."""
        peer = cls.connect(address)
        assert peer.anonymous() == OK
        peer.open(**fields)
        peer.begin()
        return peer

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    # --- bytes --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """HOST:PORT of our side, as the gateway's log calls us."""
        host, port = self.sock.getsockname()[:2]
        return f"{host}:{port}"

    def send(self, *pieces: bytes) -> None:
        self.sock.sendall(b"".join(pieces))

    def _fill(self) -> None:
        try:
            received = self.sock.recv(1 << 16)
        except ConnectionResetError as error:
            raise Closed("reset") from error
        if not received:
            raise Closed("end of file")
        self._buffer += received

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes. Closed when there are no more."""
        while len(self._buffer) < size:
            self._fill()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            while True:
                self._fill()
        except Closed:
            return bytes(self._buffer)

    def frame(self) -> Frame | None:
        """The next frame; None for a heartbeat."""
        while len(self._buffer) < 4:
            self._fill()
        whole = self.take(int.from_bytes(self._buffer[:4], "big"))
        return parse(whole, 0, len(whole))

    def expect(self, code: int) -> Frame:
        """The next frame that is no heartbeat, which is to be this performative."""
        while (received := self.frame()) is None:
            pass
        assert received.code == code, f"expected {code:#04x}, the gateway sent {received}"
        return received

    def skip_to(self, code: int, *, never: int | None = None) -> Frame:
        """The next frame of this performative; what comes before it is kept, but must be none of ``never``."""
        for index, kept in enumerate(self._kept):
            if kept.code == code:
                return self._kept.pop(index)
        while (received := self.frame()) is None or received.code != code:
            if received is not None:
                assert received.code != never
                self._kept.append(received)
        return received

    # --- SASL: each way returns the outcome's code ------------------------------------------------------------

    def mechanisms(self) -> list[str]:
        """Begin SASL; what the gateway offers."""
        self.send(SASL_HEADER)
        assert self.take(8) == SASL_HEADER
        return [str(name) for name in self.expect(SASL_MECHANISMS).fields[0]]

    def sasl(self, mechanism: str, response: bytes | None = None) -> int:
        """One mechanism with an initial response."""
        self.mechanisms()
        self.send(frame(SASL_INIT, [Symbol(mechanism), response], kind=SASL_FRAME))
        return self.outcome()

    def outcome(self) -> int:
        code = int(self.expect(SASL_OUTCOME).fields[0])
        if code == OK:
            self.send(AMQP_HEADER)
            assert self.take(8) == AMQP_HEADER
        return code

    def anonymous(self) -> int:
        return self.sasl("ANONYMOUS", b"test")

    def plain(self, user: str, password: str) -> int:
        return self.sasl("PLAIN", f"\0{user}\0{password}".encode())

    def scram(self, mechanism: str, user: str, password: str) -> int:
        """SCRAM with the gateway's own signature checked, as a careful client does."""
        self.mechanisms()
        client = ScramClient([mechanism], user, password)
        first = client.get_client_first().encode()
        self.send(frame(SASL_INIT, [Symbol(mechanism), first], kind=SASL_FRAME))
        client.set_server_first(self.expect(SASL_CHALLENGE).fields[0].decode())
        self.send(frame(SASL_RESPONSE, [client.get_client_final().encode()], kind=SASL_FRAME))
        outcome = self.expect(SASL_OUTCOME)
        code = int(outcome.fields[0])
        if code == OK:
            client.set_server_final(outcome.fields[1].decode())
            self.send(AMQP_HEADER)
            assert self.take(8) == AMQP_HEADER
        return code

    # --- connection, session, links -----------------------------------------------------------------------------

    def open(self, *, hostname: str | None = None, idle_ms: int | None = None) -> Frame:
        """Open; the gateway's open."""
        self.send(open_frame(hostname=hostname, idle_ms=idle_ms))
        return self.expect(OPEN)

    def begin(self) -> Frame:
        self.send(begin_frame())
        return self.expect(BEGIN)

    def attach_sender(self, address: str | None, **fields: Any) -> Frame:
        """Attach a link to send on and wait for credit; its handle is the count of links so far."""
        self.send(attach_frame(self._next_handle(), receiver=False, address=address, **fields))
        self._attached(6)
        return self.expect(FLOW)

    def attach_receiver(self, address: str, *, credit: int = 0, **fields: Any) -> Frame:
        """Attach a link to receive on, and grant credit; the gateway's attach."""
        handle = self._next_handle()
        self.send(attach_frame(handle, receiver=True, address=address, **fields))
        attached = self._attached(5)
        if credit:
            self.send(flow_frame(handle, 0, credit))
        return attached

    def _attached(self, terminus: int) -> Frame:
        attached = self.skip_to(ATTACH)
        if attached.field(terminus) is None:
            detached = self.expect(DETACH)
            raise AssertionError(f"the attach was refused: {detached.field(2)}")
        return attached

    def _next_handle(self) -> int:
        self._handles += 1
        return self._handles - 1

    def publish(self, body: bytes, *, handle: int = 0) -> None:
        """Send one message unsettled and wait until it is accepted."""
        number = self._deliveries
        self._deliveries += 1
        self.send(transfer_frame(handle, number, data(body)))
        state = self.skip_to(DISPOSITION).field(4)
        assert state.descriptor == ACCEPTED, f"not accepted: {state}"

    def publish_all(self, bodies: Iterable[bytes], *, handle: int = 0, outstanding: int = 500) -> None:
        """Send messages unsettled, so many at a time, and wait until all are accepted."""
        waiting = 0
        for body in bodies:
            self.send(transfer_frame(handle, self._deliveries, data(body)))
            self._deliveries += 1
            waiting += 1
            while waiting >= outstanding:
                waiting -= self._accepted()
        while waiting:
            waiting -= self._accepted()

    def _accepted(self) -> int:
        """How many deliveries the next disposition accepts."""
        told = self.skip_to(DISPOSITION)
        assert told.field(4).descriptor == ACCEPTED, f"not accepted: {told}"
        return int(told.field(2, told.field(1))) - int(told.field(1)) + 1

    def receive(self, *, accept: bool = True) -> bytes:
        """The data section of the next message; accepted and settled unless that is not wanted."""
        transfer = self.skip_to(TRANSFER)
        if accept:
            self.send(disposition(int(transfer.field(1)), int(transfer.field(1))))
        return body_of(transfer.payload)

    def close(self) -> None:
        """Close as the protocol has it and wait for the answer."""
        self.send(frame(CLOSE, []))
        self.skip_to(CLOSE)
        self.sock.close()
