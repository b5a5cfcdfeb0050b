"""
Messages of a Message VPN, by their ids or by what a search takes, whether the store has them or the log's archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from gateway.core.broker import Broker
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row
from gateway.core.replay.search import Search
from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.user_turns import ADMINISTRATION, UserTurns
from store.errors import LogTrimmed, ReadFailed
from store.ports import Reader


class StoredMessages:
    """
    Args:
        turns: Of searches.
    """

    def __init__(
        self, broker: Broker, history: LogHistory, reader: Reader, turns: UserTurns, runtime: Runtime
    ) -> None:
        self._broker = broker
        self._history = history
        self._reader = reader
        self._turns = turns
        self._runtime = runtime

    @property
    def first_id(self) -> int:
        """The oldest id that a search may begin at."""
        return self._history.first_id

    @property
    def next_id(self) -> int:
        """One past the newest id."""
        return self._broker.log.next_id

    async def matching(
        self, search: Search, patterns: Sequence[str], first: int, stop: int, most: int
    ) -> list[int]:
        """
        The ids of logged messages from ``first`` on, below ``stop``, that a search takes.

        Args:
            patterns: Topics that it looks at; none for all.
            most: It is not looked for more than so many.

        Raises:
            Refused: INTERNAL, the log cannot be read.
        """
        found: list[int] = []
        position, end = first, min(stop, self.next_id)
        while position < end and len(found) < most:
            try:
                async with self._turns.turn(ADMINISTRATION):
                    page = await self._history.search_page(search, patterns, position, end, ADMINISTRATION)
            except LogTrimmed as trimmed:
                position = max(trimmed.first_id, position + 1)
                continue
            except ReadFailed as error:
                raise self._not_read(error) from None
            if page.found is not None:
                found.append(page.found)
                position = page.found + 1
            else:
                position = page.position
        return found

    async def rows(self, ids: Sequence[int]) -> AsyncIterator[Row]:
        """
        Those of some messages (rising ids) that are stored or archived.

        Raises:
            Refused: As ``matching`` has it.
        """
        reader, history = self._reader, self._history
        first_id, next_id = history.first_id, self.next_id
        # What the log begins behind may lie on an endpoint still.
        held = [i for i in ids if i < first_id]
        rest = [i for i in ids if first_id <= i < next_id]
        while held or rest:
            try:
                async with self._turns.turn(ADMINISTRATION):
                    asked = reader.submit(partial(reader.messages, held)) if held else history.messages(rest)
                    rows = await asyncio.wrap_future(asked)
            except ReadFailed as error:
                raise self._not_read(error) from None
            for row in rows:
                yield row
            last = rows[-1][ID] if rows else next_id
            if held:
                held = [i for i in held if i > last]
            else:
                rest = [i for i in rest if i > last]

    def _not_read(self, error: ReadFailed) -> Refused:
        self._runtime.report("log_read_failed", error)
        return Refused(
            ErrorCode.INTERNAL,
            "the replay log could not be read; the gateway's log says why; nothing was erased",
        )
