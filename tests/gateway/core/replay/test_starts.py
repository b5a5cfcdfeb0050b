"""Starts at points and at messages that were searched for: what the core makes of what the log is and was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import Missing, ReplayStart, StartKind, Until, UntilKind, parse_text
from amqp_ext.replay_start.filter_value import NAME_CHARACTERS
from gateway.core.broker import Broker
from gateway.core.effects import DeletePoint, SavePoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import LogState, Point
from gateway.core.replay.search import search_for
from gateway.core.replay.starts import LogFacts, Resolved, resolve

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


def resolved(text: str, facts: LogFacts = FACTS, found: int | None = None, **modifiers: Any) -> Resolved:
    return resolve(replace(parse_text(text), **modifiers), facts, FakeProbe(), NOW_MS, None, found)


def refusal(text: str, facts: LogFacts = FACTS, found: int | None = None, **modifiers: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        resolved(text, facts, found, **modifiers)
    return caught.value


# --- ends ---------------------------------------------------------------------------------------------------------


def test_an_end_is_an_id_of_this_log() -> None:
    """A replay ends with the message whose id was named."""
    assert resolved("#12", until=Until(UntilKind.ID, ReplayId(7, 15))).last == 15


@pytest.mark.parametrize("missing", Missing)
def test_an_end_in_another_log_is_refused(missing: Missing) -> None:
    """The id of another generation's message is no end, clamped or not: here it is some other message's."""
    refused = refusal("#12", until=Until(UntilKind.ID, ReplayId(8, 15)), missing=missing)
    assert refused.code is ErrorCode.LOG_MODIFIED


# --- points -------------------------------------------------------------------------------------------------------


def test_a_point_is_the_first_id_behind_it() -> None:
    """A replay from a point starts with the first message behind it, and says when that arrived."""
    assert resolved("point:eod") == Resolved(15, None, NOW_MS - 5_000)


def test_a_point_behind_which_nothing_came_is_live() -> None:
    """A replay from a point at the end of the log has nothing to read, and is live at once."""
    assert resolved("point:eod", replace(FACTS, next_id=15)) == Resolved(15, None, None, is_live=True)


def test_a_trimmed_point_says_so() -> None:
    """A point that the log no longer reaches back to is refused with its id, its time and where the log begins."""
    refused = refusal("point:eod", replace(FACTS, first_id=16))
    assert refused.code is ErrorCode.START_MESSAGE_UNAVAILABLE
    assert refused.text == (
        "point 'eod' was trimmed: it stands at id 15 (2027-01-15T07:59:55.000Z), and the log begins at id 16"
    )


def test_a_point_whose_first_message_is_still_there_was_not_trimmed() -> None:
    """A point is good as long as the message right behind it is in the log."""
    assert resolved("point:eod", replace(FACTS, first_id=15)).first == 15


def test_clamp_takes_a_trimmed_point_for_the_beginning() -> None:
    """With missing=clamp a trimmed point is the oldest message there is: nothing that came after it is missed."""
    assert resolved("point:eod", replace(FACTS, first_id=16), missing=Missing.CLAMP).first == 16


@pytest.mark.parametrize("missing", Missing)
def test_a_point_that_nobody_made_is_refused(missing: Missing) -> None:
    """A name that no point has is refused as missing, even with missing=clamp: it is no place at all."""
    refused = refusal("point:oed", missing=missing)
    assert refused.code is ErrorCode.START_MESSAGE_UNAVAILABLE
    assert "no point named 'oed'" in refused.text


# --- messages that were searched for ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["message-id:m-1", "match:tradeId = 'T-1'"])
def test_a_found_message_is_the_first_one(text: str) -> None:
    """A replay from a message that was found starts with that message."""
    assert resolved(text, found=12) == Resolved(12, None, NOW_MS - 8_000)


@pytest.mark.parametrize("text", ["message-id:m-1", "match:tradeId = 'T-1'"])
@pytest.mark.parametrize("found", [None, 9])
def test_a_message_that_is_not_there_is_refused(text: str, found: int | None) -> None:
    """What was not found, or was trimmed while the search went on, is refused, naming what was asked for."""
    refused = refusal(text, found=found)
    assert refused.code is ErrorCode.START_MESSAGE_UNAVAILABLE
    assert text in refused.text
    assert "ids 10 to 19" in refused.text


def test_an_empty_log_is_said_to_be_empty() -> None:
    """Where nothing is in the log, a refusal says so and names the id that comes next, instead of a range of none."""
    empty = replace(FACTS, first_id=20)
    for text in ("#5", "match:tradeId = 'T-1'"):
        assert refusal(text, empty).text.endswith("is empty; the next message is 20")


def test_a_date_before_the_log_is_told_where_the_log_begins() -> None:
    """Who asks for a time before the log learns, as a date that is a start, from when on the log is whole."""
    refused = refusal("2026-01-02T03:04:05Z", replace(FACTS, floor_ms=NOW_MS))
    assert refused.code is ErrorCode.START_TIME_NOT_AVAILABLE
    assert "which is whole from 2027-01-15T08:00:00.000Z on" in refused.text


@pytest.mark.parametrize("text", ["message-id:m-1", "match:tradeId = 'T-1'"])
def test_clamp_takes_a_missing_message_for_the_beginning(text: str) -> None:
    """With missing=clamp a message that is not there is the beginning of the log: it may have been trimmed."""
    assert resolved(text, missing=Missing.CLAMP).first == 10


@pytest.mark.parametrize("text", ["point:eod", "message-id:m-1", "match:a = 1"])
def test_no_log_no_start(text: str) -> None:
    """With the replay log off, each of the starts is refused as any other replay is."""
    assert refusal(text, replace(FACTS, enabled=False)).code is ErrorCode.REPLAY_DISABLED


@pytest.mark.parametrize("text", ["point:eod", "message-id:m-1", "match:a = 1"])
def test_another_generation_is_refused(text: str) -> None:
    """A start that is meant for another making of the log is refused before anything else."""
    assert refusal(text, generation=8).code is ErrorCode.LOG_MODIFIED


@pytest.mark.parametrize(
    ("selector", "position"),
    [("tradeId =", 10), ("tradeId = 'T' AND", 18), ("5 > 'x'", 5), ("properties.foo = 1", 1)],
)
def test_a_bad_selector_is_refused_with_its_position(selector: str, position: int) -> None:
    """A selector that is none is an unknown start, and the text says at which character."""
    with pytest.raises(Refused) as caught:
        search_for(ReplayStart(StartKind.MATCH, selector), None)
    assert caught.value.code is ErrorCode.UNKNOWN_START
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
    with pytest.raises(Refused) as caught:
        broker.points.create("eod", 3, 1, NOW_MS)
    assert caught.value.code is ErrorCode.ALREADY_EXISTS
    assert broker.points.delete("eod") == (first, [DeletePoint("eod")])
    with pytest.raises(Refused):
        broker.points.create("eod", 3, 1, NOW_MS)
    broker.points.deleted(first)
    assert broker.points.create("eod", 3, 1, NOW_MS)[0].position == 3


def test_there_is_nothing_to_delete_under_an_unknown_name() -> None:
    """Deleting a point that is not there is refused as not found."""
    with pytest.raises(Refused) as caught:
        a_broker().points.delete("eod")
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\ud800", "x" * (NAME_CHARACTERS + 1)])
def test_a_points_name_can_be_read(name: str) -> None:
    """A name that is blank, too long, or has characters that cannot be seen is refused."""
    with pytest.raises(Refused) as caught:
        a_broker().points.create(name, 1, 1, NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_FIELD


def test_without_a_log_there_are_no_points() -> None:
    """With the replay log off a point is refused as a replay is."""
    with pytest.raises(Refused) as caught:
        a_broker(reads=False).points.create("eod", None, None, NOW_MS)
    assert caught.value.code is ErrorCode.REPLAY_DISABLED
