"""
A lean blocking AMQP 1.0 client over proton's C engine: one connection, one session, raw message bytes.

proton's Python objects cost 60-80 microseconds a message; the C engine called directly costs one or two. So the code
that runs once per link is written to be readable, and the code that runs once per message is one tight loop in
``links.py``. A message is its encoded bytes here; nothing is decoded.

Invariants: only ``Wire.pump`` touches the socket, and it waits no longer than the time-out without a sign of the peer;
no C pointer is used after ``Wire.close``.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from cproton import ffi, lib

from amqp_ext.codec import decode, encode
from spark_bridge.errors import Refused
from store.archive.errors import ConnectionFailed, LogError


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the log is and who reads it. The password is not kept here: many people see plans and tasks."""

    host: str
    port: int
    vpn: str | None = None
    user: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None

    @property
    def url(self) -> str:
        """The address as the user wrote it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}"

    def password(self) -> str:
        """The first line of the password file, or an empty text without one; raises ConnectionFailed."""
        if self.password_file is None:
            return ""
        try:
            text = Path(self.password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConnectionFailed(
                f"The passwordFile {self.password_file} cannot be read: {reason}."
            ) from error
        return text.split("\n", 1)[0].rstrip("\r")


MAX_FRAME = 64 * 1024  # bytes
OUTCOMES = {
    lib.PN_SASL_AUTH: "the user name or password is wrong",
    lib.PN_SASL_SYS: "the broker had a system error",
    lib.PN_SASL_PERM: "the broker had a permanent system error",
    lib.PN_SASL_TEMP: "the broker had a temporary system error",
}
TIMEOUT = 60.0  # seconds without a byte from the peer while we wait for it; a trim or a checkpoint takes less
GOODBYE = 1.0  # seconds to wait for the answer to our close
READ_SIZE = 256 * 1024  # bytes per socket read; larger reads gained nothing

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _connected(broker: Broker, timeout: float) -> socket.socket:
    context = _context(broker) if broker.tls else None
    plain = socket.create_connection((broker.host, broker.port), timeout)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=broker.host)
    except BaseException:
        plain.close()
        raise


def _context(broker: Broker) -> ssl.SSLContext:
    """The authorities to trust; read before connecting, so that a bad file is not taken for an unreachable broker."""
    try:
        return ssl.create_default_context(cafile=broker.tls_ca)
    except OSError as error:  # ssl.SSLError is one, too
        reason = "it holds no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConnectionFailed(
            f"The authorities in tlsCa, {broker.tls_ca}, cannot be read: {reason}."
        ) from error


def text(pointer: Any) -> str:
    """A C string as text; empty for NULL."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def put(data: Any, value: Any) -> None:
    """Fill a proton data object from a plain value, through its encoded form."""
    encoded = encode(value)
    if lib.pn_data_decode(data, ffi.from_buffer(encoded), len(encoded)) < 0:
        raise ValueError(f"proton cannot hold {value!r}")


def mapping(data: Any) -> dict[str, Any]:
    """The map in a proton data object; empty if there is no map, or no object at all."""
    if data == ffi.NULL:
        return {}
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return {}
    buffer = ffi.new("char[]", size)
    if lib.pn_data_encode(data, buffer, size) < 0:
        return {}
    value, _ = decode(bytes(ffi.buffer(buffer, size)))
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def sentence(condition: Any) -> str:
    """An error condition as text for the end of a sentence: ``condition (description)``."""
    name, description = (
        text(lib.pn_condition_get_name(condition)),
        text(lib.pn_condition_get_description(condition)),
    )
    return f"{name} ({description.rstrip('.')})" if description else name or "no reason given"


def refusal(condition: Any, what: str) -> Refused:
    """The exception for an error that a peer gave; ``what`` begins the sentence."""
    name = text(lib.pn_condition_get_name(condition))
    return Refused(f"{what}: {sentence(condition)}.", name, mapping(lib.pn_condition_info(condition)))


class Wire(AbstractContextManager["Wire"]):
    """One connection with one session. Blocking, for one thread; a context manager that closes it."""

    def __init__(self, broker: Broker, *, timeout: float = TIMEOUT) -> None:
        """
        Connect, log in, open.

        Raises:
            ConnectionFailed: The broker could not be reached, or refused the login.
        """
        self.broker = broker
        self.timeout = timeout
        self._closed = False
        try:
            self._socket = _connected(broker, timeout)
        except ssl.SSLCertVerificationError as error:
            raise ConnectionFailed(
                f"{broker.url} shows a certificate that is not trusted: {error.verify_message}; "
                "name its authority in the option tlsCa."
            ) from error
        except (OSError, UnicodeError) as error:  # the latter if the host is no valid name
            reason = getattr(error, "strerror", None) or error
            raise ConnectionFailed(f"{broker.url} cannot be reached: {reason}.") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._in = bytearray(READ_SIZE)
        self._in_c = ffi.from_buffer(self._in)
        self._out_c = ffi.new("char[]", READ_SIZE)
        self._out_view = memoryview(ffi.buffer(self._out_c))
        self._transport = lib.pn_transport()
        self._connection = lib.pn_connection()
        self.session = ffi.NULL
        try:
            self._open()
        except BaseException:
            self._free()
            raise

    def _open(self) -> None:
        user = self.broker.user
        self._sasl = lib.pn_sasl(self._transport)
        lib.pn_sasl_allowed_mechs(self._sasl, b"ANONYMOUS" if user is None else b"PLAIN")
        lib.pn_sasl_set_allow_insecure_mechs(self._sasl, True)
        if user is not None:
            lib.pn_connection_set_user(self._connection, user.encode())
            lib.pn_connection_set_password(self._connection, self.broker.password().encode())
        lib.pn_transport_set_max_frame(self._transport, MAX_FRAME)
        lib.pn_connection_set_container(self._connection, f"rewind-reader-{uuid4().hex[:12]}".encode())
        if self.broker.vpn:
            # The bare name would do, but an unknown one would mean `default`, and give another log's rows.
            lib.pn_connection_set_hostname(self._connection, f"vhost:{self.broker.vpn}".encode())
        lib.pn_transport_bind(self._transport, self._connection)
        lib.pn_connection_open(self._connection)
        self.session = lib.pn_session(self._connection)
        lib.pn_session_open(self.session)
        while lib.pn_session_state(self.session) & lib.PN_REMOTE_UNINIT:
            self.pump()

    def pump(self, timeout: float | None = None) -> bool:
        """
        Write what the engine has, read what the peer sent, and let the engine see it.

        Waits until bytes moved, at most ``timeout`` seconds (default: the wire's). Returns whether any did
        when a time-out is given; without one, a silent peer is an error.

        Raises:
            ConnectionFailed: The connection broke, or the peer closed it or the session.
        """
        limit = self.timeout if timeout is None else timeout
        now = time.monotonic()
        deadline = now + limit
        moved = False
        while not moved:
            tick = lib.pn_transport_tick(self._transport, int(now * 1000))
            blocked = self._write()
            self._check()
            wake = deadline if not tick else min(deadline, tick / 1000)
            self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if blocked else 0))
            # Decrypted bytes, which poll does not see.
            held = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
            events = self._poll.poll(0 if held else max(0.0, (wake - now) * 1000))
            now = time.monotonic()
            if held or (events and events[0][1] & ~select.POLLOUT):
                moved = self._read()
            elif events:
                moved = True
            elif now >= deadline:
                break
        self._check()
        if not moved and timeout is None:
            raise ConnectionFailed(f"{self.broker.url} has been silent for {limit:.0f} seconds.")
        return moved

    def _write(self) -> bool:
        """Hand the engine's bytes to the socket; True when the socket's buffer is full."""
        while (pending := lib.pn_transport_pending(self._transport)) > 0:
            size = lib.pn_transport_peek(self._transport, self._out_c, min(pending, READ_SIZE))
            if size <= 0:
                break
            try:
                sent = self._socket.send(self._out_view[:size])
            except _NOT_NOW:
                return True
            except OSError as error:
                raise ConnectionFailed(f"The connection to {self.broker.url} broke: {error}.") from error
            lib.pn_transport_pop(self._transport, sent)
        return False

    def _read(self) -> bool:
        try:
            size = self._socket.recv_into(self._in)
        except _NOT_NOW:
            return False
        except OSError as error:
            raise ConnectionFailed(f"The connection to {self.broker.url} broke: {error}.") from error
        if size == 0:
            if lib.pn_sasl_outcome(self._sasl) == lib.PN_SASL_NONE:
                raise ConnectionFailed(f"{self.broker.url} closed the connection during the SASL exchange.")
            lib.pn_transport_close_tail(self._transport)
            self._check()
            raise ConnectionFailed(f"{self.broker.url} closed the connection without an error.")
        start = 0
        while start < size:
            taken = lib.pn_transport_push(self._transport, self._in_c + start, size - start)
            if taken <= 0:
                self._check()
                raise ConnectionFailed(f"{self.broker.url} sent bytes that are not AMQP 1.0.")
            start += taken
        return True

    def _check(self) -> None:
        """Raise the error of the connection or session that the peer, or the engine on its behalf, reports."""
        condition = lib.pn_transport_condition(self._transport)
        if lib.pn_condition_is_set(condition):
            raise ConnectionFailed(self._failure(sentence(condition)))
        if lib.pn_connection_state(self._connection) & lib.PN_REMOTE_CLOSED:
            reason = sentence(lib.pn_connection_remote_condition(self._connection))
            raise ConnectionFailed(f"{self.broker.url} closed the connection: {reason}.")
        if self.session != ffi.NULL and lib.pn_session_state(self.session) & lib.PN_REMOTE_CLOSED:
            reason = sentence(lib.pn_session_remote_condition(self.session))
            raise ConnectionFailed(f"{self.broker.url} ended the session: {reason}.")

    def _failure(self, reason: str) -> str:
        """Why there is no connection, or no longer."""
        url, user, outcome = self.broker.url, self.broker.user, lib.pn_sasl_outcome(self._sasl)
        if outcome == lib.PN_SASL_OK:
            return f"The connection to {url} failed: {reason}."
        if outcome == lib.PN_SASL_NONE:
            return f"{url} does not speak AMQP 1.0 with SASL: {reason}."
        if lib.pn_sasl_get_mech(self._sasl) != ffi.NULL:
            return f"{url} refused the login of {user or 'anonymous'}: {OUTCOMES[outcome]}."
        if user is None:
            return f"{url} does not offer SASL ANONYMOUS; set the options user and passwordFile."
        return f"{url} does not offer SASL PLAIN; leave user and passwordFile out."

    def close(self) -> None:
        """
        Close the connection, wait a moment for the answer, free everything. Never raises; may be called again.

        Without the wait, bytes that are still on their way to us would make the kernel reset the connection,
        and the broker would see a failure where there was none.
        """
        if self._closed:
            return
        deadline = time.monotonic() + min(GOODBYE, self.timeout)
        with suppress(LogError):  # pump raises one for the answer
            lib.pn_connection_close(self._connection)
            while (left := deadline - time.monotonic()) > 0:
                self.pump(left)
        self._free()

    def _free(self) -> None:
        self._closed = True
        self._socket.close()
        lib.pn_transport_unbind(self._transport)
        lib.pn_connection_release(self._connection)
        lib.pn_decref(self._connection)
        lib.pn_decref(self._transport)

    def __exit__(self, *exception: object) -> None:
        self.close()
