"""Fields of the header that are read once for each different header: any, and the priority, as a queue goes by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Long, Symbol, UByte, UInt
from amqp_ext.message import fields
from amqp_ext.message.fields import DEFAULT, REMEMBERED_HEADERS, header_field, priorities_of, priority_of
from amqp_ext.message.sections import Header
from tests.support.messages import HEADER, MESSAGE_ANNOTATIONS, data, section

BODY = data("x")


def headed(fields: list[object]) -> bytes:
    return section(HEADER, fields) + BODY


def living(ttl_ms: int) -> bytes:
    return section(HEADER, [None, None, UInt(ttl_ms)])


def test_a_header_is_read_once_as_long_as_there_is_room_to_remember_it() -> None:
    """Messages with the same header bytes cost one reading, whatever follows; headers that all differ, no memory."""
    read: list[int | None] = []

    def ttl(header: Header) -> int | None:
        read.append(header.ttl_ms)
        return header.ttl_ms

    field_of = header_field(ttl, None)
    assert [field_of(living(300) + tail) for tail in (b"a", b"bc", b"")] == [300, 300, 300]
    assert read == [300]
    for number in range(1_000, 1_000 + REMEMBERED_HEADERS):
        assert field_of(living(number)) == number
    read.clear()
    assert (field_of(living(number)), field_of(living(300))) == (number, 300)
    assert read == [300], "the first was forgotten, and the last was not"


@given(value=st.integers(0, 255), durable=st.booleans())
def test_ten_priorities_and_all_above_are_the_highest(value: int, durable: bool) -> None:
    """0 to 9 as they are, everything above is 9, whatever else the header says."""
    assert priority_of(headed([durable, UByte(value)])) == min(value, 9)


@pytest.mark.parametrize(
    "content",
    [
        headed([]),
        headed([True]),
        headed([None, None]),
        BODY,
        b"\0",
        b"\x00\x53\x70\xc0\xff\x01\x41",
        b"\x00\x53\x70",
    ],
    ids=["empty", "short", "null", "no header", "one byte", "beyond its end", "cut off"],
)
def test_what_says_nothing_is_four(content: bytes) -> None:
    """Without a header, without the field, or unreadable."""
    assert priority_of(content) == DEFAULT == 4


def test_the_front_of_a_message_is_enough() -> None:
    """What lies before the bare message says it all."""
    content = headed([None, UByte(7)])
    assert priority_of(content[: -len(BODY)]) == 7


def test_a_header_is_looked_for_only_where_there_is_something_in_front() -> None:
    """A bare message that happens to look like one is none."""
    content = headed([None, UByte(7)])
    assert priorities_of([content, content, BODY], [len(content) - len(BODY), 0, 0]) == [7, 4, 4]


NUMBERS = st.sampled_from([0, 1, -1, 5_000, 1 << 31, 1 << 53, (1 << 53) + 1, 0x5A5A_5A5A])


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["x-opt-delivery-time", "x-opt-delivery-delay", "x-opt-delivery-other", "a"]),
            st.one_of(NUMBERS.map(Long), st.sampled_from(["x-opt-delivery-delay\x81", "x", None, True])),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_remembered_delivery_time_is_what_is_read(fronts: list[dict[str, object]]) -> None:
    """Whatever the annotations are, and whichever came before with another number in the same place."""
    messages = [section(MESSAGE_ANNOTATIONS, {Symbol(key): said[key] for key in said}) for said in fronts]
    found = fields.delivery_times([one + BODY for one in messages], [*map(len, messages)], 4_000)
    read = [fields._delivery_time(one, len(one), 4_000) for one in messages]
    assert [*map(str, found or [0] * len(read))] == [*map(str, read)]
