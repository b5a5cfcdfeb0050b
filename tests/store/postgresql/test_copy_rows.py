"""Messages as binary COPY takes them: compared with columns written one by one."""

from __future__ import annotations

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import Row
from store.checksum import is_sound
from store.postgresql.database import stored_text
from store.postgresql.packed import checksums, copied

_rows = st.lists(
    st.tuples(
        st.integers(1, 1 << 62),
        st.integers(0, 1 << 45),
        st.sampled_from(["", "a", "ä/€", "a\0b", "#queue/q"]),
        st.integers(0, 300),
        st.integers(0, 1 << 31),
        st.just(None),
        st.binary(max_size=40) | st.sampled_from([b"x" * 6_000]),
    ),
    min_size=1,
    max_size=20,
)


def _column(value: bytes) -> bytes:
    return pack(">i", len(value)) + value


def _plainly(rows: list[Row]) -> bytes:
    """As the documentation of COPY has it, a column after the other."""
    found = [b"PGCOPY\n\xff\r\n\0", pack(">ii", 0, 0)]
    for (message_id, time, topic, bare, route, held, content), checksum in zip(
        rows, checksums(rows, 6_000), strict=True
    ):
        columns = [
            pack(">q", message_id), pack(">q", time), pack(">q", checksum), pack(">q", route), pack(">i", bare),
            *([] if held is None else [pack(">i", held)]), stored_text(topic).encode(), content,
        ]  # fmt: skip
        found += [pack(">h", len(columns)), *map(_column, columns)]
    return b"".join(found) + pack(">h", -1)


@given(_rows)
def test_rows_are_what_the_format_says(rows: list[Row]) -> None:
    """Logged ones and held ones, of one topic or of many."""
    assert copied(rows, 6_000) == _plainly(rows)
    held: list[Row] = [(*row[:5], 3, row[6]) for row in rows]
    assert copied(held, 6_000) == _plainly(held)


@given(_rows)
def test_checksums_are_sound(rows: list[Row]) -> None:
    """A reader takes each row for what was written."""
    for (message_id, time, topic, bare, route, _, content), checksum in zip(
        rows, checksums(rows, 6_000), strict=True
    ):
        assert is_sound(message_id, time, topic, bare, route, content, checksum)
