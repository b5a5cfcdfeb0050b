"""
Frames that come in from Event Hubs' clients, seen before the engine sees them.

An engine may not tell the message-format of a transfer, by which Event Hubs' batches are known: ``IncomingFrames``
remembers the deliveries that have it. The peer's open frame is made to ask for frames that leave room for padding.

Invariant: what the engine understands is the same with and without this, but for the size of its frames.

Source: Microsoft, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide".
"""

from __future__ import annotations

from typing import Any, Final

from amqp_ext.codec import CodecError, Described, Symbol, UInt, ULong, decode, encode
from amqp_ext.event_hubs.frame_cutter import (
    ATTACH,
    DETACH,
    END,
    HEADER_BYTES,
    OPEN,
    PROTOCOL_HEADER,
    TRANSFER,
    FrameCutter,
)
from amqp_ext.event_hubs.padding import PADDING_BYTES

BATCH_FORMAT: Final = 0x80013700
"""Message-format of a batch: each of its data sections is a message."""

LEAST_FRAME: Final = 512
"""No peer may ask for smaller frames (AMQP 1.0 section 2.3.1)."""

_SYMBOLIC: Final = {
    Symbol("amqp:open:list"): OPEN,
    Symbol("amqp:attach:list"): ATTACH,
    Symbol("amqp:transfer:list"): TRANSFER,
    Symbol("amqp:detach:list"): DETACH,
    Symbol("amqp:end:list"): END,
}


class IncomingFrames:
    """
    All frames that come in on one connection.

    Args:
        largest_bytes: The largest frame we take; a larger one is left to the engine, which refuses it.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._cutter = FrameCutter(largest_bytes)
        self._names: dict[tuple[int, Any], str] = {}
        """Links that the peer sends on, by channel and handle."""
        self._tags: dict[tuple[int, Any], bytes] = {}
        """Deliveries that have begun, likewise."""
        self._batches: dict[str, set[bytes]] = {}
        """Tags of batches that nobody has asked for yet, by the name of their link."""

    def follow(self, link: str) -> None:
        """From now on the batches of this link are remembered."""
        self._batches[link] = set()

    def forget(self, link: str) -> None:
        """The link is gone."""
        self._batches.pop(link, None)

    def is_batch(self, link: str, tag: bytes) -> bool:
        """Whether a delivery is a batch; it is asked once."""
        tags = self._batches.get(link)
        if not tags or tag not in tags:
            return False
        tags.remove(tag)
        return True

    def receive(self, data: bytes) -> bytes:
        """
        Look at bytes from the peer.

        Returns:
            What the engine is to be given. An open frame asks it for frames that leave room for padding.
        """
        return b"".join(map(self._look, self._cutter.cut(data)))

    def _look(self, frame: bytes) -> bytes:
        start = frame[4] * 4 if len(frame) > HEADER_BYTES else 0
        if start < HEADER_BYTES or frame[5] != 0 or frame.startswith(PROTOCOL_HEADER):
            return frame
        try:
            performative, behind = decode(frame, start)
            if not isinstance(performative, Described) or not isinstance(performative.value, list):
                return frame
            descriptor = performative.descriptor
            code = _SYMBOLIC.get(descriptor, 0) if isinstance(descriptor, Symbol) else int(descriptor)
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
                return _with_smaller_frames(frame, start, behind, performative.value)
        except (CodecError, TypeError):
            # The engine will say what is wrong with it.
            pass
        return frame

    def _transfer(self, key: tuple[int, Any], fields: list[Any]) -> None:
        tags = self._batches.get(self._names.get(key, ""))
        if tags is None:
            return
        tag = fields[2]
        # Only the first transfer of a delivery has to have them (AMQP 1.0 section 2.7.5).
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


def _with_smaller_frames(frame: bytes, start: int, behind: int, fields: list[Any]) -> bytes:
    smaller = [*fields[:2], UInt(fields[2] - PADDING_BYTES), *fields[3:]]
    body = frame[4:start] + encode(Described(ULong(OPEN), smaller)) + frame[behind:]
    return (4 + len(body)).to_bytes(4, "big") + body
