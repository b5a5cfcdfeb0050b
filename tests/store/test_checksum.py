"""Checksums of messages: what changes them, and that the ways to reckon them agree."""

from __future__ import annotations

from zlib import adler32

from hypothesis import given
from hypothesis import strategies as st

from store.checksum import (
    HEAD,
    HEAD_BITS,
    HEAD_MODULUS,
    HELD_BYTES,
    content_sum,
    content_sums,
    head_of,
    is_sound,
)
from store.sqlite.statements import LARGEST_INSERT

Fields = tuple[int, int, str, int, int, bytes]

NUMBERS = st.integers(0, 2**47)
FIELDS: st.SearchStrategy[Fields] = st.tuples(
    NUMBERS, NUMBERS, st.text(st.characters(codec="utf-8")), NUMBERS, NUMBERS, st.binary()
)


def checksum_of(fields: Fields) -> int:
    *head, content = fields
    return (content_sum(content) << HEAD_BITS) + head_of(*head)


@given(FIELDS)
def test_what_is_as_it_was_written_is_sound(fields: Fields) -> None:
    """Whatever it is, with all that it may have been counted up by in a run."""
    checksum = checksum_of(fields)
    assert is_sound(*fields, checksum)
    assert 0 <= checksum < 1 << 47, "six bytes in the file"


@given(FIELDS, st.sampled_from([0, 1, 3, 4]), st.integers(0, 5), st.integers(1, 255))
def test_a_byte_of_a_number_that_changes_is_seen(fields: Fields, field: int, place: int, change: int) -> None:
    """Id, time, offset of the bare message and route: whichever of their bytes, and however."""
    changed = list(fields)
    changed[field] ^= change << (8 * place)
    assert not is_sound(*changed, checksum_of(fields))


@given(st.binary(min_size=1), st.data())
def test_a_byte_of_a_content_that_changes_is_seen(content: bytes, data: st.DataObject) -> None:
    """Whichever, and however."""
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    checksum = checksum_of((1, 2, "t", 3, 4, content))
    assert not is_sound(1, 2, "t", 3, 4, bytes(changed), checksum)


@given(st.text("abcdefgh/", min_size=1), st.data())
def test_a_byte_of_a_topic_that_changes_is_seen(topic: str, data: st.DataObject) -> None:
    """Whichever, and however, as long as it is text."""
    place = data.draw(st.integers(0, len(topic) - 1))
    other = data.draw(st.characters(max_codepoint=127).filter(lambda c: c != topic[place]))
    changed = topic[:place] + other + topic[place + 1 :]
    assert not is_sound(1, 2, changed, 3, 4, b"x", checksum_of((1, 2, topic, 3, 4, b"x")))


@given(st.integers(0, HEAD), st.integers(0, HEAD))
def test_a_checksum_that_changes_is_seen(head: int, other: int) -> None:
    """A head stands for what it is by the modulus, and for nothing else."""
    fields = (1, 2, "t", 3, 4, b"x")
    checksum = content_sum(b"x") << HEAD_BITS
    assert is_sound(*fields, checksum + head) == (head % HEAD_MODULUS == head_of(1, 2, "t", 3, 4))
    assert not is_sound(*fields, checksum + (1 << HEAD_BITS) + other)


def test_contents_are_summed_in_pieces_as_whole() -> None:
    """Around the length from which on ``zlib`` would give up the interpreter's lock."""
    contents = [bytes(length) + b"x" for length in (0, HELD_BYTES - 1, HELD_BYTES, 3 * HELD_BYTES)]
    whole = list(map(adler32, contents))
    assert content_sums(contents, max(map(len, contents))) == whole
    assert content_sums(contents[2:3], 1) == whole[2:3]


def test_heads_of_a_run_can_be_counted_up() -> None:
    """The last of the longest run is still no part of the content's sum."""
    assert HEAD_MODULUS - 1 + LARGEST_INSERT - 1 <= HEAD
