"""
Looks through the log for the message at which a replay starts, page by page, and lets everybody else go first.

At most one reader thread of a Message VPN is searching, however many searches there are: users take turns, a page each.
Beside live traffic a search rests after a page for as long as the page took. A long one says how far it is, every few
seconds; its attach waits meanwhile, and it ends with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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


class LogSearch:
    """
    One search of the log as it is now: what is published meanwhile is not looked at.

    Args:
        user: Whose it is.
        patterns: The topics that are looked at.
        facts: The log, or the part of it that is looked at.
    """

    def __init__(
        self,
        shared: SearchShared,
        user: str,
        start: ReplayStart,
        search: Search,
        patterns: Sequence[str],
        facts: LogFacts,
    ) -> None:
        self._shared = shared
        self._user = user
        self._search = search
        self._unknown = 0
        self._patterns = patterns
        self._position, self._end = facts.first_id, facts.next_id
        self._log = shared.runtime.log.bind(**{log_keys.START: str(start)})

    async def run(self) -> int | None:
        """The id of the first message that the search takes."""
        counters, clock = self._shared.counters, self._shared.runtime.loop.time
        began = reported = clock()
        found: int | None = None
        while found is None and self._position < self._end:
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
        self._report("replay_search", clock() - began, **{log_keys.FIRST: found})
        return found

    async def _read_page(self) -> int | None:
        history = self._shared.history
        try:
            page = await history.search_page(
                self._search, self._patterns, self._position, self._end, self._user
            )
        except LogTrimmed as trimmed:
            # What is gone is no start; the search goes on with what is left.
            self._position = min(trimmed.first_id, self._end)
            return None
        self._position = page.position
        self._unknown += page.unknown
        return page.found

    def _report(self, event: str, seconds: float, **more: int | None) -> None:
        if self._unknown:
            more[log_keys.UNKNOWN] = self._unknown
        self._log.info(
            event,
            **{
                log_keys.OFFSET: self._position,
                log_keys.LAST: self._end - 1,
                log_keys.ELAPSED_MS: round(seconds * 1_000),
            },
            **more,
        )
