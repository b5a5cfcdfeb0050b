"""
What lies on an endpoint as a list for people: page by page, the oldest first, and none of it taken away.

Messages are shown in the order of their ids, also where the endpoint delivers by priority, and with them those that a
consumer has and has not settled. Nothing is watched or woken for it: what comes while a page is made is for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import ID, TIME_MS, Row
from gateway.vpn.log_history import LogHistory
from gateway.vpn.user_turns import ADMINISTRATION, UserTurns
from store.ports import Reader

MOST_ROWS: Final = 1_000
"""Messages that are read at once: settled ones may lie between those that are shown."""

FIRST_ROWS: Final = 8
"""Messages behind what is settled that are looked at for the oldest."""

FLOWS_AT_ONCE: Final = 16
"""Consumers whose unsettled messages are looked through in one turn of the loop."""


class LyingMessage(NamedTuple):
    """A message that lies on an endpoint."""

    row: Row
    attempts: int
    """Deliveries that failed."""
    is_unsettled: bool
    """A consumer has it."""


class LyingMessages(NamedTuple):
    """A page of the list."""

    messages: list[LyingMessage]
    position: int | None
    """The id from which on to look next; None at the end."""


class EndpointListing:
    """
    Lists of one Message VPN's endpoints.

    Args:
        next_id: One past the last committed id.
        turns: Held while a page is read.
    """

    def __init__(
        self, reader: Reader, history: LogHistory, turns: UserTurns, next_id: Callable[[], int]
    ) -> None:
        self._reader = reader
        self._history = history
        self._turns = turns
        self._next_id = next_id

    async def page(self, endpoint: Endpoint, position: int, count: int) -> LyingMessages:
        """
        What lies there from an id on; at most ``count``. An endpoint that is emptied meanwhile has no more.

        Raises:
            store.errors.ReadFailed: It cannot be read.
        """
        end, number, most = self._next_id(), endpoint.cursor_number, count + 1
        floors = [cursor.floor for cursor in endpoint.backlog.parts.values()]
        put = [i for i in endpoint.backlog.put.ids if position <= i < end]
        # Up to its floors it is done with all that came by routes.
        position = max(position, min([*(floor + 1 for floor in floors), *put[:1]]))
        found: list[Row] = []
        while position < end and len(found) <= count and endpoint.cursor_number == number:
            async with self._turns.turn(ADMINISTRATION):
                rows, position = await self._read(endpoint, position, end, put, most)
            put = [i for i in put if i >= position]
            if endpoint.cursor_number == number:
                found += filter(endpoint.backlog.has, rows)
            most = min(most * 2, MOST_ROWS)
        more = found[count][ID] if len(found) > count else None
        return LyingMessages(await self._described(endpoint, found[:count]), more)

    async def one(self, endpoint: Endpoint, message_id: int) -> Row | None:
        """A message that lies there; None where it does not."""
        found = await self.page(endpoint, message_id, 1)
        row = found.messages[0].row if found.messages else None
        return row if row is not None and row[ID] == message_id else None

    async def oldest_ms(self, endpoint: Endpoint) -> int | None:
        """
        When the oldest message that lies there arrived, ms since the epoch; None where there is none, or none of the
        first that were looked at lies there any more. One short read.

        Raises:
            store.errors.ReadFailed: It cannot be read.
        """
        backlog, reader, end = endpoint.backlog, self._reader, self._next_id()
        if not backlog.messages:
            return None
        parts = [(backlog.route_numbers(part), cursor.floor) for part, cursor in backlog.parts.items()]
        put = backlog.put.ids[:FIRST_ROWS]

        def read() -> list[Row]:
            rows = reader.messages(put) if put else []
            for routes, floor in parts:
                if routes:
                    rows += reader.routed_page(routes, floor, end, FIRST_ROWS).rows
            return rows

        rows = await asyncio.wrap_future(reader.submit(read))
        return min((row[TIME_MS] for row in rows if backlog.has(row)), default=None)

    async def _read(
        self, endpoint: Endpoint, position: int, end: int, put: Sequence[int], most: int
    ) -> tuple[list[Row], int]:
        """Messages that may lie there, in order, and the id from which on to read next."""
        backlog, reader = endpoint.backlog, self._reader
        routes = sorted({number for part in backlog.parts for number in backlog.route_numbers(part)})
        routed = partial(reader.routed_page, routes, position - 1, end, most)
        page = await asyncio.wrap_future(reader.submit(routed))
        rows, stop = list(page.rows), page.position
        wanted = [i for i in put if i < stop][:most]
        while wanted:
            others = await asyncio.wrap_future(self._history.messages(wanted))
            if not others:
                break
            rows += others
            wanted = [i for i in wanted if i > others[-1][ID]]
        if len(left := [i for i in put if i < stop]) > most:
            stop = left[most]
        by_id = {row[ID]: row for row in rows if row[ID] < stop}
        return [by_id[i] for i in sorted(by_id)], stop

    async def _described(self, endpoint: Endpoint, rows: Sequence[Row]) -> list[LyingMessage]:
        if not rows:
            return []
        asked = partial(self._reader.attempts, endpoint.cursor_number, rows[0][ID], rows[-1][ID])
        attempts = dict(await asyncio.wrap_future(self._reader.submit(asked))) | endpoint.attempts
        wanted = {row[ID] for row in rows}
        unsettled: set[int] = set()
        flows: Iterable[Iterable[int]] = [flow.unsettled for flow in (*endpoint.flows, *endpoint.suspended)]
        for count, ids in enumerate(flows):
            if count % FLOWS_AT_ONCE == FLOWS_AT_ONCE - 1:
                await asyncio.sleep(0)
            unsettled |= wanted.intersection(iter(ids))
        return [LyingMessage(row, attempts.get(row[ID], 0), row[ID] in unsettled) for row in rows]
