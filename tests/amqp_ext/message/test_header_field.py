"""A field of the header, read once for each different header."""

from __future__ import annotations

from amqp_ext import codec
from amqp_ext.codec import Described, UInt, ULong
from amqp_ext.message.fields import REMEMBERED_HEADERS, header_field


def headed(ttl_ms: int) -> bytes:
    return codec.encode(Described(ULong(0x70), [None, None, UInt(ttl_ms)]))


def test_a_header_is_read_once() -> None:
    """Messages with the same header bytes cost one reading, whatever follows."""
    read: list[int | None] = []

    def ttl(header: object) -> int | None:
        value: int | None = header.ttl_ms  # type: ignore[attr-defined]
        read.append(value)
        return value

    field_of = header_field(ttl, None)
    assert [field_of(headed(300) + tail) for tail in (b"a", b"bc", b"")] == [300, 300, 300]
    assert read == [300]


def test_no_more_headers_are_remembered_than_there_is_room_for() -> None:
    """A publisher whose headers all differ costs time, and no memory."""
    remembered: dict[bytes, int | None] = {}
    ttl_of = header_field(lambda header: header.ttl_ms, None, remembered)
    for number in range(256, 256 + 2 * REMEMBERED_HEADERS):
        assert ttl_of(headed(number)) == number
        assert 0 < len(remembered) <= REMEMBERED_HEADERS
