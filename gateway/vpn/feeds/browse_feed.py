"""
Shows the messages on an endpoint and consumes none: to a browser's link, and as a list for people.

A browser gets each message once, in order, including unsettled ones, and waits at the end for more. If the endpoint
delivers by priority, the browser gets them by priority: of the messages there when a page is read, the highest first. A
list has the order of ids, page by page; it does not wait for more, and messages that come while a page is made are for
the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeAlias

from amqp_ext.message.fields import HIGHEST, LOWEST
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, TIME_MS, WHOLE, Row, sizes_of
from gateway.vpn.clients import LogLink
from gateway.vpn.feeds.endpoint_feed import routes_of
from gateway.vpn.feeds.stalled import StalledFeeds
from gateway.vpn.state import VpnPart, VpnState
from gateway.vpn.turns import ADMINISTRATION, WaitingTurn
from store.ports import Reader

Page: TypeAlias = "tuple[int, int, list[Row]]"
"""(the part of the endpoint's cursor that was read, the position after that, the messages found)"""

PUT: Final = -2
"""In place of a part: the messages of an endpoint with priorities that no route led there. They are shown first."""

MOST_ROWS: Final = 1_000
"""Messages that are read in one call: settled ones may be among those that are shown."""

FIRST_ROWS: Final = 8
"""Messages above the floor that are looked at to find the oldest."""

FLOWS_AT_ONCE: Final = 16
"""Consumers whose unsettled messages are looked through in one turn of the loop."""


class BrowseFeed(VpnPart):
    """
    Reads the messages on an endpoint in pages from the store, including those that are unsettled at a consumer. At the
    end it waits for more.

    Args:
        matches: The browser's selector; None shows everything.
        closed: Called when this feed has closed, perhaps more than once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client: LogLink,
        matches: Callable[[Row], bool] | None,
        state: VpnState,
        stalled: StalledFeeds,
        closed: Callable[[BrowseFeed], None],
    ) -> None:
        super().__init__(state)
        self.endpoint = endpoint
        self.account = client.account
        """The account of its link's connection."""
        self._link = client
        self._stalled = stalled
        self._selection = state.selection
        self._tell_closed = closed
        self._matches = matches
        self._number = endpoint.cursor_number
        self._shown_up_to: dict[int, int] = {WHOLE: 0}
        """How far it has read each part of the endpoint's cursor, in the order in which it reads them."""
        if endpoint.settings.priorities:
            self._shown_up_to = dict.fromkeys((PUT, *range(HIGHEST, LOWEST - 1, -1)), 0)
        self._end = 0
        """One past the last id that the page under way, or the last page, could hold."""
        self._rows: Sequence[Row] = ()
        """The messages to be shown next."""
        self._page: Sequence[Row] = ()
        """The messages that were read and not yet chosen from."""
        self._part = WHOLE
        """The part of the endpoint's cursor that these are of."""
        self._turn: WaitingTurn | None = None
        self._is_reading = False
        self._is_closed = False

    def run(self) -> None:
        """Send what the link takes. Called when credit, room or messages came."""
        link = self._link
        while not self._is_closed and not self._is_reading:
            if self.endpoint.cursor_number != self._number:
                self.close()
                link.refuse(
                    Refused(ErrorCode.REPLAY_STARTED, f"{self.endpoint.name!r} was emptied; attach again")
                )
                return
            room = link.room()
            if room <= 0:
                self._stall()
                return
            self._stalled.remove(self)
            if not self._rows:
                if not self._page:
                    self._read()
                    return
                if self._turn is not None:
                    return
                self._choose()
                continue
            now, self._rows = self._rows[:room], self._rows[room:]
            link.send(now, self.endpoint.attempts, None)

    def _stall(self) -> None:
        """The link takes nothing. A commit does not prolong the time for which its page is kept."""
        if self not in self._stalled and (size_bytes := sum(sizes_of([*self._rows, *self._page]))):
            self._stalled.add(self, size_bytes)

    def let_go(self) -> None:
        """Drop what was read, as the link takes nothing: it is read again when the link takes more."""
        self._stalled.remove(self)
        self._shown_up_to[self._part] = (*self._rows, *self._page)[0][ID] - 1
        self._rows = self._page = ()

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        self._page, self._rows = with_markers(self._page, markers), with_markers(self._rows, markers)

    def close(self) -> None:
        """Show nothing any more."""
        self._is_closed = True
        self._stalled.remove(self)
        self._rows = self._page = ()
        if self._turn is not None:
            self._turn.cancel()
        self._tell_closed(self)

    def _read(self) -> None:
        self._is_reading = True
        self._end = self._cache.next_id
        end, reader, backlog = self._end, self._reader, self.endpoint.backlog
        put = backlog.put.ids
        turns = [
            (part, [] if part == PUT else backlog.route_numbers(part), after)
            for part, after in self._shown_up_to.items()
        ]
        loop = self._loop

        def read() -> Page:
            for part, routes, after in turns:
                position, rows = end, []
                if part != PUT:
                    page = reader.routed_page(routes, after, end)
                    position, rows = page.position, page.rows
                if part in (PUT, WHOLE):
                    rows = sorted([*rows, *_messages(reader, [i for i in put if after < i < position])])
                if rows or position < end:
                    return part, position, rows
            return WHOLE, end, []

        reader.submit(read).add_done_callback(lambda future: loop.call_soon_threadsafe(self._arrived, future))

    def _arrived(self, future: Future[Page]) -> None:
        self._is_reading = False
        if self._is_closed or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._runtime.report("endpoint_read_failed", error)
            self.close()
            self._link.refuse(
                Refused(ErrorCode.INTERNAL, "the endpoint could not be read; the gateway's log says why")
            )
            return
        part, position, rows = future.result()
        if not rows and position >= self._end:
            if self._end < self._cache.next_id:
                # They were committed while the page was being read: nothing else wakes this feed for them.
                self.run()
            else:
                self._link.nothing_to_send()
            return
        self._shown_up_to[part] = position - 1
        self._part, self._page = part, rows
        self.run()

    def _choose(self) -> None:
        """Choose the messages of the page that the browser selects, as far as this turn of the loop allows."""
        page, matches, lies_here = self._page, self._matches, self.endpoint.backlog.has
        if matches is None:
            self._page, self._rows = (), [row for row in page if lies_here(row)]
            return
        chosen: list[Row] = []
        looked_at = 0
        is_over = self._selection.is_over
        for row in page:
            if is_over():
                self._turn = self._selection.wait(self._run_again)
                break
            looked_at += 1
            if lies_here(row) and matches(row):
                chosen.append(row)
        self._page, self._rows = page[looked_at:], chosen

    def _run_again(self) -> None:
        self._turn = None
        self.run()


def _messages(reader: Reader, ids: Sequence[int]) -> list[Row]:
    """Messages by their ids, however many pages that takes."""
    found: list[Row] = []
    while ids:
        page = reader.messages(ids)
        if not page:
            break
        found += page
        ids = [i for i in ids if i > page[-1][ID]]
    return found


class LyingMessage(NamedTuple):
    """A message on an endpoint."""

    row: Row
    attempts: int
    """Deliveries that failed."""
    is_unsettled: bool
    """Whether a consumer has it."""


class LyingMessages(NamedTuple):
    """A page of the list."""

    messages: list[LyingMessage]
    position: int | None
    """The id from which on to look next; None at the end."""


class EndpointListing(VpnPart):
    """
    Lists of the messages on one Message VPN's endpoints. Each page is read in a turn of the administrators.
    """

    async def page(self, endpoint: Endpoint, position: int, count: int) -> LyingMessages:
        """
        The messages on an endpoint from an id on, at most ``count``; none after it was emptied meanwhile.

        Raises:
            store.errors.ReadFailed: It cannot be read.
        """
        found: list[Row] = []
        async for rows in self.pages(endpoint, position, count + 1):
            found += rows
            if len(found) > count:
                break
        more = found[count][ID] if len(found) > count else None
        return LyingMessages(await self._described(endpoint, found[:count]), more)

    async def pages(self, endpoint: Endpoint, position: int, most: int) -> AsyncIterator[list[Row]]:
        """
        The messages on an endpoint from an id on, page by page: ``most`` messages in the first page, then more; none of
        those that come meanwhile. Raises as ``page``.
        """
        end, number = self._state.cache.next_id, endpoint.cursor_number
        if endpoint.values is not None:
            reader, now_ms = self._reader, self._now_ms()
            while position < end and endpoint.cursor_number == number:
                page = await self._state.read_in_turn(reader.values_page, number, position, end, now_ms)
                position = page.position
                yield page.rows
            return
        floors = [cursor.floor for cursor in endpoint.backlog.parts.values()]
        put = [i for i in endpoint.backlog.put.ids if position <= i < end]
        # Up to the floors, all messages that came by routes are settled.
        position = max(position, min([*(floor + 1 for floor in floors), *put[:1]]))
        while position < end and endpoint.cursor_number == number:
            async with self._state.search_turns.turn(ADMINISTRATION):
                rows, position = await self._read(endpoint, position, end, put, most)
            put = [i for i in put if i >= position]
            if endpoint.cursor_number == number:
                yield [row for row in rows if endpoint.backlog.has(row)]
            most = min(most * 2, MOST_ROWS)

    async def one(self, endpoint: Endpoint, message_id: int) -> Row | None:
        """A message on an endpoint; None if it is not there."""
        found = await self.page(endpoint, message_id, 1)
        row = found.messages[0].row if found.messages else None
        return row if row is not None and row[ID] == message_id else None

    async def oldest_ms(self, endpoint: Endpoint) -> int | None:
        """
        When the oldest message on an endpoint arrived, ms since the epoch; None if there is no message, or if all that
        were looked at have left the endpoint. One short read.

        Raises:
            store.errors.ReadFailed: It cannot be read.
        """
        backlog, reader, end = endpoint.backlog, self._reader, self._state.cache.next_id
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

        rows = await self._state.read(read)
        return min((row[TIME_MS] for row in rows if backlog.has(row)), default=None)

    async def _read(
        self, endpoint: Endpoint, position: int, end: int, put: Sequence[int], most: int
    ) -> tuple[list[Row], int]:
        """Messages that may be on the endpoint, in order, and the id from which on to read next."""
        backlog, reader = endpoint.backlog, self._reader
        routes = routes_of(backlog)
        page = await self._state.read(reader.routed_page, routes, position - 1, end, most)
        stop = page.position
        rows = [*page.rows, *await self._history.all_messages([i for i in put if i < stop][:most])]
        if len(left := [i for i in put if i < stop]) > most:
            stop = left[most]
        by_id = {row[ID]: row for row in rows if row[ID] < stop}
        return [by_id[i] for i in sorted(by_id)], stop

    async def _described(self, endpoint: Endpoint, rows: Sequence[Row]) -> list[LyingMessage]:
        if not rows:
            return []
        read = self._reader.attempts
        known = await self._state.read(read, endpoint.cursor_number, rows[0][ID], rows[-1][ID])
        attempts = dict(known) | endpoint.attempts
        wanted = {row[ID] for row in rows}
        unsettled: set[int] = set()
        flows: Iterable[Iterable[int]] = [flow.unsettled for flow in (*endpoint.flows, *endpoint.suspended)]
        for count, ids in enumerate(flows):
            if count % FLOWS_AT_ONCE == FLOWS_AT_ONCE - 1:
                await asyncio.sleep(0)
            unsettled |= wanted.intersection(iter(ids))
        return [LyingMessage(row, attempts.get(row[ID], 0), row[ID] in unsettled) for row in rows]
