"""The position of a log reader, against a list of what it is to have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.model import Row
from gateway.core.replay.reading import LogCursor

LAST = 12

kinds = st.lists(st.sampled_from(["wanted", "other", "held"]), min_size=LAST, max_size=LAST)
steps = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=8)


def row(message_id: int, kind: str) -> Row:
    return (message_id, 0, kind, 0, 1, 1 if kind == "held" else None, b"")


def read(cursor: LogCursor, log: list[Row], step: Iterator[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """What comes of a log that is read to its end, or the cursor's, and which of that is marked as the last."""
    sent: list[int] = []
    marked: list[int] = []
    while not cursor.is_finished:
        at_once, limit = next(step)
        start = cursor.position
        rows = log[start - 1 : start - 1 + min(at_once, limit)]
        if not rows and cursor.held_back is None:
            break
        chosen, is_end = cursor.offer(rows, start + len(rows), len(log) + 1, limit)
        assert len(chosen) <= limit
        sent += [found[0] for found in chosen]
        marked += sent[-1:] if is_end else []
    return sent, marked


@given(kinds=kinds, first=st.integers(1, LAST), last=st.none() | st.integers(1, LAST), steps=steps)
@example(kinds=["wanted"] * LAST, first=1, last=5, steps=[(4, 4)])
@example(kinds=["wanted"] * LAST, first=1, last=4, steps=[(1, 1)])
@example(kinds=["wanted"] * LAST, first=1, last=4, steps=[(4, 4)])
@example(kinds=[*["wanted"] * 4, *["other"] * 8], first=1, last=8, steps=[(4, 4)])
@example(kinds=[*["wanted"] * 4, *["other"] * 8], first=1, last=None, steps=[(3, 3)])
def test_a_reader_has_each_message_once_and_knows_the_last(
    kinds: list[str], first: int, last: int | None, steps: list[tuple[int, int]]
) -> None:
    """
    In order, whatever is read at once and however few it takes: what is of other topics, or held by endpoints alone,
    is left out, and so is what lies beyond its end.
    """
    log = [row(i, kind) for i, kind in enumerate(kinds, 1)]
    cursor = LogCursor(first, last, lambda topic: topic != "other", is_live=False)
    end = LAST if last is None else last
    expected = [i for i, kind in enumerate(kinds, 1) if kind == "wanted" and first <= i <= end]
    assert read(cursor, log, cycle(steps)) == (expected, expected[-1:])
    assert cursor.held_back is None
