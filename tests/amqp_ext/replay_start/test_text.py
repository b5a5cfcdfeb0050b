"""The text of a start, and dates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.replay_start import (
    MAX_DATE_MS,
    MAX_NEWEST,
    MAX_OFFSET,
    OPTION,
    SELECTOR,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    parse_date,
    parse_text,
)
from tests.amqp_ext.replay_start.starts import DAY, HOUR, ID, NEW_YEAR, RMID, start


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
    """The texts of the documentation mean what it says they mean, and fail when the log lacks the place."""
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
        ("point:", "'point' needs a text behind it"),
        ("match: ", "'match' needs a text behind it"),
        ("message-id:", "'message-id' needs a text"),
        ("2026-01-01", "is no full date: give date, time and zone"),
        ("2026-01-01T00:00:00", "is no full date: give date, time and zone"),
        ("2026-01-01T00:00Z", "is not a replay start"),
        ("2026-02-30T00:00:00Z", "no calendar and clock show it"),
        ("2026-01-01T24:00:00Z", "no calendar and clock show it"),
        ("2026-01-01T00:60:00Z", "no calendar and clock show it"),
        ("2026-01-01T00:00:61Z", "no calendar and clock show it"),
        ("2026-01-01T00:00:00+24:00", "no calendar and clock show it"),
        ("0000-01-01T00:00:00Z", "no calendar and clock show it"),
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
    """Fractions, zones and leap seconds come to the right millisecond; finer digits are dropped."""
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
