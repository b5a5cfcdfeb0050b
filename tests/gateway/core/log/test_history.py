"""Where the history of a Message VPN begins, by what log and archive have."""

from __future__ import annotations

import pytest

from gateway.core.log import ArchivedRun, History
from gateway.core.model import LogState


def history(archived: ArchivedRun | None, *, first_id: int = 50) -> History:
    """A log of generation 7 with the ids from ``first_id`` to 99, whole from 5,000 on."""
    found = History(LogState(7, first_id, 100, 9_000, 5_000))
    found.has_archive = True
    found.archived = archived
    return found


@pytest.mark.parametrize(
    ("archived", "first", "floor", "says"),
    [
        (None, 50, 5_000, "; its archive cannot be read"),
        (ArchivedRun(None, 1, 0, 0), 50, 5_000, "; its archive is empty"),
        (ArchivedRun(7, 1, 60, 1_000), 1, 1_000, "; its archive has ids 1 to 60"),
        (ArchivedRun(7, 1, 49, 1_000), 1, 1_000, "; its archive has ids 1 to 49"),
        (ArchivedRun(7, 1, 99, 1_000), 1, 1_000, "; its archive has ids 1 to 99"),
        # Others of its first millisecond may have been trimmed before it began.
        (ArchivedRun(7, 20, 60, 1_000), 20, 1_001, "; its archive has ids 20 to 60"),
        (
            ArchivedRun(7, 20, 60, 1_000, 9),
            20,
            1_001,
            "; its archive has ids 20 to 60, and up to 9 before a gap",
        ),
        (
            ArchivedRun(7, 1, 48, 1_000),
            50,
            5_000,
            "; its archive has ids 1 to 48, and what lies between is in neither",
        ),
        (ArchivedRun(7, 50, 60, 1_000), 50, 5_000, "; its archive has ids 50 to 60"),
        (ArchivedRun(8, 1, 60, 1_000), 50, 5_000, "; its archive is of generation 8, another log"),
        (
            ArchivedRun(7, 1, 100, 1_000),
            50,
            5_000,
            "; its archive has ids 1 to 100, more than the log ever had",
        ),
    ],
)
def test_the_history_has_no_gap(archived: ArchivedRun | None, first: int, floor: int, says: str) -> None:
    """It begins in the archive where that reaches to the log, is of this log and of no other; else with the log."""
    found = history(archived)
    assert (found.first_id, found.floor_ms, found.says) == (first, floor, says)


def test_it_follows_the_log() -> None:
    """What is trimmed is looked for in the archive as far as that is known to have it."""
    found = history(ArchivedRun(7, 1, 60, 1_000), first_id=1)
    assert (found.first_id, found.floor_ms) == (1, 5_000)
    found.log.first_id = 61
    assert (found.first_id, found.floor_ms) == (1, 1_000)
    found.log.first_id = 62
    assert found.first_id == 62


def test_what_is_archived() -> None:
    """Ids of the run, of this log alone."""
    found = history(ArchivedRun(7, 20, 60, 1_000))
    assert [i for i in (19, 20, 60, 61) if found.is_archived(i)] == [20, 60]
    assert not history(ArchivedRun(8, 20, 60, 1_000)).is_archived(30)
    assert not history(None).is_archived(30)


def test_a_log_without_an_archive_says_nothing_of_one() -> None:
    """Refusals are as they were."""
    found = History(LogState(7, 50, 100, 9_000, 5_000))
    assert (found.first_id, found.floor_ms, found.says) == (50, 5_000, "")
