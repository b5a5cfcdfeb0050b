"""Text that PostgreSQL cannot store is stored as other text, and read as what it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.postgresql.database import read_text, stored_text

_texts = st.text(st.sampled_from("\0\x01\x0201a/*")) | st.text()


@given(_texts)
def test_what_is_stored_is_read(text: str) -> None:
    """Whatever it holds; and what is stored holds no U+0000."""
    assert read_text(stored_text(text)) == text
    assert "\0" not in stored_text(text)


@given(_texts, _texts)
def test_each_character_is_written_by_itself(one: str, other: str) -> None:
    """So what begins with a text does so where it is stored, and patterns can be matched there."""
    assert stored_text(one + other) == stored_text(one) + stored_text(other)


def test_what_has_none_is_as_it_was() -> None:
    """Nearly every topic is stored as the same object."""
    text = "a/ä/€"
    assert stored_text(text) is text
    assert read_text(text) is text
