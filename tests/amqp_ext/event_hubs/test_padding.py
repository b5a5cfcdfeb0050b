"""Performatives filled up with the fields that engines leave out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, UInt, ULong, decode
from amqp_ext.event_hubs.frames import FIELDS, PADDING_BYTES, Padder, padded
from tests.support.frames import AMQP_HEADER, frame

HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"

values = st.one_of(
    st.none(),
    st.booleans(),
    st.binary(max_size=300),
    st.text(max_size=60),
    st.integers(0, 2**32 - 1).map(UInt),
    st.lists(st.text(max_size=5), max_size=3),
)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, int, list[Any], bytes]:
    """A frame with any number of its fields, and what it is made of."""
    code = draw(st.sampled_from(sorted(FIELDS)))
    fields = draw(st.lists(values, max_size=FIELDS[code]))
    payload = draw(st.binary(max_size=300)) if code == 0x14 else b""
    return frame(code, fields, payload), code, fields, payload


@given(frames())
def test_a_padded_frame_means_the_same(made: tuple[bytes, int, list[Any], bytes]) -> None:
    """Every field and the payload are as they were, the missing fields are null, and the frame's size is right."""
    raw, code, fields, payload = made
    found = padded(raw)
    performative, behind = decode(found, 8)
    assert int.from_bytes(found[:4], "big") == len(found) <= len(raw) + PADDING_BYTES
    assert found[4:8] == raw[4:8]
    assert performative == Described(ULong(code), fields + [None] * (FIELDS[code] - len(fields)))
    assert found[behind:] == payload


@given(st.lists(frames(), max_size=4), st.lists(st.integers(1, 50), max_size=20))
def test_pieces_of_any_size_give_the_same_frames(
    made: list[tuple[bytes, int, list[Any], bytes]], sizes: list[int]
) -> None:
    """However the engine's output is cut, what is written is each of its frames, padded."""
    whole = AMQP_HEADER + HEARTBEAT + b"".join(raw for raw, *_ in made)
    padder, written, start = Padder(), b"", 0
    for size in [*sizes, len(whole)]:
        written += padder.pad(whole[start : start + size])
        start += size
    assert written == AMQP_HEADER + HEARTBEAT + b"".join(padded(raw) for raw, *_ in made)


@pytest.mark.parametrize(
    "raw",
    [
        HEARTBEAT,
        AMQP_HEADER,
        frame(0x17, []),
        frame(0x18, []),
        b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x44\x45",
    ],
)
def test_what_needs_no_padding_stays(raw: bytes) -> None:
    """Heartbeats, headers, end, close and frames of SASL are written as they are."""
    assert padded(raw) == raw
