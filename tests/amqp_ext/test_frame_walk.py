"""The walk over a peer's frames, as values: what the engine is handed, whatever comes in whatever pieces."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, Symbol, UInt, ULong
from amqp_ext.frames.flow import StateRequest
from amqp_ext.frames.walk import BadConnection, BadSession, Finding, FrameWalk, Retirement
from tests.support.frames import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    frame,
    framed,
)

LARGEST = 2_000
WINDOWS = [UInt(0), UInt(9), UInt(0), UInt(9)]
BEGUN = [None, UInt(0), UInt(9), UInt(9)]
OPENED = AMQP_HEADER + frame(OPEN, ["c"]) + frame(BEGIN, BEGUN)
ATTACHED = frame(ATTACH, ["n", UInt(0), False])
ECHO = frame(FLOW, [*WINDOWS, None, None, None, None, None, True])

values = st.one_of(
    st.none(), st.booleans(), st.integers(0, 3).map(UInt), st.binary(max_size=4), st.text(max_size=4)
)
codes = st.integers(OPEN, 0x19)
frames = st.one_of(
    st.builds(
        lambda code, fields, payload, channel: frame(code, fields, payload, channel=channel),
        codes,
        st.lists(values, max_size=11),
        st.binary(max_size=8),
        st.integers(0, 1),
    ),
    st.builds(lambda body, kind: framed(body, kind=kind), st.binary(max_size=30), st.integers(0, 2)),
    st.sampled_from([AMQP_HEADER, frame(END, []), frame(BEGIN, BEGUN), ATTACHED, ECHO]),
    st.binary(max_size=12),
)


def walked(walk: FrameWalk, pieces: list[bytes]) -> tuple[bytes, list[Finding]]:
    """All that the engine is handed, and all that is found."""
    found = [piece for data in pieces for piece in walk.pieces_of(data)]
    return b"".join(data for data, _ in found), [finding for _, finding in found if finding is not None]


@given(st.lists(frames, max_size=8).map(b"".join), st.lists(st.integers(0, 60), max_size=6))
def test_the_same_is_made_of_it_in_whatever_pieces_it_comes(data: bytes, cuts: list[int]) -> None:
    """And what is held of a frame that is not whole is less than the largest."""
    data = OPENED + ATTACHED + data
    whole = FrameWalk(LARGEST, 4)
    expected = walked(whole, [data])
    walk, pieces = FrameWalk(LARGEST, 4), []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    assert walked(walk, [*pieces, data]) == expected
    assert walk.held_bytes == whole.held_bytes < LARGEST


@given(st.lists(frames, max_size=8).map(b"".join))
def test_nothing_is_made_up(data: bytes) -> None:
    """Whatever comes, the engine is handed what came, or less, or the same by another spelling; in linear time."""
    handed_on, found = walked(FrameWalk(LARGEST, 4), [OPENED, data])
    assert len(handed_on) <= len(OPENED) + len(data) + 64
    assert sum(isinstance(finding, BadConnection) for finding in found) <= 1


def test_an_octet_at_a_time() -> None:
    """Each frame is handed on as it is whole, no sooner."""
    walk = FrameWalk(LARGEST, 4)
    data = OPENED + ATTACHED + ECHO
    handed_on, found = walked(walk, [bytes([octet]) for octet in data])
    assert (handed_on, found) == (data, [StateRequest(None, 0, is_drain=False, is_echo=True)])


def test_what_follows_a_request_goes_along_with_it_up_to_the_next_flow() -> None:
    """Engines write a drain in front of the settlements that make room for what it is to bring."""
    settled = frame(DISPOSITION, [True, UInt(0), UInt(3), True, Described(ULong(0x24), [])])
    walk = FrameWalk(LARGEST, 4)
    walk.pieces_of(OPENED)
    pieces = [(bytes(data), found is not None) for data, found in walk.pieces_of(ECHO + settled + ECHO)]
    assert pieces == [(ECHO + settled, True), (ECHO, True)]


def test_a_bad_frame_is_cut_out_and_what_is_behind_it_on_its_session() -> None:
    """Other sessions' frames, and the peer's end, are handed on."""
    walk = FrameWalk(LARGEST, 4)
    begun = frame(BEGIN, BEGUN, channel=1)
    bad, late = frame(DETACH, [UInt(3), True]), frame(TRANSFER, [UInt(0), UInt(0), b"t"])
    other, ended = frame(ATTACH, ["o", UInt(0), True], channel=1), frame(END, [])
    handed_on, found = walked(walk, [OPENED, ATTACHED, begun + bad + late + other + ended])
    assert handed_on == OPENED + ATTACHED + begun + other + ended
    assert [type(finding) for finding in found] == [BadSession]
    assert walked(walk, [frame(BEGIN, BEGUN)])[1] == []


def test_handles_and_channels_are_told_in_the_order_in_which_they_come() -> None:
    """For those who hear of sessions and links from the engine, which does not say them."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, ATTACHED, frame(ATTACH, ["m", UInt(2), True])])
    assert (list(walk.begun_channels), [one[:2] for one in walk.attached]) == ([0], [(0, 0), (0, 2)])


def test_an_outcome_in_a_transaction_is_found_with_its_range() -> None:
    """Across the end of the numbers, and by whichever descriptor."""
    for descriptor in (ULong(0x34), Symbol("amqp:transactional-state:list")):
        state: Any = Described(descriptor, [b"txn"])
        said = frame(DISPOSITION, [True, UInt(2**32 - 1), UInt(1), True, state])
        walk = FrameWalk(LARGEST, 4)
        assert walked(walk, [OPENED, said])[1] == [Retirement(0, b"txn", 3)]


def test_what_says_that_it_is_too_large_is_handed_on_with_all_behind_it() -> None:
    """The engine says what is wrong with it."""
    walk = FrameWalk(LARGEST, 4)
    large = (LARGEST + 1).to_bytes(4, "big") + b"\x02\x00\x00\x00"
    assert walked(walk, [OPENED + large, b"more"]) == (OPENED + large + b"more", [])
