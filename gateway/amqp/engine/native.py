"""
Proton's engine for one connection, and its C structures where its public objects do not say enough: bytes in and out,
a link's name, a delivery's tag and state, a condition. The work for each message is in ``python_loops`` and
``native_loops``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from cproton_ffi import ffi, lib
from proton import Collector, Connection, DataException, Link, Session, Transport

from amqp_ext import codec
from gateway.config import Limits

TRANSACTIONAL: Final = 0x34
"""A delivery's state that belongs to a transaction (AMQP 1.0 section 4.5.8); the engine has no name for it."""

NULL: Final = ffi.NULL
DELIVERY: Final = lib.PN_DELIVERY
LINK_FLOW: Final = lib.PN_LINK_FLOW
TRANSPORT: Final = lib.PN_TRANSPORT
RECEIVED: Final = lib.PN_RECEIVED
ACCEPTED: Final = lib.PN_ACCEPTED
REJECTED: Final = lib.PN_REJECTED
RELEASED: Final = lib.PN_RELEASED
MODIFIED: Final = lib.PN_MODIFIED

UNREADABLE: Final = (DataException, ValueError, TypeError, OverflowError, RecursionError)
"""What proton raises where a peer's value has no Python value: a text that is not UTF-8, a map's key that cannot be one
in Python, a character beyond Unicode."""

OUTPUT_BYTES: Final = 256 * 1024
"""About how many bytes are pulled from the engine in one call."""


class Buffer:
    """A C buffer that grows to the largest message up to ``KEEP`` bytes; a larger one gets a buffer of its own."""

    KEEP: Final = 1024 * 1024

    def __init__(self) -> None:
        self._size = 64 * 1024
        self._data = ffi.new("char[]", self._size)

    def of(self, size: int) -> Any:
        if size > self._size:
            if size > self.KEEP:
                return ffi.new("char[]", size)
            self._size = size
            self._data = ffi.new("char[]", size)
        return self._data


class Stop(IntEnum):
    """Why ``take_messages`` took no more."""

    NOTHING = 0
    """There is no more, or it is not complete."""

    TURN = 1
    """The next came settled, or unsettled, unlike those before it."""

    ALONE = 2
    """The current one is too large, aborted or part of a transaction."""

    BATCH = 3
    """The current one is a batch."""


def push(transport: Transport, data: bytes | memoryview) -> int:
    """
    Feed bytes from the peer to the engine.

    Returns:
        How many more bytes the engine takes in one call. Negative when it takes no more: it has an error, or the peer
        has closed; its output still has to be written.
    """
    impl = transport._impl
    view = ffi.from_buffer(data)
    left = len(data)
    position = 0
    while left:
        taken = lib.pn_transport_push(impl, view + position, left)
        if taken <= 0:
            return -1
        position += taken
        left -= taken
    # The last frame may have caused an error.
    return int(lib.pn_transport_capacity(impl))


def incoming_bytes(session: Session) -> int:
    """Bytes that have come on a session and are not taken: unfinished messages, above all."""
    return int(lib.pn_session_incoming_bytes(session._impl))


def outgoing_bytes(session: Session) -> int:
    """Bytes that were sent on a session, and that its peer, or the socket, has not taken yet."""
    return int(lib.pn_session_outgoing_bytes(session._impl))


def forget_name(link: Link) -> None:
    """Make the engine no longer find a link by its name. From now on it gives an empty text as the name."""
    ffi.cast("char *", lib.pn_link_name(link._impl))[0] = b"\0"


def tag_of(delivery: Any) -> bytes:
    """A delivery's tag, as the peer chose it."""
    tag = lib.pn_delivery_tag(delivery)
    return bytes(ffi.unpack(tag.start, tag.size)) if tag.size else b""


def state_fields(delivery: Any) -> Any:
    """The fields of the transactional-state that the peer gave a delivery; None where it gave none."""
    if lib.pn_delivery_remote_state(delivery) != TRANSACTIONAL:
        return None
    return _decoded(lib.pn_disposition_data(lib.pn_delivery_remote(delivery)))


def modified_annotations(disposition: Any) -> Any:
    """The message-annotations in the peer's outcome ``modified``; an empty list where they are absent or unreadable."""
    return _decoded(lib.pn_disposition_annotations(disposition))


def _decoded(data: Any) -> Any:
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return []
    buffer = ffi.new("char[]", size)
    written = lib.pn_data_encode(data, buffer, size)
    try:
        return codec.decode(ffi.unpack(buffer, written))[0] if written > 0 else []
    except codec.CodecError:
        return []


class Engine:
    """
    The engine of one connection. It gets the bytes after the SASL exchange.

    Args:
        limits: The limits that it announces to the peer.
    """

    def __init__(self, limits: Limits) -> None:
        transport = self.transport = Transport(Transport.SERVER)
        transport.max_frame_size = limits.max_frame_bytes
        transport.channel_max = limits.max_channels - 1
        # What we ask for is half of what we tolerate, so that a heartbeat in time is never missed (2.4.5).
        transport.idle_timeout = limits.idle_timeout_ms / 1000
        self.connection = Connection()
        self.collector = Collector()
        self.connection.collect(self.collector)
        transport.bind(self.connection)

    def free(self) -> None:
        """Free the engine: none of its objects may be used after this."""
        self.transport.unbind()
        self.connection.free()
        self.collector.release()
