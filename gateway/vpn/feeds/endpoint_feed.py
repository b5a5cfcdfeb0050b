"""
Carries ready messages of endpoints to their consumers: contents from the message cache, or in pages from the store.

Each endpoint that messages are, or were, delivered from has one ``EndpointFeed``; ``Feeds`` has all of a Message VPN.
Rows that were read and are needed soon are kept until they are handed out (``KeptRows``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias, TypeVar

from amqp_ext.message.fields import ttl_of
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.by_key import Share
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.flow import Sizes
from gateway.core.endpoint.ready_queue import ReadyQueue
from gateway.core.erasing import with_markers
from gateway.core.model import ID, ID_OF, ROUTE, Row, sizes_of
from gateway.vpn.history import finished
from gateway.vpn.state import VpnPart, VpnState
from store.ports import LogPage

T = TypeVar("T")

Page: TypeAlias = "tuple[LogPage, list[tuple[int, int]]]"
"""Messages, and the failed deliveries of those that have any."""

MOST_HOLDING_BACK: Final = 10_000
"""Messages of an endpoint whose delay until their next try is being committed: if the disk is full, a consumer that
gives all messages back must not fill the memory."""

Locked: TypeAlias = Callable[[Endpoint, int], None]
"""Called with an endpoint that has a locked delivery, and the earliest end of the lock, in ms since the epoch."""

NOTHING_DEAD: Final[Mapping[int, str]] = MappingProxyType({})


class DeadLetterOffice(Protocol):
    """Takes messages that no consumer is to have."""

    def holds_up(self, endpoint: Endpoint) -> bool:
        """Whether so many of the endpoint's messages are being moved there that no more are to be looked at."""

    def remove(self, flow: Flow, rows: Sequence[Row], reason: str) -> None:
        """Messages that a flow has unsettled leave the endpoint for good."""

    def reject(self, flow: Flow, ids: list[int], done: Callable[[], None] = ...) -> None:
        """The same for messages that a consumer rejected; ``done`` is called once the flow has none of them."""


class RunningReplays(Protocol):
    """Replays onto endpoints, as far as feeds and consumers concern them."""

    def put_more(self, endpoint: Endpoint) -> None:
        """The ready messages of an endpoint with a replay may be running low."""

    def check_blocked(self, endpoint: Endpoint) -> None:
        """The endpoint's consumers with selectors have looked at all ready messages."""

    def is_hungry(self, endpoint: Endpoint) -> None:
        """The endpoint's consumers can take more than a replay has put there."""

    def consumer_bound(self, endpoint: Endpoint) -> None:
        """A consumer was bound: the replay may put more messages ahead of it than without a consumer."""

    def acknowledged(self, endpoint: Endpoint) -> None:
        """Messages left an endpoint that has a replay, or had one."""


class EndpointFeed(VpnPart):
    def __init__(
        self,
        endpoint: Endpoint,
        state: VpnState,
        dead_letters: DeadLetterOffice,
        replays: RunningReplays,
        locked: Locked,
    ) -> None:
        super().__init__(state)
        self.endpoint = endpoint
        self.kept = KeptRows()
        """Contents in memory of messages that are to be handed out."""
        self.is_reading = False
        """A page, or some messages, are being read from the store; or a read has failed, and the next one waits."""
        self._dead_letters = dead_letters
        self._replays = replays
        self._locked = locked
        self._tuning = state.runtime.tuning
        self._erasing = state.broker.erasing
        self._settlements = state.broker.settlements
        self._selection = state.selection
        self._lease = state.lease
        self._page_rows = state.settings.limits.read_page_rows
        """Rows of a page: the next one is asked for when fewer are ready."""
        self._is_scheduled = False
        self._is_running = False
        """Messages are being handed out: changes that this causes, such as room from a dead message, wait."""
        self._is_changed = False

    def run(self) -> None:
        """Give ready messages to flows that can take them, in turns. Called when either side changed."""
        if self._is_running:
            self._is_changed = True
            return
        self._is_running = True
        try:
            self._is_changed = True
            while self._is_changed:
                self._is_changed = False
                self._hand_out_ready()
        finally:
            self._is_running = False

    def _hand_out_ready(self) -> None:
        endpoint = self.endpoint
        if (
            self._is_scheduled
            or endpoint.holding_back >= MOST_HOLDING_BACK
            or self._dead_letters.holds_up(endpoint)
        ):
            return
        if self._lease is not None and not self._lease.holds():
            self._lease.wait(self.run)
            return
        for waiting in endpoint.waiting_flows:
            # They get nothing until the active flow is gone.
            waiting.link.nothing_to_send()
        left = self._tuning.endpoint_turn_rows
        while (flow := endpoint.next_flow()) is not None:
            if left <= 0:
                self._is_scheduled = True
                self._loop.call_soon(self._run_again)
                return
            if flow.candidates is not None:
                if self._selection.is_over():
                    self._is_scheduled = True
                    self._selection.wait(self._run_again)
                    return
                select = self._select if endpoint.by_key is None else self._give_share
                looked_at = select(flow)
                if looked_at == 0 and flow.candidates:
                    # Their contents are being read, or messages of a higher priority are to come first.
                    self._read_ahead()
                    return
                left -= looked_at
                continue
            ids = endpoint.ready.peek(min(endpoint.share(flow), left))
            if not ids:
                if self._read_ahead():
                    return
                if endpoint.replay is not None and endpoint.replay.is_reading:
                    self._replays.is_hungry(endpoint)
                    return
                for hungry in list(endpoint.flows):
                    hungry.link.nothing_to_send()
                return
            rows, sizes = self._rows(ids)
            if not rows:
                # A page at a time, as a consumer takes only few messages.
                self._read_rows(endpoint.ready.peek(self._page_rows))
                return
            left -= len(rows)
            self._hand_out(flow, ids if len(rows) == len(ids) else ids[: len(rows)], rows, sizes)
        if endpoint.flows and self._read_ahead():
            return
        if endpoint.ready.selectable is not None:
            for searching in list(endpoint.flows):
                if searching.candidates is not None and not searching.candidates:
                    searching.link.nothing_to_send()
            self._replays.check_blocked(endpoint)

    def _select(self, flow: Flow) -> int:
        """
        Give a flow with a selector those of the next ready messages that it selects.

        Returns:
            How many were looked at; 0 while their contents are being read.
        """
        matches = flow.matches
        assert matches is not None and flow.candidates is not None
        ids = flow.candidates.take(self._tuning.flow_quantum)
        if not ids:
            return 0
        rows, _ = self._rows(ids)
        if not rows:
            flow.candidates.put_back(ids)
            self._read_rows(ids)
            return 0
        chosen: list[Row] = []
        others: list[Row] = []
        looked_at = 0
        is_over = self._selection.is_over
        for row in rows:
            if len(chosen) >= flow.demand or (looked_at and is_over()):
                break
            looked_at += 1
            if matches(row):
                chosen.append(row)
            elif flow.passes_over and row[ID] not in flow.excluded:
                others.append(row)
        flow.candidates.put_back(ids[looked_at:])
        if looked_at < len(rows) and rows[looked_at][ID] < self._cache.first_id:
            self.kept.keep(ids[looked_at : len(rows)], rows[looked_at:])
        if others:
            self._pass_over(flow, others)
        if chosen:
            self._hand_out(flow, [row[ID] for row in chosen], chosen)
        return looked_at

    def _give_share(self, flow: Flow) -> int:
        """
        Give a flow the messages of its share, and sort the next ready messages by their keys.

        Returns:
            How many were looked at or given to it; 0 while their contents are being read.
        """
        by_key, share = self.endpoint.by_key, flow.candidates
        assert by_key is not None and by_key.candidates is not None and isinstance(share, Share)
        looked_at = 0
        if share.is_behind:
            candidates = by_key.candidates
            ids = candidates.take(by_key.room())
            if ids:
                rows = self._at_hand(ids)
                if not rows:
                    candidates.put_back(ids)
                    self._read_rows(ids)
                    return 0
                found = by_key.sort(share, rows, self._selection.is_over)
                looked_at = found.looked_at
                candidates.put_back(ids[looked_at:])
                if len(self.kept) > self._page_rows:
                    # They are read again later: messages that nobody takes now must not fill the memory.
                    self.kept.forget(found.later)
                if found.passed:
                    self._pass_over(flow, found.passed)
            if share.is_behind:
                return looked_at
        ids = share.take(min(flow.demand, self._tuning.flow_quantum))
        if ids:
            rows, sizes = self._rows(ids)
            share.put_back(ids[len(rows) :])
            if rows:
                self._hand_out(flow, ids[: len(rows)], rows, sizes)
                return looked_at + len(rows)
            self._read_rows(ids)
            return 0
        # The messages of the share may have left the endpoint meanwhile: look at others next.
        return looked_at + share.is_behind

    def _pass_over(self, flow: Flow, rows: Sequence[Row]) -> None:
        """Settle messages that a subscription's selector does not match: the cursor advances past them."""
        endpoint, ids = self.endpoint, [row[ID] for row in rows]
        demand = flow.demand
        endpoint.hand_out(flow, ids, self._erasing.sized(rows), self._now_ms())
        flow.demand = demand
        _, effects = self._settlements.settle(flow, ids)
        self._committer.commit_when_convenient(*effects)
        if endpoint.replay is not None:
            self._replays.acknowledged(endpoint)

    def _hand_out(self, flow: Flow, ids: list[int], rows: Sequence[Row], sizes: Sizes = None) -> None:
        """
        Send messages to a flow: ``rows`` with these ids, and with sizes if known. Dead messages are removed instead.
        """
        endpoint = self.endpoint
        counted, now_ms = self._erasing.sized(rows), self._now_ms()
        endpoint.hand_out(flow, ids, counted, now_ms, sizes if counted is rows else None)
        if flow.unsettled.are_locked:
            self._locked(endpoint, now_ms + endpoint.lock_timeout_ms(flow))
        dead = self._dead(rows)
        if dead:
            self._remove_dead(flow, rows, dead)
            # Without the dead messages a replay may have gone on and failed: then the flow has lost its messages.
            rows = [row for row in rows if row[ID] not in dead and row[ID] in flow.unsettled]
            ids = [row[ID] for row in rows]
        if rows:
            replay = endpoint.replay
            if replay is not None and replay.is_under_way:
                replay.transmit(ids, self._now_ms())
            if self._tracing is not None:
                # Before the send: a delivery may be settled as it is sent.
                self._tracing.delivered(endpoint, rows)
            flow.link.send(rows, endpoint.attempts, endpoint.end_among(rows))
        flow.demand = flow.link.room()

    def _dead(self, rows: Sequence[Row]) -> Mapping[int, str]:
        endpoint = self.endpoint
        if not endpoint.attempts and rows[-1][ID] < endpoint.fresh_from:
            return NOTHING_DEAD
        now_ms = self._now_ms()
        found = endpoint.dead(rows, now_ms, ttl_of)
        if found and endpoint.name in self._broker.dead_message_queues:
            return endpoint.dead(rows, now_ms, no_ttl)
        return found

    def ttl_of(self, content: bytes) -> int | None:
        """
        How long a message lives here by its header, in ms. On a dead message queue it does not expire by its header a
        second time.
        """
        return None if self.endpoint.name in self._broker.dead_message_queues else ttl_of(content)

    def _remove_dead(self, flow: Flow, rows: Sequence[Row], dead: Mapping[int, str]) -> None:
        for reason in sorted(set(dead.values())):
            # Removing those of another reason may have ended the flow, which then has given back its messages.
            gone = [row for row in rows if dead.get(row[ID]) == reason and row[ID] in flow.unsettled]
            if gone:
                self._dead_letters.remove(flow, gone, reason)

    def remove_dead_head(self, limit: int, *, may_read: bool) -> tuple[bool, Row | None]:
        """
        Remove dead messages from the head of the endpoint, although no consumer asks for them.

        Args:
            limit: Messages to look at.
            may_read: Whether they may be read from the store; that takes a moment, so call again.

        Returns:
            Whether more can be removed immediately; and the message that is at the head now, if it is in memory.
        """
        endpoint = self.endpoint
        if self._dead_letters.holds_up(endpoint):
            return False, None
        ids = endpoint.ready.peek(limit)
        rows = self._at_hand(ids) if ids else ()
        if not rows:
            if may_read and ids:
                self._read_rows(ids)
            elif may_read:
                self._read_ahead()
            return False, None
        dead = self._dead(rows)
        count = next((i for i, row in enumerate(rows) if row[ID] not in dead), len(rows))
        if count:
            flow = Flow(endpoint, None)
            gone = rows[:count]
            endpoint.hand_out(flow, ids[:count], self._erasing.sized(gone), self._now_ms())
            self.kept.forget(ids[:count])
            self._remove_dead(flow, gone, dead)
        return count == len(rows), rows[count] if count < len(rows) else None

    def _run_again(self) -> None:
        self._is_scheduled = False
        self.run()

    def _rows(self, ids: list[int]) -> tuple[Sequence[Row], Sizes]:
        """
        The rows of ``ids``, as many from the first on as are in memory, and the sizes of their contents if known; they
        are no longer kept here.
        """
        cache, kept = self._cache, self.kept
        if ids[0] >= cache.first_id:
            rows = cache.pick(ids)
            if kept:
                kept.forget(ids)
            return rows, None
        rows, sizes = kept.take(ids)
        taken = len(rows)
        if taken == len(ids):
            return rows, sizes
        rows = self._with_cached(rows, ids)
        kept.forget(ids[taken : len(rows)])
        return rows, None

    def _at_hand(self, ids: list[int]) -> Sequence[Row]:
        """The same, but the rows stay here."""
        cache = self._cache
        if ids[0] >= cache.first_id:
            return cache.pick(ids)
        return self._with_cached(self.kept.first_of(ids), ids)

    def _with_cached(self, rows: list[Row], ids: list[int]) -> list[Row]:
        """The first rows of ``ids``, and those after them that are in the message cache."""
        rest = ids[len(rows) :]
        if rest and rest[0] >= self._cache.first_id:
            rows += self._cache.pick(rest)
        return rows

    def _read_ahead(self) -> bool:
        """Make more messages ready if a ready queue runs low; whether there are some, or will be soon."""
        endpoint = self.endpoint
        if endpoint.replay is not None and endpoint.replay.is_reading:
            # Only the replay makes messages ready.
            self._replays.put_more(endpoint)
            return self._is_changed
        queue = endpoint.queue_to_read(self._page_rows)
        if queue is not None:
            self._read_page(queue)
        return queue is not None

    def _read_page(self, queue: ReadyQueue, limit: int | None = None) -> None:
        endpoint, reader = self.endpoint, self._reader
        number, routes, read_up_to = (
            endpoint.cursor_number,
            endpoint.backlog.route_numbers(queue.part),
            queue.read_up_to,
        )
        # The feed is told in a moment of what is committed beyond this: in the page, it would be here twice.
        after, until = queue.next_page(self._cache.next_id)
        is_cached = after + 1 >= self._cache.first_id

        def read() -> Page:
            page = reader.routed_page(routes, after, until, limit)
            rows = page.rows
            return page, reader.attempts(number, rows[0][ID], rows[-1][ID]) if rows else []

        def begin() -> Future[Page]:
            if is_cached:
                return finished(self._cached_page(routes, after, until, limit))
            return reader.submit(read)

        self._read(begin, lambda page: self._add_page(queue, page, read_up_to))

    def _cached_page(self, routes: list[int], after: int, until: int, limit: int | None) -> Page:
        """
        The same for messages in the message cache. The endpoint itself knows their failed deliveries, as these are
        newer than the start.
        """
        count = self._page_rows if limit is None else min(limit, self._page_rows)
        numbers, position = set(routes), min(after + 1 + self._page_rows, until)
        rows = [row for row in self._cache.since(after + 1, position - after - 1) if row[ROUTE] in numbers]
        if len(rows) > count:
            rows, position = rows[:count], rows[count][ID]
        return LogPage(rows, position), []

    def read_head(self, limit: int) -> bool:
        """Read the messages that would be delivered next, if only the store has them; whether that is so."""
        queue = self.endpoint.queue_to_read(1)
        if queue is not None:
            self._read_page(queue, limit)
        return queue is not None

    def head(self, message_id: int) -> Row | None:
        """The message that would be delivered next, if it is in memory."""
        rows = self._at_hand([message_id])
        return rows[0] if rows else None

    def _read_rows(self, ids: Sequence[int]) -> None:
        history = self._history
        self._read(
            lambda: history.messages(ids), lambda rows: self.kept.keep([row[ID] for row in rows], rows)
        )

    def _add_page(self, queue: ReadyQueue, found: Page, read_up_to: int) -> None:
        page, attempts = found
        if queue.read_up_to != read_up_to:
            return  # The queue's ids in memory were dropped meanwhile, or came in another way.
        rows, cursor, columns = page.rows, queue.cursor, page.columns
        ids, sizes = (list(map(ID_OF, rows)), None) if columns is None else (columns.ids, columns.sizes)
        self.endpoint.add_page(queue, ids, page.position, attempts)
        if ids and cursor.has_done_after(ids[0]):
            rows = [row for row in rows if not cursor.is_done(row[ID])]
            ids, sizes = [row[ID] for row in rows], None
        self.kept.keep(ids, rows, sizes)

    def _read(self, begin: Callable[[], Future[T]], use: Callable[[T], None]) -> None:
        if self.is_reading:
            return
        self.is_reading = True
        number = self.endpoint.cursor_number
        loop = self._loop

        def try_again() -> None:
            self.is_reading = False
            self.run()

        def done(future: Future[T]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                self._runtime.report("endpoint_read_failed", error)
                loop.call_later(1.0, try_again)
                return
            self.is_reading = False
            if future.cancelled():
                return
            if self.endpoint.cursor_number == number:
                use(future.result())
            self.run()

        future = begin()
        if future.done():
            # It need not be read: it is used in the loop's next turn, without a wake-up from a thread.
            loop.call_soon(done, future)
        else:
            future.add_done_callback(lambda future: loop.call_soon_threadsafe(done, future))


def no_ttl(content: bytes) -> None:
    """The ttl of messages that do not expire by their header any more."""


class Feeds:
    """The feeds of one Message VPN, by endpoint."""

    dead_letters: DeadLetterOffice
    replays: RunningReplays
    locked: Locked

    def __init__(self, state: VpnState) -> None:
        self._state = state
        self._feeds: dict[str, EndpointFeed] = {}

    def connect(self, dead_letters: DeadLetterOffice, replays: RunningReplays, locked: Locked) -> None:
        """Set the parts that call feeds and consumers and are called by them; once, before the first feed."""
        self.dead_letters = dead_letters
        self.replays = replays
        self.locked = locked

    def of(self, endpoint: Endpoint) -> EndpointFeed:
        """The endpoint's feed, made on first use."""
        feed = self._feeds.get(endpoint.name)
        if feed is None or feed.endpoint is not endpoint:
            feed = EndpointFeed(endpoint, self._state, self.dead_letters, self.replays, self.locked)
            self._feeds[endpoint.name] = feed
        return feed

    def forget(self, endpoint: Endpoint) -> None:
        """Drop the endpoint's feed, with the contents that it keeps."""
        self._feeds.pop(endpoint.name, None)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        for feed in self._feeds.values():
            feed.kept.erased(markers)

    def changed(self, endpoint: Endpoint) -> None:
        """The endpoint's settings have changed: deliveries may be locked from now on."""
        if endpoint.settings.lock_timeout_ms:
            self.locked(endpoint, 0)
        self.deliver(endpoint)

    def deliver(self, endpoint: Endpoint) -> None:
        """Something about the endpoint changed: a consumer may get more messages."""
        feed = self._feeds.get(endpoint.name)
        if feed is not None:
            feed.run()

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Messages became ready on these endpoints."""
        feeds = self._feeds
        for name in endpoints:
            feed = feeds.get(name)
            if feed is not None:
                feed.run()


def routes_of(backlog: Backlog) -> list[int]:
    """Numbers of the routes by which messages come to an endpoint, rising."""
    return sorted({number for part in backlog.parts for number in backlog.route_numbers(part)})


def floor_of(backlog: Backlog) -> int:
    """Up to this id, all messages that came by routes have left the endpoint."""
    return min(cursor.floor for cursor in backlog.parts.values())


class KeptRows:
    """Rows by their ids. Invariant: all are in the lists, whose ids rise, or all are in the dictionary."""

    __slots__ = ("_by_id", "_ids", "_rows", "_sizes")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._rows: list[Row] = []
        self._sizes: list[int] = []
        """The sizes of their contents, in bytes."""
        self._by_id: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._ids) or len(self._by_id)

    @property
    def size_bytes(self) -> int:
        """The size of all contents; takes a look at each row."""
        return sum(self._sizes or sizes_of(list(self._by_id.values())))

    def keep(self, ids: Sequence[int], rows: Sequence[Row], sizes: Sizes = None) -> None:
        """
        Keep these.

        Args:
            ids: Those of ``rows``, rising.
            sizes: The sizes of their contents, in bytes, if known.
        """
        if not ids:
            return
        if self._by_id or (self._ids and ids[0] <= self._ids[-1]):
            self._mix()
            self._by_id.update(zip(ids, rows, strict=True))
        else:
            self._ids += ids
            self._rows += rows
            self._sizes += sizes_of(rows) if sizes is None else sizes

    def take(self, ids: list[int]) -> tuple[list[Row], list[int]]:
        """
        The rows of these ids (rising), as many from the first on as are here, and the sizes of their contents; they are
        no longer kept.
        """
        there = self._ids
        count = len(ids)
        if there and there[:count] == ids:
            rows, sizes = self._rows[:count], self._sizes[:count]
            del there[:count], self._rows[:count], self._sizes[:count]
            return rows, sizes
        rows = self.first_of(ids)
        self.forget(ids[: len(rows)])
        return rows, sizes_of(rows)

    def first_of(self, ids: list[int]) -> list[Row]:
        """The rows of these ids (rising), as many from the first on as are here."""
        there = self._ids
        count = len(ids)
        if there:
            if self._begins_with(ids):
                return self._rows[:count]
            self._mix()
        found: list[Row] = []
        for i in ids:
            row = self._by_id.get(i)
            if row is None:
                break
            found.append(row)
        return found

    def forget(self, ids: list[int]) -> None:
        """Drop the rows of these ids (rising), if they are here."""
        there = self._ids
        count = len(ids)
        if there and self._begins_with(ids):
            del there[:count], self._rows[:count], self._sizes[:count]
            return
        if there and ids and ids[0] <= there[-1] and ids[-1] >= there[0]:
            self._mix()
        if self._by_id:
            for i in ids:
                self._by_id.pop(i, None)

    def _begins_with(self, ids: list[int]) -> bool:
        """Whether the ids in the lists begin with these, or these begin with them."""
        there = self._ids
        return there[: len(ids)] == ids[: len(there)]

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased: keep the markers."""
        self._rows = with_markers(self._rows, markers)
        self._sizes = sizes_of(self._rows)
        self._by_id.update((row[ID], row) for row in with_markers(self._found(markers), markers))

    def _found(self, ids: Iterable[int]) -> list[Row]:
        return [row for i in ids if (row := self._by_id.get(i)) is not None]

    def clear(self) -> None:
        """Drop all rows."""
        self._ids.clear()
        self._rows.clear()
        self._sizes.clear()
        self._by_id.clear()

    def _mix(self) -> None:
        """Move all rows to the dictionary: they are taken by id until all are gone."""
        self._by_id.update(zip(self._ids, self._rows, strict=True))
        self._ids.clear()
        self._rows.clear()
        self._sizes.clear()
