"""
Whose turn it is to search the log: one page at a time, and users one after the other.

However many searches one user has under way, another's waits for one page of that user's, and not for one of each. A
page is bounded in what it reads and in what it asks, so turns are alike.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

ADMINISTRATION: Final = ""
"""Who searches where no user of a listener does: administrators, together."""


class SearchTurns:
    """The searches of one Message VPN's log."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Searches that wait, by user."""
        self._turns = 0
        self._last: dict[str, int] = {}
        """Which turn was the last one of a user; nothing is known where nobody waits."""

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """One page of a search of this user's."""
        await self._take(user)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, user: str) -> None:
        if not self._is_taken:
            self._give_to(user)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was given the turn, and is gone.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self._is_taken = False
        while self._waiting:
            # Whoever has not had one for the longest.
            user = min(self._waiting, key=lambda user: self._last.get(user, 0))
            queue = self._waiting[user]
            turn = queue.popleft()
            if not queue:
                del self._waiting[user]
            if not turn.done():
                self._give_to(user)
                turn.set_result(None)
                return
        self._last.clear()

    def _give_to(self, user: str) -> None:
        self._is_taken = True
        self._turns += 1
        self._last[user] = self._turns
