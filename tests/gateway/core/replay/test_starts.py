"""Starts at points and at messages that were searched for: what the core makes of what the log is and was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

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
from gateway.core.effects import DeletePoint, SavePoint
from gateway.core.errors import ErrorCode
from gateway.core.log import LogPolicy
from gateway.core.model import LogState, Point
from gateway.core.replay.search import search_for
from gateway.core.replay.starts import LogFacts, Resolved, resolve
from tests.support.refusals import refused

NOW_MS = 1_800_000_000_000
POINT = Point("eod", 15, NOW_MS - 5_000, NOW_MS - 4_000)
FACTS = LogFacts(True, 7, first_id=10, next_id=20, floor_ms=0, points={"eod": POINT})


class FakeProbe:
    """A log that holds ids 10 to 19, one a second."""

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
        # A replay ends with the message whose id was named.
        ("#12", FACTS, None, {"until": END_OF_7}, Resolved(12, 15, NOW_MS - 8_000)),
        # A point is the first id behind it; where nothing came, that is live, and it is good while that is there.
        ("point:eod", FACTS, None, {}, Resolved(15, None, NOW_MS - 5_000)),
        ("point:eod", replace(FACTS, next_id=15), None, {}, Resolved(15, None, None, is_live=True)),
        ("point:eod", replace(FACTS, first_id=15), None, {}, Resolved(15, None, NOW_MS - 5_000)),
        # With missing=clamp what is not there is the beginning: nothing that came after it is missed.
        ("point:eod", TRIMMED, None, {"missing": Missing.CLAMP}, Resolved(16, None, NOW_MS - 4_000)),
        *((text, FACTS, None, {"missing": Missing.CLAMP}, Resolved(10, None, NOW_MS - 10_000)) for text in BOTH),
        # A message that was found is the first one.
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
        # The id of another generation's message is no end, clamped or not: here it is some other message's.
        *(("#12", FACTS, None, {"until": END_OF_8, "missing": how}, ErrorCode.LOG_MODIFIED, "") for how in Missing),
        # A point that the log no longer reaches back to: its id, its time, and where the log begins.
        (
            "point:eod", TRIMMED, None, {}, UNAVAILABLE,
            "point 'eod' was trimmed: it stands at id 15 (2027-01-15T07:59:55.000Z), and the log begins at id 16",
        ),
        # A name that no point has is no place at all, even with missing=clamp.
        *(("point:oed", FACTS, None, {"missing": how}, UNAVAILABLE, "no point named 'oed'") for how in Missing),
        # What was not found, or was trimmed while the search went on, is named, with what there is.
        *((text, FACTS, found, {}, UNAVAILABLE, text) for text in BOTH for found in (None, 9)),
        *((text, FACTS, found, {}, UNAVAILABLE, "ids 10 to 19") for text in BOTH for found in (None, 9)),
        *((text, EMPTY, None, {}, UNAVAILABLE, "is empty; the next message is 20") for text in ("#5", BOTH[1])),
        # Who asks for a time before the log learns, as a date that is a start, from when on the log is whole.
        (
            "2026-01-02T03:04:05Z", replace(FACTS, floor_ms=NOW_MS), None, {}, ErrorCode.START_TIME_NOT_AVAILABLE,
            "which is whole from 2027-01-15T08:00:00.000Z on",
        ),
        # With the replay log off, and meant for another making of the log, each start is refused before anything else.
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


@pytest.mark.parametrize(
    ("selector", "position"),
    [("tradeId =", 10), ("tradeId = 'T' AND", 18), ("5 > 'x'", 5), ("properties.foo = 1", 1)],
)
def test_a_bad_selector_is_refused_with_its_position(selector: str, position: int) -> None:
    """A selector that is none is an unknown start, and the text says at which character."""
    with refused(ErrorCode.UNKNOWN_START) as caught:
        search_for(ReplayStart(StartKind.MATCH, selector), None)
    assert caught.value.text.endswith(f"at character {position} of the selector")


@pytest.mark.parametrize("text", ["beginning", "live", "last", "10m", "#12", "point:eod"])
def test_other_starts_need_no_search(text: str) -> None:
    """Only a message-id and a selector are searched for."""
    assert search_for(parse_text(text), None) is None


# --- points in the broker -----------------------------------------------------------------------------------------


def a_broker(**policy: Any) -> Broker:
    log = LogState(generation=7, first_id=1, next_id=5, last_time_ms=0, floor_ms=0)
    return Broker(log, LogPolicy(**policy), window=10, create_queues=True)


def test_a_point_made_now_is_behind_everything_published() -> None:
    """A point made now stands behind messages that are on their way into the store, too."""
    broker = a_broker()
    broker.publications.publish(NOW_MS, "t", [b"\x00\x53\x75\xa0\x00"] * 3, [0] * 3, None)
    point, effects = broker.points.create("now", None, None, NOW_MS)
    assert point == Point("now", 8, NOW_MS, NOW_MS)
    assert effects == [SavePoint(point)]


def test_a_points_name_is_taken_once() -> None:
    """A second point of the same name is refused, until the first one's deletion is committed."""
    broker = a_broker()
    first, _ = broker.points.create("eod", 2, 1, NOW_MS)
    with refused(ErrorCode.ALREADY_EXISTS):
        broker.points.create("eod", 3, 1, NOW_MS)
    assert broker.points.delete("eod") == (first, [DeletePoint("eod")])
    with refused(ErrorCode.ALREADY_EXISTS):
        broker.points.create("eod", 3, 1, NOW_MS)
    broker.points.deleted(first)
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
    """A name that is blank, too long, or has characters that cannot be seen is refused; so is any with the log off."""
    with refused(code):
        a_broker(reads=code is ErrorCode.INVALID_FIELD).points.create(name, None, None, NOW_MS)


def test_there_is_nothing_to_delete_under_an_unknown_name() -> None:
    with refused(ErrorCode.NOT_FOUND):
        a_broker().points.delete("eod")
