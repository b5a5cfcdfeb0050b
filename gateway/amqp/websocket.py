"""
AMQP over WebSocket (OASIS, "AMQP WebSocket Binding 1.0"): a layer between a socket and its connection.

The binding carries AMQP's bytes as the payload of binary messages, whose boundaries mean nothing: to the connection
this is a socket like any other. The websockets library implements the WebSocket protocol itself (RFC 6455).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from gateway.amqp.connection import Connection
from gateway.amqp.connection_log import address_of_peer
from gateway.config import WebSocket
from gateway.logging import log_keys

UNOPENED_BYTES: Final = 64 * 1024
"""Largest WebSocket message, and most bytes of the upgrade, of a peer whose AMQP connection is not open yet."""


SUBPROTOCOLS: Final = (Subprotocol("amqp"), Subprotocol("AMQPWSB10"))
"""The binding's name, and the one of its first draft, which some clients still ask for alone."""

# The connection logs what happens to it; the library is to log only its own errors.
_library_log = logging.getLogger("gateway.websockets")
_library_log.setLevel(logging.ERROR)


class WebSocketTransport(asyncio.Transport, asyncio.Protocol):
    """
    The protocol of a socket, and to ``connection`` its transport.

    A browser says in ``Origin`` which page's script connects. Only pages that the settings name may: otherwise a
    gateway without users would be open to every page that a browser on this machine shows. Other programs send none.
    """

    def __init__(self, connection: Connection, settings: WebSocket) -> None:
        super().__init__()
        self._connection = connection
        self._socket: asyncio.Transport | None = None
        self._protocol = ServerProtocol(
            origins=[None, *map(Origin, settings.origins)],
            subprotocols=SUBPROTOCOLS,
            max_size=UNOPENED_BYTES,
            logger=_library_log,
        )
        self._max_message_bytes = settings.max_message_bytes
        self._upgrade_bytes = 0
        self._is_reading = True
        self._has_closed = False
        """The connection has closed, or the peer has sent no AMQP: no more input goes to the connection."""
        self._has_ended = False
        """The protocol has ended: the socket is closed once the connection has handled the input before that."""

    # --- from the socket --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._socket = cast("asyncio.Transport", transport)
        # The time that the client has to open begins now, not with the upgrade request.
        self._connection.connection_made(self)

    def data_received(self, data: bytes) -> None:
        start = 0
        if self._protocol.state is State.CONNECTING:
            self._upgrade_bytes += len(data)
            if self._upgrade_bytes > UNOPENED_BYTES:
                self.abort()
                return
            # Bytes after the upgrade request are read once it is answered. Before, the library would take them for a
            # frame of an open connection, and would reply to that frame before the request is answered.
            while self._protocol.state is State.CONNECTING and (end := data.find(b"\n", start) + 1):
                self._receive(data[start:end])
                start = end
        if start < len(data):
            self._receive(data[start:] if start else data)

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        if self._connection.has_opened:
            protocol.max_message_size = self._max_message_bytes
        protocol.receive_data(data)
        self._connection.buffer(len(protocol.reader.buffer))
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif not isinstance(event, Frame):
                continue  # a response, which is a client's
            elif event.opcode in (Opcode.BINARY, Opcode.CONT):
                # Our flag, not the protocol's state: the protocol may have read a close that follows this frame.
                if event.data and not self._has_closed:
                    self._connection.data_received(bytes(event.data))
            elif event.opcode is Opcode.TEXT:
                self._has_closed = True
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "AMQP comes in binary messages (section 2.3)")
        self._send()

    def _answer(self, request: Request) -> None:
        response = self._protocol.accept(request)
        if self._protocol.handshake_exc is not None:
            self._connection.log.warning(
                "handshake_failed",
                **{
                    log_keys.PEER: address_of_peer(self._socket),
                    log_keys.REASON: str(self._protocol.handshake_exc),
                },
            )
        self._protocol.send_response(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
        # The library's parser waits for more input, in a reference cycle with the buffer that it reads.
        self._protocol.parser.close()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # --- from the connection ----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._send()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        """Send a close frame; the socket is closed when the peer has answered."""
        self._has_closed = True
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        elif (self._has_ended or self._protocol.state is State.CONNECTING) and self._socket is not None:
            self._socket.close()

    def is_closing(self) -> bool:
        if self._socket is None or self._socket.is_closing():
            return True
        # The peer's close does not count yet while the connection still has to handle the input before it.
        is_over = self._protocol.state in (State.CLOSING, State.CLOSED)
        return is_over and (self._is_reading or not self._has_ended)

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._is_reading = False
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._socket is None:
            return
        if self._has_ended:
            self._socket.close()
        else:
            self._socket.resume_reading()

    def _send(self) -> None:
        """Write the protocol's output, and close the socket after the last of it."""
        socket = self._socket
        if socket is None:
            return
        for data in self._protocol.data_to_send():
            if data is SEND_EOF or not data:
                self._has_ended = True
            elif not socket.is_closing():
                socket.write(data)
        if self._has_ended and self._is_reading:
            socket.close()
