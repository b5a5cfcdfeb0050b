"""Event Hubs' positions as starts."""

from __future__ import annotations

import re

import pytest

from amqp_ext.event_hubs.forms import POSITION, from_position_selector
from amqp_ext.replay_start import (
    MAX_DATE_MS,
    MAX_OFFSET,
    ReplayStartError,
    StartKind,
)
from tests.amqp_ext.replay_start.starts import NEW_YEAR, start


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset >= '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset > '@latest'", StartKind.LIVE, None),
        ("amqp.annotation.x-opt-offset > '41'", StartKind.OFFSET, 42),
        ("amqp.annotation.x-opt-offset >= '41'", StartKind.OFFSET, 41),
        ("amqp.annotation.x-opt-sequence-number > '41'", StartKind.OFFSET, 42),
        ("amqp.annotation.x-opt-sequence-number >= '41'", StartKind.OFFSET, 41),
        ("amqp.annotation.x-opt-sequence-number > '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-sequence-number >= '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset > '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset >= '00000'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-enqueued-time >= '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-enqueued-time > '-62135596800000'", StartKind.BEGINNING, None),
        (f"amqp.annotation.x-opt-enqueued-time > '{NEW_YEAR}'", StartKind.DATE, NEW_YEAR + 1),
        (f"amqp.annotation.x-opt-enqueued-time >= '{NEW_YEAR}'", StartKind.DATE, NEW_YEAR),
        ("  amqp.annotation.x-opt-offset>'41' ", StartKind.OFFSET, 42),
        ('"amqp.annotation.x-opt-sequence-number" > 12345', StartKind.OFFSET, 12_346),
        (f'"amqp.annotation.x-opt-enqueued-time" >= {NEW_YEAR}', StartKind.DATE, NEW_YEAR),
    ],
)
def test_event_hubs_positions_are_read(text: str, kind: StartKind, place: int | None) -> None:
    """The strings that the Event Hubs clients send, and the form of them that Qpid JMS can send."""
    read = from_position_selector(text)
    assert read == start(kind, place)
    assert read is not None and read.form == POSITION


@pytest.mark.parametrize(
    "text",
    [
        "",
        "colour = 'red'",
        "amqp.annotation.x-opt-offset < '5'",
        "amqp.annotation.x-opt-offset = '5'",
        "amqp.annotation.x-opt-offset > '5' AND colour = 'red'",
        '"amqp.annotation.x-opt-offset > 5',
        "amqp.annotation.x-opt-partition-key > '5'",
        "xamqp.annotation.x-opt-offset > '5'",
    ],
)
def test_other_selectors_are_not_event_hubs_positions(text: str) -> None:
    """A selector of another form is left to be a selector."""
    assert from_position_selector(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("amqp.annotation.x-opt-offset > ''", "The supplied offset '' is invalid: it is a number, '-1'"),
        ("amqp.annotation.x-opt-offset > 'abc'", "The supplied offset 'abc' is invalid"),
        ("amqp.annotation.x-opt-offset > '-2'", "'-2' is invalid"),
        ("amqp.annotation.x-opt-enqueued-time > '@latest'", "it is a time in ms since the epoch"),
        ("amqp.annotation.x-opt-enqueued-time > '2026-01-01'", "it is a time in ms since the epoch"),
        (f"amqp.annotation.x-opt-offset > '{MAX_OFFSET}'", "An offset is a number from 0"),
        (f"amqp.annotation.x-opt-enqueued-time > '{MAX_DATE_MS}'", "between the years"),
        ("amqp.annotation.x-opt-offset > '" + "9" * 5_000 + "'", "is invalid"),
    ],
)
def test_a_bad_event_hubs_position_is_refused(text: str, words: str) -> None:
    """The right form with no position in it is an error, not a selector that matches nothing."""
    with pytest.raises(ReplayStartError, match=re.escape(words)):
        from_position_selector(text)
