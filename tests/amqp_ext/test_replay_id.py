"""The text form of replay ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.replay_id import MAX_FIELD, ReplayId, ReplayIdError, format_replay_id, parse_replay_id

_fields = st.integers(0, MAX_FIELD)


def test_the_digits_are_the_generation_and_then_the_number() -> None:
    """Sixteen digits of generation cut 5-11, then sixteen of the number cut 8-8, all in lower case."""
    text = format_replay_id(0x123456789ABCDEF0, 0xFEDCBA9876543210)
    assert text == "rmid1:12345-6789abcdef0-fedcba98-76543210"
    assert str(ReplayId(1, 2)) == "rmid1:00000-00000000001-00000000-00000002"


@given(generation=_fields, number=_fields)
def test_reading_undoes_writing(generation: int, number: int) -> None:
    """Any id that can be written is read back, in either case of letters."""
    text = format_replay_id(generation, number)
    assert re.fullmatch(r"rmid1:[0-9a-f]{5}-[0-9a-f]{11}-[0-9a-f]{8}-[0-9a-f]{8}", text)
    assert parse_replay_id(text) == ReplayId(generation, number) == parse_replay_id(text.upper())


@given(generation=_fields, numbers=st.tuples(_fields, _fields))
def test_texts_of_one_generation_sort_as_their_messages(generation: int, numbers: tuple[int, int]) -> None:
    """Comparing two ids of one log as texts compares their places."""
    first, second = (format_replay_id(generation, number) for number in numbers)
    assert (first < second) is (numbers[0] < numbers[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rmid1:",
        "12345-6789abcdef0-fedcba98-76543210",
        "rmid2:12345-6789abcdef0-fedcba98-76543210",
        "rmid1:12345-6789abcdef0-fedcba98-7654321",
        "rmid1:12345-6789abcdef0-fedcba98-765432100",
        "rmid1:123456-789abcdef0-fedcba98-76543210",
        "rmid1:12345-6789abcdefg-fedcba98-76543210",
        "rmid1:12345-6789abcdef0-fedcba98-76543210\n",
        " rmid1:12345-6789abcdef0-fedcba98-76543210",
        "rmid1:12345-6789abcdef0-fedcba98-7654321\u0663",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A text that is not of the form is refused, and the sentence shows one that is."""
    with pytest.raises(ReplayIdError, match=r"5-11-8-8 .* 'rmid1:00000-00000000001-00000000-00000001'"):
        parse_replay_id(text)


@pytest.mark.parametrize(("generation", "number"), [(-1, 0), (MAX_FIELD + 1, 0), (0, -1), (0, MAX_FIELD + 1)])
def test_numbers_beyond_64_bits_have_no_text(generation: int, number: int) -> None:
    """A negative or too large part is refused instead of being cut."""
    with pytest.raises(ReplayIdError, match="64 bits and no sign"):
        format_replay_id(generation, number)
