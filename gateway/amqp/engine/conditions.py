"""
Refusals as AMQP conditions: the rows of ``gateway.core.errors`` put on a detach, a close or a disposition.
"""

from __future__ import annotations

from typing import Any, Final

from proton import Condition, Link, int32, symbol

from amqp_ext import codec
from amqp_ext.codec import Int, Symbol
from gateway.amqp.engine.native import describe_condition
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.runtime import REFUSALS

UNBOUNDED: Final = 0xFFFF_FFFF
"""The ``max-frame-size`` of a peer that takes any frame."""

_AROUND_BYTES: Final = 64
"""Bytes of a frame that ends something with an error, without what the error says; or a few more."""

_AROUND_ENTRY: Final = 8
"""Bytes of an entry of the info map without its symbols and digits; or a few more."""


def info_of(refused: Refused) -> dict[str, Any]:
    """The info map: replay-error, subcode, and what the refusal adds."""
    info: dict[str, Any] = {}
    if refused.code.replay_error is not None:
        info["rewind:replay-error"] = Symbol(refused.code.replay_error)
    if refused.code.subcode is not None:
        info["subcode"] = Int(refused.code.subcode)
    info.update(refused.info)
    return info


def room_of(link: Link) -> int:
    """Bytes of the largest frame that the peer takes (``max-frame-size``, AMQP 1.0 section 2.4.1)."""
    transport = link.connection.transport
    return (transport.remote_max_frame_size if transport is not None else 0) or UNBOUNDED


def condition_of(refused: Refused, room: int = UNBOUNDED) -> Condition:
    """
    For a link, session or connection.

    Args:
        room: Bytes of the largest frame that the peer takes: the text is cut to what is left for it.
    """
    REFUSALS[refused.code.condition] += 1
    info: dict[Any, Any] = {}
    for key, value in info_of(refused).items():
        info[symbol(key)] = _as_the_engine_has(value)
    said = len(refused.code.condition) + sum(
        len(f"{key}{value}") + _AROUND_ENTRY for key, value in info.items()
    )
    text = _cut(refused.text, room - _AROUND_BYTES - said)
    return Condition(refused.code.condition, text, info or None)


def _as_the_engine_has(value: Any) -> Any:
    """A value of the info map in the engine's types."""
    if isinstance(value, Symbol):
        return symbol(str(value))
    return int32(int(value)) if isinstance(value, Int) else value


def _cut(text: str, room: int) -> str:
    """A text in at most so many bytes of UTF-8, with an ellipsis where it is cut."""
    encoded = text.encode()
    return text if len(encoded) <= room else encoded[: max(room - 3, 0)].decode(errors="ignore") + "…"


_FOUND: Final = {
    code.condition: code
    for code in (
        ErrorCode.DECODE_ERROR,
        ErrorCode.FRAMING_ERROR,
        ErrorCode.HANDLE_IN_USE,
        ErrorCode.INVALID_FIELD,
        ErrorCode.NOT_ALLOWED,
        ErrorCode.NOT_IMPLEMENTED,
        ErrorCode.UNATTACHED_HANDLE,
        ErrorCode.WINDOW_VIOLATION,
    )
}


def code_of(condition: str) -> ErrorCode:
    """The row of the table of errors for what the walk over a peer's frames has found (``amqp_ext.frames``)."""
    return _FOUND[condition]


def describe(refused: Refused) -> Any:
    """For dispositions: a function that fills in a C condition."""
    REFUSALS[refused.code.condition] += 1
    info = {Symbol(key): value for key, value in info_of(refused).items()}
    encoded = codec.encode(info) if info else b""
    return lambda condition: describe_condition(condition, refused.code.condition, refused.text, encoded)
