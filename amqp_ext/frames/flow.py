"""
Flow frames, read and written around the engine (AMQP 1.0 sections 2.6.7 and 2.7.4).

An engine may not report that a peer asked for our state, and may not send the state of a link on which nothing changed.
So the request is found in the peer's frames here, and a link's state is added to the engine's flow of the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from amqp_ext.codec import CodecError, Described, UInt, decode
from amqp_ext.frames.performatives import BEGIN, FLOW, framed

_HEADER_BYTES: Final = 8
_MODULUS: Final = 2**32


@dataclass(frozen=True, slots=True)
class StateRequest:
    """
    A flow with which a peer asks for our state.

    Attributes:
        handle: The peer's handle of the link; None if it asks for the session's state alone.
        limit: The delivery-count up to which the peer's credit reaches, if the peer receives.
        is_drain: The peer drains the link: the credit is to be used up.
        is_echo: The peer asks for an answer in any case.
    """

    handle: int | None
    limit: int
    is_drain: bool
    is_echo: bool


def frames_of(data: bytes) -> Iterator[bytes]:
    """Cut octets into whole frames; a remainder that is no frame, or not a whole one, comes last, as one piece."""
    start = 0
    while len(data) - start >= _HEADER_BYTES:
        size = int.from_bytes(data[start : start + 4], "big")
        if not _HEADER_BYTES <= size <= len(data) - start:
            break
        yield data[start : start + size]
        start += size
    if start < len(data):
        yield data[start:]


def fields_of(frame: bytes, code: int) -> list[Any] | None:
    """The fields of a frame with this performative, as many as it has; None for any other frame."""
    start = frame[4] * 4 if len(frame) > _HEADER_BYTES else 0
    if start < _HEADER_BYTES or frame[start : start + 3] != bytes((0x00, 0x53, code)):
        return None
    try:
        performative, _ = decode(frame, start)
    except CodecError:
        return None
    fields = performative.value if isinstance(performative, Described) else None
    return fields if isinstance(fields, list) else None


def state_request_of(fields: list[Any]) -> StateRequest | None:
    """What a peer asks for with a flow; None if it asks for nothing. ``fields`` has all fields of a flow."""
    handle, count, credit, is_drain, is_echo = *fields[4:7], fields[8] is True, fields[9] is True
    if not is_echo and not (is_drain and handle is not None):
        return None
    return StateRequest(handle, ((count or 0) + (credit or 0)) % _MODULUS, is_drain, is_echo)


def with_handle_max(output: bytes, handle_max: int) -> bytes:
    """
    The engine's output, whole frames, with the greatest handle that the peer may use set in its begins (section 2.7.2).
    """
    pieces = list(frames_of(output))
    for index, piece in enumerate(pieces):
        fields = fields_of(piece, BEGIN)
        if fields is None:
            continue
        fields += [None] * (5 - len(fields))
        fields[4] = UInt(handle_max)
        pieces[index] = framed(piece, _HEADER_BYTES, BEGIN, fields, len(piece))
    return b"".join(pieces)


def with_link_state(output: bytes, handle: int, *, count: int, credit: int, is_drain: bool) -> bytes:
    """
    Add the state of a link that the engine sends on to the engine's flow of the session.

    Args:
        output: The engine's output, whole frames; the first flow without a handle gets the link's state.
        handle: Our handle of the link.
        count: The link's delivery-count.
    """
    pieces = list(frames_of(output))
    for index, piece in enumerate(pieces):
        fields = fields_of(piece, FLOW)
        if fields is None or len(fields) > 4:
            continue
        numbers = [None if number is None else UInt(number) for number in fields]
        numbers += [None] * (4 - len(numbers))
        state = [UInt(handle), UInt(count % _MODULUS), UInt(credit), None, is_drain]
        pieces[index] = framed(piece, _HEADER_BYTES, FLOW, [*numbers, *state], len(piece))
        break
    return b"".join(pieces)
