"""Frames seen before the engine: batches known by their message-format, and room left for padding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong, decode, encode
from amqp_ext.event_hubs.frames import BATCH_FORMAT, FIELDS, PADDING_BYTES, IncomingFrames, Padder, padded
from tests.support.frames import AMQP_HEADER, frame, framed

# --- Frames seen before the engine ----------------------------------------------------------------------------------


def attach(name: str, handle: int, *, sends: bool = True, channel: int = 0) -> bytes:
    """The attach of a link of the peer's."""
    return frame(0x12, [name, UInt(handle), not sends], channel=channel)


def transfer(handle: int, tag: bytes | None, form: int | None, *, channel: int = 0, **said: bool) -> bytes:
    """A transfer; ``more`` and ``aborted`` as they are said."""
    fields = [UInt(handle), UInt(0) if tag else None, tag, UInt(form) if form is not None else None]
    fields += [False, said.get("more", False), None, None, None, said.get("aborted", False)]
    return frame(0x14, fields, b"payload", channel=channel)


def watching(*names: str) -> IncomingFrames:
    """Incoming frames that follow these links, which are attached with the handles 0, 1…"""
    seen = IncomingFrames(65_536)
    for handle, name in enumerate(names):
        seen.receive(attach(name, handle))
        seen.follow(name)
    return seen


def test_a_batch_is_known_by_its_link_and_tag() -> None:
    """A tag on one link says nothing of the same tag on another; and it is asked for once."""
    seen = watching("one", "two")
    for raw in (transfer(0, b"t", BATCH_FORMAT), transfer(1, b"t", 0), transfer(1, b"u", None)):
        assert seen.receive(raw) == raw
    assert not seen.is_batch("two", b"t") and not seen.is_batch("two", b"u")
    assert seen.is_batch("one", b"t")
    assert not seen.is_batch("one", b"t")


def test_a_batch_in_several_transfers() -> None:
    """The first transfer of a delivery says its format; those that follow need not."""
    seen = watching("one")
    seen.receive(transfer(0, b"t", BATCH_FORMAT, more=True))
    seen.receive(transfer(0, None, None, more=True) + transfer(0, None, None))
    seen.receive(transfer(0, b"u", 0))
    assert seen.is_batch("one", b"t")
    assert not seen.is_batch("one", b"u")


def test_an_aborted_batch_is_forgotten() -> None:
    """Nobody will ask for it."""
    seen = watching("one")
    seen.receive(transfer(0, b"t", BATCH_FORMAT, more=True) + transfer(0, None, None, aborted=True))
    assert not seen.is_batch("one", b"t")


def test_only_links_that_are_followed_are_remembered() -> None:
    """A peer cannot have tags kept by sending batches where nobody asks for them."""
    seen = watching("one")
    seen.forget("one")
    seen.receive(transfer(0, b"t", BATCH_FORMAT))
    seen.follow("one")
    assert not seen.is_batch("one", b"t")


def test_a_handle_is_the_link_of_its_last_attach() -> None:
    """After a detach or the end of its session a handle may be another link's."""
    seen = watching("one")
    seen.receive(frame(0x16, [UInt(0), True]) + attach("two", 0))
    seen.follow("two")
    seen.receive(transfer(0, b"t", BATCH_FORMAT))
    seen.receive(frame(0x17, []) + attach("one", 0))
    seen.receive(transfer(0, b"u", BATCH_FORMAT))
    assert (seen.is_batch("two", b"t"), seen.is_batch("one", b"u")) == (True, True)


@pytest.mark.parametrize("asked", [65_536, 544, 2**32 - 1])
def test_an_open_leaves_room_for_padding(asked: int) -> None:
    """The engine is told of smaller frames than the peer takes, so that a frame that it fills can still be padded."""
    raw = frame(0x10, ["container", "host", UInt(asked), None, UInt(30_000)])
    seen = IncomingFrames(65_536).receive(AMQP_HEADER + raw)[8:]
    assert int.from_bytes(seen[:4], "big") == len(seen)
    fields = decode(seen, 8)[0].value
    assert fields == ["container", "host", UInt(asked - PADDING_BYTES), None, UInt(30_000)]


@pytest.mark.parametrize(
    "raw",
    [
        frame(0x10, ["container", "host", UInt(512)]),
        frame(0x10, ["container"]),
        frame(0x14, []),
        frame(0x12, [None, None, UByte(7)]),
        b"\x00\x00\x00\x0a\x02\x00\x00\x00\x00\x53",
        b"\x00\x00\x00\x02 no frame at all",
        b"\xff\xff\xff\xff" + b"too large",
        b"\x00\x00\x00\x09\x02\x00\x00\x00\x41",
    ],
)
def test_what_is_odd_is_left_to_the_engine(raw: bytes) -> None:
    """Bytes that are no frame, or not a good one, reach the engine as they came."""
    seen = watching("one")
    assert seen.receive(raw[:5]) + seen.receive(raw[5:]) == raw


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_go_through(data: bytes, cut: int) -> None:
    """Nothing that a peer sends makes them fail, or lose a byte of what it has handed on."""
    seen = IncomingFrames(4_096)
    assert data.startswith(seen.receive(data[:cut]) + seen.receive(data[cut:]))


def test_symbolic_descriptors_are_read() -> None:
    """A descriptor may be a symbol (AMQP 1.0 section 2.7)."""
    body = encode(Described(Symbol("amqp:attach:list"), ["one", UInt(0), False]))
    seen = IncomingFrames(4_096)
    seen.receive(framed(body))
    seen.follow("one")
    seen.receive(transfer(0, b"t", BATCH_FORMAT))
    assert seen.is_batch("one", b"t")


# --- Performatives filled up with the fields that engines leave out -------------------------------------------------

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
