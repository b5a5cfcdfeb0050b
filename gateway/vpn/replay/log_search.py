"""
Looks through the log for the message at which a replay starts, page by page, and lets everybody else go first.

At most one reader thread of a Message VPN is searching, however many searches there are: users take turns, a page each.
Beside live traffic a search rests after a page for as long as the page took. A long one says how far it is, every few
seconds; its attach waits meanwhile, and it ends with its connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amqp_ext.replay_start import ReplayStart
from gateway import log_keys
from gateway.core.replay.search import Search
from gateway.core.replay.starts import LogFacts
from gateway.vpn.counters import Counters
from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.user_turns import UserTurns
from store.errors import LogTrimmed
from store.ports import Reader


@dataclass(frozen=True, slots=True)
class SearchShared:
    """What all searches of a Message VPN's log have in common."""

    reader: Reader
    history: LogHistory
    counters: Counters
    runtime: Runtime
    turns: UserTurns
    """Held by the one search that reads a page of the log."""


class PagedSearch(ABC):
    """
    A search of the log as it is now: what is published meanwhile is not looked at.

    Args:
        user: Whose it is.
        patterns: The topics that are looked at.
        facts: The log, or the part of it that is looked at.
    """

    def __init__(
        self, shared: SearchShared, user: str, start: ReplayStart, patterns: Sequence[str], facts: LogFacts
    ) -> None:
        self._shared = shared
        self._user = user
        self._unknown = 0
        self._patterns = patterns
        self._first, self._end = facts.first_id, facts.next_id
        self._log = shared.runtime.log.bind(**{log_keys.START: str(start)})

    async def run(self) -> int | None:
        """The id of the message that is looked for."""
        counters, clock = self._shared.counters, self._shared.runtime.loop.time
        began = reported = clock()
        found: int | None = None
        while found is None and self._first < self._end:
            activity = counters.activity
            async with self._shared.turns.turn(self._user):
                page_began = clock()
                found = await self._read_page()
                now = clock()
            if now - reported >= self._shared.runtime.tuning.search_progress_seconds and found is None:
                reported = now
                self._report("replay_search_progress", now - began)
            if found is None and counters.activity != activity:
                await asyncio.sleep(now - page_began)
        if found is None:
            found = self._left()
        self._report("replay_search", clock() - began, **{log_keys.FIRST: found})
        return found

    @abstractmethod
    async def _read_page(self) -> int | None:
        """Look at a page of what is left between ``_first`` and ``_end``, and make that less."""

    def _left(self) -> int | None:
        """What is taken where the search came to its end."""
        return None

    def _report(self, event: str, seconds: float, **more: int | None) -> None:
        if self._unknown:
            more[log_keys.UNKNOWN] = self._unknown
        self._log.info(
            event,
            **{
                log_keys.OFFSET: self._first,
                log_keys.LAST: self._end - 1,
                log_keys.ELAPSED_MS: round(seconds * 1_000),
            },
            **more,
        )


class LogSearch(PagedSearch):
    """Looks for the first message that a search takes, from the beginning on."""

    def __init__(
        self,
        shared: SearchShared,
        user: str,
        start: ReplayStart,
        search: Search,
        patterns: Sequence[str],
        facts: LogFacts,
    ) -> None:
        super().__init__(shared, user, start, patterns, facts)
        self._search = search

    async def _read_page(self) -> int | None:
        history = self._shared.history
        try:
            page = await history.search_page(self._search, self._patterns, self._first, self._end, self._user)
        except LogTrimmed as trimmed:
            # What is gone is no start; the search goes on with what is left.
            self._first = min(trimmed.first_id, self._end)
            return None
        self._first = page.position
        self._unknown += page.unknown
        return page.found


class CountBack(PagedSearch):
    """
    Counts messages from the newest one back; where there are fewer than asked for, the oldest of them is found.

    Args:
        count: So many.
        matches: Whether a topic counts; None when every topic does.
    """

    def __init__(
        self,
        shared: SearchShared,
        user: str,
        start: ReplayStart,
        count: int,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        facts: LogFacts,
    ) -> None:
        super().__init__(shared, user, start, patterns, facts)
        self._count = count
        self._matches = matches
        self._oldest: int | None = None
        """Of those that were counted."""

    async def _read_page(self) -> int | None:
        try:
            page = await self._shared.history.topics_below(self._end, self._first, self._patterns, self._user)
        except LogTrimmed:
            # What is left of the count is gone.
            self._end = self._first
            return None
        matches = self._matches
        ids = [number for number, topic in page.found if matches is None or matches(topic)]
        if len(ids) >= self._count:
            return ids[self._count - 1]
        if ids:
            self._count -= len(ids)
            self._oldest = ids[-1]
        self._end = page.position
        return None

    def _left(self) -> int | None:
        return self._oldest
