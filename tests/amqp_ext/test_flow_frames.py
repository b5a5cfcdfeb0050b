"""Flow frames read and completed beside the engine, as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol, UInt
from amqp_ext.frames.flow import (
    StateRequest,
    fields_of,
    frames_of,
    state_request_of,
    with_handle_max,
    with_link_state,
)
from tests.support.frames import BEGIN, FLOW, frame, framed

SESSION = [UInt(1), UInt(2), UInt(3), UInt(4)]


@given(st.lists(st.binary(max_size=40)), st.binary(max_size=40))
def test_cutting_loses_nothing(bodies: list[bytes], rest: bytes) -> None:
    """Whole frames come one by one, and what is behind them as it is, whatever it is."""
    whole = [framed(body) for body in bodies]
    pieces = list(frames_of(b"".join(whole) + rest))
    assert pieces[: len(whole)] == whole
    assert b"".join(pieces[len(whole) :]) == rest


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ([], None),
        ([None, None, None, None, None, True], StateRequest(None, 0, is_drain=False, is_echo=True)),
        ([UInt(5), UInt(7), UInt(10)], None),
        ([UInt(5), UInt(7), UInt(10), None, False, False], None),
        ([UInt(5), UInt(7), UInt(10), None, True], StateRequest(5, 17, is_drain=True, is_echo=False)),
        (
            [UInt(5), UInt(2**32 - 1), UInt(2), None, None, True],
            StateRequest(5, 1, is_drain=False, is_echo=True),
        ),
        ([None, None, None, None, True], None),
    ],
)
def test_what_a_flow_asks_for(link: list[Any], expected: StateRequest | None) -> None:
    """An echo asks, and a drain of a link; credit reaches to a delivery-count that wraps around at 32 bits."""
    assert state_request_of([*SESSION, *link, *[None] * (7 - len(link))]) == expected


def test_a_sessions_state_is_completed_with_a_links() -> None:
    """The first flow of no link gets the link's fields on its own channel; all else goes as it is."""
    before, after = frame(FLOW, [*SESSION, UInt(0), UInt(0), UInt(1)]), frame(0x15, [True, UInt(0)])
    output = with_link_state(
        before + frame(FLOW, SESSION, channel=6) + after, 9, count=-1, credit=3, is_drain=True
    )
    first, completed, last = frames_of(output)
    assert (first, last) == (before, after)
    assert completed[6:8] == b"\x00\x06"
    assert fields_of(completed, FLOW) == [1, 2, 3, 4, 9, 2**32 - 1, 3, None, True]


def test_where_there_is_no_sessions_state_nothing_is_completed() -> None:
    """Output without a flow of a session goes as it is."""
    output = frame(0x12, [Symbol("a")]) + b"\x00\x00"
    assert with_link_state(output, 0, count=0, credit=0, is_drain=False) == output


def test_begins_say_the_greatest_handle() -> None:
    """Whatever the engine said there; all else goes as it is."""
    before, begin = frame(FLOW, SESSION), frame(BEGIN, [None, *SESSION[1:]], channel=3)
    written = with_handle_max(before + begin + before, 7)
    assert written == before + frame(BEGIN, [None, *SESSION[1:], UInt(7)], channel=3) + before
