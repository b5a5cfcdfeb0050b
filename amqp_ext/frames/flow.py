"""
Flow frames, read and written beside the engine (AMQP 1.0 sections 2.6.7 and 2.7.4).

An engine may not tell that a peer asked for our state, nor say the state of a link that nothing changed on. What is
asked for is found in the peer's frames here, and what the engine says of a session is completed with a link's state.
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
        handle: The peer's for the link; None where it asks for the session's state alone.
        limit: Delivery-count up to which the peer's credit reaches, where it receives.
        is_drain: The credit is to be used up.
        is_echo: It asks for an answer in any case.
    """

    handle: int | None
    limit: int
    is_drain: bool
    is_echo: bool


def frames_of(data: bytes) -> Iterator[bytes]:
    """Cut whole frames; what begins with none, or is not whole, comes as one piece at the end."""
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
    """The fields of a frame that is of this performative, as many as it has; None where it is none."""
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
    """What a peer asks for with a flow that has these fields, all of them; None where it asks for nothing."""
    handle, count, credit, is_drain, is_echo = *fields[4:7], fields[8] is True, fields[9] is True
    if not is_echo and not (is_drain and handle is not None):
        return None
    return StateRequest(handle, ((count or 0) + (credit or 0)) % _MODULUS, is_drain, is_echo)


def with_handle_max(output: bytes, handle_max: int) -> bytes:
    """
    What an engine says, with the greatest handle that the peer may use in the begins that are among it (section 2.7.2):
    whole frames.
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
    Complete what an engine says of a session with the state of a link that it sends on.

    Args:
        output: Whole frames of the engine's; the first flow among them that is of no link is completed.
        handle: Ours for the link.
        count: Its delivery-count.
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
