"""
A client that publishes copies to another gateway: one blocking connection with one link, for one job.

A message goes out as the bytes that are stored. Every wait for the peer has a time-out, and the peer's texts are cut.
No text of this module contains a secret.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from proton import Collector, Connection, Delivery, Event, ProtonException, Sender, Transport

from gateway.config import ReplayTarget

CONNECT_SECONDS: Final = 10.0
"""Time-out of the connect, and of the TLS handshake."""

ANSWER_SECONDS: Final = 30.0
"""How long a peer may take to settle a message: its disk may be busy."""

CREDIT_SECONDS: Final = 5.0
"""How long a peer may give no credit; then the job says so, and tries again."""

IDLE_SECONDS: Final = 2.0
"""A connection that was idle for longer is opened anew: nothing answered the peer's heartbeats meanwhile."""

FRAME_BYTES: Final = 65_536
READ_BYTES: Final = 65_536
PUSH_BYTES: Final = 4_096
"""How much input the engine is given at a time: it has room for at least this."""

WRITE_BYTES: Final = 262_144
"""How many bytes of messages the engine is given at a time: it holds a second copy of them in memory."""

SAID_CHARACTERS: Final = 300
"""The length to which a peer's text is cut."""

NOTHING_HEARD: Final = "the peer sent no outcome"


class _CannotPublish(Exception):
    """There is no connection (any more); the text says why."""


class CopyPublisher:
    """
    See ``gateway.vpn.jobs.copies.RemotePublisher``.

    Args:
        address: The address to publish to, at the peer.
        name: The replay's name; the link is named after it.
    """

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._name = name
        self._turn = threading.Lock()
        self._is_closed = False
        self._socket: socket.socket | None = None
        self._settings: ReplayTarget | None = None
        self._used = 0.0
        self._tags = 0
        self._transport: Any = None
        self._connection: Any = None
        self._collector: Any = None
        self._sender: Any = None
        self._unsettled: dict[str, int] = {}
        """Indexes of messages that the peer has not settled, by delivery-tag."""
        self._outcomes: list[str] = []
        self._refusal = ""

    def publish(self, settings: ReplayTarget, contents: Sequence[bytes]) -> list[str]:
        """See ``RemotePublisher.publish``."""
        with self._turn:
            self._outcomes = [NOTHING_HEARD] * len(contents)
            self._refusal = ""
            try:
                self._connect(settings)
                self._send(contents)
            except (_CannotPublish, ProtonException, OSError, ValueError, OverflowError) as error:
                said = str(error) or type(error).__name__
                reason = (
                    "the job was stopped" if self._is_closed else f"{settings.url}: {said[:SAID_CHARACTERS]}"
                )
                self._drop()
                self._outcomes = [reason if o == NOTHING_HEARD else o for o in self._outcomes]
            self._used = time.monotonic()
            return self._outcomes

    def close(self) -> None:
        """See ``RemotePublisher.close``."""
        self._is_closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._say_goodbye()
            finally:
                self._turn.release()
            return
        found = self._socket
        if found is not None:
            with suppress(OSError):
                # Of the plain socket, under TLS, too: a thread that reads from it finds the end.
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    # --- the connection -------------------------------------------------------------------------------------------

    def _connect(self, settings: ReplayTarget) -> None:
        if self._socket is not None and (
            settings != self._settings or time.monotonic() - self._used > IDLE_SECONDS
        ):
            self._say_goodbye()
        if self._socket is not None:
            return
        password = _password(settings)
        url = urlsplit(settings.url)
        host = url.hostname or ""
        is_secure = url.scheme == "amqps"
        context = _context(settings) if is_secure else None
        try:
            found = socket.create_connection(
                (host, url.port or (5671 if is_secure else 5672)), CONNECT_SECONDS
            )
        except OSError as error:
            raise _CannotPublish(f"cannot be reached: {error.strerror or error}") from error
        self._socket = found
        if context is not None:
            try:
                self._socket = context.wrap_socket(found, server_hostname=host)
            except ssl.SSLCertVerificationError as error:
                raise _CannotPublish(f"its certificate is not trusted: {error.verify_message}") from error
        found = self._socket
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._settings = settings
        transport = self._transport = Transport()
        transport.max_frame_size = FRAME_BYTES
        sasl = transport.sasl()
        sasl.allowed_mechs("ANONYMOUS" if settings.user is None else "PLAIN")
        sasl.allow_insecure_mechs = True  # the engine does not see the TLS around it
        connection = self._connection = Connection()
        connection.container = f"rewind-copy-{uuid4().hex[:12]}"
        connection.hostname = host if settings.vpn is None else f"vhost:{settings.vpn}"
        if settings.user is not None:
            connection.user, connection.password = settings.user, password
        self._collector = Collector()
        connection.collect(self._collector)
        transport.bind(connection)
        connection.open()
        session = connection.session()
        session.open()
        sender = self._sender = session.sender(f"copy-{self._name}")
        sender.target.address = self._address
        sender.snd_settle_mode = Sender.SND_UNSETTLED
        sender.open()

    def _say_goodbye(self) -> None:
        found = self._socket
        if found is not None and self._connection is not None:
            with suppress(OSError, ProtonException, _CannotPublish):
                found.settimeout(0.1)
                self._connection.close()
                self._write()
        self._drop()

    def _drop(self) -> None:
        found, self._socket = self._socket, None
        if found is not None:
            found.close()
        if self._transport is not None:
            with suppress(ProtonException):
                self._transport.unbind()
        self._transport = self._connection = self._collector = self._sender = None
        self._unsettled.clear()

    # --- messages -------------------------------------------------------------------------------------------------

    def _send(self, contents: Sequence[bytes]) -> None:
        place, moved_at = 0, time.monotonic()
        while place < len(contents) or self._unsettled:
            before = (place, len(self._unsettled))
            if not self._refusal:
                place = self._hand_over(contents, place)
            elif not self._unsettled:
                # Messages after a refused one are not sent, so that the order is kept.
                self._outcomes = [self._refusal if o == NOTHING_HEARD else o for o in self._outcomes]
                return
            self._write()
            has_read = self._read(1.0)
            now = time.monotonic()
            if (place, len(self._unsettled)) != before or (has_read and self._unsettled):
                moved_at = now
            elif self._unsettled and now - moved_at > ANSWER_SECONDS:
                raise _CannotPublish(f"no answer in {ANSWER_SECONDS:.0f} s")
            elif not self._unsettled and now - moved_at > CREDIT_SECONDS:
                if not has_read and not self._sender.remote_target.address:
                    raise _CannotPublish(f"no answer in {CREDIT_SECONDS:.0f} s")
                self._refusal = f"{self._address} gives no credit there: it accepts no messages now"

    def _hand_over(self, contents: Sequence[bytes], place: int) -> int:
        """Give the engine messages, up to the credit and ``WRITE_BYTES``; return the index of the next one."""
        sender, given = self._sender, 0
        largest = sender.remote_max_message_size
        while place < len(contents) and sender.credit > 0 and given < WRITE_BYTES:
            content = contents[place]
            if 0 < largest < len(content):
                self._refusal = (
                    f"the peer accepts messages of at most {largest} bytes, and one has {len(content)}"
                )
                break
            self._tags += 1
            tag = str(self._tags)
            sender.delivery(tag)
            sender.stream(content)
            sender.advance()
            self._unsettled[tag] = place
            given += len(content)
            place += 1
        return place

    def _write(self) -> None:
        found, transport = self._socket, self._transport
        assert found is not None
        transport.tick(time.monotonic())
        while (pending := transport.pending()) > 0:
            found.sendall(transport.peek(pending))
            transport.pop(pending)

    def _read(self, seconds: float) -> bool:
        """Read and handle what the peer sends; return False if nothing came in time."""
        found, transport = self._socket, self._transport
        assert found is not None
        if self._is_closed:
            raise _CannotPublish("closed")
        found.settimeout(seconds)
        try:
            read = found.recv(READ_BYTES)
        except TimeoutError:
            return False
        finally:
            found.settimeout(ANSWER_SECONDS)
        try:
            for begin in range(0, len(read), PUSH_BYTES):
                transport.push(read[begin : begin + PUSH_BYTES])
            if not read:
                transport.close_tail()
        finally:
            self._hear()
        if not read:
            raise _CannotPublish("the connection was cut")
        return True

    def _hear(self) -> None:
        collector = self._collector
        while (event := collector.peek()) is not None:
            kind = event.type
            if kind is Event.DELIVERY:
                self._heard_of(event.delivery)
            elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
                raise _CannotPublish(
                    f"{self._address} is refused there: {_said(event.link.remote_condition)}"
                )
            elif kind is Event.SESSION_REMOTE_CLOSE:
                raise _CannotPublish(_said(event.session.remote_condition))
            elif kind is Event.CONNECTION_REMOTE_CLOSE:
                raise _CannotPublish(_said(event.connection.remote_condition))
            elif kind is Event.TRANSPORT_ERROR:
                raise _CannotPublish(self._transport_said(event.transport.condition))
            collector.pop()

    def _transport_said(self, condition: Any) -> str:
        settings = self._settings
        if condition is not None and condition.name == "amqp:unauthorized-access" and settings is not None:
            if settings.user is None:
                return "the peer does not accept anonymous clients"
            return f"the peer refused the sign-in of {settings.user!r}: the name or the password is wrong"
        return _said(condition)

    def _heard_of(self, delivery: Any) -> None:
        state = delivery.remote_state
        if not state and not delivery.settled:
            return
        place = self._unsettled.pop(delivery.tag, None)
        if place is not None:
            self._outcomes[place] = reason = "" if state == Delivery.ACCEPTED else _refused(delivery)
            self._refusal = self._refusal or reason
        delivery.settle()


def _password(settings: ReplayTarget) -> str:
    if settings.password_file is None:
        return ""
    try:
        return settings.password_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _CannotPublish(f"the password_file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise _CannotPublish("the password_file is not UTF-8 text") from None


def _context(settings: ReplayTarget) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except OSError as error:  # ssl.SSLError is one, too
        raise _CannotPublish("the authorities in tls_ca cannot be read") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _refused(delivery: Any) -> str:
    match delivery.remote_state:
        case Delivery.REJECTED:
            return f"rejected there: {_said(delivery.remote.condition)}"
        case Delivery.RELEASED:
            return "released there: no queue or log takes it"
        case Delivery.MODIFIED:
            return "not accepted there now (modified)"
    return "settled there without an outcome"


def _said(condition: Any) -> str:
    if condition is None:
        return "no reason given"
    return f"{condition.description or 'no reason given'} ({condition.name})"[:SAID_CHARACTERS]
