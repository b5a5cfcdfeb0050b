"""A search knows a message when it sees it, and what it says of such messages beforehand is true of every one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Char, Float, Short, Symbol, ULong
from amqp_ext.message.fields import readings, traces
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.replay.search import TEXT_CHARACTERS, PageWork, Search, indexed_text, search_for
from tests.support.messages import annotated, data, row, trade

A_UUID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def by_id(text: str) -> Search:
    found = search_for(ReplayStart(StartKind.MESSAGE_ID, text), None)
    assert found is not None
    return found


def by_selector(text: str) -> Search:
    found = search_for(ReplayStart(StartKind.MATCH, text), None)
    assert found is not None
    return found


def view(content: bytes) -> MessageView:
    return MessageView(content, bare_offset(content))


# --- message-ids as texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("order-1", {"order-1"}),
        ("42", {"42", 42, b"\x42"}),
        ("042", {"042"}),
        ("18446744073709551615", {"18446744073709551615", 2**64 - 1, bytes.fromhex("18446744073709551615")}),
        ("18446744073709551616", {"18446744073709551616", bytes.fromhex("18446744073709551616")}),
        ("01234567-89AB-cdef-0123-456789abcdef", {"01234567-89AB-cdef-0123-456789abcdef", A_UUID}),
        ("BeeF", {"BeeF", b"\xbe\xef"}),
        ("ID:AMQP_ULONG:42", {"ID:AMQP_ULONG:42", 42}),
        ("ID:AMQP_UUID:01234567-89ab-cdef-0123-456789abcdef", {f"ID:AMQP_UUID:{A_UUID}", A_UUID}),
        ("ID:AMQP_BINARY:00FF", {"ID:AMQP_BINARY:00FF", b"\x00\xff"}),
        ("ID:AMQP_ULONG:no", {"ID:AMQP_ULONG:no"}),
        ("\u0664\u0662", {"\u0664\u0662"}),  # digits to Python, and to nobody else here
    ],
)
def test_a_text_stands_for_ids_of_every_type_that_has_its_form(text: str, ids: set[Any]) -> None:
    """A text is the string itself, and a ulong, uuid or binary where it is written as one."""
    assert readings(text) == ids


@pytest.mark.parametrize(
    "one", ["m-1", ULong(0), ULong(7), ULong(300), ULong(2**64 - 1), A_UUID, b"\x00\x01"]
)
def test_an_id_is_found_by_its_text(one: Any) -> None:
    """Each AMQP type of message-id is found by its text form, and by no other text."""
    text = one.hex() if isinstance(one, bytes) else str(one)
    message = row(1, trade(message_id=one))
    assert by_id(text).takes(message)
    assert not by_id(text + "0").takes(message)


@given(st.text(min_size=1) | st.integers(0, 2**64 - 1).map(str) | st.uuids().map(str), st.data())
def test_an_ids_bytes_stand_in_its_message(text: str, draw: st.DataObject) -> None:
    """Whatever a text stands for, every message with such an id holds one of the traces, or there are none."""
    ids = readings(text)
    one = draw.draw(st.sampled_from(sorted(ids, key=repr)))
    content = trade(message_id=ULong(one) if isinstance(one, int) else one)
    assert by_id(text).accepts(view(content))
    needles = traces(ids)
    assert not needles or any(needle in content for needle in needles)


# --- what is said beforehand --------------------------------------------------------------------------------------

texts = st.sampled_from(
    ["5", "5.0", "true", "a", "é", "T-1", "T-1" * 60, "x" * TEXT_CHARACTERS, "ID:AMQP_ULONG:5"]
)
values = st.one_of(
    texts,
    texts.filter(str.isascii).map(Symbol),
    st.sampled_from(["a", "é", "5"]).map(Char),
    st.booleans(),
    st.sampled_from([0, 5, -5, 2**53, 2**53 + 1, 2**63 - 1]),
    st.sampled_from([Short(5), ULong(5), Float(5.0), Float(0.1)]),
    st.sampled_from([0.0, -0.0, 5.0, 0.1, 2.0**53, float("inf"), float("nan")]),
    st.sampled_from([None, b"5", A_UUID]),
)
literals = st.one_of(
    texts.map(lambda text: f"'{text}'"),
    st.sampled_from(["5", "-5", "0", "5.0", "0.1", "TRUE", "FALSE", "9007199254740992", "9007199254740993"]),
)
names = st.sampled_from(
    [
        "tradeId",
        "subject",
        "JMSType",
        "JMSMessageID",
        "JMSCorrelationID",
        "properties.message_id",
        "properties.group_id",
        "amqp.correlation_id",
        "m.note",
    ]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    identity = st.sampled_from([None, "a", "T-1", "ID:AMQP_ULONG:5", ULong(5), A_UUID, b"5"])
    content = trade(
        "body",
        {"tradeId": draw(values), "subject": draw(values)},
        message_id=draw(identity),
        correlation_id=draw(identity),
        subject=draw(st.none() | texts),
        group_id=draw(st.none() | texts),
    )
    return annotated(content, note=draw(values))


@given(
    messages(),
    names,
    literals,
    st.sampled_from(["{} = {}", "{1} = {0}", "({} = {}) AND tradeId IS NOT NULL"]),
)
def test_what_a_search_says_beforehand_is_true(content: bytes, name: str, literal: str, form: str) -> None:
    """Every message that a selector matches is indexed under the search's texts, and holds one of its needles."""
    search = by_selector(form.format(name, literal))
    message = view(content)
    if search.accepts(message):
        for key in search.keys:
            assert indexed_text(message, key.name) in key.texts
        assert not search.needles or any(needle in content for needle in search.needles)


@pytest.mark.parametrize(
    ("selector", "keys"),
    [
        ("tradeId = 'T-1'", ["tradeId"]),
        ("'T-1' = tradeId", ["tradeId"]),
        ("tradeId = 'T-1' AND size > 5", ["tradeId"]),
        ("tradeId = 'T-1' AND JMSType = 'trade'", ["tradeId", "subject"]),
        ("JMSMessageID = 'ID:1'", ["message-id"]),
        ("JMSMessageID = 'ID:AMQP_ULONG:1'", []),
        ("JMSXGroupID = 'g'", ["group-id"]),
        ("JMSCorrelationID = 'c'", ["correlation-id"]),
        ("subject = 's'", []),  # an application property of that name, which no index can be of
        ("size = 5", ["size"]),
        ("size = 5.0", []),
        ("size = 9007199254740993", []),
        ("tradeId <> 'T-1'", []),
        ("tradeId = 'T-1' OR tradeId = 'T-2'", []),
        ("tradeId LIKE 'T%'", []),
        ("NOT (tradeId = 'T-1')", []),
        ("header.priority = 4", []),
    ],
)
def test_which_selectors_an_index_can_serve(selector: str, keys: list[str]) -> None:
    """An equality with a text or a whole number, alone or joined with AND, can be looked up; nothing else can."""
    assert [key.name for key in by_selector(selector).keys] == keys


def test_the_longest_text_is_looked_for() -> None:
    """Of several texts that must stand in a message the longest is its needle: it is the rarest."""
    assert by_selector("side = 'buy' AND tradeId = 'T-1000'").needles == (b"T-1000",)
    assert by_selector("size = 5").needles == ()
    assert by_selector("JMSMessageID = 'ID:1'").needles == ()
    assert by_selector("flag = 'é'").needles == ()


# --- what a search does not take ----------------------------------------------------------------------------------


def test_a_message_on_another_topic_is_not_taken() -> None:
    """A search looks at the topics that will be replayed, so that the first message delivered is the one it found."""
    search = search_for(ReplayStart(StartKind.MESSAGE_ID, "m-1"), "a".__eq__)
    assert search is not None
    assert search.takes(row(1, trade(message_id="m-1"), "a"))
    assert not search.takes(row(1, trade(message_id="m-1"), "b"))


def test_a_message_that_is_not_in_the_log_is_not_taken() -> None:
    """A message that only an endpoint holds is no start: a replay would not deliver it."""
    assert not by_id("m-1").takes(row(1, trade(message_id="m-1"), held=1))


def test_a_message_that_cannot_be_read_is_not_taken() -> None:
    """A malformed section is no match, and neither ends the search nor is indexed."""
    broken = b"\x00\x53\x73\xc0\x03\x01\xa1\x09m" + data("")
    assert not by_id("m").takes((1, 0, "t", 0, 0, None, broken))
    assert indexed_text(MessageView(broken, 0), "message-id") is None


# --- what it costs ------------------------------------------------------------------------------------------------


def test_a_page_of_costly_messages_is_soon_over() -> None:
    """What asking takes is counted: a few costly messages are a page, and thousands of usual ones."""
    search = by_selector("x LIKE '%a_c%'")
    costly, usual = PageWork(), PageWork()
    for number in range(1, 11):
        assert not search.takes(row(number, trade(properties={"x": "ab" * 20_000})), costly)
    assert costly.is_over
    assert costly.unknown == 0
    for number in range(1, 1_001):
        search.takes(row(number, trade(properties={"x": "ab"})), usual)
    assert not usual.is_over


def test_what_takes_too_long_is_not_found_and_counted() -> None:
    """A message of which the selector is unknown is none that was searched for, and the search knows how many were."""
    work = PageWork()
    assert not by_selector("x LIKE '%a_b%'").takes(row(1, trade(properties={"x": "ab" * 200_000})), work)
    assert work.unknown == 1
