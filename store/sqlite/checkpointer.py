"""
Checkpoints next to the writer: they copy the WAL into the main file while no publisher waits for it.

There are two tiers. PASSIVE runs on a thread of its own after every ``checkpoint_bytes`` written: it does the work and
blocks nobody, but while the writer goes on, it never reaches the end of the WAL. RESTART runs on the writer's thread
right after: only the frames since then are left, so it is short, and the WAL restarts from its beginning. If readers
still use old frames, RESTART gives up immediately, and is tried again after the next commit. While a reader keeps
PASSIVE from making progress, RESTART is not tried at all: at the moment the reader ends, the writer would have to do
all the work that PASSIVE could not.

Until the WAL restarts for the first time, its file grows. To sync a file that has grown, the file system also writes
its own journal, which takes half as long again as syncing the same bytes in place. So the file is made longer in
advance of small commits. SQLite ignores what the file contains after the last frame.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import apsw

from store.sqlite.database import BUSY_MS, connect
from store.sqlite.schema import PAGE_BYTES
from store.sqlite.trimming import note_cut_off

FRAME_FACTOR: Final = 2
"""WAL bytes for a byte of content, roughly: whole pages are written, and pages of the index of routes in addition."""

COMMIT_BYTES: Final = 8 * 1024
"""What the smallest commit writes: a page for the message, and a page for its route in the index, or for a cursor."""

SCRUB_MS: Final = 50
"""How long the writer waits for readers before the WAL is truncated."""

AHEAD: Final = bytes(256 * 1024)
"""What the WAL's file is extended by: the smallest commits fill it in thirty-two, and one write appends it."""


class Checkpointer:
    def __init__(self, path: Path, checkpoint_bytes: int) -> None:
        self._path = path
        self._checkpoint_bytes = checkpoint_bytes
        self._written_bytes = 0
        self._end_before = 0
        self._wanted = threading.Event()
        self.is_ready = False
        """A checkpoint was made, and the WAL can restart."""
        self._closing = False
        self._scrubs = False
        """The WAL is to be truncated to nothing."""
        self.scrubbed = threading.Event()
        """The WAL was truncated since ``scrub`` asked for it."""
        self._wal_file = -1
        self._wal_bytes = -1
        """The length that the WAL's file was given here; if the file has another length, SQLite has changed it."""
        # Here, not on the thread: a gateway without a free file descriptor fails to open the store, and says so.
        self._connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
        self._connection.set_busy_timeout(BUSY_MS)
        self._thread = threading.Thread(target=self._run, name=f"checkpointer {path.stem}", daemon=True)
        self._thread.start()

    def written(self, content_bytes: int) -> None:
        """The writer committed this much content."""
        self._written_bytes += max(content_bytes * FRAME_FACTOR, COMMIT_BYTES)
        if self._written_bytes >= self._checkpoint_bytes:
            self._written_bytes = 0
            self._wanted.set()

    def scrub(self) -> None:
        """Remove old versions of pages: the whole WAL is to go into the file, and to be truncated."""
        self.scrubbed.clear()
        self._scrubs = True
        self._wanted.set()

    def scrub_now(self, writer: apsw.Connection) -> None:
        """The same immediately, before anything is written; in the background if somebody reads."""
        if _begun_anew(writer, "truncate", 0):
            note_cut_off(writer)
        else:
            self.scrub()

    def wake(self) -> None:
        """A reader that may have blocked a checkpoint is gone: continue."""
        if not self.is_ready:
            self._wanted.set()

    def restart_wal(self, writer: apsw.Connection) -> None:
        """Called by the writer between transactions: restart the WAL if a checkpoint has been made."""
        if self.is_ready:
            scrubs = self._scrubs
            is_done = (
                _begun_anew(writer, "truncate", SCRUB_MS) if scrubs else _begun_anew(writer, "restart", 0)
            )
            self.is_ready = not is_done
            if scrubs and is_done:
                note_cut_off(writer)
                self._scrubs = False
                self.scrubbed.set()

    @property
    def is_ahead(self) -> bool:
        """The WAL's file still has the length that ``lengthen_wal`` gave it: SQLite has not reached its end."""
        return self._wal_file >= 0 and os.lseek(self._wal_file, 0, os.SEEK_END) == self._wal_bytes

    def lengthen_wal(self) -> None:
        """
        Called by the writer inside a small transaction, before its commit: nobody else writes to the WAL then. Extends
        the file if SQLite has reached its end.
        """
        # A full disk has no room for this. Whether it has room for the commit, the commit will tell.
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
        with closing(self._connection):
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._closing:
                    return
                with suppress(apsw.Error):
                    self._checkpoint()

    def _checkpoint(self) -> None:
        ((busy, end, done),) = self._connection.execute("pragma wal_checkpoint(passive)")
        if busy:
            return
        # In frames. Little is left, or PASSIVE has at least passed the last round's end: then no reader blocks it.
        is_little = (end - done) * PAGE_BYTES <= self._checkpoint_bytes
        self.is_ready = is_little or done >= self._end_before > 0
        self._end_before = end


def _begun_anew(writer: apsw.Connection, how: str, wait_ms: int) -> bool:
    """Restart or truncate the WAL, waiting so long for readers. Returns whether that was done."""
    writer.set_busy_timeout(wait_ms)
    try:
        ((busy, _, _),) = writer.execute(f"pragma wal_checkpoint({how})")
    except apsw.Error:
        busy = 1
    writer.set_busy_timeout(BUSY_MS)
    return not busy
