"""A field of the header, read once for each different header."""

from __future__ import annotations

from amqp_ext import codec
from amqp_ext.codec import Described, UInt, ULong
from amqp_ext.message.fields import REMEMBERED_HEADERS, header_field
from amqp_ext.message.sections import Header


def headed(ttl_ms: int) -> bytes:
    return codec.encode(Described(ULong(0x70), [None, None, UInt(ttl_ms)]))


def test_a_header_is_read_once_as_long_as_there_is_room_to_remember_it() -> None:
    """Messages with the same header bytes cost one reading, whatever follows; headers that all differ, no memory."""
    read: list[int | None] = []

    def ttl(header: Header) -> int | None:
        read.append(header.ttl_ms)
        return header.ttl_ms

    field_of = header_field(ttl, None)
    assert [field_of(headed(300) + tail) for tail in (b"a", b"bc", b"")] == [300, 300, 300]
    assert read == [300]
    for number in range(1_000, 1_000 + REMEMBERED_HEADERS):
        assert field_of(headed(number)) == number
    read.clear()
    assert (field_of(headed(number)), field_of(headed(300))) == (number, 300)
    assert read == [300], "the first was forgotten, and the last was not"
