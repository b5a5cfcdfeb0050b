"""Fields that are read without decoding the rest: of the header, the trace context, and messages in envelopes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError, Long, Symbol, UByte, UInt
from amqp_ext.message import fields, sections
from amqp_ext.message.fields import (
    DEFAULT,
    REMEMBERED_HEADERS,
    TraceContext,
    batch_of,
    context_of,
    header_field,
    may_have_context,
    parse_context,
    priorities_of,
    priority_of,
)
from amqp_ext.message.sections import Header, bare_offset
from tests.support.messages import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    data,
    messages_of,
    section,
)

# --- Fields of the header, which are read once for equal headers ------------------------------------------------------

BODY = data("x")


def headed(fields: list[object]) -> bytes:
    return section(HEADER, fields) + BODY


def living(ttl_ms: int) -> bytes:
    return section(HEADER, [None, None, UInt(ttl_ms)])


def test_a_header_is_read_once_as_long_as_there_is_room_to_remember_it() -> None:
    """Equal header bytes are read once, whatever follows them; ever new headers do not fill the memory."""
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
    """Priorities 0 to 9 stay, higher ones become 9, whatever other fields the header has."""
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
    """The priority is 4 without a header, without the field, or if the header is unreadable."""
    assert priority_of(content) == DEFAULT == 4


def test_the_front_of_a_message_is_enough() -> None:
    """The priority can be read from the bytes before the bare message alone."""
    content = headed([None, UByte(7)])
    assert priority_of(content[: -len(BODY)]) == 7


def test_a_header_is_looked_for_only_where_there_is_something_in_front() -> None:
    """Bytes that look like a header within the bare message are no header."""
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
    """Delivery times of many messages equal those read one by one, also if annotations differ only in a number."""
    messages = [section(MESSAGE_ANNOTATIONS, {Symbol(key): said[key] for key in said}) for said in fronts]
    found = fields.delivery_times([one + BODY for one in messages], [*map(len, messages)], 4_000)
    read = [fields._delivery_time(one, len(one), 4_000) for one in messages]
    assert [*map(str, found or [0] * len(read))] == [*map(str, read)]


# --- Envelopes of several messages ------------------------------------------------------------------------------------

parts = st.lists(st.tuples(st.binary(max_size=400), st.binary(max_size=400)), max_size=20)


@given(messages=parts)
def test_what_goes_in_comes_out(messages: list[tuple[bytes, bytes]]) -> None:
    """Messages of any bytes and sizes come out of their envelope in order, bit for bit."""
    envelope = batch_of([front for front, _ in messages], [rest for _, rest in messages])
    assert messages_of(envelope) == [front + rest for front, rest in messages]


def test_an_envelope_is_a_message() -> None:
    """In AMQP's terms an envelope is a message whose body is data sections, each with a message."""
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
    """Another section, another encoding or a cut is an error with its place, never a shorter list."""
    with pytest.raises(CodecError) as raised:
        messages_of(envelope)
    assert raised.value.offset == offset


# --- The trace context of a message (W3C Trace Context) ---------------------------------------------------------------

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (PARENT, CONTEXT),
        (f"00-{TRACE}-{SPAN}-00", CONTEXT._replace(is_sampled=False)),
        (f"00-{TRACE}-{SPAN}-03", CONTEXT),
        (f"01-{TRACE}-{SPAN}-01-more", CONTEXT),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (PARENT.upper(), None),
        (PARENT[:-1], None),
        (f"{PARENT}\n", None),
        (f"01-{TRACE}-{SPAN}-01-{'x' * 1_000}", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_a_traceparent_is_read_as_the_recommendation_says(
    parent: object, expected: TraceContext | None
) -> None:
    """Ids, the sampled flag and later versions are read; any other value is no context."""
    assert parse_context(parent) == expected


@pytest.mark.parametrize(
    ("state", "expected"), [("a=1,b=2", "a=1,b=2"), ("x" * 513, ""), ("a=\n", ""), (5, "")]
)
def test_a_tracestate_is_passed_on_within_bounds(state: object, expected: str) -> None:
    """A tracestate that is too long, or no valid text for a header, is left out; the context stays."""
    assert parse_context(PARENT, state) == CONTEXT._replace(state=expected)


@pytest.mark.parametrize("code", [APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS])
def test_it_stands_in_properties_or_annotations(code: int) -> None:
    """The context is read from application properties or message annotations, with its state."""
    is_front = code == MESSAGE_ANNOTATIONS
    key = Symbol if is_front else str
    content = section(code, {key("traceparent"): PARENT, key("tracestate"): "a=1"}) + data("x")
    assert may_have_context(content)
    assert context_of(content, bare_offset(content)) == CONTEXT._replace(state="a=1")


def test_most_messages_have_none() -> None:
    """A context in the body is none; the quick look at the first bytes already rules out most messages."""
    assert not may_have_context(data("x" * 10_000 + "traceparent"))
    assert context_of(data("traceparent"), 0) is None


@given(st.binary(max_size=60), st.integers(0, 60))
def test_nothing_that_is_sent_is_an_error(junk: bytes, bare: int) -> None:
    """No bytes around the name ``traceparent`` raise an error."""
    content = junk + b"traceparent" + junk
    context_of(content, min(bare, len(content)))
