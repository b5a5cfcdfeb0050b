"""A file that is made beside its place, and put there once it is whole: after a crash there is all of it or nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from store.data_folder import FILE_MODE
from store.errors import StoreError

SUFFIX: Final = ".part"

COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""What SQLite puts beside a file."""

OpenFile: TypeAlias = int
"""Its number."""


@contextmanager
def made_beside(to: Path) -> Iterator[tuple[Path, OpenFile]]:
    """
    An empty file beside ``to``, its user's alone and held open, for what is to be put there; removed at the end if it
    is still there. What a run left behind that was killed is made anew.

    Raises:
        StoreError: It cannot be made, or somebody else is making it.
    """
    part = to.with_name(f"{to.name}{SUFFIX}")
    try:
        held = _claimed(part)
        for suffix in COMPANIONS:
            Path(f"{part}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            "cannot write", part, error.strerror, "Give a place where this user may write"
        ) from error
    try:
        yield part, held
    finally:
        if _is_named(held, part):
            for suffix in (*COMPANIONS, ""):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
        # SQLite lets go of its locks on a file when this process closes it: so not before SQLite is done with it.
        os.close(held)


def _claimed(part: Path) -> OpenFile:
    while True:
        found = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it until now may have put it in its place.
            if _is_named(found, part):
                os.ftruncate(found, 0)
                return found
            os.close(found)
        except BlockingIOError:
            os.close(found)
            raise StoreError(
                "cannot write", part, "another process is writing it", "Wait for that one"
            ) from None
        except BaseException:
            with suppress(OSError):
                os.close(found)
            raise


def _is_named(held: OpenFile, part: Path) -> bool:
    """Whether an open file has this name."""
    try:
        return os.path.samestat(os.fstat(held), part.stat())
    except FileNotFoundError:
        return False


def put_in_place(part: Path, held: OpenFile, to: Path) -> None:
    """
    Give a file its name, durably, whatever has that name now.

    Raises:
        StoreError: It cannot be written.
    """
    try:
        os.fsync(held)
        part.replace(to)
        sync_folder(to.parent)
    except OSError as error:
        raise StoreError("cannot write", to, error.strerror, "Look at the disk") from error


def sync_folder(folder: Path) -> None:
    """Have names survive a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
