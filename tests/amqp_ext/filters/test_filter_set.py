"""The filter-set of a source, and AMQP's property filters."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Char, Described, Symbol, Timestamp, UInt, ULong, decode, encode
from amqp_ext.filters.filter_set import (
    APPLICATION_PROPERTIES,
    NO_LOCAL,
    PROPERTIES,
    REPLAY_START,
    SELECTOR,
    SQL,
    Filters,
    read_filter_set,
)
from amqp_ext.filters.forms import FilterError
from amqp_ext.filters.property_filter import (
    MAX_FIELDS,
    PropertyFilterError,
    compile_application_properties_filter,
    compile_properties_filter,
)
from amqp_ext.rabbitmq.forms import STREAM_FILTER, STREAM_MATCH_UNFILTERED, STREAM_OFFSET_SPEC, StreamFilter
from amqp_ext.replay_start import (
    FILTER,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    Until,
    UntilKind,
    combine,
    from_options,
    from_rewind_filter,
)
from amqp_ext.replay_start import SELECTOR as START_IN_SELECTOR
from amqp_ext.selector.fields import PROPERTIES_FIELDS
from tests.amqp_ext.selector.examples import message

# --- Reading the filter-set of a source -------------------------------------------------------------------------------

BEGINNING = ReplayStart(StartKind.BEGINNING)
SELECTOR_CODE = ULong(0x0000468C00000004)
NO_LOCAL_CODE = ULong(0x0000468C00000003)


def key(text: str) -> Symbol:
    return Symbol(text)


def selector(text: str) -> Filters:
    return read_filter_set({key("jms-selector"): Described(SELECTOR_CODE, text)})


def test_an_empty_filter_set_asks_for_nothing() -> None:
    """No entries, and entries that are null, are the same as no filter."""
    assert read_filter_set({}) == Filters()
    assert read_filter_set({REPLAY_START: None, key("x"): None}) == Filters()


@pytest.mark.parametrize("name", ["rewind:replay-start", "from", "x", "rabbitmq:stream-offset-spec"])
def test_a_filter_is_known_by_its_descriptor_under_any_key(name: str) -> None:
    """The descriptor identifies the filter, whatever key the client chose; the key is echoed."""
    read = read_filter_set({key(name): Described(REPLAY_START, {key("from"): key("beginning")})})
    assert read == Filters(start=BEGINNING, accepted=(key(name),))
    assert read.start is not None and read.start.form == FILTER


def test_rabbitmqs_filters_are_read_and_ask_for_stream_offsets() -> None:
    """The three filters of RabbitMQ's stream clients are read, and make the link get x-stream-offset."""
    read = read_filter_set(
        {
            STREAM_OFFSET_SPEC: Described(STREAM_OFFSET_SPEC, "first"),
            STREAM_FILTER: Described(STREAM_FILTER, ["red", "blue"]),
            STREAM_MATCH_UNFILTERED: Described(STREAM_MATCH_UNFILTERED, True),
        }
    )
    assert read.start == ReplayStart(StartKind.BEGINNING, missing=Missing.CLAMP)
    assert read.message_filter == StreamFilter(("red", "blue"), match_unfiltered=True)
    assert read.wants_stream_offset
    assert read.accepted == (STREAM_OFFSET_SPEC, STREAM_FILTER, STREAM_MATCH_UNFILTERED)
    alone = read_filter_set({key("f"): Described(STREAM_FILTER, "red")})
    assert alone.message_filter == StreamFilter(("red",))
    assert not read_filter_set({key("f"): Described(REPLAY_START, 5)}).wants_stream_offset


@pytest.mark.parametrize("descriptor", [SELECTOR, SELECTOR_CODE, 0x0000468C00000004])
def test_an_event_hubs_position_is_a_start_and_no_selector(descriptor: Any) -> None:
    """Python sends the descriptor as symbol and JavaScript as code; both give a start, and no selector."""
    read = read_filter_set({SELECTOR: Described(descriptor, "amqp.annotation.x-opt-offset > '@latest'")})
    assert read == Filters(start=ReplayStart(StartKind.LIVE), accepted=(SELECTOR,))


def test_what_qpid_jms_sends_is_understood() -> None:
    """Qpid JMS describes its selector by code, and gives no-local a string as value."""
    sent = {
        key("jms-selector"): Described(SELECTOR_CODE, "colour = 'red'"),
        key("no-local"): Described(NO_LOCAL_CODE, "NoLocalFilter{}"),
    }
    entries, _ = decode(encode(sent))
    read = read_filter_set(entries)
    assert read == Filters(
        selector="colour = 'red'", no_local=True, accepted=(key("jms-selector"), key("no-local"))
    )
    assert read_filter_set({key("n"): Described(NO_LOCAL, [])}).no_local


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("\"m.x-opt-replay-start\" = 'beginning'", None),
        (
            "a = ' AND ' and \"m.x-opt-replay-start\" = 'beginning' AND b = 'it''s'",
            "a = ' AND ' AND b = 'it''s'",
        ),
    ],
)
def test_a_replay_start_is_taken_out_of_a_selector(text: str, rest: str | None) -> None:
    """The start is a top-level AND term; the other terms remain as the selector, with the same meaning."""
    read = selector(text)
    assert read.start == BEGINNING
    assert read.start.form == START_IN_SELECTOR
    assert read.selector == rest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "colour = 'red'",
        "colour = '\"m.x-opt-replay-start\" = ''beginning'''",
        "a = 1 OR b BETWEEN 1 AND 2",
    ],
)
def test_a_selector_without_a_start_is_left_as_it_is(text: str) -> None:
    """The annotation's name inside a string is no start; an empty selector is the same as none in JMS."""
    assert selector(text) == Filters(selector=text or None, accepted=(key("jms-selector"),))


@pytest.mark.parametrize(
    "text",
    [
        "\"m.x-opt-replay-start\" = 'beginning' AND",
        "colour = 'red",
    ],
)
def test_a_bad_selector_is_refused(text: str) -> None:
    """The error names the filter, whether or not the selector was to have a start."""
    with pytest.raises(FilterError, match="is not a valid selector") as caught:
        selector(text)
    assert caught.value.field == SELECTOR


@pytest.mark.parametrize("literal", ["'nonsense'", "'10'", "10"])
def test_a_bad_start_in_a_selector_is_refused_as_a_start(literal: str) -> None:
    """A term whose value is no start is refused; a bare number is one, as it could be an offset or a time."""
    with pytest.raises(ReplayStartError, match=r"not a replay start|could be an offset or a time"):
        selector(f'"m.x-opt-replay-start" = {literal}')


def test_the_oasis_filters_are_kept_as_they_came() -> None:
    """Property and SQL filters are known by code or symbol, and their values are handed on."""
    properties = {key("subject"): "&p:a"}
    application = {"colour": "red"}
    for names in [(PROPERTIES, APPLICATION_PROPERTIES, SQL), (ULong(0x173), ULong(0x174), ULong(0x120))]:
        read = read_filter_set(
            {
                key("p"): Described(names[0], properties),
                key("a"): Described(names[1], application),
                key("sql-filter"): Described(names[2], "a > 1"),
            }
        )
        assert read.properties == properties
        assert read.application_properties == application
        assert read.sql == "a > 1"
        assert read.accepted == (key("p"), key("a"), key("sql-filter"))


def test_a_bare_value_is_taken_by_its_key() -> None:
    """Clients that forget to describe a value are understood where the key is the filter's name."""
    assert read_filter_set({REPLAY_START: "beginning"}).start == BEGINNING
    assert read_filter_set({REPLAY_START: Timestamp(5)}).start == ReplayStart(StartKind.DATE, 5)
    assert read_filter_set({STREAM_OFFSET_SPEC: "first"}).wants_stream_offset
    assert read_filter_set({key("jms-selector"): "a = 1"}).selector == "a = 1"
    assert read_filter_set({SELECTOR: "a = 1"}).selector == "a = 1"


def test_unknown_filters_are_listed_and_not_echoed() -> None:
    """An unknown filter, described or not, is listed as unknown and left out of the reply."""
    read = read_filter_set(
        {
            key("a"): Described(key("com.example:f"), 1),
            key("b"): Described(ULong(99), 1),
            key("c"): 5,
            key("d"): Described([1], 1),
            key("e"): Described(Described(SELECTOR_CODE, 1), 1),
            key("s"): Described(SELECTOR, "a = 1"),
        }
    )
    assert read == Filters(selector="a = 1", accepted=(key("s"),), unknown=tuple(map(key, "abcde")))


@pytest.mark.parametrize(
    "entries",
    [
        {key("x"): Described(key("rewind:replay-start:map"), {})},
        {key("x"): Described(key("rewind:replay_start"), "live")},
        {key("rewind:start"): "live"},
        {REPLAY_START: Described(key("map"), {})},
        {REPLAY_START: Described(ULong(99), {})},
        {STREAM_OFFSET_SPEC: Described(key("offset"), "first")},
    ],
)
def test_what_looks_like_a_replay_start_is_never_dropped(entries: dict[Symbol, Any]) -> None:
    """A misspelt name of our domain, or a start's key with a foreign descriptor, is refused as an unknown start."""
    with pytest.raises(ReplayStartError, match=r"there is no rewind:|describe it as"):
        read_filter_set(entries)


@pytest.mark.parametrize(
    "selector",
    [
        "\"m.x-opt-replay-start\" = 'last' OR a = 1",
        "NOT (\"m.x-opt-replay-start\" = 'last')",
        "\"m.x-opt-replay-start\" <> 'last'",
        "\"m.x-opt-replay-start\" = 'last' AND \"m.x-opt-replay-start\" = 'beginning'",
    ],
)
def test_a_start_that_cannot_be_taken_out_of_its_selector_is_refused_as_a_start(selector: str) -> None:
    """It is an unknown start, as every start that is there and cannot be read."""
    with pytest.raises(
        ReplayStartError, match=r"does not say where to start: expected m\.x-opt-replay-start"
    ):
        read_filter_set({key("x"): Described(SELECTOR, selector)})
    with pytest.raises(FilterError, match="is not a valid selector"):
        read_filter_set({key("x"): Described(SELECTOR, f"{selector} AND")})


@pytest.mark.parametrize(
    ("descriptor", "value", "words"),
    [
        (SELECTOR, 5, "apache.org:selector-filter:string is a string, not 5"),
        (SELECTOR, Char("a"), "is a string, not 'a'"),
        (SELECTOR, None, "is a string, not None"),
        (NO_LOCAL, 5, "apache.org:no-local-filter:list is described as a list, not 5"),
        (PROPERTIES, [], "amqp:properties-filter is a map, not []"),
        (APPLICATION_PROPERTIES, "x", "amqp:application-properties-filter is a map, not 'x'"),
        (SQL, b"a", "amqp:sql-filter is a string, not b'a'"),
        (STREAM_FILTER, 5, "rabbitmq:stream-filter is a string or a list of strings, not 5"),
        (STREAM_FILTER, ["a", 5], "is a string or a list of strings"),
        (STREAM_MATCH_UNFILTERED, 1, "rabbitmq:stream-match-unfiltered is a boolean, not 1"),
    ],
)
def test_a_known_filter_with_a_bad_value_is_refused(descriptor: Symbol, value: Any, words: str) -> None:
    """The error names the filter and says what its value should be."""
    with pytest.raises(FilterError, match=re.escape(words)) as caught:
        read_filter_set({key("x"): Described(descriptor, value)})
    assert caught.value.field == descriptor


@pytest.mark.parametrize("value", [True, -1, 1.5, {"nope": 1}, [], None])
@pytest.mark.parametrize("descriptor", [REPLAY_START, STREAM_OFFSET_SPEC])
def test_a_bad_replay_start_is_refused_as_a_start(descriptor: Symbol, value: Any) -> None:
    """A start's own error comes through, so that it is answered as an unknown start."""
    with pytest.raises(ReplayStartError):
        read_filter_set({key("x"): Described(descriptor, value)})


def test_one_filter_given_twice_is_refused() -> None:
    """A filter given by symbol and by code is the same filter twice, so neither can win. Two starts are no start."""
    with pytest.raises(FilterError, match="is given twice"):
        read_filter_set({key("a"): Described(SELECTOR, "a = 1"), key("b"): Described(SELECTOR_CODE, "b = 1")})
    with pytest.raises(ReplayStartError, match="is given twice"):
        read_filter_set(
            {key("a"): Described(REPLAY_START, "last"), key("b"): Described(REPLAY_START, "beginning")}
        )


def test_two_different_starts_are_refused_and_equal_ones_are_one() -> None:
    """Starts in several dialects are accepted if they mean the same."""
    position = Described(SELECTOR, "amqp.annotation.x-opt-offset >= '5'")
    same = read_filter_set({key("a"): Described(REPLAY_START, 5), key("b"): position})
    assert same.start == ReplayStart(StartKind.OFFSET, 5)
    with pytest.raises(
        ReplayStartError, match=r"two different replay starts, #6 \(rewind\) and #5 \(event-hubs\)"
    ):
        read_filter_set({key("a"): Described(REPLAY_START, 6), key("b"): position})
    with pytest.raises(ReplayStartError, match="two different replay starts"):
        read_filter_set(
            {key("a"): Described(REPLAY_START, "live"), key("b"): Described(STREAM_OFFSET_SPEC, "first")}
        )


def test_the_start_of_a_filter_and_of_an_address_are_combined() -> None:
    """A start in the filter or in the address counts, equal ones are one, and different ones are refused."""
    option = from_options({"replay-start": "#5"})
    assert combine(None, None) is None
    assert (
        combine(from_rewind_filter(5), None)
        == combine(None, option)
        == combine(from_rewind_filter(5), option)
    )
    with pytest.raises(ReplayStartError, match=r"#6 \(rewind\) and #5 \(option\)"):
        combine(from_rewind_filter(6), option)


ANSWER = {
    Symbol("id"): "rmid1:0f91f-23ce0249500-00000000-00000005",
    Symbol("offset"): ULong(5),
    Symbol("generation"): ULong(7),
    Symbol("date"): Timestamp(1),
    Symbol("until"): ULong(9),
}


def test_an_answer_that_comes_back_alone_is_the_offset_it_says() -> None:
    """A client may send back the start that it got in a reply: its offset, until and generation count, or live."""
    found = read_filter_set({REPLAY_START: Described(REPLAY_START, ANSWER)})
    until = Until(UntilKind.OFFSET, 9)
    assert found.start == ReplayStart(StartKind.OFFSET, 5, until=until, generation=7)
    live = {**ANSWER, Symbol("from"): Symbol("live")}
    assert read_filter_set({REPLAY_START: Described(REPLAY_START, live)}).start == ReplayStart(StartKind.LIVE)
    assert combine(found.start, from_options({"replay-start": "#6"})) == ReplayStart(StartKind.OFFSET, 6)


@pytest.mark.parametrize("name", [REPLAY_START, STREAM_OFFSET_SPEC])
def test_an_answer_beside_the_start_that_it_answers_says_nothing_new(name: Symbol) -> None:
    """A reply repeats the requested start next to the answer. If a client sends that source, the request counts."""
    asked, answer = Described(name, "last"), Described(REPLAY_START, ANSWER)
    for entries in ({key("a"): asked, REPLAY_START: answer}, {REPLAY_START: answer, key("a"): asked}):
        found = read_filter_set(entries)
        assert found.start == ReplayStart(
            StartKind.LAST, missing=Missing.CLAMP if name is STREAM_OFFSET_SPEC else Missing.FAIL
        )
        assert set(found.accepted) == {"a", REPLAY_START}


def test_a_part_of_an_answer_is_no_answer() -> None:
    """An ``id`` without the rest of an answer is refused, as it is no key of a start."""
    with pytest.raises(ReplayStartError, match="'id' is not a key of a replay start"):
        read_filter_set({REPLAY_START: Described(REPLAY_START, {Symbol("id"): ANSWER[Symbol("id")]})})


_names = st.sampled_from(
    [REPLAY_START, STREAM_OFFSET_SPEC, STREAM_FILTER, SELECTOR, NO_LOCAL, PROPERTIES, SQL]
)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 9),
    st.sampled_from(["first", "beginning", "a = 1", "\"m.x-opt-replay-start\" = 'live'"]),
    st.just([]),
    st.just({}),
)
_descriptors = st.one_of(_names, st.sampled_from([SELECTOR_CODE, ULong(0x120), ULong(7), key("x:y")]))
_entries = st.dictionaries(
    st.one_of(_names, st.text(alphabet="ab", max_size=2).map(Symbol)),
    st.one_of(_scalars, st.builds(Described, _descriptors, _scalars)),
    max_size=4,
)


@given(entries=_entries)
def test_every_entry_is_accepted_unknown_or_refused(entries: dict[Symbol, Any]) -> None:
    """Each entry that is not null is accepted or unknown, and no other error than the two is raised."""
    with suppress(FilterError, ReplayStartError):
        read = read_filter_set(entries)
        given_keys = {name for name, entry in entries.items() if entry is not None}
        assert {*read.accepted, *read.unknown} == given_keys
        assert len(read.accepted) + len(read.unknown) == len(given_keys)


# --- Property filters as the OASIS draft and RabbitMQ have them -------------------------------------------------------

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
    """Texts match exactly, or by &p: and &s:; numbers match by value, others by type and value; null matches all."""
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
    """A compiled filter returns true or false for any message."""
    try:
        compiled = compile_application_properties_filter(entries)
    except PropertyFilterError:
        return
    assert compiled(message(**values)) in (True, False)
