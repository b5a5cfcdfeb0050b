"""
Log lines on their way out: written by a thread of their own, so that nobody who logs waits for who reads.

A pipe that nobody reads, or a slow terminal, blocks the thread. Lines wait meanwhile, so many of them; those beyond are
dropped and counted, and the log says how many as soon as it goes on.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

MOST_WAITING: Final = 2 * 1024 * 1024
"""Characters of lines that wait for their stream: some ten thousand lines."""

STOP_SECONDS: Final = 1.0
"""How long an end waits for the last lines to be written."""


class LineCounts:
    """What did not come out, of all this process has logged."""

    def __init__(self) -> None:
        self.dropped = 0
        """Lines that nobody took in time, or that could not be written."""
        self.held_back = 0
        """Lines that one connection, or one address, had too many of."""


COUNTS: Final = LineCounts()
"""This process's; shown as metrics."""


class LineWriter:
    """
    A stream whose ``write`` never waits.

    Args:
        descriptor: Of the file, pipe or terminal they go to. It is written to past Python's own streams: those have a
            lock, which everybody would wait for.
        most: Characters that may wait.
    """

    def __init__(
        self,
        descriptor: int,
        counts: LineCounts = COUNTS,
        most: int = MOST_WAITING,
    ) -> None:
        self._descriptor = descriptor
        self._counts = counts
        self._most = most
        self._waiting: deque[str] = deque()
        self._size = 0
        self._untold = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, told: Callable[[int], str]) -> None:
        """
        Begin to write.

        Args:
            told: The line that says how many were dropped.
        """
        self._thread = threading.Thread(target=self._run, args=(told,), name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Have a line, or several, written; dropped where too much waits."""
        with self._changed:
            if self._size + len(text) > self._most:
                self._drop()
            else:
                self._waiting.append(text)
                self._size += len(text)
            self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Lines are flushed as they are written."""

    def isatty(self) -> bool:
        """Whether a person looks at the stream."""
        return os.isatty(self._descriptor)

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _drop(self) -> None:
        self._counts.dropped += 1
        self._untold += 1

    def _run(self, told: Callable[[int], str]) -> None:
        has_failed = False
        while True:
            with self._changed:
                # Lines that were dropped are told of though no other follows them, unless that failed just now.
                while not (self._waiting or self._is_closed or (self._untold and not has_failed)):
                    self._changed.wait()
                text = "".join(self._waiting)
                count, size = len(self._waiting), self._size
                self._waiting.clear()
                untold, self._untold = self._untold, 0
                is_last = self._is_closed
            if untold:
                with suppress(Exception):
                    text += told(untold)
            has_failed = False
            try:
                self._put(text.encode(errors="backslashreplace"))
            except OSError:
                has_failed = True
                # A full disk, or a pipe that was closed: whoever logs has more to do than that.
                with self._changed:
                    self._counts.dropped += count
                    self._untold += untold + count
            with self._changed:
                self._size -= size
                if is_last and not self._waiting:
                    return

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # Whoever started us set it to not wait.
                select.select((), (self._descriptor,), ())
