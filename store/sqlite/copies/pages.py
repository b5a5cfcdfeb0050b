"""
Copies of a file, page by page, by SQLite's online backup: all of one state, that of the moment it was begun.

In a process of its own: SQLite's locks are a process's, so it may read the file beside a gateway, whose loop and
threads do nothing for it. A read transaction lasts as long as the copying, without which it would begin anew with every
commit. Meanwhile the gateway's write-ahead log cannot begin anew, and grows by what is written; so copying has a pace
by which publishers do not notice it, and should not be made slower than need be.

What is copied is synced as it is written: a file system that has gigabytes of it to write out lets the next commit of
the gateway wait for them.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import apsw

from store.copies.beside import OpenFile
from store.errors import StoreError
from store.sqlite.database import connect, connect_reader
from store.sqlite.schema import PAGE_BYTES

STEP_PAGES: Final = 256
"""Copied at once: a megabyte."""

SYNC_STEPS: Final = 8
"""Steps after which what was copied is synced: some milliseconds of a disk."""

UNLIMITED: Final = float("inf")

Progress: TypeAlias = Callable[[int, int], None]
"""Takes bytes that are copied, and bytes in all."""

Step: TypeAlias = Callable[[str], None]
"""Told of what was done, for whoever wants to see it end there."""


def no_progress(done: int, total: int) -> None:
    """Nobody is told."""


def no_step(name: str) -> None:
    """Nobody is told."""


def copy_pages(
    path: Path,
    part: Path,
    held: OpenFile,
    *,
    bytes_per_second: float = UNLIMITED,
    progress: Progress = no_progress,
    step: Step = no_step,
) -> None:
    """
    Copy a file, which may be in use, over an empty one: one whole file in the end, with no write-ahead log beside.

    Args:
        held: The empty one, as it was opened before.
        bytes_per_second: How fast at most.

    Raises:
        StoreError: It cannot be read, or the copy cannot be written.
    """
    with errors_told("cannot copy", path):
        with closing(connect_reader(path)) as source, closing(_to_be_filled(part)) as target:
            source.execute("begin")
            source.execute(
                "select 1 from sqlite_schema limit 1"
            ).fetchall()  # what it sees from now on is decided
            _copy(source, target, held, bytes_per_second, progress, step)
        with closing(connect(part, apsw.SQLITE_OPEN_READWRITE)) as copied:
            # So that it is a file, and not a file and what lies beside.
            copied.execute("pragma journal_mode = delete").fetchall()
    step("copied")


def _to_be_filled(part: Path) -> apsw.Connection:
    connection = connect(part, apsw.SQLITE_OPEN_READWRITE)
    # It is of use when it is whole, and synced here.
    for pragma in ("journal_mode = off", "synchronous = off", "cache_size = -4096"):
        connection.execute(f"pragma {pragma}").fetchall()
    return connection


def _copy(
    source: apsw.Connection,
    target: apsw.Connection,
    held: OpenFile,
    bytes_per_second: float,
    progress: Progress,
    step: Step,
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
                # Nobody reads it soon; what the gateway's readers need shall stay in memory.
                os.posix_fadvise(held, 0, done, os.POSIX_FADV_DONTNEED)
            progress(done, backup.page_count * PAGE_BYTES)
            step(f"step {steps}")
            time.sleep(max(done / bytes_per_second - (time.monotonic() - began), 0))


@contextmanager
def errors_told(operation: str, path: Path) -> Iterator[None]:
    """What both copies of SQLite and the operating system raise is a ``StoreError`` about this file."""
    try:
        yield
    except (apsw.Error, sqlite3.Error, OSError) as error:
        raise StoreError(operation, path, error, "Look at the disk, and at `rewind store check`") from error
