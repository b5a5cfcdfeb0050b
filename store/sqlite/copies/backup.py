"""
Backups of a Message VPN's file: whole, checked, and marked as what they are (``store.copies.mark``).

Under its name there is a whole backup, or what was there before, whenever this ends.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import apsw

from store.copies.beside import made_beside, put_in_place
from store.copies.mark import CopyMark, MarkState
from store.errors import StoreError
from store.sqlite.check import check
from store.sqlite.copies.mark import read_mark, write_mark
from store.sqlite.copies.pages import UNLIMITED, Progress, Step, copy_pages, errors_told, no_progress, no_step
from store.sqlite.database import connect
from store.sqlite.schema import LAST_ID


class BackedUp(NamedTuple):
    """A backup."""

    generation: int
    last_id: int
    """The highest id that was given out before it was begun."""
    size_bytes: int


def back_up(
    path: Path,
    to: Path,
    *,
    replace: bool = False,
    bytes_per_second: float = UNLIMITED,
    progress: Progress = no_progress,
    step: Step = no_step,
) -> BackedUp:
    """
    Copy a Message VPN's file, which may be in use, to one that is whole and sound. Blocks.

    Args:
        replace: Put it in place of a file that is there.
        bytes_per_second: How fast to copy at most.

    Raises:
        StoreError: There is nothing to be copied, or something in the way; it cannot be read or written; or the copy is
            not sound: then it is kept under another name.
    """
    if not path.is_file():
        raise StoreError(
            "cannot back up", path, "there is no such file", "Say --data and --vpn as the gateway has them"
        )
    if to.exists() and not replace:
        raise StoreError(
            "cannot back up to", to, "it is there already", "Say --replace, or give another name"
        )
    with made_beside(to) as (part, held):
        copy_pages(path, part, held, bytes_per_second=bytes_per_second, progress=progress, step=step)
        found = _mark(path, part)
        step("marked")
        problems = check(part)
        step("checked")
        if problems:
            unsound = to.with_name(f"{to.name}.unsound")
            put_in_place(part, held, unsound)
            raise StoreError(
                "cannot back up", path, "; ".join(problems), f"What could be copied is in {unsound}"
            )
        put_in_place(part, held, to)
    return found


def _mark(path: Path, part: Path) -> BackedUp:
    with (
        errors_told("cannot back up", path),
        closing(connect(part, apsw.SQLITE_OPEN_READWRITE)) as connection,
    ):
        found = read_mark(connection)
        if found is not None and found.state is MarkState.UNFINISHED:
            raise StoreError(
                "cannot back up", path, f"it is an unfinished copy of {found.other}", "Back that one up"
            )
        if found is not None and found.state is MarkState.MOVED:
            raise StoreError(
                "cannot back up", path, f"it was copied to {found.other}, which goes on", "Back that one up"
            )
        ((generation, last_id),) = connection.execute(f"select generation, ({LAST_ID}) from log")
        if found is None:
            with connection:
                write_mark(connection, CopyMark(MarkState.BACKUP, str(path.absolute())))
    return BackedUp(generation, last_id, part.stat().st_size)
