"""Frames as an engine writes them, for the tests of what is done with frames."""

from __future__ import annotations

from typing import Any

from amqp_ext.codec import Described, ULong, encode

HEADER = b"AMQP\x00\x01\x00\x00"


def frame(code: int, fields: list[Any], payload: bytes = b"", channel: int = 0) -> bytes:
    """A frame, as an engine writes it."""
    body = encode(Described(ULong(code), fields)) + payload
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body
