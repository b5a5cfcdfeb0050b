"""Our own filter: a map, or a short form."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
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
    MAX_OFFSET,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    Until,
    UntilKind,
    from_rewind_filter,
)
from tests.amqp_ext.replay_start.starts import ID, INTEGERS, NEW_YEAR, RMID, WIRE_VALUES, start


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
        ({"date": "2026-01-01"}, "is no full date"),
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
    """Any AMQP value gives a start that can be shown and stored, or a ReplayStartError; so in RabbitMQ's filter."""
    with suppress(ReplayStartError):
        got = read(value)
        assert str(got)
        if isinstance(got.value, int):
            assert 0 <= got.value <= MAX_OFFSET
