"""Frames that are read, and partly rewritten, before the engine gets them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, Symbol, UInt, ULong
from amqp_ext.frames.delivery_ids import ID_MODULUS, SeparateIds
from amqp_ext.frames.flow import (
    StateRequest,
    fields_of,
    frames_of,
    state_request_of,
    with_handle_max,
    with_link_state,
)
from amqp_ext.frames.walk import (
    BadConnection,
    BadLink,
    BadSession,
    Finding,
    FrameWalk,
    Retirement,
    Separation,
)
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
    parse,
)

# --- The walk over a peer's frames: what the engine gets, and what is found -------------------------------------------

LARGEST = 2_000
WINDOWS = [UInt(0), UInt(9), UInt(0), UInt(9)]
BEGUN = [None, UInt(0), UInt(9), UInt(9)]
OPENED = AMQP_HEADER + frame(OPEN, ["c"]) + frame(BEGIN, BEGUN)
ATTACHED = frame(ATTACH, ["n", UInt(0), False])
BOTH_ATTACHED = ATTACHED + frame(ATTACH, ["m", UInt(1), False])
ECHO = frame(FLOW, [*WINDOWS, None, None, None, None, None, True])


def transferred(
    handle: int,
    number: int | None,
    settled: bool = False,
    more: bool = False,
    aborted: bool = False,
    *,
    body: bytes = b"",
) -> bytes:
    said = None if number is None else UInt(number)
    fields = [UInt(handle), said, b"t", None, settled, more, None, None, None, aborted]
    return frame(TRANSFER, fields if aborted else fields[:6], body)


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
    st.builds(
        lambda handle, number, settled, more, body: transferred(handle, number, settled, more, body=body),
        st.integers(0, 1),
        st.one_of(st.none(), st.integers(0, 2)),
        st.booleans(),
        st.booleans(),
        st.binary(max_size=4),
    ),
    st.binary(max_size=12),
)


def walked(walk: FrameWalk, pieces: list[bytes]) -> tuple[bytes, list[Finding]]:
    """The bytes that the engine gets, and the findings."""
    found = [piece for data in pieces for piece in walk.pieces_of(data)]
    return b"".join(data for data, _ in found), [finding for _, finding in found if finding is not None]


@given(st.lists(frames, max_size=8).map(b"".join), st.lists(st.integers(0, 60), max_size=6))
def test_the_same_is_made_of_it_in_whatever_pieces_it_comes(data: bytes, cuts: list[int]) -> None:
    """Bytes and findings do not depend on how the input is cut, and less than a largest frame is held back."""
    data = OPENED + BOTH_ATTACHED + data
    whole = FrameWalk(LARGEST, 4)
    expected = walked(whole, [data])
    walk, pieces = FrameWalk(LARGEST, 4), []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    assert walked(walk, [*pieces, data]) == expected
    assert walk.held_bytes == whole.held_bytes < LARGEST
    assert walk.renumbered_count == whole.renumbered_count


def cut(data: bytes) -> Iterator[bytes]:
    """Whole frames and protocol headers; a remainder that is neither comes last."""
    while data:
        size = 8 if data.startswith(b"AMQP") else int.from_bytes(data[:4], "big")
        if not 8 <= size <= min(len(data), LARGEST):
            size = len(data)
        yield data[:size]
        data = data[size:]


def but_its_id(one: bytes) -> object:
    """A frame to be compared, a transfer without its delivery-id."""
    if fields_of(one, TRANSFER) is None:
        return one
    parsed = parse(one, 0, len(one))
    assert parsed is not None
    _, fields, payload = parsed
    return one[4:8], fields[:1], fields[2:], payload


@given(st.lists(frames, max_size=8).map(b"".join))
def test_nothing_is_made_up(data: bytes) -> None:
    """
    Of any bytes, the engine gets frames that came, in their order, and each once; a transfer may have another id. It
    gets every whole frame where none is found wrong, and nothing more once the connection has failed.
    """
    data = OPENED + BOTH_ATTACHED + data
    walk = FrameWalk(LARGEST, 4)
    handed_on, found = walked(walk, [data])
    came = iter([but_its_id(one) for one in cut(data)])
    assert all(but_its_id(one) in came for one in cut(handed_on))
    if not any(isinstance(finding, BadConnection | BadSession | BadLink | Separation) for finding in found):
        assert handed_on == data[: len(data) - walk.held_bytes]
    failures = [finding for finding in found if isinstance(finding, BadConnection)]
    assert failures == found[-1:] or not failures
    assert not failures or walk.pieces_of(ECHO) == []


def test_an_octet_at_a_time() -> None:
    """Bytes that arrive one by one give the same frames and the same finding."""
    walk = FrameWalk(LARGEST, 4)
    data = OPENED + ATTACHED + ECHO
    handed_on, found = walked(walk, [bytes([octet]) for octet in data])
    assert (handed_on, found) == (data, [StateRequest(None, 0, is_drain=False, is_echo=True)])


def test_what_follows_a_request_goes_along_with_it_up_to_the_next_flow() -> None:
    """A peer's engine may write a drain before the settlements that make room for the drained messages."""
    settled = frame(DISPOSITION, [True, UInt(0), UInt(3), True, Described(ULong(0x24), [])])
    walk = FrameWalk(LARGEST, 4)
    walk.pieces_of(OPENED)
    pieces = [(bytes(data), found is not None) for data, found in walk.pieces_of(ECHO + settled + ECHO)]
    assert pieces == [(ECHO + settled, True), (ECHO, True)]


def test_a_bad_frame_is_cut_out_and_what_is_behind_it_on_its_session() -> None:
    """The engine still gets the frames of other sessions, and the peer's end."""
    walk = FrameWalk(LARGEST, 4)
    begun = frame(BEGIN, BEGUN, channel=1)
    bad, late = frame(DETACH, [UInt(3), True]), frame(TRANSFER, [UInt(0), UInt(0), b"t"])
    other, ended = frame(ATTACH, ["o", UInt(0), True], channel=1), frame(END, [])
    handed_on, found = walked(walk, [OPENED, ATTACHED, begun + bad + late + other + ended])
    assert handed_on == OPENED + ATTACHED + begun + other + ended
    assert [type(finding) for finding in found] == [BadSession]
    assert walked(walk, [frame(BEGIN, BEGUN)])[1] == []


def test_what_the_codec_refuses_is_not_left_to_the_engine() -> None:
    """A peer could send what an engine takes and our codec does not, as a map of keys that all have one hash."""
    keys = {UUID(int=number * (2**61 - 1)): None for number in range(1, 30)}
    attach = ["n", UInt(0), False, *[None] * 10, keys]
    walk = FrameWalk(LARGEST, 4)
    handed_on, findings = walked(walk, [OPENED + frame(ATTACH, attach) + BOTH_ATTACHED])
    assert handed_on == OPENED
    assert walk.attached == []
    (found,) = findings
    assert isinstance(found, BadConnection)
    assert (found.condition, "keys of one hash" in found.text) == ("amqp:decode-error", True)


def test_handles_and_channels_are_told_in_the_order_in_which_they_come() -> None:
    """Channels and handles are kept in order, as the engine reports sessions and links without them."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, ATTACHED, frame(ATTACH, ["m", UInt(2), True])])
    assert (list(walk.begun_channels), [one[:2] for one in walk.attached]) == ([0], [(0, 0), (0, 2)])


def test_an_outcome_in_a_transaction_is_found_with_its_range() -> None:
    """The range may wrap around at 32 bits, and the state's descriptor may be a code or a symbol."""
    for descriptor in (ULong(0x34), Symbol("amqp:transactional-state:list")):
        state: Any = Described(descriptor, [b"txn"])
        said = frame(DISPOSITION, [True, UInt(2**32 - 1), UInt(1), True, state])
        walk = FrameWalk(LARGEST, 4)
        assert walked(walk, [OPENED, said])[1] == [Retirement(0, b"txn", 3)]


def test_what_says_that_it_is_too_large_is_handed_on_with_all_behind_it() -> None:
    """A frame that declares too large a size is left to the engine, which reports the error."""
    walk = FrameWalk(LARGEST, 4)
    large = (LARGEST + 1).to_bytes(4, "big") + b"\x02\x00\x00\x00"
    assert walked(walk, [OPENED + large, b"more"]) == (OPENED + large + b"more", [])


# --- delivery-ids that a peer counts for each link --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "own_ids", "found", "count"),
    [
        pytest.param([(0, 7), (0, 8), (1, 9)], [7, 8, 9], [], 0, id="over both links"),
        pytest.param([(0, 0), (1, 0), (0, 1), (1, 1)], [0, 1, 2, 3], [Separation], 3, id="apart"),
        pytest.param(
            [(0, 0), (1, 9, True), (0, 5, True), (0, 6)], [0, 1, 2, 3], [Separation], 1, id="settled"
        ),
        pytest.param(
            [(0, 2**32 - 1), (1, 2**32 - 1), (1, 0)], [2**32 - 1, 0, 1], [Separation], 2, id="come round"
        ),
        pytest.param(
            [(0, 0), (1, 0, False, True), (1, 0, False, True), (1, None, False, False), (1, 1)],
            [0, 1, 1, 1, 2],
            [Separation],
            2,
            id="in several transfers",
        ),
        pytest.param(
            [(0, 0), (1, 0, False, True), (1, None, True, False)],
            [0, 1, 1],
            [Separation],
            0,
            id="settled late",
        ),
        pytest.param(
            [(0, 0), (1, 0, False, False, True), (1, 1, False, True), (1, None, False, True, True), (1, 2)],
            [0, 1, 2, 2, 3],
            [Separation],
            1,
            id="taken back",
        ),
        pytest.param(
            [(0, 0, False, True), (1, 0), (0, 0, False, True), (0, None, False, False), (0, 7)],
            [0, 1, 0, None, 2],
            [Separation],
            2,
            id="one that was begun before",
        ),
        pytest.param(
            [(0, 2**32 - 3), (1, 0), (0, 9), (1, 1), (1, 2)],
            [2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1],
            [Separation],
            4,
            id="the engine's come round",
        ),
        pytest.param([(0, 0), (0, 2)], [0, 2], [], 0, id="one left out, which the engine says"),
        pytest.param([(0, 0), (1, 1), (1, 3)], [0, 1, 3], [], 0, id="one left out of both"),
        pytest.param(
            [(0, 0), (1, 0), (1, 2)], [0, 1], [Separation, BadSession], 0, id="one left out of its own"
        ),
        pytest.param(
            [(0, 0), (1, 0, False, True), (1, 1, False, False)],
            [0, 1],
            [Separation, BadSession],
            0,
            id="another in the middle",
        ),
    ],
)
def test_deliveries_that_links_count_apart_are_counted_over_all(
    sent: list[Any], own_ids: list[int], found: list[type], count: int
) -> None:
    """The engine gets ids counted over all links. ``Separation`` is found once, before the first renumbered delivery,
    and unsettled deliveries are remembered."""
    walk = FrameWalk(LARGEST, 4)
    data = b"".join(transferred(*one) for one in sent)
    walked(walk, [OPENED, BOTH_ATTACHED])
    handed_on, findings = walked(walk, [data])
    assert [fields_of(one, TRANSFER)[1] for one in frames_of(handed_on)] == own_ids
    assert [type(one) for one in findings] == found
    assert walk.renumbered_count == count


def test_the_engine_is_told_first_that_its_output_is_to_be_translated() -> None:
    """``Separation`` comes after earlier requests, and before the transfer that the engine may answer immediately."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, BOTH_ATTACHED, transferred(0, 0)])
    pieces = walk.pieces_of(ECHO + transferred(1, 0) + transferred(0, 1))
    assert [bytes(data) for data, _ in pieces] == [ECHO, b"", transferred(1, 1), transferred(0, 2)]
    assert [type(found).__name__ for _, found in pieces] == [
        "StateRequest",
        "Separation",
        "NoneType",
        "NoneType",
    ]


def test_a_transfer_that_would_not_fit_its_frame_has_no_id() -> None:
    """If the renumbered id would make the frame too large, it is left out, which means the next id."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, BOTH_ATTACHED, transferred(0, 300)])
    room = LARGEST - len(transferred(1, 3))
    for number, body, expected in ((3, b"x" * room, None), (4, b"x" * (room - 10), 302)):
        handed_on, _ = walked(walk, [transferred(1, number, body=body)])
        assert (fields_of(handed_on, TRANSFER)[1], len(handed_on) <= LARGEST) == (expected, True)


ACCEPTED = Described(ULong(0x24), [])


def accepted(first: int, last: int, channel: int = 5, *, peer_sends: bool = True) -> bytes:
    return frame(DISPOSITION, [peer_sends, UInt(first), UInt(last), True, ACCEPTED], channel=channel)


def test_outcomes_are_said_by_the_peer_s_ids() -> None:
    """Outcomes of the peer's deliveries are rewritten to the peer's ids, only on the channel of its session."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, BOTH_ATTACHED, frame(BEGIN, BEGUN, channel=1)])
    begins = ECHO + frame(BEGIN, BEGUN, channel=5)
    assert walk.saw_begins(begins) == begins
    walk.saw_begins(frame(BEGIN, BEGUN, channel=4) + ECHO)
    walked(walk, [b"".join(transferred(*one) for one in [(0, 0), (0, 1), (1, 8), (1, 9), (0, 2), (1, 10)])])
    others = accepted(2, 3, 4) + accepted(2, 3, peer_sends=False) + ECHO
    assert walk.in_peers_ids(others) == others
    assert walk.in_peers_ids(accepted(0, 4) + ECHO) == accepted(0, 1) + accepted(8, 9) + accepted(2, 2) + ECHO
    alone = frame(DISPOSITION, [True, UInt(5), None, True, ACCEPTED, True], channel=5)
    assert walk.in_peers_ids(alone) == frame(
        DISPOSITION, [True, UInt(10), UInt(10), True, ACCEPTED, True], channel=5
    )
    assert walk.renumbered_count == 0


@pytest.mark.parametrize(
    ("last", "said"), [(frame(DETACH, [UInt(1), True]), accepted(0, 0)), (frame(END, []), accepted(0, 0))]
)
def test_nothing_is_said_of_links_that_are_gone(last: bytes, said: bytes) -> None:
    """Deliveries of a detached link or an ended session are forgotten: a late outcome of them is left out."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, BOTH_ATTACHED, transferred(0, 0), transferred(1, 7), last])
    walk.saw_begins(frame(BEGIN, BEGUN, channel=5))
    assert walk.renumbered_count == 0
    walked(walk, [frame(END, []), frame(BEGIN, BEGUN), BOTH_ATTACHED, transferred(0, 0), transferred(1, 1)])
    assert walk.in_peers_ids(accepted(0, 1)) == said
    walk.saw_begins(frame(BEGIN, BEGUN, channel=5))
    assert walk.in_peers_ids(accepted(0, 1)) == accepted(0, 1)


def test_what_a_peer_says_of_its_own_deliveries_is_cut_out_where_it_counts_apart() -> None:
    """Once ids are counted for each link, the peer's dispositions as sender are ambiguous, and left out."""
    walk = FrameWalk(LARGEST, 4)
    settled = accepted(0, 0, 0, peer_sends=False)
    assert walked(walk, [OPENED, BOTH_ATTACHED, transferred(0, 0), settled])[0].endswith(settled)
    assert walked(walk, [transferred(1, 0), settled]) == (transferred(1, 1), [Separation()])
    received = frame(DISPOSITION, [True, UInt(0), None, True, Described(ULong(0x27), [True])])
    assert walked(walk, [received]) == (received, [])


def test_a_session_that_is_begun_again_begins_with_any_id() -> None:
    """A new session on a channel may begin with any delivery-id, whatever the last session had."""
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, ATTACHED, transferred(0, 0), frame(END, []), frame(BEGIN, BEGUN), ATTACHED])
    assert walked(walk, [transferred(0, 9), transferred(0, 10)]) == (
        transferred(0, 9) + transferred(0, 10),
        [],
    )


def test_a_peer_is_remembered_no_more_than_it_has_unsettled() -> None:
    """Only unsettled deliveries are remembered, however often links attach and detach and ids jump."""
    dice = Random(5)
    walk = FrameWalk(LARGEST, 4)
    walked(walk, [OPENED, BOTH_ATTACHED, transferred(0, 0)])
    for _ in range(200):
        number = dice.randrange(2**32 - 50)
        walked(walk, [b"".join(transferred(1, number + step, step % 2 == 0) for step in range(20))])
        assert walk.renumbered_count == 10
        walked(walk, [frame(DETACH, [UInt(1), True]), frame(ATTACH, ["m", UInt(1), False])])
        assert walk.renumbered_count == 0
    assert walked(walk, [transferred(1, 3), transferred(1, 9)])[1] == [
        BadSession(
            0, "amqp:invalid-field", "delivery-ids rise by one: 4 is next on the link at handle 1, not 9"
        )
    ]


# --- Flow frames that are read and completed as bytes -----------------------------------------------------------------

SESSION = [UInt(1), UInt(2), UInt(3), UInt(4)]


@given(st.lists(st.binary(max_size=40)), st.binary(max_size=40))
def test_cutting_loses_nothing(bodies: list[bytes], rest: bytes) -> None:
    """Whole frames come one by one, and the rest as it is."""
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
    """A flow asks for state by an echo, or by a drain of a link; the delivery-count plus credit wraps at 32 bits."""
    assert state_request_of([*SESSION, *link, *[None] * (7 - len(link))]) == expected


def test_a_sessions_state_is_completed_with_a_links() -> None:
    """The first flow without a link gets the link's fields and keeps its channel; other frames stay as they are."""
    before, after = frame(FLOW, [*SESSION, UInt(0), UInt(0), UInt(1)]), frame(0x15, [True, UInt(0)])
    output = with_link_state(
        before + frame(FLOW, SESSION, channel=6) + after, 9, count=-1, credit=3, is_drain=True
    )
    first, completed, last = frames_of(output)
    assert (first, last) == (before, after)
    assert completed[6:8] == b"\x00\x06"
    assert fields_of(completed, FLOW) == [1, 2, 3, 4, 9, 2**32 - 1, 3, None, True]


def test_where_there_is_no_sessions_state_nothing_is_completed() -> None:
    """Output without a session's flow stays as it is."""
    output = frame(0x12, [Symbol("a")]) + b"\x00\x00"
    assert with_link_state(output, 0, count=0, credit=0, is_drain=False) == output


def test_begins_say_the_greatest_handle() -> None:
    """A begin gets this handle-max in place of the engine's; other frames stay as they are."""
    before, begin = frame(FLOW, SESSION), frame(BEGIN, [None, *SESSION[1:]], channel=3)
    written = with_handle_max(before + begin + before, 7)
    assert written == before + frame(BEGIN, [None, *SESSION[1:], UInt(7)], channel=3) + before


# --- The table of delivery-ids that a peer counts for each link -------------------------------------------------------

HANDLES = st.integers(0, 3)
IDS = st.sampled_from([0, 1, 7, ID_MODULUS - 2, ID_MODULUS - 1])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), HANDLES, st.booleans()),
        st.tuples(st.just("begin"), HANDLES, st.booleans()),
        st.tuples(st.just("settle"), st.integers(-4, 12), st.integers(0, 12)),
        st.tuples(st.just("take back"), HANDLES, st.none()),
        st.tuples(st.just("detach"), HANDLES, st.none()),
    ),
    max_size=40,
)


def expanded(ranges: list[tuple[int, int]]) -> list[int]:
    return [
        (first + step) % ID_MODULUS
        for first, last in ranges
        for step in range((last - first) % ID_MODULUS + 1)
    ]


@given(IDS, st.lists(IDS, min_size=4, max_size=4), STEPS)
def test_each_delivery_is_settled_by_the_id_that_its_link_has_for_it(
    next_id: int, firsts: list[int], steps: list[tuple[str, int, object]]
) -> None:
    """Each delivery is settled once, by its link's id, unless the link is gone. Deliveries from before the table keep
    their ids. The table has exactly the unsettled deliveries."""
    ids = SeparateIds(next_id)
    unsettled: dict[int, tuple[int, int]] = {}
    newest: dict[int, tuple[int, int]] = {}
    own = next_id
    for what, at, more in steps:
        if what == "begin":
            number = (newest[at][0] + 1) % ID_MODULUS if at in newest else firsts[at]
            if at in newest:
                assert ids.begin(at, (number + 1) % ID_MODULUS, is_settled=False) == number
            assert ids.begin(at, number, is_settled=bool(more)) is None
            newest[at] = number, own
            assert ids.newest(at) == newest[at]
            if not more:
                unsettled[own] = at, number
            own = (own + 1) % ID_MODULUS
        elif what == "settle":
            assert isinstance(more, int)
            first, last = (next_id + at) % ID_MODULUS, (next_id + at + more) % ID_MODULUS
            expected = []
            for step in range(at, at + more + 1):
                number = (next_id + step) % ID_MODULUS
                if step < 0:
                    expected.append(number)
                elif number in unsettled:
                    expected.append(unsettled.pop(number)[1])
            ranges = ids.settle_range(first, last)
            assert expanded(ranges) == expected
            assert all((begin - end - 1) % ID_MODULUS for (_, end), (begin, _) in pairwise(ranges))
        elif what == "take back" and at in newest:
            assert ids.settle(newest[at][1]) == unsettled.pop(newest[at][1], (0, None))[1]
        elif what == "detach":
            ids.detach(at)
            newest.pop(at, None)
            unsettled = {own: entry for own, entry in unsettled.items() if entry[0] != at}
        assert len(ids) == len(unsettled)
    for handle in range(4):
        ids.detach(handle)
    assert (len(ids), ids.settle_range(next_id, own)) == (0, [])


def test_ids_that_have_come_round_are_not_taken_for_those_from_before() -> None:
    """After more than half of all ids, new deliveries are not mistaken for those from before the table."""
    ids = SeparateIds(5)
    ids._next = 2**31 + 9
    ids.begin(0, 77, is_settled=False)
    ids.begin(0, 78, is_settled=True)
    assert ids.settle_range(2**31 + 9, 2**31 + 10) == [(77, 77)]
