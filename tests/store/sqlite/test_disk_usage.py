"""The size that messages count as is about what the file takes for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from gateway.core.model import PAGE_BYTES, WHOLE_BYTES, stored_bytes
from store.sqlite.schema import SIZE_ON_DISK
from tests.store.effects import publication, queue
from tests.store.vpn_file import MADE_MS, commit, query, writing_to

TOPIC = "a/b"
CHANCE = random.Random(1)
SIZES: dict[str, list[int]] = {
    "small": [200] * 20_000,
    "any": [CHANCE.randint(40, 2_000) for _ in range(10_000)],
    "mostly small": [CHANCE.choice([200] * 9 + [3_000]) for _ in range(10_000)],
    "one on a page": [2_100] * 4_000,
    "more than a page": [5_000] * 2_000,
    "large": [CHANCE.randint(3_000, 20_000) for _ in range(2_000)],
}
LENGTHS = [
    0,
    1,
    100,
    2_000,
    *range(WHOLE_BYTES - 40, WHOLE_BYTES + 10),
    *range(8_100, 8_800, 7),
    100_000,
    1 << 20,
]
"""Lengths around each bound that decides on how many pages a row is stored."""


def fill(path: Path, sizes: Sequence[int]) -> None:
    """Write logged messages of these sizes to a queue."""
    with closing(writing_to(path)) as connection:
        commit(connection, queue(1, "q"))
        first = 1
        for start in range(0, len(sizes), 500):
            contents = [bytes(size) for size in sizes[start : start + 500]]
            commit(connection, [publication(first, contents, endpoints=(1,), topic=TOPIC, time_ms=MADE_MS)])
            first += len(contents)


@pytest.mark.parametrize("kind", SIZES)
def test_messages_count_as_what_the_file_takes(path: Path, kind: str) -> None:
    """The pages of messages and of the index of routes are within a twelfth of the counted size."""
    fill(path, SIZES[kind])
    ((there,),) = query(path, "select sum(pgsize) from dbstat where name in ('message', 'message_route')")
    ((counted,),) = query(path, "select size_bytes from log")
    assert there == pytest.approx(counted, rel=1 / 12)


def test_the_file_counts_as_the_broker_does(path: Path) -> None:
    """SQL and the broker compute the same size, for each message and for all together."""
    fill(path, LENGTHS)
    counted = [size for (size,) in query(path, f"select {SIZE_ON_DISK} from message group by id order by id")]
    assert counted == [stored_bytes(TOPIC, [length]) for length in LENGTHS]
    ((together,),) = query(path, f"select {SIZE_ON_DISK} from message")
    assert together == stored_bytes(TOPIC, LENGTHS) == sum(counted)


def test_messages_of_one_size_count_as_each_of_them() -> None:
    """The shortcut for messages of equal length gives the sum of their sizes."""
    for length in LENGTHS:
        assert stored_bytes(TOPIC, [length] * 3) == 3 * stored_bytes(TOPIC, [length])
    assert stored_bytes(TOPIC, [2_100]) > PAGE_BYTES
