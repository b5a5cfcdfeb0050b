"""Property filters as the OASIS draft and RabbitMQ have them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol, Timestamp, UInt, ULong
from amqp_ext.filters.property_filter import (
    MAX_FIELDS,
    PropertyFilterError,
    compile_application_properties_filter,
    compile_properties_filter,
)
from amqp_ext.selector.fields import PROPERTIES_FIELDS
from tests.amqp_ext.selector.examples import message

SOME_ID = UUID("12345678-1234-5678-1234-567812345678")


FULL = message(properties={
    "message_id": ULong(999),
    "user_id": b"guest",
    "to": "/queues/a",
    "subject": "🐇",
    "reply_to": "/queues/b",
    "correlation_id": "corr-123",
    "content_type": Symbol("text/plain"),
    "content_encoding": Symbol("gzip"),
    "absolute_expiry_time": Timestamp(1_311_999_988_888),
    "creation_time": Timestamp(1_311_704_463_521),
    "group_id": "my group",
    "group_sequence": UInt(0xFFFFFFFF),
    "reply_to_group_id": "&other",
})  # fmt: skip


def test_all_thirteen_fields_can_be_asked_for_at_once() -> None:
    """A message passes if every field equals the value given for it."""
    wanted = {
        Symbol(name.replace("_", "-")): getattr(FULL.properties, name)
        for name in PROPERTIES_FIELDS
        if name != "reply_to_group_id"
    } | {Symbol("reply-to-group-id"): "&&other"}
    assert len(wanted) == 13
    assert compile_properties_filter(wanted)(FULL)
    assert not compile_properties_filter(wanted | {Symbol("subject"): "🐈"})(FULL)
    assert not compile_properties_filter(wanted)(message())


@pytest.mark.parametrize(
    ("field", "wanted", "value", "expected"),
    [
        ("subject", "abc", "abc", True),
        ("subject", "abc", "ABC", False),
        ("subject", "&p:ab", "abc", True),
        ("subject", "&p:bc", "abc", False),
        ("subject", "&p:", "", True),
        ("subject", "&s:bc", "abc", True),
        ("subject", "&s:ab", "abc", False),
        ("subject", "&&x", "&x", True),
        ("subject", "&&x", "&&x", False),
        ("subject", "&p:abcd", "abc", False),
        ("subject", "&p:a", None, False),
        ("subject", None, None, True),
        ("subject", None, "anything", True),
        ("content-type", "text/plain", Symbol("text/plain"), True),
        ("content-type", Symbol("&p:text/"), Symbol("text/plain"), True),
        ("message-id", "5", ULong(5), False),
        ("message-id", 5, ULong(5), True),
        ("message-id", "&p:a", "abc", True),
        ("message-id", SOME_ID, SOME_ID, True),
        ("message-id", b"x", b"x", True),
        ("message-id", b"x", "x", False),
        ("correlation-id", "&s:3", b"123", False),
        ("user-id", b"guest", b"guest", True),
        ("user-id", "guest", b"guest", True),
        ("group-sequence", 7, UInt(7), True),
        ("creation-time", Timestamp(7), Timestamp(7), True),
        ("creation-time", UInt(7), Timestamp(8), False),
    ],
    ids=repr,
)
def test_fields_match_by_value_prefix_or_suffix(field: str, wanted: Any, value: Any, expected: bool) -> None:
    """Texts match exactly or by &p: and &s:, numbers by value, others by type and value, null always."""
    compiled = compile_properties_filter({Symbol(field): wanted})
    assert compiled(message(properties={field.replace("-", "_"): value})) is expected


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        (-2, -2, True),
        (UInt(10), 10.0, True),
        (10, 10.1, False),
        (10.0, ULong(10), True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (False, False, True),
        (False, None, False),
        ("10", 10, False),
        (Symbol("hey"), "hey", True),
        ("yeh", Symbol("yeh"), True),
        ("&s:y", "hey", True),
        (b"hey", "hey", False),
        (None, "anything", True),
        (SOME_ID, SOME_ID, True),
    ],
    ids=repr,
)
def test_application_properties_match_across_numeric_types(wanted: Any, value: Any, expected: bool) -> None:
    """Numbers of different AMQP types are equal if their values are; booleans are no numbers."""
    assert compile_application_properties_filter({"k": wanted})(message(k=value)) is expected


def test_an_absent_property_matches_nothing_not_even_null() -> None:
    """In the application properties a null entry asks for the property to be there."""
    wanted = compile_application_properties_filter({"k": None})
    assert wanted(message(k=None))
    assert not wanted(message(other=1))


def test_every_entry_must_match() -> None:
    """Entries are joined with AND."""
    wanted = compile_application_properties_filter({"a": 1, "b": "&p:x"})
    assert wanted(message(a=1, b="xyz", c=3))
    assert not wanted(message(a=1, b="y"))
    assert not wanted(message(a=1))


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({Symbol("colour"): 1}, "expected one of the fields message-id, user-id, to, subject"),
        ({Symbol("message_id"): "x"}, "reply-to-group-id in the properties filter, found message_id"),
        ({Symbol("group-id"): 3}, "expected a string for group-id, found 3"),
        ({Symbol("group-sequence"): True}, "expected an integer for group-sequence, found True"),
        ({Symbol("creation-time"): "now"}, "expected a timestamp for creation-time, found 'now'"),
        ({Symbol("message-id"): 1.5}, "expected a ulong, uuid, binary or string for message-id, found 1.5"),
        ({Symbol("user-id"): 1}, "expected a binary for user-id, found 1"),
        ({Symbol("subject"): "&x"}, "expected &p:, &s: or && at the start of the text for subject, found &x"),
        ({Symbol("subject"): ["a"]}, "expected a string for subject, found a list"),
        ({5: "x"}, "expected a symbol or a string as name of a field, found 5"),
        ({}, "expected 1 to 16 fields in a property filter, found 0"),
        ("text", "expected a map as the property filter, found 'text'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(entries: Any, sentence: str) -> None:
    """Unknown fields, wrong types and unknown modifiers are errors, not filters that match nothing."""
    with pytest.raises(PropertyFilterError) as refused:
        compile_properties_filter(entries)
    assert sentence in str(refused.value)


def test_sixteen_fields_are_allowed() -> None:
    """The documented number of fields is taken, one more is refused."""
    fields = {f"k{number}": number for number in range(MAX_FIELDS)}
    assert compile_application_properties_filter(fields)(message(**fields))
    with pytest.raises(PropertyFilterError, match="for k, found a dict"):
        compile_application_properties_filter({"k": {}})
    with pytest.raises(PropertyFilterError, match="expected 1 to 16 fields in a property filter, found 17"):
        compile_application_properties_filter(fields | {"one_more": 1})


simple = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(alphabet="&ps:a", max_size=5)
    | st.binary()
)


@given(
    st.dictionaries(st.sampled_from("abc"), simple, min_size=1),
    st.dictionaries(st.sampled_from("abc"), simple),
)
def test_matching_never_raises(entries: dict[str, Any], values: dict[str, Any]) -> None:
    """Whatever a message holds, a filter that compiled says yes or no."""
    try:
        compiled = compile_application_properties_filter(entries)
    except PropertyFilterError:
        return
    assert compiled(message(**values)) in (True, False)
