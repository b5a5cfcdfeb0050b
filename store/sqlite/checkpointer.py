"""
Checkpoints beside the writer: what is in the WAL goes into the main file without a publisher waiting for it.

Two tiers. PASSIVE on a thread of its own each time ``checkpoint_bytes`` were written: it does the work and blocks
nobody, but with writers going on it never reaches the end of the WAL. RESTART by the writer right after: only the
frames since then are left, so it is short, and the WAL begins anew. Readers that still use old frames make RESTART
give up at once; it is tried again after the next commit. While a reader keeps PASSIVE from getting on, RESTART is not
tried at all: the moment the reader ended, the writer would do all that PASSIVE could not.

Until the WAL begins anew for the first time, its file grows. To sync a file that has grown, the file system writes its
own journal as well, which takes half as long again as to sync the same bytes in place: so small commits find the file
longer than it has to be. What is in it behind the last frame, SQLite never looks at.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from store.sqlite.database import BUSY_MS, connect
from store.sqlite.schema import PAGE_BYTES
from store.sqlite.trimming import note_cut_off

FRAME_FACTOR: Final = 2
"""Bytes in the WAL for a byte of content, roughly: pages are written whole, and the index of routes comes on top."""

COMMIT_BYTES: Final = 8 * 1024
"""What even the smallest commit writes: a page for the message, and one for its route in the index, or for a cursor."""

SCRUB_MS: Final = 50
"""For which the writer waits for the pages that are just being read, where the WAL is to be cut to nothing."""

AHEAD: Final = bytes(256 * 1024)
"""What the WAL's file is made longer by: the smallest commits fill it in thirty-two, and it is written with one."""


class Checkpointer:
    def __init__(self, path: Path, checkpoint_bytes: int) -> None:
        self._path = path
        self._checkpoint_bytes = checkpoint_bytes
        self._written_bytes = 0
        self._end_before = 0
        self._wanted = threading.Event()
        self._ready = False
        self._closing = False
        self._scrubs = False
        """The WAL is to be cut to nothing."""
        self.scrubbed = threading.Event()
        """It was, since that was asked for."""
        self._wal_file = -1
        self._wal_bytes = -1
        """How long the WAL's file was made; another length is what SQLite made of it."""
        self._thread = threading.Thread(target=self._run, name=f"checkpointer {path.stem}", daemon=True)
        self._thread.start()

    def written(self, content_bytes: int) -> None:
        """The writer committed that much."""
        self._written_bytes += max(content_bytes * FRAME_FACTOR, COMMIT_BYTES)
        if self._written_bytes >= self._checkpoint_bytes:
            self._written_bytes = 0
            self._wanted.set()

    @property
    def is_ready(self) -> bool:
        """A checkpoint was made, and the WAL can begin anew."""
        return self._ready

    def scrub(self) -> None:
        """Have nothing be left of what pages were: all of the WAL goes into the file, and is cut off."""
        self.scrubbed.clear()
        self._scrubs = True
        self._wanted.set()

    def scrub_now(self, writer: apsw.Connection) -> None:
        """The same at once, before anything is written; behind, where somebody reads."""
        if _begun_anew(writer, "truncate", 0):
            note_cut_off(writer)
        else:
            self.scrub()

    def wake(self) -> None:
        """A reader stood in the way, perhaps, and is gone: go on."""
        if not self._ready:
            self._wanted.set()

    def restart_wal(self, writer: apsw.Connection) -> None:
        """Called by the writer between transactions: begin the WAL anew when a checkpoint has been made."""
        if self._ready:
            scrubs = self._scrubs
            is_done = (
                _begun_anew(writer, "truncate", SCRUB_MS) if scrubs else _begun_anew(writer, "restart", 0)
            )
            self._ready = not is_done
            if scrubs and is_done:
                note_cut_off(writer)
                self._scrubs = False
                self.scrubbed.set()

    @property
    def is_ahead(self) -> bool:
        """The WAL's file is as long as it was made, as far as SQLite has not come to its end: see ``lengthen_wal``."""
        return self._wal_file >= 0 and os.lseek(self._wal_file, 0, os.SEEK_END) == self._wal_bytes

    def lengthen_wal(self) -> None:
        """
        Called by the writer inside a small transaction, before it is committed: nobody else writes to the WAL then. Its
        file gets longer where SQLite has come to its end.
        """
        # A disk that is full has no room ahead; whether it has room for the commit, the commit says.
        with suppress(OSError):
            if self._wal_file < 0:
                self._wal_file = os.open(f"{self._path}-wal", os.O_WRONLY | os.O_CLOEXEC)
            size = os.lseek(self._wal_file, 0, os.SEEK_END)
            if size != self._wal_bytes:
                self._wal_bytes = size
                self._wal_bytes += os.pwrite(self._wal_file, AHEAD, size)

    def close(self) -> None:
        self._closing = True
        self._wanted.set()
        self._thread.join()
        if self._wal_file >= 0:
            os.close(self._wal_file)

    def _run(self) -> None:
        connection = connect(self._path, apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(BUSY_MS)
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._closing:
                    return
                with suppress(apsw.Error):
                    self._checkpoint(connection)
        finally:
            connection.close()

    def _checkpoint(self, connection: apsw.Connection) -> None:
        ((busy, end, done),) = connection.execute("pragma wal_checkpoint(passive)")
        if busy:
            return
        # In frames. Little is left, or at least what there was the last time is done: no reader stands in the way.
        is_little = (end - done) * PAGE_BYTES <= self._checkpoint_bytes
        self._ready = is_little or done >= self._end_before > 0
        self._end_before = end


def _begun_anew(writer: apsw.Connection, how: str, wait_ms: int) -> bool:
    """Have the WAL begin anew, or be cut to nothing; whether that was done. Who reads is waited for so long."""
    writer.set_busy_timeout(wait_ms)
    try:
        ((busy, _, _),) = writer.execute(f"pragma wal_checkpoint({how})")
    except apsw.Error:
        busy = 1
    writer.set_busy_timeout(BUSY_MS)
    return not busy
