"""How many ids a log leaves out that goes on from a copy."""

from __future__ import annotations

import pytest

from store.copies import LEAST_SKIPPED, MOST_SKIPPED, SKIP_IDS, LogRow

HOUR = 3_600_000
LOG = LogRow(
    generation=7,
    first_id=100_001,
    last_id=200_000,
    last_time=10 * HOUR,
    floor_time=9 * HOUR,
    size_bytes=1,
    largest_bytes=1,
    next_number=3,
    archived_id=150_000,
    counted_id=200_000,
)
"""100,000 ids in an hour."""


@pytest.mark.parametrize(
    ("log", "hours", "ids"),
    [
        (LOG, 1, 400_000),
        (LOG, 24, 9_600_000),
        (LOG, 0, LEAST_SKIPPED),
        (LOG, -5, LEAST_SKIPPED),
        (LOG, 24 * 365, MOST_SKIPPED),
        (LOG._replace(first_id=200_001), 24, SKIP_IDS),
        (LOG._replace(floor_time=10 * HOUR), 24, SKIP_IDS),
    ],
)
def test_as_many_as_may_have_been_given_out(log: LogRow, hours: int, ids: int) -> None:
    """Four times what it gives out on average in the time since its newest message, within bounds."""
    assert log.ids_since(log.last_time + hours * HOUR) == ids


def test_another_log() -> None:
    """Of another generation each time, with nothing archived; what it has stays."""
    made = [LOG.renewed(0, above=above, skip_ids=10) for above in (0, 300_000)]
    assert [log.last_id for log in made] == [200_010, 300_010]
    assert len({LOG.generation, *[log.generation for log in made]}) == 3
    for log in made:
        assert log._replace(generation=7, last_id=200_000, archived_id=150_000) == LOG
