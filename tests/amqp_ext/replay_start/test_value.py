"""Starts as values: equality, and how they show themselves."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Timestamp
from amqp_ext.rabbitmq.forms import from_stream_offset_spec
from amqp_ext.replay_start import (
    MAX_DATE_MS,
    from_rewind_filter,
    parse_text,
)
from tests.amqp_ext.replay_start.starts import NEW_YEAR, RMID


def test_starts_are_equal_when_they_ask_for_the_same() -> None:
    """The form is no part of what is asked for; everything else is."""
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
