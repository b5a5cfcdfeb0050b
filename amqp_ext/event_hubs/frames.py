"""
Frames of clients of Event Hubs: cutting bytes into frames, padding outgoing frames with every field as the Python
client of Event Hubs requires, looking at incoming frames before the engine does; and batches of events in one transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from amqp_ext.codec import CodecError, Described, Symbol, UInt, decode
from amqp_ext.frames.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    code_of,
    framed,
)
from amqp_ext.message import sections
from amqp_ext.message.annotations import annotated

PROTOCOL_HEADER: Final = b"AMQP"
"""What a protocol header begins with; it is as long as a frame's header."""

HEADER_BYTES: Final = 8
"""Bytes of a frame's header."""


class FrameCutter:
    """
    Cuts bytes, which come in any pieces, into whole frames and protocol headers.

    Args:
        largest_bytes: The largest frame; bytes that declare a larger size are taken for no frame.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._largest = largest_bytes
        self._rest = b""
        self._is_blind = False
        """The bytes were no frame: everything from there on is handed on uncut."""

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole by now; bytes that are no frame come as they are."""
        rest = self._rest + data if self._rest else data
        start, end = 0, len(rest)
        while not self._is_blind and end - start >= HEADER_BYTES:
            size = int.from_bytes(rest[start : start + 4], "big")
            if rest.startswith(PROTOCOL_HEADER, start):
                size = HEADER_BYTES
            elif not HEADER_BYTES <= size <= self._largest:
                self._is_blind = True
                break
            if end - start < size:
                break
            yield rest[start : start + size]
            start += size
        if self._is_blind:
            self._rest = b""
            if start < end:
                yield rest[start:]
        else:
            self._rest = rest[start:]


FIELDS: Final = {OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3}
"""Fields that a performative has when none is left out (AMQP 1.0 section 2.7)."""

ERROR_FIELDS: Final = 3
"""Fields of an error (AMQP 1.0 section 2.8.14): the client reads all fields of a close's error."""

PADDING_BYTES: Final = 32
"""More than padding adds to any frame: a null for each field, and three bytes for each of the list's sizes."""


class Padder:
    """Pads the performatives of all frames that are sent on one connection."""

    def __init__(self) -> None:
        # The engine writes only frames; how large they may be, the peer has said.
        self._cutter = FrameCutter(0xFFFF_FFFF)

    def pad(self, data: bytes) -> bytes:
        """The bytes to write now; a frame that is not whole yet is kept for the next call."""
        return b"".join(map(padded, self._cutter.cut(data)))


def padded(frame: bytes) -> bytes:
    """
    The frame with all fields of its performative; of a close, with all fields of its error.

    Args:
        frame: One whole frame as an engine writes it: its performative's descriptor a smallulong. Any other, such as a
            heartbeat or a frame of SASL, comes back as it is.
    """
    start = frame[4] * 4 if len(frame) > HEADER_BYTES else 0
    if start < HEADER_BYTES or frame[5] != 0 or frame[start : start + 2] != b"\x00\x53":
        return frame
    if frame[start + 2] == CLOSE:
        return _explained(frame, start)
    fields = FIELDS.get(frame[start + 2], 0)
    form = frame[start + 3]
    if form == 0xC0:
        size, count, first = frame[start + 4] - 1, frame[start + 5], start + 6
    elif form == 0xD0:
        size = int.from_bytes(frame[start + 4 : start + 8], "big") - 4
        count, first = int.from_bytes(frame[start + 8 : start + 12], "big"), start + 12
    elif form == 0x45:
        size, count, first = 0, 0, start + 4
    else:
        return frame
    if count >= fields:
        return frame
    behind = first + size
    items = frame[first:behind] + b"\x40" * (fields - count)
    if len(items) < 0xFF:
        head = bytes((0xC0, len(items) + 1, fields))
    else:
        head = b"\xd0" + (len(items) + 4).to_bytes(4, "big") + fields.to_bytes(4, "big")
    body = frame[4 : start + 3] + head + items + frame[behind:]
    return (4 + len(body)).to_bytes(4, "big") + body


def _explained(frame: bytes, start: int) -> bytes:
    performative, behind = decode(frame, start)
    if not performative.value:
        return frame
    error = performative.value[0]
    fields = [*error.value, *[None] * (ERROR_FIELDS - len(error.value))]
    return framed(frame, start, CLOSE, [Described(error.descriptor, fields)], behind)


BATCH_FORMAT: Final = 0x80013700
"""Message-format of a batch: each of its data sections is a message."""

MOST_EVENTS: Final = 50_000
"""The most events of a batch, which is taken in one step of 0.3 s. Event Hubs takes batches of 1 MB at most."""

LEAST_EVENT: Final = 10
"""The fewest octets that an event has in a batch: an empty data section in a data section."""

LEAST_FRAME: Final = 512
"""No peer may ask for smaller frames (AMQP 1.0 section 2.7.1)."""


class IncomingFrames:
    """
    All frames that come in on one connection.

    Args:
        largest_bytes: The largest frame we take; a larger one is left to the engine, which refuses it.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._cutter = FrameCutter(largest_bytes)
        self._names: dict[tuple[int, Any], str] = {}
        """Names of the links that the peer sends on, by channel and handle."""
        self._tags: dict[tuple[int, Any], bytes] = {}
        """Tags of the deliveries that have begun, by channel and handle."""
        self._batches: dict[str, set[bytes]] = {}
        """Tags of batches that ``is_batch`` has not reported yet, by the name of their link."""

    def follow(self, link: str) -> None:
        """From now on, remember the batches of this link."""
        self._batches[link] = set()

    def forget(self, link: str) -> None:
        """The link is detached: forget its batches."""
        self._batches.pop(link, None)

    def is_batch(self, link: str, tag: bytes) -> bool:
        """Whether a delivery is a batch; to be asked once for each delivery."""
        tags = self._batches.get(link)
        if not tags or tag not in tags:
            return False
        tags.remove(tag)
        return True

    def receive(self, data: bytes) -> bytes:
        """
        Look at bytes from the peer.

        Returns:
            The bytes for the engine. The max-frame-size of an open is lowered, so that there is room for padding.
        """
        return b"".join(map(self._look, self._cutter.cut(data)))

    def _look(self, frame: bytes) -> bytes:
        start = frame[4] * 4 if len(frame) > HEADER_BYTES else 0
        if start < HEADER_BYTES or frame[5] != 0 or frame.startswith(PROTOCOL_HEADER):
            return frame
        try:
            performative, behind = decode(frame, start)
            code = code_of(performative)
            if code is None:
                return frame
            fields = performative.value + [None] * 11
            channel = int.from_bytes(frame[6:8], "big")
            if code == TRANSFER:
                self._transfer((channel, fields[0]), fields)
            elif code == ATTACH and fields[2] is False and isinstance(fields[0], str):
                self._names[channel, fields[1]] = fields[0]
            elif code == DETACH:
                self._names.pop((channel, fields[0]), None)
                self._tags.pop((channel, fields[0]), None)
            elif code == END:
                for known in (self._names, self._tags):
                    for key in [key for key in known if key[0] == channel]:
                        del known[key]
            elif code == OPEN and isinstance(fields[2], int) and fields[2] - PADDING_BYTES >= LEAST_FRAME:
                smaller = [*performative.value[:2], UInt(fields[2] - PADDING_BYTES), *performative.value[3:]]
                return framed(frame, start, OPEN, smaller, behind)
        except (CodecError, TypeError):
            # The engine reports what is wrong with it.
            pass
        return frame

    def _transfer(self, key: tuple[int, Any], fields: list[Any]) -> None:
        tags = self._batches.get(self._names.get(key, ""))
        if tags is None:
            return
        tag = fields[2]
        # Only the first transfer of a delivery has to have tag and format (AMQP 1.0 section 2.7.5).
        if key not in self._tags and isinstance(tag, bytes) and fields[3] == BATCH_FORMAT:
            tags.add(tag)
        begun = self._tags.get(key, tag)
        is_aborted = fields[9] is True
        if is_aborted and begun is not None:
            tags.discard(begun)
        if fields[5] is True and not is_aborted:
            self._tags[key] = begun if begun is not None else b""
        else:
            self._tags.pop(key, None)

    @staticmethod
    def messages_of(content: bytes) -> list[bytes]:
        """
        The events of a batch, in their order.

        Raises:
            CodecError: The content is no message with data sections, or one of its data sections holds no message; or
                there are too many.
        """
        if len(content) > MOST_EVENTS * LEAST_EVENT:
            count = sum(1 for _ in islice(sections.walk(content), MOST_EVENTS + 1))
            if count > MOST_EVENTS:
                raise CodecError(0, f"a batch has at most {MOST_EVENTS:,} events")
        body = sections.body(content)
        if body.kind != "data" or not body.parts:
            raise CodecError(
                0, f"the body of a batch is data sections, not {body.kind if body.parts else 'empty'}"
            )
        key = sections.message_annotations(content).get(PARTITION_KEY)
        return [_event(part, number, key) for number, part in enumerate(body.parts)]


PARTITION_KEY: Final = Symbol("x-opt-partition-key")


def _event(content: bytes, number: int, key: object) -> bytes:
    try:
        sections.validate(content)
        if key is not None and PARTITION_KEY not in sections.message_annotations(content):
            content, _ = annotated(content, {PARTITION_KEY: key})
    except CodecError as error:
        raise CodecError(error.offset, f"event {number} of the batch: {error.reason}") from None
    return content
