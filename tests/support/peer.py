"""A scripted AMQP client: it writes and reads single frames, wrong ones included, on a socket from the test.

It works below ``tests.support.client``, whose engine neither sends wrong frames nor shows every frame that arrives.
Reads give up after ``TIMEOUT`` seconds: a silent gateway fails a test instead of hanging it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from scramp import ScramClient

from amqp_ext.codec import Symbol
from tests.support import frames as amqp
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
        self._kept: list[amqp.Frame] = []
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
        Connect, and shake hands in TLS where a context is given; nothing of AMQP is sent yet.

        Args:
            source: The IP address to connect from, any in 127.0.0.0/8.
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
        """A connection like that of a well-behaved client: ANONYMOUS, open, one session."""
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
        """HOST:PORT of our side, as in the gateway's log."""
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
        """The next ``size`` bytes; raises ``Closed`` when the connection ends before."""
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

    def frame(self) -> amqp.Frame | None:
        """The next frame; None for a heartbeat."""
        while len(self._buffer) < 4:
            self._fill()
        whole = self.take(int.from_bytes(self._buffer[:4], "big"))
        return amqp.parse(whole, 0, len(whole))

    def expect(self, code: int) -> amqp.Frame:
        """The next frame that is no heartbeat; it must be this performative."""
        while (received := self.frame()) is None:
            pass
        assert received.code == code, f"expected {code:#04x}, the gateway sent {received}"
        return received

    def skip_to(self, code: int, *, never: int | None = None) -> amqp.Frame:
        """The next frame of this performative; earlier frames are kept, but must be none of ``never``."""
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
        """Begin SASL; returns the mechanisms that the gateway offers."""
        self.send(amqp.SASL_HEADER)
        assert self.take(8) == amqp.SASL_HEADER
        return [str(name) for name in self.expect(amqp.SASL_MECHANISMS).fields[0]]

    def sasl(self, mechanism: str, response: bytes | None = None) -> int:
        """Authenticate by a mechanism with an initial response."""
        self.mechanisms()
        self.send(amqp.frame(amqp.SASL_INIT, [Symbol(mechanism), response], kind=amqp.SASL_FRAME))
        return self.outcome()

    def outcome(self) -> int:
        code = int(self.expect(amqp.SASL_OUTCOME).fields[0])
        if code == OK:
            self.send(amqp.AMQP_HEADER)
            assert self.take(8) == amqp.AMQP_HEADER
        return code

    def anonymous(self) -> int:
        return self.sasl("ANONYMOUS", b"test")

    def plain(self, user: str, password: str) -> int:
        return self.sasl("PLAIN", f"\0{user}\0{password}".encode())

    def scram(self, mechanism: str, user: str, password: str) -> int:
        """SCRAM; checks the gateway's signature, as a careful client does."""
        self.mechanisms()
        client = ScramClient([mechanism], user, password)
        first = client.get_client_first().encode()
        self.send(amqp.frame(amqp.SASL_INIT, [Symbol(mechanism), first], kind=amqp.SASL_FRAME))
        client.set_server_first(self.expect(amqp.SASL_CHALLENGE).fields[0].decode())
        self.send(amqp.frame(amqp.SASL_RESPONSE, [client.get_client_final().encode()], kind=amqp.SASL_FRAME))
        outcome = self.expect(amqp.SASL_OUTCOME)
        code = int(outcome.fields[0])
        if code == OK:
            client.set_server_final(outcome.fields[1].decode())
            self.send(amqp.AMQP_HEADER)
            assert self.take(8) == amqp.AMQP_HEADER
        return code

    # --- connection, session, links -----------------------------------------------------------------------------

    def open(self, *, hostname: str | None = None, idle_ms: int | None = None) -> amqp.Frame:
        """Send open; returns the gateway's open."""
        self.send(amqp.open_frame(hostname=hostname, idle_ms=idle_ms))
        return self.expect(amqp.OPEN)

    def begin(self) -> amqp.Frame:
        self.send(amqp.begin_frame())
        return self.expect(amqp.BEGIN)

    def attach_sender(self, address: str | None, **fields: Any) -> amqp.Frame:
        """Attach a link to send on and wait for credit; its handle is the number of earlier links."""
        self.send(amqp.attach_frame(self._next_handle(), receiver=False, address=address, **fields))
        self._attached(6)
        return self.expect(amqp.FLOW)

    def attach_receiver(self, address: str, *, credit: int = 0, **fields: Any) -> amqp.Frame:
        """Attach a link to receive on, and grant credit; the gateway's attach."""
        handle = self._next_handle()
        self.send(amqp.attach_frame(handle, receiver=True, address=address, **fields))
        attached = self._attached(5)
        if credit:
            self.send(amqp.flow_frame(handle, 0, credit))
        return attached

    def _attached(self, terminus: int) -> amqp.Frame:
        attached = self.skip_to(amqp.ATTACH)
        if attached.field(terminus) is None:
            detached = self.expect(amqp.DETACH)
            raise AssertionError(f"the attach was refused: {detached.field(2)}")
        return attached

    def _next_handle(self) -> int:
        self._handles += 1
        return self._handles - 1

    def publish(self, body: bytes, *, handle: int = 0) -> None:
        """Send one message unsettled and wait until it is accepted."""
        number = self._deliveries
        self._deliveries += 1
        self.send(amqp.transfer_frame(handle, number, data(body)))
        state = self.skip_to(amqp.DISPOSITION).field(4)
        assert state.descriptor == amqp.ACCEPTED, f"not accepted: {state}"

    def publish_all(self, bodies: Iterable[bytes], *, handle: int = 0, outstanding: int = 500) -> None:
        """Send messages unsettled, at most ``outstanding`` at a time, and wait until all are accepted."""
        waiting = 0
        for body in bodies:
            self.send(amqp.transfer_frame(handle, self._deliveries, data(body)))
            self._deliveries += 1
            waiting += 1
            while waiting >= outstanding:
                waiting -= self._accepted()
        while waiting:
            waiting -= self._accepted()

    def _accepted(self) -> int:
        """How many deliveries the next disposition accepts."""
        told = self.skip_to(amqp.DISPOSITION)
        assert told.field(4).descriptor == amqp.ACCEPTED, f"not accepted: {told}"
        return int(told.field(2, told.field(1))) - int(told.field(1)) + 1

    def receive(self, *, accept: bool = True) -> bytes:
        """The data section of the next message; it is accepted and settled unless ``accept`` is False."""
        transfer = self.skip_to(amqp.TRANSFER)
        if accept:
            self.send(amqp.disposition(int(transfer.field(1)), int(transfer.field(1))))
        return body_of(transfer.payload)

    def close(self) -> None:
        """Close as the protocol requires, and wait for the answer."""
        self.send(amqp.frame(amqp.CLOSE, []))
        self.skip_to(amqp.CLOSE)
        self.sock.close()
