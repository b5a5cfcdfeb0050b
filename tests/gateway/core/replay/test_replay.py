"""Replays: where they start, what is searched for, and how they proceed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Char, Float, Short, Symbol, ULong
from amqp_ext.message.fields import readings, traces
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import (
    NAME_CHARACTERS,
    Missing,
    ReplayStart,
    StartKind,
    Until,
    UntilKind,
    parse_text,
)
from gateway.core.broker import Broker
from gateway.core.effects import DeletePoint, DropReplayRecords, SavePoint, SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import COPY, ENDPOINT, LogState, Point, ReplayRecord, Row
from gateway.core.replay.reading import CATCH_UP_MS, SHORTEST_WAIT_MS, Pacer
from gateway.core.replay.records import ReplayRecords
from gateway.core.replay.search import TEXT_CHARACTERS, PageWork, Search, indexed_text, search_for
from gateway.core.replay.starts import LogFacts, Resolved, resolve
from gateway.core.replay.states import (
    TRANSITIONS,
    Replay,
    ReplayEvent,
    ReplayState,
    ReplayTotals,
    state_diagram,
)
from tests.support.core import new_broker
from tests.support.messages import annotated, data, row, trade
from tests.support.refusals import refused

# --- Starts at points and at messages that are searched for ---------------------------------------------------------

NOW_MS = 1_800_000_000_000
POINT = Point("eod", 15, NOW_MS - 5_000, NOW_MS - 4_000)
FACTS = LogFacts(True, 7, first_id=10, next_id=20, floor_ms=0, points={"eod": POINT})


class FakeProbe:
    """A log with the ids 10 to 19, one message a second."""

    def first_since(self, time_ms: int) -> int | None:
        raise AssertionError("nobody asked for a date")

    def time_of(self, message_id: int) -> int | None:
        return NOW_MS - (20 - message_id) * 1_000 if 10 <= message_id < 20 else None

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        raise AssertionError("nobody asked for the last one")


END_OF_7, END_OF_8 = (Until(UntilKind.ID, ReplayId(generation, 15)) for generation in (7, 8))
TRIMMED = replace(FACTS, first_id=16)
BOTH = ("message-id:m-1", "match:tradeId = 'T-1'")


@pytest.mark.parametrize(
    ("text", "facts", "found", "modifiers", "expected"),
    [
        # A replay may end with the message of an id.
        ("#12", FACTS, None, {"until": END_OF_7}, Resolved(12, 15, NOW_MS - 8_000)),
        # A point is the first id after it; with nothing after it, that is live.
        ("point:eod", FACTS, None, {}, Resolved(15, None, NOW_MS - 5_000)),
        ("point:eod", replace(FACTS, next_id=15), None, {}, Resolved(15, None, None, is_live=True)),
        ("point:eod", replace(FACTS, first_id=15), None, {}, Resolved(15, None, NOW_MS - 5_000)),
        # With missing=clamp, a place that is gone becomes the beginning: nothing after it is missed.
        ("point:eod", TRIMMED, None, {"missing": Missing.CLAMP}, Resolved(16, None, NOW_MS - 4_000)),
        *((text, FACTS, None, {"missing": Missing.CLAMP}, Resolved(10, None, NOW_MS - 10_000)) for text in BOTH),
        # A message that a search found is the first one.
        *((text, FACTS, 12, {}, Resolved(12, None, NOW_MS - 8_000)) for text in BOTH),
    ],
)  # fmt: skip
def test_where_a_replay_starts_and_ends(
    text: str, facts: LogFacts, found: int | None, modifiers: dict[str, Any], expected: Resolved
) -> None:
    assert (
        resolve(replace(parse_text(text), **modifiers), facts, FakeProbe(), NOW_MS, None, found) == expected
    )


UNAVAILABLE = ErrorCode.START_MESSAGE_UNAVAILABLE
EMPTY = replace(FACTS, first_id=20)
OFF = replace(FACTS, enabled=False)


@pytest.mark.parametrize(
    ("text", "facts", "found", "modifiers", "code", "said"),
    [
        # An id of another generation is no end, clamped or not: in this log it is another message's.
        *(("#12", FACTS, None, {"until": END_OF_8, "missing": how}, ErrorCode.LOG_MODIFIED, "") for how in Missing),
        # The log begins after the point: the refusal names its id, its time, and the log's beginning.
        (
            "point:eod", TRIMMED, None, {}, UNAVAILABLE,
            "point 'eod' was trimmed: it is at id 15 (2027-01-15T07:59:55.000Z), and the log begins at id 16",
        ),
        # An unknown name is no place, even with missing=clamp.
        *(("point:oed", FACTS, None, {"missing": how}, UNAVAILABLE, "no point named 'oed'") for how in Missing),
        # A message that was not found, or was trimmed during the search, is named, with what the log has.
        *((text, FACTS, found, {}, UNAVAILABLE, text) for text in BOTH for found in (None, 9)),
        *((text, FACTS, found, {}, UNAVAILABLE, "ids 10 to 19") for text in BOTH for found in (None, 9)),
        *((text, EMPTY, None, {}, UNAVAILABLE, "is empty; the next message is 20") for text in ("#5", BOTH[1])),
        # A time before the log is refused with the time from which the log is complete, in the form of a start.
        (
            "2026-01-02T03:04:05Z", replace(FACTS, floor_ms=NOW_MS), None, {}, ErrorCode.START_TIME_NOT_AVAILABLE,
            "which is whole from 2027-01-15T08:00:00.000Z on",
        ),
        # With the log disabled, or an id of another generation, every start is refused first of all.
        *((text, OFF, None, {}, ErrorCode.REPLAY_DISABLED, "") for text in ("point:eod", *BOTH)),
        *((text, FACTS, None, {"generation": 8}, ErrorCode.LOG_MODIFIED, "") for text in ("point:eod", *BOTH)),
    ],
)  # fmt: skip
def test_where_none_can_start_or_end(
    text: str, facts: LogFacts, found: int | None, modifiers: dict[str, Any], code: ErrorCode, said: str
) -> None:
    with refused(code) as caught:
        resolve(replace(parse_text(text), **modifiers), facts, FakeProbe(), NOW_MS, None, found)
    assert said in caught.value.text
    assert caught.value.text.endswith(said) or facts is not EMPTY


class WholeProbe(FakeProbe):
    """A log that takes only ids of 63 bits, as a store does."""

    def time_of(self, message_id: int) -> int | None:
        assert message_id < 2**63
        return super().time_of(message_id)


@pytest.mark.parametrize("kind", [StartKind.AFTER, StartKind.AT])
@pytest.mark.parametrize("number", [20, 2**63, 2**64 - 1])
def test_an_id_that_was_never_given_out_is_unavailable(kind: StartKind, number: int) -> None:
    """An id beyond the log is refused without a look into the log, which may have no place for such a number."""
    start = ReplayStart(kind, ReplayId(FACTS.generation, number))
    with refused(UNAVAILABLE):
        resolve(start, FACTS, WholeProbe(), NOW_MS)
    clamped = resolve(replace(start, missing=Missing.CLAMP), FACTS, WholeProbe(), NOW_MS)
    assert clamped == Resolved(20, None, None, is_live=True)


@pytest.mark.parametrize(
    ("selector", "position"),
    [("tradeId =", 10), ("tradeId = 'T' AND", 18), ("5 > 'x'", 5), ("properties.foo = 1", 1)],
)
def test_a_bad_selector_is_refused_with_its_position(selector: str, position: int) -> None:
    """A selector that cannot be parsed is an unknown start; the text names the position of the error."""
    with refused(ErrorCode.UNKNOWN_START) as caught:
        search_for(ReplayStart(StartKind.MATCH, selector), None)
    assert caught.value.text.endswith(f"at character {position} of the selector")


@pytest.mark.parametrize("text", ["beginning", "live", "last", "10m", "#12", "point:eod"])
def test_other_starts_need_no_search(text: str) -> None:
    """Only starts at a message-id or a selector are searched for."""
    assert search_for(parse_text(text), None) is None


# --- points in the broker -----------------------------------------------------------------------------------------
def a_broker(**policy: Any) -> Broker:
    return new_broker(LogPolicy(**policy), log=LogState(7, first_id=1, next_id=5, last_time_ms=0, floor_ms=0))


def test_a_point_made_now_is_behind_everything_published() -> None:
    """Its position is after messages that are not committed yet, too."""
    broker = a_broker()
    broker.publications.publish(NOW_MS, "t", [b"\x00\x53\x75\xa0\x00"] * 3, [0] * 3, None)
    point, effects = broker.points.create("now", None, None, NOW_MS)
    assert point == Point("now", 8, NOW_MS, NOW_MS)
    assert effects == [SavePoint(point)]


def test_a_points_name_is_taken_once() -> None:
    """A second point of that name is refused until the deletion of the first is committed."""
    broker = a_broker()
    first, _ = broker.points.create("eod", 2, 1, NOW_MS)
    with refused(ErrorCode.ALREADY_EXISTS):
        broker.points.create("eod", 3, 1, NOW_MS)
    assert broker.points.delete("eod") == (first, [DeletePoint("eod")])
    with refused(ErrorCode.ALREADY_EXISTS):
        broker.points.create("eod", 3, 1, NOW_MS)
    broker.points.deleted(first)
    with refused(ErrorCode.NOT_FOUND):
        broker.points.delete("eod")
    assert broker.points.create("eod", 3, 1, NOW_MS)[0].position == 3


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(
            (name, ErrorCode.INVALID_FIELD)
            for name in ("", "  ", "a\nb", "\ud800", "x" * (NAME_CHARACTERS + 1))
        ),
        ("eod", ErrorCode.REPLAY_DISABLED),
    ],
)
def test_a_points_name_can_be_read_and_its_log_too(name: str, code: ErrorCode) -> None:
    """A name that is blank, too long, or has invisible characters is refused; so is any name if the log is disabled."""
    with refused(code):
        a_broker(reads=code is ErrorCode.INVALID_FIELD).points.create(name, None, None, NOW_MS)


# --------------------------------------------------------------------------------------------------------------------
# A search recognizes its message, and what it says of such messages beforehand is true of every one.

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
        ("\u0664\u0662", {"\u0664\u0662"}),  # digits for Python, but not in a message-id
    ],
)
def test_a_text_stands_for_ids_of_every_type_that_has_its_form(text: str, ids: set[Any]) -> None:
    """A text stands for the string itself, and for a ulong, uuid or binary if it has the form of one."""
    assert readings(text) == ids


@pytest.mark.parametrize(
    "one", ["m-1", ULong(0), ULong(7), ULong(300), ULong(2**64 - 1), A_UUID, b"\x00\x01"]
)
def test_an_id_is_found_by_its_text(one: Any) -> None:
    """A message-id of each AMQP type is found by its text form, and by no other text."""
    text = one.hex() if isinstance(one, bytes) else str(one)
    message = row(1, trade(message_id=one))
    assert by_id(text).takes(message)
    assert not by_id(text + "0").takes(message)


@given(st.text(min_size=1) | st.integers(0, 2**64 - 1).map(str) | st.uuids().map(str), st.data())
def test_an_ids_bytes_stand_in_its_message(text: str, draw: st.DataObject) -> None:
    """Every message with an id that a text stands for contains one of the search's needles, if there are any."""
    ids = readings(text)
    one = draw.draw(st.sampled_from(sorted(ids, key=repr)))
    content = trade(message_id=ULong(one) if isinstance(one, int) else one)
    assert by_id(text).accepts(view(content))
    needles = traces(ids)
    assert not needles or any(needle in content for needle in needles)


# --- what a search knows beforehand -------------------------------------------------------------------------------
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
    """Every message that a selector matches is indexed under the search's texts, and contains one of its needles."""
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
        ("subject = 's'", []),  # an application property of that name, which cannot be indexed
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
    """Only an equality with a text or an integer, alone or joined with AND, can be looked up in an index."""
    assert [key.name for key in by_selector(selector).keys] == keys


def test_the_longest_text_is_looked_for() -> None:
    """Of several texts that a message must contain, the longest is the needle, as it is the rarest."""
    assert by_selector("side = 'buy' AND tradeId = 'T-1000'").needles == (b"T-1000",)
    assert by_selector("size = 5").needles == ()
    assert by_selector("JMSMessageID = 'ID:1'").needles == ()
    assert by_selector("flag = 'é'").needles == ()


# --- what a search skips ------------------------------------------------------------------------------------------
def test_what_a_search_does_not_take() -> None:
    """
    Messages that are not replayed: of other topics, or held by an endpoint only. So the first message delivered is the
    one that was found. A message with a malformed section does not match, does not end the search, and is not indexed.
    """
    search = search_for(ReplayStart(StartKind.MESSAGE_ID, "m-1"), "a".__eq__)
    assert search is not None
    assert search.takes(row(1, trade(message_id="m-1"), "a"))
    assert not search.takes(row(1, trade(message_id="m-1"), "b"))
    assert not by_id("m-1").takes(row(1, trade(message_id="m-1"), held=1))
    broken = b"\x00\x53\x73\xc0\x03\x01\xa1\x09m" + data("")
    assert not by_id("m").takes((1, 0, "t", 0, 0, None, broken))
    assert indexed_text(MessageView(broken, 0), "message-id") is None


# --- what it costs ------------------------------------------------------------------------------------------------
def test_a_page_of_costly_messages_is_soon_over() -> None:
    """
    The work of evaluating is counted: a few costly messages end a page, thousands of usual ones do not. A message whose
    evaluation takes too long does not match, and is counted as unknown.
    """
    search = by_selector("x LIKE '%a_c%'")
    costly, usual = PageWork(), PageWork()
    for number in range(1, 11):
        assert not search.takes(row(number, trade(properties={"x": "ab" * 20_000})), costly)
    assert costly.is_over
    assert costly.unknown == 0
    for number in range(1, 1_001):
        search.takes(row(number, trade(properties={"x": "ab"})), usual)
    assert not usual.is_over
    endless = PageWork()
    assert not by_selector("x LIKE '%a_b%'").takes(row(1, trade(properties={"x": "ab" * 200_000})), endless)
    assert endless.unknown == 1


# --- The pace of a replay, with a clock of the test's own -----------------------------------------------------------
def rows(*times_ms: int) -> list[Row]:
    return [(number, time_ms, "a", 0, 0, None, b"") for number, time_ms in enumerate(times_ms, 1)]


@pytest.mark.parametrize("rate", [1.0, 90.0, 1_000.0, 100_000.0])
@pytest.mark.parametrize("pause_ms", [SHORTEST_WAIT_MS, 30, CATCH_UP_MS - 20])
def test_a_rate_is_kept_up_however_seldom_one_asks(rate: float, pause_ms: int) -> None:
    """Whatever the intervals: delays of a busy gateway and of commits are made up for."""
    pacer, log = Pacer(None, rate), rows(*[0] * int(rate * CATCH_UP_MS / 1_000 + 2))
    asked = range(1_000_000, 1_002_000, pause_ms)
    sent = sum(pacer.due(log, now_ms) for now_ms in asked)
    assert abs(sent - rate * (asked[-1] - asked[0]) / 1_000) <= 1


def test_time_not_used_is_not_saved_up() -> None:
    """There is no burst at the beginning; after a pause, no more than ``CATCH_UP_MS`` are made up for."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 1
    pacer, log = Pacer(None, 2_000.0), rows(*[0] * 1_000)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 2_000 * CATCH_UP_MS / 1_000


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.floats(0.5, 5_000),
    st.sampled_from([0, CATCH_UP_MS, 1_000]),
)
def test_no_second_has_more_than_the_rate_and_what_is_made_up_for(
    pauses_ms: list[int], rate: float, catch_up_ms: int
) -> None:
    pacer, log = Pacer(None, rate, catch_up_ms), rows(*[0] * 10_000)
    asked = [1_000_000 + passed for passed in accumulate(pauses_ms)]
    sent = [pacer.due(log, now_ms) for now_ms in asked]
    for first, began_ms in enumerate(asked):
        within = sum(
            count
            for now_ms, count in zip(asked[first:], sent[first:], strict=True)
            if now_ms < began_ms + 1_000
        )
        assert within <= rate * (1_000 + catch_up_ms) / 1_000 + 2


def test_what_is_not_due_is_asked_for_again_when_it_is() -> None:
    """After the time until it is due; at a high rate after a minimum, for several messages together."""
    pacer, log = Pacer(None, 10.0), rows(0, 0)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.wait_s(log[1], 1_000_040) == pytest.approx(0.06)
    pacer = Pacer(None, 2_000.0)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.wait_s(log[1], 1_000_000) == SHORTEST_WAIT_MS / 1_000


def test_speed_keeps_the_distances_of_the_original() -> None:
    """At speed 10, a message published a minute after the first is sent six seconds after it."""
    pacer, log = Pacer(10.0, None), rows(500_000, 500_000, 560_000)
    assert pacer.due(log, 9_000_000) == 2
    assert pacer.due_ms(log[2], 9_000_000) == 9_006_000
    assert pacer.due(log[2:], 9_005_999) == 0
    assert pacer.due(log[2:], 9_006_000) == 1


def test_speed_and_rate_hold_together() -> None:
    """Both apply: the later time counts."""
    pacer, log = Pacer(1.0, 2.0), rows(0, 0, 0)
    assert pacer.due(log, 1_000) == 1
    assert pacer.due(log[1:], 1_499) == 0
    assert pacer.due(log[1:], 1_500) == 1


# --- Records of replays ---------------------------------------------------------------------------------------------
STARTED_MS = 1_700_000_000_123


def asked(name: str = "", kind: str = ENDPOINT, requester: str = "ops") -> ReplayRecord:
    return ReplayRecord(0, name, kind, requester, started_ms=STARTED_MS)


def test_a_name_is_made_of_who_asked_and_when() -> None:
    """With the requester and the time; a number makes it unique within a millisecond."""
    records = ReplayRecords()
    names = [records.begin(asked(requester="alice@c\n1"))[0].name for _ in range(3)]
    when = "2023-11-14T22:13:20.123Z"
    assert names == [f"alice@c?1 {when}", f"alice@c?1 {when} 2", f"alice@c?1 {when} 3"]
    long = records.begin(asked(requester="x" * 4_000))[0]
    assert len(long.name) <= 200


def test_a_name_is_taken_while_its_record_is_kept() -> None:
    """A second replay of that name is refused; so is an invalid name."""
    records = ReplayRecords()
    records.begin(asked("monday"))
    with pytest.raises(Refused) as taken:
        records.begin(asked("monday"))
    assert taken.value.code is ErrorCode.ALREADY_EXISTS
    for name in (" ", "a\n", "x" * 201):
        with pytest.raises(Refused) as bad:
            records.begin(asked(name))
        assert bad.value.code is ErrorCode.INVALID_FIELD
    assert len(list(records)) == 1


def test_the_oldest_that_ended_go_past_the_bound() -> None:
    """Records of replays that have ended are dropped first; those in progress stay, however old."""
    records = ReplayRecords(most=2)
    first, _ = records.begin(asked("first", COPY))
    second, effects = records.begin(asked("second"))
    assert effects == [SaveReplayRecord(second)]
    third, effects = records.begin(asked("third"))
    assert effects == [SaveReplayRecord(third)]
    ended = replace(second, state="complete", ended_ms=STARTED_MS)
    assert records.put(ended) == [SaveReplayRecord(ended), DropReplayRecords((second.number,))]
    assert list(records) == [first, third]
    assert records.put(ended) == []
    with pytest.raises(Refused) as gone:
        records.get("second")
    assert gone.value.code is ErrorCode.NOT_FOUND


def test_numbers_go_on_after_a_start() -> None:
    """No number is given twice, whatever the order in the store."""
    records = ReplayRecords()
    records.restore([replace(asked("b"), number=9), replace(asked("a"), number=4)])
    assert [record.name for record in records] == ["a", "b"]
    assert records.begin(asked("c"))[0].number == 10


def test_a_record_comes_back_from_its_text() -> None:
    """Every field comes back with its type."""
    record = ReplayRecord(1, "n", COPY, "u@c", subscriptions=("a", "b"), rate=1.5, outcome="\0\N{SNOWMAN}")
    assert ReplayRecord.from_json(record.to_json()) == record


# --- The states of an endpoint's replay -----------------------------------------------------------------------------
PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "replay-states.md"


def test_the_documentation_shows_the_table() -> None:
    """The diagram in the documentation is the one generated from the table of transitions."""
    assert f"```mermaid\n{state_diagram()}\n```" in PAGE.read_text(encoding="utf-8")


def test_every_state_is_reached_and_left() -> None:
    """Every state can be reached from NONE, and a replay requested in each; three have no other way out."""
    reached = {ReplayState.NONE}
    while True:
        after = reached | {state for before in reached for state in TRANSITIONS[before].values()}
        if after == reached:
            break
        reached = after
    assert reached == set(ReplayState) == set(TRANSITIONS)
    assert {t[ReplayEvent.REQUESTED] for t in TRANSITIONS.values()} == {ReplayState.INITIALIZING}
    ends = {state for state, found in TRANSITIONS.items() if set(found) == {ReplayEvent.REQUESTED}}
    assert ends == {ReplayState.NONE, ReplayState.COMPLETE, ReplayState.FAILED}


@pytest.mark.parametrize("event", ReplayEvent)
@pytest.mark.parametrize("state", ReplayState)
def test_only_the_tables_moves_are_made(state: ReplayState, event: ReplayEvent) -> None:
    """A transition that the table does not have is an error in the program."""
    replay = Replay(1, state=state)
    if event in TRANSITIONS[state]:
        replay.move(event)
        assert replay.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match=state.value):
            replay.move(event)


def test_what_is_live_is_not_counted_as_transmitted() -> None:
    """Messages from ``live_from`` on do not count, even if they are handed out together with history."""
    replay = Replay(1, state=ReplayState.PENDING_COMPLETE, live_from=9)
    for ids, transmitted in (([7, 8], 2), ([6, 8, 9], 4), ([8, 9, 10], 5), ([9], 5)):
        replay.transmit(ids, now_ms=1)
        assert replay.totals.transmitted == transmitted


def test_a_replay_is_kept_as_text() -> None:
    """The stored text has every field; the text of an older version can still be read."""
    replay = Replay(7, first=3, started_ms=5, live_from=9, put=4, acknowledged=1, end_id=8)
    replay.totals = ReplayTotals(started=2, failed=1, last_failure="it was cancelled")
    replay.move(ReplayEvent.REQUESTED)
    assert Replay.from_json(replay.to_json()) == replay
    old = (
        '{"position": 4, "state": "active", "started_ms": 1, "live_from": null, "put": 2, "acknowledged": 0}'
    )
    assert Replay.from_json(old) == Replay(4, state=ReplayState.ACTIVE, started_ms=1, put=2)


@pytest.mark.parametrize(
    ("state", "position", "live_from", "remaining", "eta_ms"),
    [
        (ReplayState.ACTIVE, 100, None, 900, 9_000),
        (ReplayState.ACTIVE, 100, 1_000, 900, 9_000),
        (ReplayState.ACTIVE, 0, None, 1_000, None),
        (ReplayState.ACTIVE, 1_000, 1_000, 0, None),
        (ReplayState.PENDING_COMPLETE, 1_000, 1_000, 0, None),
        (ReplayState.FAILED, 500, None, 0, None),
    ],
)
def test_progress(
    state: ReplayState, position: int, live_from: int | None, remaining: int, eta_ms: int | None
) -> None:
    """The rest is counted in ids of the log, and its time estimated from the pace so far."""
    replay = Replay(
        position, first=0, state=state, started_ms=2_000, live_from=live_from, put=5, acknowledged=2
    )
    progress = replay.progress(next_id=1_000, now_ms=3_000)
    outstanding = 0 if state is ReplayState.FAILED else 3
    assert progress == (position, remaining, outstanding, eta_ms)
