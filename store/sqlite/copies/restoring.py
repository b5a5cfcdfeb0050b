"""
Puts a copy of a Message VPN's file in place, as a log of another generation (``store.copies.log_row``).

Always of another. That no id was given out since the copy was made could be read from the file that it replaces, if
that were known to be the newest one of its log; but it may be a copy itself, put there by hand, or lack what its
write-ahead log had. Whoever wants to keep the generation moves the store while nothing runs (``store.copies.copying``).

The file that was there is kept beside. Invariant: whenever this ends, there is the old file with its write-ahead log,
or the new one without one, or none; never one of them with what belongs to the other, which SQLite would apply to it.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from store.copies.beside import COMPANIONS, made_beside, put_in_place, sync_folder
from store.copies.log_row import LogRow
from store.copies.mark import MarkState
from store.errors import StoreError
from store.sqlite.check import check
from store.sqlite.copies.log_row import read_log, write_log
from store.sqlite.copies.mark import read_mark, write_mark
from store.sqlite.copies.pages import Progress, Step, copy_pages, errors_told, no_progress, no_step
from store.sqlite.database import connect_migrated, connect_writer
from store.sqlite.schema import LAST_ID


class Restored(NamedTuple):
    """A file that was put in place."""

    before: LogRow
    """The log it is a copy of, at its end."""
    log: LogRow
    kept: Path | None
    """Where the file that was there is now."""


def restore(
    file: Path,
    path: Path,
    *,
    replace: bool = False,
    skip_ids: int | None = None,
    progress: Progress = no_progress,
    step: Step = no_step,
) -> Restored:
    """
    Have a copy be a Message VPN's file, in a data folder that the caller holds (``store.data_folder``). Blocks.

    Args:
        file: A backup, or any file of a Message VPN; it is only read.
        path: The Message VPN's.
        replace: Where there is a file, keep it beside.
        skip_ids: How many ids to leave out; None: as many as may have been given out since (``store.copies.log_row``).

    Raises:
        StoreError: There is a store already; or the copy cannot be read, is not sound, or cannot be written.
    """
    if not file.is_file():
        raise StoreError("cannot restore", file, "there is no such file", "Name a backup")
    is_there = path.exists()
    if is_there and not replace:
        raise StoreError(
            "cannot restore to", path, "there is a store already", "Say --replace: it is kept beside then"
        )
    with made_beside(path) as (part, held):
        copy_pages(file, part, held, progress=progress, step=step)
        before, log = _renewed(file, part, _last_id_of(path) if is_there else 0, skip_ids)
        step("renewed")
        problems = check(part)
        if problems:
            raise StoreError("cannot restore", file, "; ".join(problems), "Nothing was changed")
        os.fsync(held)
        kept = _set_aside(path, step)
        put_in_place(part, held, path)
        step("in place")
    return Restored(before, log, kept)


def _renewed(file: Path, part: Path, above: int, skip_ids: int | None) -> tuple[LogRow, LogRow]:
    with (
        errors_told("cannot restore", file),
        closing(connect_migrated(part, synchronous="OFF")) as connection,
    ):
        found, before = read_mark(connection), read_log(connection)
        if found is not None and found.state is MarkState.UNFINISHED:
            raise StoreError(
                "cannot restore", file, f"it is an unfinished copy of {found.other}", "Restore another"
            )
        if before is None:
            raise StoreError("cannot restore", file, "it is no store of a gateway", "Restore another")
        with connection:
            skipped = before.ids_since(time.time_ns() // 1_000_000) if skip_ids is None else skip_ids
            log = before.renewed(above=above, skip_ids=skipped)
            write_log(connection, log)
            write_mark(connection, None)
        connection.execute("pragma journal_mode = delete").fetchall()
    return before, log


def _last_id_of(path: Path) -> int:
    """The highest id that a file, which need not be whole, knows to have been given out."""
    # What is in its write-ahead log goes into it, where that can be: then it is one file.
    with suppress(apsw.Error), closing(connect_writer(path, synchronous="FULL")) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        ((last_id,),) = connection.execute(LAST_ID)
        return int(last_id)
    return 0


def _set_aside(path: Path, step: Step) -> Path | None:
    """Keep the file that is there, and what lies beside it, under another name; where to."""
    found = [suffix for suffix in ("", *COMPANIONS) if Path(f"{path}{suffix}").exists()]
    if not found:
        return None
    try:
        _forget_links(path, found)
        kept = _free_name(path)
        for suffix in found:
            Path(f"{kept}{suffix}").hardlink_to(f"{path}{suffix}")
            step(f"kept {suffix}")
        sync_folder(path.parent)
        # A file alone is exchanged at once. Else it goes before its write-ahead log does: without that it would be an
        # older file, which gives ids out again.
        for suffix in found if found != [""] else []:
            Path(f"{path}{suffix}").unlink()
            sync_folder(path.parent)
            step(f"removed {suffix}")
    except OSError as error:
        raise StoreError(
            "cannot keep", path, error.strerror, "Move it away yourself, and what lies beside it"
        ) from error
    return kept


def _forget_links(path: Path, suffixes: list[str]) -> None:
    """Names that a run gave to these files that was ended before it had put others in their place."""
    stats = [Path(f"{path}{suffix}").stat() for suffix in suffixes]
    for other in path.parent.glob(f"{path.name}.*"):
        if any(os.path.samestat(other.stat(), stat) for stat in stats):
            other.unlink()


def _free_name(path: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    names = [
        path.with_name(f"{path.name}.{stamp}"),
        path.with_name(f"{path.name}.{stamp}-{secrets.token_hex(3)}"),
    ]
    return next(name for name in names if not name.exists())
