"""The quick paths of the generator agree with the full decoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, UInt, ULong
from tests.bench.generator.dispositions import acceptance, accepted_range
from tests.bench.generator.transfers import BLOCK, STAMP, TransferBlock
from tests.support.frames import ACCEPTED, DISPOSITION, TRANSFER, Frame, disposition, frame, parse

IDS = st.integers(0, 2**32 - 1)
ACCEPTANCE = Described(ULong(ACCEPTED), [])


@given(IDS, st.none() | IDS)
def test_a_plain_acceptance_is_read_without_decoding(first: int, last: int | None) -> None:
    """Whatever the width of the ids, and with ``last`` left null, the bounds are those that were written."""
    fields = [True, UInt(first), None if last is None else UInt(last), True, ACCEPTANCE]
    encoded = bytearray(frame(DISPOSITION, fields))

    assert accepted_range(encoded, 0, len(encoded)) == (first, first if last is None else last)


@pytest.mark.parametrize("code", [0x23, 0x25, 0x26, 0x27])
def test_any_other_outcome_is_left_to_the_decoder(code: int) -> None:
    """Received, rejected, released and modified are never taken for accepted."""
    encoded = bytearray(frame(DISPOSITION, [True, UInt(1), UInt(2), True, Described(ULong(code), [])]))

    assert accepted_range(encoded, 0, len(encoded)) is None


@given(IDS, st.none() | IDS)
def test_an_acceptance_that_is_decoded_has_the_same_bounds(first: int, last: int | None) -> None:
    """Brokers that encode it in another way are understood; another outcome is none."""
    bounds = [True, UInt(first), None if last is None else UInt(last), True]

    assert acceptance(Frame(DISPOSITION, [*bounds, ACCEPTANCE], b"")) == (
        first,
        first if last is None else last,
    )
    assert acceptance(Frame(DISPOSITION, [*bounds, Described(ULong(0x26), [])], b"")) is None
    assert acceptance(Frame(DISPOSITION, bounds, b"")) is None


@given(IDS, IDS)
def test_a_disposition_is_what_the_decoder_reads(first: int, last: int) -> None:
    """The hand-made frame has the fields of section 2.7.6."""
    encoded = disposition(first, last)

    parsed = parse(encoded, 0, len(encoded))

    assert parsed is not None
    assert (parsed.code, parsed.fields) == (DISPOSITION, [True, first, last, True, ACCEPTANCE])


@given(st.integers(0, 2**32 - BLOCK), st.integers(1, BLOCK), st.integers(0, 2**64 - 1))
def test_a_block_holds_transfers_numbered_in_order(first: int, count: int, now: int) -> None:
    """Every frame of a patched block decodes to its own delivery id and tag, its number and the time."""
    block = TransferBlock(64)
    encoded = bytes(block.fill(first, count, now))

    assert len(encoded) == count * block.stride
    for index in {0, count // 2, count - 1}:
        parsed = parse(encoded, index * block.stride, (index + 1) * block.stride)
        assert parsed is not None
        number = first + index
        assert (parsed.code, parsed.fields[:3]) == (TRANSFER, [0, number, number.to_bytes(4, "big")])
        assert STAMP.unpack_from(parsed.payload, len(parsed.payload) - 64) == (number, now)
