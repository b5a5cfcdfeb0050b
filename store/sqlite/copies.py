"""
Copies of a Message VPN's file: backups, restoring them, and the file's tables for copies to and from other engines
(``store.copies``).

A backup is made page by page with SQLite's online backup. All its pages are of one state: the state when the backup
began. It runs in a process of its own. SQLite's locks belong to a process, so it may read the file while a gateway uses
it, and the gateway's loop and threads do no work for it. A read transaction lasts as long as the copying: without it,
every commit would make the backup start again. Meanwhile the gateway's write-ahead log cannot restart, and grows by
what is written. So copying has a pace that publishers do not notice, but should not be slower than necessary. What is
copied is synced step by step: if the file system had gigabytes to write out, the gateway's next commit would wait for
them. Under the backup's name there is always a complete file: the new backup, or the file that was there before.

A restored file is always a log of another generation. To prove that no id was given out since the copy was made, one
would have to read the file that it replaces, and know that this is the newest file of its log. But that file may be a
copy itself, put there by hand, or lack what its write-ahead log had. To keep the generation, move the store while
nothing runs (``store.copies.Copying``). The replaced file is kept next to the new one. Invariant: whenever a restore
ends, there is the old file with its write-ahead log, or the new file without one, or no file. There is never a file
with another file's write-ahead log, which SQLite would apply to it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import apsw

from store import copies
from store.errors import DamagedMessage, StoreError
from store.sqlite.check import check
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect, connect_migrated, connect_reader, connect_writer, errors_told
from store.sqlite.log_row import read_log, write_log
from store.sqlite.packed import CHECKED, sound_row
from store.sqlite.schema import LAST_ID, PAGE_BYTES

STEP_PAGES: Final = 256
"""Pages copied in one step: a megabyte."""

SYNC_STEPS: Final = 8
"""Steps after which the copied pages are synced: this keeps the disk busy for some milliseconds."""

UNLIMITED: Final = float("inf")

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are copied, and the bytes in all."""


def told_to_nobody(*_: object) -> None:
    """Ignores progress and steps."""


def copy_pages(
    path: Path,
    part: Path,
    held: copies.OpenFile,
    *,
    bytes_per_second: float = UNLIMITED,
    progress: Progress = told_to_nobody,
    step: copies.Step = told_to_nobody,
) -> None:
    """
    Copy a file, which may be in use, over an empty file. The result is one complete file without a write-ahead log.

    Args:
        held: The empty file, open.
        bytes_per_second: The highest pace.

    Raises:
        StoreError: It cannot be read, or the copy cannot be written.
    """
    with errors_told("cannot copy", path):
        with closing(connect_reader(path)) as source, closing(_to_be_filled(part)) as target:
            source.execute("begin")
            # This fixes the snapshot that the transaction sees.
            source.execute("select 1 from sqlite_schema limit 1").fetchall()
            _copy(source, target, held, bytes_per_second, progress, step)
        with closing(connect(part, apsw.SQLITE_OPEN_READWRITE)) as copied:
            # So that it is one file, without a write-ahead log next to it.
            copied.execute("pragma journal_mode = delete").fetchall()
    step("copied")


def _to_be_filled(part: Path) -> apsw.Connection:
    connection = connect(part, apsw.SQLITE_OPEN_READWRITE)
    # The copy is of use only when it is complete, and it is synced by this module.
    for pragma in ("journal_mode = off", "synchronous = off", "cache_size = -4096"):
        connection.execute(f"pragma {pragma}").fetchall()
    return connection


def _copy(
    source: apsw.Connection,
    target: apsw.Connection,
    held: copies.OpenFile,
    bytes_per_second: float,
    progress: Progress,
    step: copies.Step,
) -> None:
    began = time.monotonic()
    steps = 0
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(STEP_PAGES)
            steps += 1
            done = (backup.page_count - backup.remaining) * PAGE_BYTES
            if steps % SYNC_STEPS == 0:
                os.fdatasync(held)
                # Nobody reads the copy soon: what the gateway's readers need should stay in the page cache instead.
                os.posix_fadvise(held, 0, done, os.POSIX_FADV_DONTNEED)
            progress(done, backup.page_count * PAGE_BYTES)
            step(f"step {steps}")
            time.sleep(max(done / bytes_per_second - (time.monotonic() - began), 0))


class BackedUp(NamedTuple):
    """A backup."""

    generation: int
    last_id: int
    """The highest id that was given out before the backup began."""
    size_bytes: int


def back_up(
    path: Path,
    to: Path,
    *,
    replace: bool = False,
    bytes_per_second: float = UNLIMITED,
    progress: Progress = told_to_nobody,
    step: copies.Step = told_to_nobody,
) -> BackedUp:
    """
    Copy a Message VPN's file, which may be in use, to a file that is complete and sound. Blocks.

    Args:
        replace: Replace a file that is there.
        bytes_per_second: The highest pace.

    Raises:
        StoreError: There is nothing to copy, or a file is in the way; a file cannot be read or written; or the copy is
            not sound: then it is kept under another name.
    """
    if not path.is_file():
        raise StoreError(
            "cannot back up", path, "there is no such file", "Give --data and --vpn of the gateway"
        )
    if to.exists() and not replace:
        raise StoreError("cannot back up to", to, "it exists already", "Use --replace, or give another name")
    if Path(f"{to}-wal").exists():
        # SQLite would apply it to the backup.
        raise StoreError(
            "cannot back up to", to, "it is in use: it has a write-ahead log", "Give another name"
        )
    if to.exists() and to.samefile(path):
        raise StoreError("cannot back up to", to, "it is the store itself", "Give another name")
    with copies.made_beside(to) as (part, held):
        copy_pages(path, part, held, bytes_per_second=bytes_per_second, progress=progress, step=step)
        found = _mark(path, part)
        step("marked")
        problems = check(part)
        step("checked")
        if problems:
            unsound = to.with_name(f"{to.name}.unsound")
            copies.put_in_place(part, held, unsound)
            raise StoreError("cannot back up", path, "; ".join(problems), f"The unsound copy is {unsound}")
        copies.put_in_place(part, held, to)
    return found


def _mark(path: Path, part: Path) -> BackedUp:
    with (
        errors_told("cannot back up", path),
        closing(connect(part, apsw.SQLITE_OPEN_READWRITE)) as connection,
    ):
        tables = SqliteShortTables(connection)
        found = copies.read_mark(tables)
        for state in (copies.MarkState.UNFINISHED, copies.MarkState.MOVED):
            copies.refuse(found, state, "cannot back up", path, "Back up the copy")
        ((generation, last_id),) = connection.execute(f"select generation, ({LAST_ID}) from log")
        if found is None:
            with connection:
                copies.write_mark(tables, copies.CopyMark(copies.MarkState.BACKUP, str(path.absolute())))
    return BackedUp(generation, last_id, part.stat().st_size)


class Restored(NamedTuple):
    """A file that was put in place."""

    before: copies.LogRow
    """The row of the log that the file is a copy of."""
    log: copies.LogRow
    kept: Path | None
    """The path of the replaced file now; None if there was none."""


def restore(
    file: Path,
    path: Path,
    *,
    replace: bool = False,
    skip_ids: int | None = None,
    progress: Progress = told_to_nobody,
    step: copies.Step = told_to_nobody,
) -> Restored:
    """
    Make a copy the file of a Message VPN, in a data folder that the caller has locked (``store.data_folder``). Blocks.

    Args:
        file: A backup, or any file of a Message VPN. It is only read.
        path: The Message VPN's file.
        replace: If there is a file, keep it under another name.
        skip_ids: How many ids to skip; None: as many as may have been given out since (``store.copies``).

    Raises:
        StoreError: There is a store already; or the copy cannot be read, is not sound, or cannot be written.
    """
    if not file.is_file():
        raise StoreError("cannot restore", file, "there is no such file", "Name a backup")
    is_there = path.exists()
    if is_there and not replace:
        raise StoreError(
            "cannot restore to",
            path,
            "it has a store already",
            "Use --replace: the old file is kept under another name",
        )
    with copies.made_beside(path) as (part, held):
        copy_pages(file, part, held, progress=progress, step=step)
        before, log = _renewed(file, part, _last_id_of(path) if is_there else 0, skip_ids)
        step("renewed")
        problems = check(part)
        if problems:
            raise StoreError("cannot restore", file, "; ".join(problems), "Nothing was changed")
        os.fsync(held)
        kept = _set_aside(path, step)
        copies.put_in_place(part, held, path)
        step("in place")
    return Restored(before, log, kept)


def _renewed(file: Path, part: Path, above: int, skip_ids: int | None) -> tuple[copies.LogRow, copies.LogRow]:
    with (
        errors_told("cannot restore", file),
        closing(connect_migrated(part, synchronous="OFF")) as connection,
    ):
        tables = SqliteShortTables(connection)
        found, before = copies.read_mark(tables), read_log(connection)
        copies.refuse(found, copies.MarkState.UNFINISHED, "cannot restore", file, "Restore another")
        if before is None:
            raise StoreError("cannot restore", file, "it is not a store of a gateway", "Restore another")
        with connection:
            log = before.renewed(copies.now_ms(), above=above, skip_ids=skip_ids)
            write_log(connection, log)
            copies.write_mark(tables, None)
        connection.execute("pragma journal_mode = delete").fetchall()
    return before, log


def _last_id_of(path: Path) -> int:
    """The highest id that a file, which may be damaged, is known to have given out; 0 if it cannot be read."""
    # Its write-ahead log is copied into it if possible: then the store is one file.
    with suppress(apsw.Error), closing(connect_writer(path, synchronous="FULL")) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        ((last_id,),) = connection.execute(LAST_ID)
        return int(last_id)
    return 0


def _set_aside(path: Path, step: copies.Step) -> Path | None:
    """Keep the file that is there, and its companions, under another name. Returns the name; None without a file."""
    found = [suffix for suffix in ("", *copies.COMPANIONS) if Path(f"{path}{suffix}").exists()]
    if not found:
        return None
    try:
        _forget_links(path, found)
        kept = _free_name(path)
        for suffix in found:
            Path(f"{kept}{suffix}").hardlink_to(f"{path}{suffix}")
            step(f"kept {suffix}")
        copies.sync_folder(path.parent)
        # A file without companions is replaced in one step. Otherwise the file is removed before its write-ahead log:
        # without that log it would be an older file, which gives out ids again.
        for suffix in found if found != [""] else []:
            Path(f"{path}{suffix}").unlink()
            copies.sync_folder(path.parent)
            step(f"removed {suffix}")
    except OSError as error:
        raise StoreError(
            "cannot keep", path, error.strerror, "Move it away yourself, with the files next to it"
        ) from error
    return kept


def _forget_links(path: Path, suffixes: list[str]) -> None:
    """Remove the names that an interrupted restore gave to these files."""
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


CHECKPOINT_PAGES: Final = 4_096
"""Pages in the write-ahead log at which it is copied into the file."""


class SqliteTables(copies.StoreTables):
    """The tables of a file, for copies to and from other engines."""

    failures = (apsw.Error, OSError)

    def __init__(self, path: Path, *, is_target: bool = False) -> None:
        """
        Args:
            is_target: The file is created if there is none.

        Raises:
            StoreError: There is no file; it cannot be opened, or was written by a later version.
        """
        self._path = path
        if not is_target and not path.is_file():
            raise StoreError("cannot copy", path, "there is no such file", "Name a store of a gateway")
        with errors_told("cannot open", path):
            # Before the copy is marked as complete, it need not survive a power cut. The mark's commit syncs all of it.
            self._connection = connect_migrated(path, synchronous="NORMAL")
            self._connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        super().__init__(str(path.resolve()), SqliteShortTables(self._connection))

    def log(self) -> copies.LogRow | None:
        return read_log(self._connection)

    def _write_log(self, log: copies.LogRow) -> None:
        write_log(self._connection, log)

    @contextmanager
    def _writing(self, *, is_durable: bool) -> Iterator[None]:
        self._connection.execute(f"pragma synchronous = {'full' if is_durable else 'normal'}").fetchall()
        with self._connection:
            yield

    def messages(self, first: int, stop: int) -> Iterator[copies.StoredMessage]:
        for checked in self._connection.execute(
            f"select {CHECKED} from message where id >= ? and id < ? order by id", (first, stop)
        ):
            row = sound_row(checked)
            if row is None:
                raise DamagedMessage(checked[0])
            yield (*row, checked[-1])

    def add_messages(self, rows: Sequence[copies.StoredMessage]) -> None:
        with self._writing(is_durable=False):
            self._short.add("message", ", ".join(copies.MESSAGE), rows)

    def check(self) -> list[str]:
        return check(self._path)

    def close(self) -> None:
        self._connection.close()
