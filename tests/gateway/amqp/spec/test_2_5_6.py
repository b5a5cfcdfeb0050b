"""2.5.6, session flow control: transfer-ids rise, around the largest, and do not go back."""

from __future__ import annotations

import pytest

from amqp_ext.codec import UInt
from tests.gateway.amqp.spec.conftest import Opened, ScriptedPeer
from tests.support.frames import BEGIN, CLOSE, END, FLOW, WINDOW, error_of, frame

VIOLATION = "amqp:session:window-violation"
LARGEST = 2**32 - 1


def flow(channel: int, incoming: int | None, outgoing: int) -> bytes:
    """A session's flow that asks for an answer."""
    expected = None if incoming is None else UInt(incoming)
    session = [expected, UInt(WINDOW), UInt(outgoing), UInt(WINDOW)]
    return frame(FLOW, [*session, *[None] * 5, True], channel=channel)


def begun(opened: Opened, first: int) -> ScriptedPeer:
    """A peer with a session on channel 1 whose first transfer is to have this id."""
    peer = opened()
    peer.send(frame(BEGIN, [None, UInt(first), UInt(WINDOW), UInt(WINDOW)], channel=1))
    peer.skip_to(BEGIN)
    return peer


@pytest.mark.parametrize(
    ("first", "flows"),
    [
        (5, [(0, 4)]),
        (0, [(0, LARGEST)]),
        (5, [(0, 7), (0, 6)]),
        (0, [(7, 0), (6, 0)]),
        (0, [(LARGEST, 0), (0, 0), (LARGEST, 0)]),
    ],
)
def test_ids_that_go_back_end_the_session(opened: Opened, first: int, flows: list[tuple[int, int]]) -> None:
    """What has been transferred cannot be transferred yet. Other sessions go on."""
    peer = begun(opened, first)
    peer.send(*(flow(1, *numbers) for numbers in flows))
    assert error_of(peer.skip_to(END, never=CLOSE))[0] == VIOLATION
    peer.attach(0, target=["queue://q"])


@pytest.mark.parametrize(
    ("first", "flows"),
    [
        (LARGEST - 1, [(0, LARGEST - 1), (0, LARGEST), (0, 0), (0, 1)]),
        (0, [(None, 0), (LARGEST, 0), (None, 0), (0, 0), (0, 0), (3, 9)]),
    ],
)
def test_ids_that_rise_do_not(opened: Opened, first: int, flows: list[tuple[int | None, int]]) -> None:
    """They stay, rise, and begin anew behind the largest; one that is not said is none."""
    peer = begun(opened, first)
    peer.send(*(flow(1, *numbers) for numbers in flows))
    for _ in flows:
        peer.skip_to(FLOW, never=END)
