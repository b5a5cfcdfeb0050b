"""
The data folder of a gateway, and its lock: one gateway at a time uses a folder.

The lock is the operating system's (``flock``). It ends with the process, whether the process exits or is killed.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.errors import StoreError, StoreLocked

LOCK_FILE: Final = "rewind.lock"

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""Only the owner may access what the gateway creates: it holds messages, and settings of administrators."""

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class DataFolder:
    """A data folder that one gateway has locked."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            StoreLocked: Another gateway holds the folder.
            StoreError: The folder cannot be made or written.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(FOLDER_MODE, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise StoreError(
                "cannot use the data folder",
                path,
                error,
                "Name a folder that this user may write, with --data",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise StoreLocked(
                "cannot use the data folder",
                path,
                f"another gateway uses it (process {holder or 'unknown'})",
                "Stop that gateway, or name another folder with --data",
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def open_to_others(self) -> list[str]:
        """
        The folder and the files in it that other users of the machine may read or write, each with its mode. Empty if
        the folder itself keeps other users out, whatever the modes of its files.
        """
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & OTHERS:
            return []
        found = [f"{self.path} {mode:04o}"]
        for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name):
            with suppress(FileNotFoundError):  # a check or a backup that ends removes its files
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if mode & OTHERS:
                    found.append(f"{entry.name} {mode:04o}")
        return found

    def release(self) -> None:
        os.close(self._lock)
