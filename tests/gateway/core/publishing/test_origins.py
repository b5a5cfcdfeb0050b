"""Who published what, remembered in ranges, for as long as somebody asks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.publications import MAX_RANGES, Origins

PUBLICATIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from(["a", "b", ""])))
"""Ids left out before each, how many it has, and where it came from."""


@given(publications=PUBLICATIONS, first=st.integers(1, 100))
def test_each_message_has_the_origin_it_came_from(
    publications: list[tuple[int, int, str]], first: int
) -> None:
    """Whatever ids came to nothing between publications, an id's origin is its publication's, and no other has one."""
    origins = Origins()
    expected: dict[int, str] = {}
    position = first
    for skipped, count, origin in publications:
        position += skipped
        origins.add(position, position + count, origin)
        expected.update(dict.fromkeys(range(position, position + count), origin))
        position += count
    for message_id in range(position + 5):
        assert origins.of(message_id) == expected.get(message_id, "")


def test_one_publisher_costs_one_range() -> None:
    """However much one origin publishes alone, it is one entry; two in turns are forgotten from the oldest on."""
    origins = Origins()
    for i in range(1_000):
        origins.add(i * 10, i * 10 + 10, "a")
    assert len(origins._starts) == 1
    for i in range(10_000, 10_000 + MAX_RANGES + 1):
        origins.add(i, i + 1, "ab"[i % 2])
    assert len(origins._starts) <= MAX_RANGES
    assert origins.of(5) == "", "the oldest are not local any more"
    assert origins.of(10_000 + MAX_RANGES) == "ab"[MAX_RANGES % 2]


def test_nothing_is_kept_when_nobody_asks() -> None:
    """With the last watcher what is known is forgotten; others may leave before."""
    origins = Origins()
    origins.watch("one")
    origins.watch("two")
    origins.add(1, 5, "a")
    origins.forget("one")
    origins.forget("never asked")
    assert origins.of(3) == "a"
    origins.forget("two")
    assert (origins.of(3), len(origins.watchers)) == ("", 0)
