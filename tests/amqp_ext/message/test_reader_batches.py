"""Envelopes of several messages: what goes in comes out, and what is no envelope is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError
from amqp_ext.message import sections
from amqp_ext.message.fields import batch_of, messages_of
from tests.support.messages import data

parts = st.lists(st.tuples(st.binary(max_size=400), st.binary(max_size=400)), max_size=20)


@given(messages=parts)
def test_what_goes_in_comes_out(messages: list[tuple[bytes, bytes]]) -> None:
    """Messages of any bytes and sizes are in their envelope in order, to the byte."""
    envelope = batch_of([front for front, _ in messages], [rest for _, rest in messages])
    assert list(messages_of(envelope)) == [front + rest for front, rest in messages]


def test_an_envelope_is_a_message() -> None:
    """Whoever knows AMQP alone finds a message whose body is data sections, with a message in each."""
    messages = [data("one"), data("two" * 200)]
    body = sections.body(batch_of([b"", b""], messages))
    assert (body.kind, list(body.parts)) == ("data", messages)


@pytest.mark.parametrize(
    ("envelope", "offset"),
    [
        (data("short form"), 0),
        (b"\x00\x53\x77\xb0\x00\x00\x00\x00", 0),
        (batch_of([b"a"], [b"b"])[:-1], 0),
        (batch_of([b"a"], [b"b"]) + b"\x00", 10),
        (batch_of([b"a"], [b"b"]) + b"\x00\x53\x75\xb0\xff\xff\xff\xff", 10),
    ],
)
def test_what_is_no_envelope_is_told(envelope: bytes, offset: int) -> None:
    """Another section, another spelling, or an end in the middle: an error with the place, never a short list."""
    with pytest.raises(CodecError) as raised:
        list(messages_of(envelope))
    assert raised.value.offset == offset
