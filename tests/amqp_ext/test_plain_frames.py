"""Plain frames, which are skipped without decoding: the versions in C and in Python skip the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong
from amqp_ext.frames.plain import link_key, plain_frames
from tests.support.frames import BEGIN, DISPOSITION, FLOW, TRANSFER, frame

try:
    from gateway.amqp.engine._transfers import plain_frames as in_c
except ImportError:  # no compiler here
    in_c = plain_frames

BEGUN, CONTINUED = {link_key(0, 0), link_key(1, 300)}, {link_key(0, 1), link_key(1, 7)}
NEXT_IDS = {0: 5, 1: 2**32 - 2}
ACCEPTED = Described(ULong(0x24), [])

numbers = st.one_of(
    st.none(),
    st.sampled_from([0, 1, 5, 6, 7, 300, 2**32 - 2, 2**32 - 1]).map(UInt),
    st.integers(0, 2**32 - 1).map(UInt),
)
booleans = st.one_of(st.none(), st.booleans())
states = st.sampled_from(
    [None, None, ACCEPTED, Described(ULong(0x25), []), Described(ULong(0x34), [b"t"]), ULong(1)]
)
tags = st.one_of(st.none(), st.binary(max_size=40))
modes = st.sampled_from([None, None, None, UByte(0), UByte(1)])
transfers = st.tuples(
    numbers, numbers, tags, numbers, booleans, booleans, modes, states, booleans, booleans, booleans
).map(list)
dispositions = st.tuples(booleans, numbers, numbers, booleans, states, booleans).map(list)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame, most often a transfer or a disposition, with any number of trailing fields left out."""
    code, fields = draw(
        st.one_of(
            transfers.map(lambda fields: (TRANSFER, fields)),
            dispositions.map(lambda fields: (DISPOSITION, fields)),
            st.just((FLOW, [UInt(1)])),
            st.just((BEGIN, [])),
        )
    )
    kept = draw(st.integers(0, len(fields)))
    made = frame(code, fields[:kept], draw(st.binary(max_size=20)), channel=draw(st.integers(0, 2)))
    if draw(st.booleans()):
        return made
    place = draw(st.integers(0, len(made) - 1))
    return made[:place] + bytes([draw(st.integers(0, 255))]) + made[place + 1 :]


def skipped(skip: Any, data: bytes, position: int = 0) -> tuple[int, dict[int, int]]:
    """Where the skipped frames end, and the next delivery-ids at that point."""
    next_ids = dict(NEXT_IDS)
    return skip(data, position, BEGUN, CONTINUED, next_ids), next_ids


@given(st.lists(frames(), max_size=4).map(b"".join) | st.binary(max_size=80), st.integers(0, 3))
def test_c_and_python_skip_the_same(data: bytes, cut: int) -> None:
    """Both versions skip the same of any bytes, cut or damaged, and never beyond the end."""
    data = data[: max(len(data) - cut, 0)]
    assert skipped(in_c, data) == skipped(plain_frames, data)
    assert 0 <= skipped(in_c, data)[0] <= len(data)


def whole(handle: int, *more: Any, tag: Any = b"t", channel: int = 0, number: int = 5) -> bytes:
    return frame(TRANSFER, [UInt(handle), UInt(number), tag, UInt(0), *more], b"body", channel=channel)


@pytest.mark.parametrize("skip", [plain_frames, in_c])
@pytest.mark.parametrize(
    ("plain", "next_ids"),
    [
        ([whole(0, number=number) for number in (5, 6, 7)], {0: 8, 1: 2**32 - 2}),
        (
            [whole(0, True, False), whole(300, channel=1, number=2**32 - 2), whole(0, number=6)],
            {0: 7, 1: 2**32 - 1},
        ),
        ([whole(300, channel=1, number=number) for number in (2**32 - 2, 2**32 - 1, 0, 1)], {0: 5, 1: 2}),
        ([frame(TRANSFER, [UInt(1), None, None, None, None, True], b"middle")] * 3, NEXT_IDS),
        ([frame(TRANSFER, [UInt(1), UInt(5), b"t", None, None, True], b"middle")] * 3, NEXT_IDS),
        ([frame(DISPOSITION, [True, UInt(1), UInt(4), True, ACCEPTED])] * 3, NEXT_IDS),
        ([frame(DISPOSITION, [True, UInt(1)])] * 3, NEXT_IDS),
        ([frame(DISPOSITION, [True, UInt(2**32 - 1), UInt(4), True, ACCEPTED])] * 3, NEXT_IDS),
    ],
)
def test_what_comes_by_the_thousand_is_skipped(
    skip: Any, plain: list[bytes], next_ids: dict[int, int]
) -> None:
    """Frames are skipped up to one of another kind; ids rise with each delivery, but not with its middle transfers."""
    whole_ones = b"".join(plain)
    assert skipped(skip, whole_ones + frame(BEGIN, [])) == (len(whole_ones), next_ids)
    assert skipped(skip, frame(BEGIN, []) + whole_ones, len(frame(BEGIN, [])))[1] == next_ids


@pytest.mark.parametrize("skip", [plain_frames, in_c])
@pytest.mark.parametrize(
    "looked_at",
    [
        whole(5),
        whole(0, channel=1),
        whole(0, number=4),
        whole(0, number=6),
        whole(0, tag=None),
        whole(0, tag=b"t" * 33),
        whole(0, None, True),
        whole(0, None, None, UByte(1)),
        whole(0, None, None, None, ACCEPTED),
        frame(TRANSFER, [None, UInt(5), b"t"]),
        frame(TRANSFER, [UInt(0), UInt(5), b"t", b"its format"], b"body"),
        frame(TRANSFER, [UInt(1), None, None, None, None, False], b"last"),
        frame(TRANSFER, [UInt(1), None, None, UInt(0), None, True], b"says its format"),
        frame(DISPOSITION, [False, UInt(1)]),
        frame(DISPOSITION, [None, UInt(1)]),
        frame(DISPOSITION, [True, None]),
        frame(DISPOSITION, [True, UInt(5), UInt(4)]),
        frame(DISPOSITION, [True, UInt(1), None, True, Described(Symbol("amqp:accepted:list"), [])]),
        frame(DISPOSITION, [True, UInt(1), None, True, Described(ULong(0x34), [b"t"])]),
    ],
)
def test_what_may_mean_something_is_looked_at(skip: Any, looked_at: bytes) -> None:
    """
    Not skipped is a frame that lacks a field or has an unusual one, has another id than the next, begins or ends a
    delivery of many transfers, belongs to a transaction, or is a sender's disposition.
    """
    assert skipped(skip, looked_at) == (0, NEXT_IDS)


@pytest.mark.parametrize("skip", [plain_frames, in_c])
@pytest.mark.parametrize(
    "looked_at", [whole(0), frame(TRANSFER, [UInt(1), None, None, None, None, True], b"middle")]
)
def test_a_session_that_has_no_next_id_has_its_transfers_looked_at(skip: Any, looked_at: bytes) -> None:
    """No transfer is skipped before the session's first id is known, or where ids are counted for each link."""
    assert skip(looked_at, 0, BEGUN, CONTINUED, {}) == 0


@given(
    st.just([whole(0, False, False, number=number) for number in (5, 6, 7)])
    | st.tuples(frames()).map(lambda one: one * 3),
    st.integers(0, 2),
    st.integers(0, 2**16),
    st.integers(0, 255),
)
def test_what_is_like_the_one_before_is_told_from_what_is_almost(
    alike: Sequence[bytes], which: int, place: int, octet: int
) -> None:
    """Among three equal frames, one differs in an octet anywhere: both versions skip the same."""
    one = alike[which]
    place %= len(one)
    changed = one[:place] + bytes([octet]) + one[place + 1 :]
    data = b"".join([*alike[:which], changed, *alike[which + 1 :]])
    assert skipped(in_c, data) == skipped(plain_frames, data)
