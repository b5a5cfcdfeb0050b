"""
Shows what lies on an endpoint to a browser: each message once, in order, and none of it taken away.

Where the endpoint delivers by priority, so does a browser see it: of what lies there when a page is read, the highest
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeAlias

from amqp_ext.message.priority import HIGHEST, LOWEST
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.message_cache import MessageCache
from gateway.core.model import ID, WHOLE, Row
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.delivery.selection_turns import SelectionTurns, WaitingTurn
from gateway.vpn.runtime import Runtime
from store.ports import Reader

Page: TypeAlias = "tuple[int, int, list[Row]]"
"""The part of the endpoint's cursor that was read, up to where, and what was found."""

PUT: Final = -2
"""Stands for what lies on an endpoint by priorities though no route led it there: that is shown first."""


class BrowseFeed:
    """
    Goes over what lies on an endpoint in pages from the store. What is unsettled at a consumer still lies there
    and is shown, too; at the end it waits for more.

    Args:
        matches: The browser's selector; None shows everything.
        selection: How long it may take of a turn of the loop.
        closed: Is told once this feed shows nothing any more; more than once does no harm.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client: ConsumerLink,
        matches: Callable[[Row], bool] | None,
        reader: Reader,
        cache: MessageCache,
        runtime: Runtime,
        selection: SelectionTurns,
        closed: Callable[[BrowseFeed], None],
    ) -> None:
        self.endpoint = endpoint
        self._link = client
        self._reader = reader
        self._cache = cache
        self._runtime = runtime
        self._tell_closed = closed
        self._matches = matches
        self._number = endpoint.cursor_number
        self._shown_up_to: dict[int, int] = {WHOLE: 0}
        """How far it has read, of each part of the endpoint's cursor; in the order of their turns."""
        if endpoint.settings.priorities:
            self._shown_up_to = dict.fromkeys((PUT, *range(HIGHEST, LOWEST - 1, -1)), 0)
        self._end = 0
        """One past the last id that the page under way, or the last one, could hold."""
        self._rows: Sequence[Row] = ()
        """What is to be shown next."""
        self._page: Sequence[Row] = ()
        """What was read and not yet chosen from."""
        self._selection = selection
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
                return
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

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""
        self._page, self._rows = with_markers(self._page, markers), with_markers(self._rows, markers)

    def close(self) -> None:
        """Show nothing any more."""
        self._is_closed = True
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
        loop = self._runtime.loop

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
                # Told of while the page was being read: nobody comes to wake us for it.
                self.run()
            else:
                self._link.nothing_to_send()
            return
        self._shown_up_to[part] = position - 1
        self._page = rows
        self.run()

    def _choose(self) -> None:
        """Those of the page that the browser wants, as far as this turn of the loop goes."""
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
