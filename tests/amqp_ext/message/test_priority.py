"""The header's priority, as a queue goes by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext import codec
from amqp_ext.codec import Described, UByte, ULong
from amqp_ext.message.fields import DEFAULT, priorities_of, priority_of

BODY = codec.encode(Described(ULong(0x75), b"x"))


def headed(fields: list[object]) -> bytes:
    return codec.encode(Described(ULong(0x70), fields)) + BODY


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
