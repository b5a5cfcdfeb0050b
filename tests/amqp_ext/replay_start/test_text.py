"""Starts of a replay, as text and as a filter's value."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Char, Symbol, Timestamp, UByte, UInt, ULong
from amqp_ext.rabbitmq.forms import from_stream_offset_spec
from amqp_ext.replay_start import (
    FILTER,
    MAX_DATE_MS,
    MAX_NEWEST,
    MAX_OFFSET,
    OPTION,
    SELECTOR,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    Until,
    UntilKind,
    from_options,
    from_rewind_filter,
    parse_date,
    parse_text,
)
from tests.amqp_ext.replay_start.starts import DAY, HOUR, ID, INTEGERS, NEW_YEAR, RMID, WIRE_VALUES, start

# --- The text of a start, and dates ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", start(StartKind.BEGINNING)),
        ("BEGINNING", start(StartKind.BEGINNING)),
        ("live", start(StartKind.LIVE)),
        ("last:1", start(StartKind.NEWEST, 1)),
        ("Last:1000000", start(StartKind.NEWEST, MAX_NEWEST)),
        ("last", start(StartKind.LAST)),
        ("2026-01-01T00:00:00Z", start(StartKind.DATE, NEW_YEAR)),
        ("30s", start(StartKind.AGO, 30_000)),
        ("10m", start(StartKind.AGO, 600_000)),
        ("0h", start(StartKind.AGO, 0)),
        ("2h", start(StartKind.AGO, 2 * HOUR)),
        ("7D", start(StartKind.AGO, 7 * DAY)),
        (RMID, start(StartKind.AFTER, ID)),
        (RMID.upper(), start(StartKind.AFTER, ID)),
        ("#0", start(StartKind.OFFSET, 0)),
        (f"#{MAX_OFFSET}", start(StartKind.OFFSET, MAX_OFFSET)),
        ("point:before deploy", start(StartKind.POINT, "before deploy")),
        ("message-id:a:b", start(StartKind.MESSAGE_ID, "a:b")),
        ("match:TradeId = 'FFS987654321'", start(StartKind.MATCH, "TradeId = 'FFS987654321'")),
    ],
)
def test_every_text_of_a_start_is_read(text: str, expected: ReplayStart) -> None:
    """The documented texts have their documented meaning; a place that the log lacks is an error."""
    read = parse_text(text)
    assert read == expected
    assert read.missing is Missing.FAIL
    assert read.form == OPTION
    assert parse_text(text, SELECTOR).form == SELECTOR


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a replay start: a start is beginning, live, last, last:N, a date such as"),
        ("last:0", "'last' takes a number of messages from 1 to 1000000, not 0"),
        ("last:1000001", "not 1000001; to begin further back, name a date or an offset"),
        ("last:-1", "'last:-1' is not a replay start"),
        ("begin", "'begin' is not a replay start"),
        ("first", "is not a replay start"),
        ("10", "could be an offset or a time; write '#10'"),
        ("1767225600000", "could be an offset or a time"),
        ("10M", "is not a replay start"),
        ("10 m", "is not a replay start"),
        ("-10m", "is not a replay start"),
        ("1.5h", "is not a replay start"),
        ("9999999999999D", "A time ago is a number of ms"),
        ("#", "is not a replay start"),
        ("#-1", "is not a replay start"),
        (f"#{MAX_OFFSET + 1}", f"from 0 to {MAX_OFFSET}"),
        ("#" + "9" * 5_000, "is not a replay start"),
        ("rmid1:1-2-3-4", "is not a replay id"),
        ("point:", "'point' needs a text after the colon"),
        ("match: ", "'match' needs a text after the colon"),
        ("message-id:", "'message-id' needs a text"),
        ("2026-01-01", "is not a complete date: give date, time and zone"),
        ("2026-01-01T00:00:00", "is not a complete date: give date, time and zone"),
        ("2026-01-01T00:00Z", "is not a replay start"),
        ("2026-02-30T00:00:00Z", "is not a valid date and time"),
        ("2026-01-01T24:00:00Z", "is not a valid date and time"),
        ("2026-01-01T00:60:00Z", "is not a valid date and time"),
        ("2026-01-01T00:00:61Z", "is not a valid date and time"),
        ("2026-01-01T00:00:00+24:00", "is not a valid date and time"),
        ("0000-01-01T00:00:00Z", "is not a valid date and time"),
        ("1969-12-31T23:59:59Z", "between the years 1970 and 9999"),
        ("9999-12-31T23:59:59-01:00", "between the years 1970 and 9999"),
        ("٢٠٢٦-01-01T00:00:00Z", "is not a replay start"),
    ],
)
def test_any_other_text_is_refused_with_what_is_allowed(text: str, words: str) -> None:
    """A text that is no start is refused in one sentence, never taken for something near it."""
    with pytest.raises(ReplayStartError, match=re.escape(words)) as caught:
        parse_text(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-01T00:00:00.001Z", NEW_YEAR + 1),
        ("2026-01-01T00:00:00.1Z", NEW_YEAR + 100),
        ("2026-01-01T00:00:00.0019999Z", NEW_YEAR + 1),
        ("2026-01-01t02:00:00+02:00", NEW_YEAR),
        ("2025-12-31 19:30:00-04:30", NEW_YEAR),
        ("2026-01-01T00:00:00-00:00", NEW_YEAR),
        ("2025-12-31T23:59:60Z", NEW_YEAR),
        ("1970-01-01T00:00:00z", 0),
        ("9999-12-31T23:59:59.999Z", MAX_DATE_MS),
    ],
)
def test_dates_are_exact_to_the_millisecond(text: str, ms: int) -> None:
    """Fractions, zones and leap seconds give the right millisecond; finer digits are dropped."""
    assert parse_date(text) == ms


@given(
    moment=st.datetimes(min_value=datetime(1970, 1, 3), max_value=datetime(9999, 12, 29)),
    zone=st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_any_date_that_python_writes_is_read_back(moment: datetime, zone: timezone) -> None:
    """What ``isoformat`` writes, in any zone, is the millisecond that Python counts."""
    local = moment.replace(tzinfo=zone)
    since_epoch = local - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_date(local.isoformat()) == since_epoch // timedelta(milliseconds=1)


# --- The options of an address that ask for a replay ----------------------------------------------------------------


def test_options_of_an_address_make_a_start() -> None:
    """All six options of a replay are read, and other options are ignored."""
    read = from_options(
        {
            "replay-start": "10m",
            "until": "2026-01-01T00:00:00Z",
            "missing": "clamp",
            "generation": "18446744073709551615",
            "speed": "2.5",
            "rate": "100",
            "exclusive": "wait",
        }
    )
    assert read == ReplayStart(
        StartKind.AGO,
        600_000,
        until=Until(UntilKind.DATE, NEW_YEAR),
        missing=Missing.CLAMP,
        generation=2**64 - 1,
        speed=2.5,
        rate=100.0,
    )
    assert read is not None and read.form == OPTION


def test_options_without_a_replay_make_none() -> None:
    """An address that asks for no replay has no start."""
    assert from_options({}) is None
    assert from_options({"exclusive": "wait", "create": "never"}) is None


def test_until_alone_reads_from_the_beginning() -> None:
    """``until`` alone starts at the beginning; any other modifier alone is refused."""
    assert from_options({"until": "#9"}) == start(StartKind.BEGINNING, until=Until(UntilKind.OFFSET, 9))
    with pytest.raises(ReplayStartError, match="does not say where to start, it has only speed"):
        from_options({"speed": "2"})


@pytest.mark.parametrize(
    "options",
    [
        {"replay-start": "nonsense"},
        {"replay-start": ""},
        {"replay-start": "live", "until": "9"},
        {"replay-start": "live", "missing": "no"},
        {"replay-start": "live", "generation": "-1"},
        {"replay-start": "live", "generation": "x"},
        {"replay-start": "live", "generation": "99999999999999999999"},
        {"replay-start": "live", "speed": "fast"},
        {"replay-start": "live", "speed": "0"},
        {"replay-start": "live", "speed": "inf"},
        {"replay-start": "live", "rate": "-1"},
        {"replay-start": "live", "rate": "1e3"},
    ],
)
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    """An invalid option of a replay is an error; it is not ignored."""
    with pytest.raises(ReplayStartError):
        from_options(options)


# --- Starts as values -----------------------------------------------------------------------------------------------


def test_starts_are_equal_when_they_ask_for_the_same() -> None:
    """Equality ignores the form in which a start was given, and nothing else."""
    assert parse_text("#5") == from_rewind_filter(5)
    assert len({parse_text("#5"), from_rewind_filter(5)}) == 1
    assert from_stream_offset_spec(5) != from_rewind_filter(5)
    assert from_rewind_filter({"offset": 5, "until": "now"}) != from_rewind_filter(5)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("beginning", "beginning"),
        (Timestamp(NEW_YEAR + 1), "2026-01-01T00:00:00.001Z"),
        (Timestamp(MAX_DATE_MS), "9999-12-31T23:59:59.999Z"),
        (5, "#5"),
        (RMID, RMID),
        ({"at": RMID}, f"at:{RMID}"),
        ("10m", "600000 ms ago"),
        ("point:deploy", "point:deploy"),
        (
            {"offset": 5, "until": RMID, "missing": "clamp", "generation": 3, "speed": 2.0, "rate": 1.5},
            f"#5 until {RMID} missing=clamp generation=3 speed=2.0 rate=1.5",
        ),
        ({"until": "now"}, "beginning until now"),
    ],
)
def test_a_start_shows_itself_in_the_words_of_its_texts(value: Any, shown: str) -> None:
    """Logs and refusals show a start as a person would have written it."""
    assert str(from_rewind_filter(value)) == shown


# --- Our own filter: a map, or a short form ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({Symbol("from"): Symbol("beginning")}, start(StartKind.BEGINNING)),
        ({"from": "live"}, start(StartKind.LIVE)),
        ({"last": 100}, start(StartKind.NEWEST, 100)),
        ({Symbol("from"): Symbol("last")}, start(StartKind.LAST)),
        ({Symbol("date"): Timestamp(NEW_YEAR)}, start(StartKind.DATE, NEW_YEAR)),
        ({Symbol("date"): "2026-01-01T00:00:00Z"}, start(StartKind.DATE, NEW_YEAR)),
        ({Symbol("offset"): ULong(5)}, start(StartKind.OFFSET, 5)),
        ({Symbol("after"): RMID}, start(StartKind.AFTER, ID)),
        ({Symbol("at"): RMID}, start(StartKind.AT, ID)),
        ({Symbol("ago"): UInt(1_500)}, start(StartKind.AGO, 1_500)),
        ({Symbol("point"): "deploy"}, start(StartKind.POINT, "deploy")),
        ({Symbol("message-id"): "m-1"}, start(StartKind.MESSAGE_ID, "m-1")),
        ({Symbol("message-id"): ULong(77)}, start(StartKind.MESSAGE_ID, "ID:AMQP_ULONG:77")),
        ({Symbol("message-id"): b"\x00\xff"}, start(StartKind.MESSAGE_ID, "ID:AMQP_BINARY:00FF")),
        (
            {Symbol("message-id"): UUID(int=5)},
            start(StartKind.MESSAGE_ID, "ID:AMQP_UUID:00000000-0000-0000-0000-000000000005"),
        ),
        ({Symbol("match"): "a = 1"}, start(StartKind.MATCH, "a = 1")),
        ({Symbol("offset"): ULong(5), Symbol("date"): None}, start(StartKind.OFFSET, 5)),
        ({"offset": 5, "until": Symbol("now")}, start(StartKind.OFFSET, 5, until=Until(UntilKind.NOW))),
        (
            {"offset": 5, "until": Timestamp(NEW_YEAR)},
            start(StartKind.OFFSET, 5, until=Until(UntilKind.DATE, NEW_YEAR)),
        ),
        ({"offset": 5, "until": UByte(9)}, start(StartKind.OFFSET, 5, until=Until(UntilKind.OFFSET, 9))),
        ({"offset": 5, "until": RMID}, start(StartKind.OFFSET, 5, until=Until(UntilKind.ID, ID))),
        ({"offset": 5, "until": "#9"}, start(StartKind.OFFSET, 5, until=Until(UntilKind.OFFSET, 9))),
        ({"offset": 5, "missing": Symbol("clamp")}, start(StartKind.OFFSET, 5, missing=Missing.CLAMP)),
        ({"offset": 5, "missing": "fail"}, start(StartKind.OFFSET, 5)),
        (
            {"offset": 5, "generation": ULong(2**64 - 1)},
            start(StartKind.OFFSET, 5, generation=2**64 - 1),
        ),
        ({"offset": 5, "speed": 10.0, "rate": UInt(3)}, start(StartKind.OFFSET, 5, speed=10.0, rate=3.0)),
        ({"until": "now"}, start(StartKind.BEGINNING, until=Until(UntilKind.NOW))),
        (
            {"until": "now", "speed": 1.0},
            start(StartKind.BEGINNING, until=Until(UntilKind.NOW), speed=1.0),
        ),
        ("beginning", start(StartKind.BEGINNING)),
        (Symbol("live"), start(StartKind.LIVE)),
        (RMID, start(StartKind.AFTER, ID)),
        (Timestamp(NEW_YEAR), start(StartKind.DATE, NEW_YEAR)),
    ],
)
def test_our_filter_is_read_in_all_its_forms(value: Any, expected: ReplayStart) -> None:
    """Each key, each modifier and each short form means what the documentation says."""
    read = from_rewind_filter(value)
    assert read == expected
    assert read.form == FILTER


@pytest.mark.parametrize("integer", INTEGERS)
def test_every_integer_type_is_an_offset(integer: type[int]) -> None:
    """Clients encode the same number as any of eight types; all of them are an offset."""
    expected = start(StartKind.OFFSET, 5)
    assert from_rewind_filter(integer(5)) == expected
    assert from_rewind_filter({"offset": integer(5)}) == expected
    assert type(from_rewind_filter(integer(5)).value) is int


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "cannot be None: it is a map, a text, a timestamp (date) or an integer (offset)"),
        (True, "cannot be True"),
        (1.5, "cannot be 1.5"),
        (b"beginning", "cannot be b'beginning'"),
        ([5], "cannot be [5]"),
        (Char("x"), "cannot be 'x'"),
        (-1, "from 0 to"),
        (ULong(2**63), "from 0 to"),
        (Timestamp(-1), "between the years 1970 and 9999"),
        (Timestamp(MAX_DATE_MS + 1), "between the years 1970 and 9999"),
        ("nonsense", "'nonsense' is not a replay start"),
        ({}, "does not say where to start, it is empty"),
        ({"from": None}, "does not say where to start, it is empty"),
        ({"speed": 2.0, "rate": 1}, "does not say where to start, it has only speed, rate"),
        ({"start": "live"}, "'start' is not a key of a replay start; the keys are from, last, date, offset"),
        ({5: "live"}, "5 is not a key"),
        ({"last": 0}, "from 1 to 1000000, not 0"),
        ({"last": "100"}, "'last' is an integer, a number of messages, not '100'"),
        ({"last": True}, "'last' is an integer"),
        ({"from": "live", "nope": None}, "'nope' is not a key"),
        ({"from": "live", "offset": 5}, "has 'from' and 'offset'"),
        ({"at": RMID, "after": RMID}, "has 'at' and 'after'"),
        ({"from": "10m"}, "'from' is one of beginning, live, last, not '10m'"),
        ({"from": 5}, "'from' is one of"),
        ({"date": NEW_YEAR}, "'date' is an AMQP timestamp"),
        ({"date": "2026-01-01"}, "is not a complete date"),
        ({"offset": Timestamp(5)}, "'offset' is an integer"),
        ({"offset": "5"}, "'offset' is an integer, not '5'"),
        ({"offset": True}, "'offset' is an integer, not True"),
        ({"offset": 5.0}, "'offset' is an integer, not 5.0"),
        ({"offset": -1}, "from 0 to"),
        ({"ago": -1}, "A time ago"),
        ({"ago": "10m"}, "'ago' is an integer, in milliseconds"),
        ({"after": 5}, "'after' is the text of a replay id"),
        ({"at": "#5"}, "is not a replay id"),
        ({"point": 5}, "'point' is a text"),
        ({"point": ""}, "'point' needs a text"),
        ({"match": b"a"}, "'match' is a text"),
        (
            {"offset": 5, "until": "tomorrow"},
            "A replay cannot end at 'tomorrow': until is now, a date such as",
        ),
        ({"offset": 5, "until": "9"}, "A replay cannot end at '9'"),
        ({"offset": 5, "until": True}, "cannot end at True"),
        ({"offset": 5, "until": -1}, "from 0 to"),
        ({"offset": 5, "missing": "skip"}, "'missing' is fail or clamp, not 'skip'"),
        ({"offset": 5, "missing": True}, "'missing' is fail or clamp"),
        ({"offset": 5, "generation": -1}, "'generation' is an unsigned 64-bit integer"),
        ({"offset": 5, "generation": "7"}, "'generation' is an unsigned"),
        ({"offset": 5, "speed": 0.0}, "'speed' is a factor of the original pace, a number above 0, not 0.0"),
        ({"offset": 5, "speed": float("nan")}, "'speed'"),
        ({"offset": 5, "speed": float("inf")}, "'speed'"),
        ({"offset": 5, "rate": True}, "'rate' is messages a second"),
        ({"offset": 5, "rate": "10"}, "'rate'"),
    ],
)
def test_our_filter_refuses_what_it_does_not_know(value: Any, words: str) -> None:
    """Unknown keys, wrong types, two starts and no start are each refused, saying what is allowed."""
    with pytest.raises(ReplayStartError, match=re.escape(words)):
        from_rewind_filter(value)


@given(value=WIRE_VALUES, read=st.sampled_from([from_rewind_filter, from_stream_offset_spec]))
def test_whatever_is_sent_is_read_or_refused(value: Any, read: Callable[[Any], ReplayStart]) -> None:
    """Any AMQP value, in our filter or RabbitMQ's, gives a start that can be shown and stored, or ReplayStartError."""
    with suppress(ReplayStartError):
        got = read(value)
        assert str(got)
        if isinstance(got.value, int):
            assert 0 <= got.value <= MAX_OFFSET
