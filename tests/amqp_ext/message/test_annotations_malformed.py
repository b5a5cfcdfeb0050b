"""A malformed message is its sender's trouble: it is put in front of consumers without an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext import codec
from amqp_ext.codec import CodecError, Described, Symbol, UInt, ULong
from amqp_ext.message.annotations import Splicer
from amqp_ext.message.sections import (
    MESSAGE_ANNOTATIONS,
    bare_offset,
    message_annotations,
    read_header,
    split_front,
)

TIME_MS = 1_700_000_000_000
CUT_BODY = b"\x00\x53\x75\xa0\x09cut"


def delivered(content: bytes, attempts: int = 0) -> bytes:
    bare = bare_offset(content)
    front = Splicer(1).front(7, TIME_MS, "a/b", bare, content, attempts, False)
    return front + content[bare:]


def described(code: int, value: object) -> bytes:
    return codec.encode(Described(ULong(code), value))


def test_a_body_that_is_cut_short_goes_out_as_it_came() -> None:
    """What is wrong behind the front of a message is neither looked at nor changed."""
    content = described(MESSAGE_ANNOTATIONS, {Symbol("x-mine"): 1}) + CUT_BODY
    out = delivered(content)
    assert out.endswith(CUT_BODY)
    assert message_annotations(out)["x-mine"] == 1


@pytest.mark.parametrize(
    "inside",
    [b"\xa3\x02ab", b"\x45\x45", b"\xff\xff", b"\xb0\xff\xff\xff\xff\x40"],
    ids=["a key alone", "a list as key", "no types", "a size beyond"],
)
def test_annotations_that_are_none_are_left_out(inside: bytes) -> None:
    """A section of the size of a map that holds none gives way to ours."""
    theirs = b"\x00\x53\x72\xc1" + bytes([len(inside) + 1, 2]) + inside
    out = delivered(theirs + CUT_BODY)
    assert message_annotations(out)["x-opt-sequence-number"] == 7
    assert out.endswith(CUT_BODY)


def test_a_header_that_is_none_is_counted_from_the_defaults() -> None:
    """A message with a header of wrong types is redelivered with a header of its own."""
    content = b"\x00\x53\x70" + codec.encode(["durable", "high"]) + CUT_BODY
    assert read_header(delivered(content, attempts=2)).delivery_count == 2


def test_the_delivery_count_ends_at_its_largest() -> None:
    """A sender's delivery-count of 4,294,967,295 cannot be raised, and is no error."""
    content = described(0x70, [False, None, None, False, UInt(2**32 - 1)]) + CUT_BODY
    assert read_header(delivered(content, attempts=3)).delivery_count == 2**32 - 1


@given(st.binary(max_size=60), st.integers(0, 3))
def test_no_content_that_was_taken_fails_on_its_way_out(noise: bytes, attempts: int) -> None:
    """Whatever passes as a message on the way in gets a front that can be read on the way out."""
    for content in (
        noise,
        described(MESSAGE_ANNOTATIONS, {Symbol("a"): 1})[:6] + noise,
        b"\x00\x53\x72\xc1" + noise,
    ):
        try:
            bare = bare_offset(content)
        except CodecError:
            continue
        out = delivered(content, attempts)
        assert out.endswith(content[bare:])
        assert split_front(out, len(out) - len(content[bare:]))
