"""
The replay log in id order: out of the message cache while it reaches back far enough, else in pages of its history, one
ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from gateway.core.erasing import with_markers
from gateway.core.message_cache import MessageCache
from gateway.core.model import ID, Columns, Row
from gateway.vpn.log_history import HeldMessages, LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.user_turns import ADMINISTRATION
from store.ports import LogPage


class LogSource:
    """
    A cursor that never skips: what ``read`` returns covers every id from ``position`` to the position it names.

    Args:
        patterns: Topics of interest; rows of others may come along all the same. Empty: all.
        user: Who reads.
        held: With what an endpoint alone holds (``LogHistory.page``).
        wake: Called on the loop when a page that ``read`` had to wait for is there, with the error if it could not
            be read.
    """

    def __init__(
        self,
        cache: MessageCache,
        history: LogHistory,
        runtime: Runtime,
        position: int,
        patterns: Sequence[str],
        wake: Callable[[BaseException | None], None],
        *,
        user: str = ADMINISTRATION,
        held: HeldMessages | None = None,
    ) -> None:
        self._user = user
        self._held = held
        self.position = position
        self._columns: Columns | None = None
        """Of the page that ``read`` gave some of last."""
        self._given = 0, 0
        self._cache = cache
        self._history = history
        self._runtime = runtime
        self._patterns = patterns
        self._wake: Callable[[BaseException | None], None] | None = wake
        self._page: LogPage | None = None
        self._index = 0
        self._next: Future[tuple[LogPage, float]] | None = None
        self._read_seconds = 0.0
        self._waits = False

    @property
    def columns(self) -> Columns | None:
        """Of what ``read`` gave last, where that came so. The caller's."""
        return None if self._columns is None else self._columns.part(*self._given)

    @property
    def is_at_end(self) -> bool:
        """Every committed message was taken."""
        return self.position >= self._cache.next_id

    def is_behind(self, rows: int) -> bool:
        """Whether what comes next is no longer in memory, or more than so many rows from the newest."""
        cache = self._cache
        return (
            self._page is not None or self.position < cache.first_id or cache.next_id - self.position > rows
        )

    def read(self, limit: int) -> tuple[Sequence[Row], int] | None:
        """
        The next rows, at most ``limit``, and the position after them; it may move on without rows.

        Returns:
            None at the end of the log, and while a page is being read (``wake`` is called then).

        Raises:
            store.errors.LogTrimmed: What comes next is in the log no longer.
            store.errors.ReadFailed: It could not be read.
        """
        cache = self._cache
        page = self._page
        self._columns = None
        if page is None:
            if self.position >= cache.first_id:
                self._next = None
                rows = cache.since(self.position, limit)
                if not rows:
                    return None
                self.position = rows[-1][ID] + 1
                return self._left(rows), self.position
            page = self._arrived()
            if page is None:
                return None
        return self._from_page(page, limit)

    def skip_to(self, position: int) -> None:
        """Nothing below ``position`` is of interest; only where all that was committed has been taken."""
        self.position = max(self.position, position)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more: the markers are in the pages that were read."""
        if self._page is not None:
            self._page = _with_markers(self._page, markers)
        coming = self._next
        if coming is not None and coming.done() and not coming.cancelled() and coming.exception() is None:
            page, taken = coming.result()
            self._next = Future()
            self._next.set_result((_with_markers(page, markers), taken))

    def let_go(self) -> None:
        """Nothing is wanted for a while: what was read and not taken is read again."""
        if self._waits:
            return  # It is told of that page, and can say so again.
        if self._next is not None:
            self._next.cancel()
        self._page = self._next = None

    def close(self) -> None:
        """Nobody reads on: no page is kept, and nobody woken by one that is under way."""
        if self._next is not None:
            self._next.cancel()
        self._wake = self._page = self._next = self._columns = None

    def spent_reading(self) -> float:
        """Seconds of a processor that pages took which have arrived since this was asked last."""
        spent, self._read_seconds = self._read_seconds, 0.0
        return spent

    def _from_page(self, page: LogPage, limit: int) -> tuple[Sequence[Row], int]:
        rows = page.rows
        start = self._index
        stop = start + limit
        if stop >= len(rows):
            self._page = None
            self.position = page.position
            part = rows[start:] if start else rows
        else:
            self._index = stop
            self.position = rows[stop][ID]
            part = rows[start:stop]
        left = self._left(part)
        if page.columns is not None and left is part:
            self._columns, self._given = page.columns, (start, stop)
        return left, self.position

    def _left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those that the log still has, and those that somebody has without it."""
        left, held = self._history.left(rows), self._held
        if held is None or len(left) == len(rows):
            return left
        ids = {row[ID] for row in left}
        return [row for row in rows if row[ID] in ids or held.has(row)]

    def _arrived(self) -> LogPage | None:
        """The page at ``position``, if it has been read; asks for it, and for the one after it."""
        if self._next is None:
            self._next = self._ask(self.position)
        if not self._next.done():
            if not self._waits:
                self._waits = True
                loop = self._runtime.loop
                self._next.add_done_callback(lambda f: loop.call_soon_threadsafe(self._done, f))
            return None
        arrived, self._next = self._next, None
        try:
            page, taken = arrived.result()
        finally:
            # An error that it raises has this frame, and this frame would have the error.
            del arrived
        self._read_seconds += taken
        self._page, self._index = page, 0
        if page.position < self._cache.first_id:
            self._next = self._ask(page.position)
        return page

    def _ask(self, position: int) -> Future[tuple[LogPage, float]]:
        return self._history.page(position, self._cache.next_id, self._patterns, self._user, self._held)

    def _done(self, future: Future[tuple[LogPage, float]]) -> None:
        self._waits = False
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._next = None
        if self._wake is not None:
            self._wake(error)


def _with_markers(page: LogPage, markers: Mapping[int, Row]) -> LogPage:
    return LogPage(with_markers(page.rows, markers), page.position)
