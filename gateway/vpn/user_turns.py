"""
Whose turn it is to read for long: one page at a time, and users one after the other.

However many searches, or readers of an archive, one user has, another's waits for one page of that user's, and not for
one of each. A page is bounded in what it reads and in what it asks, so turns are alike.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

ADMINISTRATION: Final = ""
"""Who reads where no user of a listener does: administrators, together."""


class UserTurns:
    """
    The turns of one Message VPN's users at one thing.

    Args:
        at_once: How many have a turn at the same time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._free = at_once
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Those that wait, by user."""
        self._turns = 0
        self._last: dict[str, int] = {}
        """Which turn was the last one of a user; nothing is known where nobody waits."""

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """One page for this user."""
        await self._take(user)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, user: str) -> None:
        if self._free:
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
        self._free += 1
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
        self._free -= 1
        self._turns += 1
        self._last[user] = self._turns
