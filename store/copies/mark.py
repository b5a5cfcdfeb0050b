"""
The mark of a store that is a copy, or was copied: whether it may go on with the ids of its log.

Invariant: of all copies of a log, one at most goes on in its generation. So an id that somebody was told of is never
another message's. A backup is older than the log it was taken of, which gave out ids since; so whoever opens a backup
as a store, however it came to its place, gets a log of another generation. A store that was copied with its generation
is closed: its copy goes on. A copy that is not whole is no store yet.

The mark is a table of one row, made by what copies; a store that has nothing to do with copies has no such table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from store.errors import StoreError

TABLE: Final = "copy_mark"

MAKE: Final = f"create table if not exists {TABLE} (state text not null, other text not null)"
CLEAR: Final = f"delete from {TABLE}"
DROP: Final = f"drop table if exists {TABLE}"
READ: Final = f"select state, other from {TABLE}"


class MarkState(StrEnum):
    """What a store with a mark is."""

    BACKUP = "backup"
    """A copy of a log that went on: opened as a store, it gets a generation of its own."""
    UNFINISHED = "unfinished"
    """A copy that is being made: no store until it is whole."""
    MOVED = "moved"
    """A store that goes on elsewhere, in a copy."""


class CopyMark(NamedTuple):
    state: MarkState
    other: str
    """Where the other one is: what this is a copy of, or where its copy is."""


def check_whole(place: object, mark: CopyMark | None) -> None:
    """
    Whether what has this mark may be opened as a store.

    Args:
        place: What is to be opened.

    Raises:
        StoreError: It is an unfinished copy, or goes on elsewhere.
    """
    if mark is None or mark.state is MarkState.BACKUP:
        return
    if mark.state is MarkState.UNFINISHED:
        raise StoreError(
            "cannot open",
            place,
            f"it is an unfinished copy of {mark.other}",
            "Run the same `rewind store copy` again: it goes on where it ended",
        )
    raise StoreError(
        "cannot open",
        place,
        f"it was copied to {mark.other}, which goes on with its ids",
        "Use that one. To go on here all the same, as another log, say `rewind store renew`",
    )
