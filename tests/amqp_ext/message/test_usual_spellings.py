"""What every message is asked, read the short way where it is spelled as usual: the same answers as the long way's."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol, UInt, ULong, encode
from amqp_ext.message import sections as section_contents
from amqp_ext.message.sections import (
    PROPERTIES,
    MalformedMessage,
    bare_offset,
    bare_offsets,
    to_address,
)
from tests.amqp_ext.message.test_sections import ANNOTATIONS, BODIES, HEADERS, data, section, wide

# --- where the bare message begins ----------------------------------------------------------------------------------


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Messages as one publisher sends them, and some that are nearly the same: cut short, or another in one octet."""
    fronts = st.sampled_from([header + more for header in HEADERS.values() for more in ANNOTATIONS.values()])
    front = draw(fronts)
    contents = draw(
        st.lists(st.sampled_from(list(BODIES.values())).map(front.__add__), min_size=1, max_size=8)
    )
    for index in draw(st.lists(st.integers(0, len(contents) - 1), max_size=3)):
        content = contents[index]
        at = draw(st.integers(0, min(len(content), len(front) + 8)))
        other = draw(st.one_of(st.none(), st.sampled_from([0x00, 0x45, 0x53, 0x70, 0x72, 0x75, 0xC0, 0xFF])))
        contents[index] = (
            content[:at] if other is None else content[:at] + bytes((other,)) + content[at + 1 :]
        )
    return contents


@given(alike())
def test_bare_messages_of_many_are_found_as_those_of_each(contents: list[bytes]) -> None:
    """However much alike they are: the same offsets, and refused where one of them is."""
    try:
        expected = [bare_offset(content) for content in contents]
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            bare_offsets(contents)
    else:
        assert bare_offsets(contents) == expected


@pytest.mark.parametrize("header", HEADERS)
def test_one_of_many_that_is_cut_behind_its_front_is_found(header: str) -> None:
    """It is the same as all others up to there, and no message."""
    front = HEADERS[header]
    with pytest.raises(MalformedMessage, match="the size is cut short"):
        bare_offsets([front + data()] * 9 + [front + data()[:4]])


# --- the address ----------------------------------------------------------------------------------------------------

PROPERTY_VALUES = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.text(min_size=200, max_size=300),
    st.binary(max_size=6),
    st.sampled_from([ULong(0), ULong(7), ULong(1 << 40), UUID(int=1), True, UInt(3), Symbol("s"), [1]]),
)


@given(
    st.lists(PROPERTY_VALUES, max_size=5),
    st.booleans(),
    st.sampled_from(list(HEADERS)),
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([None, 0x00, 0x40, 0x53, 0x80, 0xA1, 0xB1, 0xC3, 0xFF]))
    ),
)
def test_to_address_is_the_same_however_it_is_read(
    fields: list[Any], is_wide: bool, header: str, changes: list[tuple[int, int | None]]
) -> None:
    """Spelled as usual or not, cut short or with other octets in it: what decoding the whole list says."""
    encoded = encode(fields)
    if is_wide and fields and encoded[0] == 0xC0:
        encoded = wide(encoded)
    content = section(PROPERTIES, encoded) + data()
    for at, other in changes:
        content = content[:at] if other is None else content[:at] + bytes((other,)) + content[at + 1 :]
    content = HEADERS[header] + content

    def read(is_usual: bool) -> str | type[MalformedMessage] | None:
        with pytest.MonkeyPatch.context() as patch:
            if not is_usual:
                patch.setattr(section_contents, "_usual_to_address", lambda content, bare: None)
            try:
                return to_address(content)
            except MalformedMessage:
                return MalformedMessage

    assert read(True) == read(False)


def test_a_to_address_that_the_count_leaves_out_is_none() -> None:
    """Two fields are message-id and user-id, whatever follows them in the section."""
    assert to_address(section(PROPERTIES, b"\xc0\x06\x02\x40\x40\xa1\x01x") + data()) is None


def test_the_usual_to_address_is_read_without_a_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the clients spell it: behind a message-id of any type, or none, and a user-id."""
    monkeypatch.setattr(section_contents, "section_at", None)
    for message_id in (None, "id", ULong(0), ULong(7), ULong(1 << 40), UUID(int=1), b"id"):
        for user_id in (None, b"me"):
            content = HEADERS["list8"] + section(PROPERTIES, [message_id, user_id, "k\xe4se"]) + data()
            assert to_address(content) == to_address(content, len(HEADERS["list8"])) == "k\xe4se"
