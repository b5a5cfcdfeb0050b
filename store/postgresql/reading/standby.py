"""
Pages of history from a hot standby, so that they cost the primary nothing; all else from the primary.

What is read there is the log: pages of it, searches in it, and counts. What changes with each delivery (attempts, what
endpoints hold, the newest message) is read from the primary: a standby may be behind, and would tell of a past.

Nothing is passed over, and nobody waits for a standby. Where it has not replayed yet what the caller was told of, does
not answer, or fails in any other way, the page comes from the primary. It is then left alone for a while: where it was
behind, for the ids that it did not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from gateway.core.model import Row
from gateway.core.replay.search import Search
from store.errors import ReadFailed
from store.ports import MAX_ID, DiskUse, LengthPage, LogPage, RoutedPage, SearchPage, TopicPage
from store.postgresql.reading.reader import SCAN_IDS, Behind, PostgresReader

T = TypeVar("T")

REST_SECONDS: Final = 5.0
"""For which a standby is left alone that has failed."""

BEHIND_SECONDS: Final = 0.2
"""For which it is not asked again for what it did not have."""


class StandbyReader:
    """The port's ``Reader`` over two servers."""

    def __init__(self, primary: PostgresReader, standby: PostgresReader) -> None:
        """
        Args:
            primary: Its threads read from both.
            standby: One that has no patience.
        """
        self._primary = primary
        self._standby = standby
        self._is_left_alone = False
        self._rests_until = 0.0
        self._lacks: tuple[float, int] = (0.0, MAX_ID)
        """Until when, and from which id on, it is not asked."""

    @property
    def damage(self) -> str | None:
        """See ``store.ports.Reader.damage``: of the primary. What a standby cannot give is read there."""
        return self._primary.damage

    @property
    def standby_damage(self) -> str | None:
        """See ``store.ports.Reader``."""
        return self._standby.damage

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """See ``store.ports.Reader``."""
        return self._primary.submit(read)

    def grow_largest(self, size_bytes: int) -> None:
        """A content of this size is about to be there."""
        self._primary.grow_largest(size_bytes)
        self._standby.grow_largest(size_bytes)

    def drain(self) -> None:
        """See ``store.ports.Reader``."""
        self._primary.drain()

    def leave_alone(self) -> None:
        """The standby is not asked until ``ask_again``: it may have what must not be read any more."""
        self._is_left_alone = True

    def ask_again(self) -> None:
        """It has what the primary has."""
        self._is_left_alone = False

    def close(self) -> None:
        """End it."""
        self._standby.give_up()
        self._primary.close()  # whose threads read from both
        self._standby.close()

    # --- what the standby is asked ------------------------------------------------------------------------------

    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """See ``store.ports.Reader``."""
        return self._read(
            lambda reader: reader.log_page(position, end, patterns, held=held), min(end, position + SCAN_IDS)
        )

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        """See ``store.ports.Reader``."""
        return self._read(lambda reader: reader.search_page(search, patterns, position, end), end)

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """See ``store.ports.Reader``."""
        return self._read(lambda reader: reader.topics_below(before, first, patterns), before)

    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        """See ``store.ports.Reader``."""
        return self._read(lambda reader: reader.tally(position, end, patterns), end)

    # --- what the primary is asked ------------------------------------------------------------------------------

    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """See ``store.ports.Reader``."""
        return self._primary.lengths_page(position, end, patterns)

    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> RoutedPage:
        """See ``store.ports.Reader``."""
        return self._primary.routed_page(routes, after, end, limit)

    def disk(self) -> DiskUse:
        """See ``store.ports.Reader``."""
        return self._primary.disk()

    def messages(self, ids: Sequence[int]) -> list[Row]:
        """See ``store.ports.Reader``."""
        return self._primary.messages(ids)

    def attempts(self, cursor: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        """See ``store.ports.Reader``."""
        return self._primary.attempts(cursor, first, last)

    def first_since(self, time_ms: int) -> int | None:
        """See ``LogProbe``."""
        return self._primary.first_since(time_ms)

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """See ``store.ports.Reader``."""
        return self._primary.positions_since(times_ms)

    def time_of(self, message_id: int) -> int | None:
        """See ``LogProbe``."""
        return self._primary.time_of(message_id)

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        """See ``LogProbe``."""
        return self._primary.last_matching(matches)

    # --- which of them ------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[PostgresReader], T], stop: int) -> T:
        """
        Args:
            stop: Ids below this one are looked at.
        """
        now = time.monotonic()
        until, lacks = self._lacks
        if self._is_left_alone or now < self._rests_until or (now < until and stop > lacks):
            return read(self._primary)
        try:
            return read(self._standby)
        except ReadFailed as error:
            behind = error.__cause__
            if isinstance(behind, Behind):
                self._lacks = (time.monotonic() + BEHIND_SECONDS, behind.told_id + 1)
            else:
                self._rests_until = time.monotonic() + REST_SECONDS
        return read(self._primary)
