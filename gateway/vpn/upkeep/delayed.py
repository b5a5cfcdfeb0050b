"""
Delayed delivery: messages with a time of delivery wait for it in the store, in any number.

A message with ``x-opt-delivery-time`` or ``x-opt-delivery-delay`` is in the replay log from the commit that accepts it;
a reader or a replay of the log gets it immediately. On each endpoint that it is for, it waits: only in the store, by
time and then by id. When its time has come, a commit releases it, and it is ready in its place by id, like any other
message. No more of the due messages are released than the endpoint's consumers may soon take; the rest stays in the
store.

A purge drops delayed messages, and so does a replay onto the endpoint, which brings them immediately. A message is
never delivered before its time, and is late by as long as a read and a commit take.

Messages that a consumer gave back for a later retry (``gateway.core.endpoint.retry``) wait in the same way, and come
back in the same way. While a replay reads the log, only those come back that the replay has put: all others are live,
and live messages follow those of the replay.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Final

from gateway.core.effects import CancelDelayed, DelayedMessage
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.history import off_loop
from gateway.vpn.state import VpnService, VpnState
from store.errors import WriteFailed

PAGE: Final = 4_096
"""Messages released in one commit, at most."""

HELD_UP_SECONDS: Final = 0.05
"""From one look to the next at an endpoint that takes no more for now."""

TRY_AGAIN_SECONDS: Final = 1.0
"""The same after a read or a write that failed."""

LONGEST_SECONDS: Final = 1.0
"""From one look at the clock to the next: the machine's clock may be set."""


class DelayedDelivery(VpnService):
    """Releases the delayed messages of one Message VPN."""

    def __init__(self, state: VpnState, feeds: Feeds) -> None:
        super().__init__(state)
        self._feeds = feeds
        self._wakes: dict[Endpoint, int] = {}
        """When each endpoint is to be looked at, in ms since the epoch."""
        self._order: list[tuple[int, int, Endpoint]] = []
        """The same as a heap, which may also have outdated entries."""
        self._numbers = count()
        self._busy: set[Endpoint] = set()
        """Endpoints of which a page is being read or released, and those that take no more for now."""
        self._cancelled: dict[Endpoint, set[int]] = {}
        """By busy endpoint, the messages that an administrator cancelled or released meanwhile."""
        self._asked: set[tuple[int, int]] = set()
        """(cursor, message) of each message that an administrator is about to cancel or to release."""

    def start(self) -> None:
        """Continue with the messages that waited when the gateway stopped."""
        self._look()

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Something is durable: perhaps delayed messages."""
        if self._broker.publications.delayed_on:
            self._look()

    def _look(self) -> None:
        delayed_on = self._broker.publications.delayed_on
        sooner = [endpoint for endpoint in delayed_on if self._plan(endpoint)]
        if sooner:
            self._set_timer()
        delayed_on.clear()

    def _plan(self, endpoint: Endpoint) -> bool:
        """Plan a look at an endpoint when its next message is due; whether that is sooner than planned before."""
        wake_ms = endpoint.backlog.delayed.next_ms
        if wake_ms is None or endpoint in self._busy or self._wakes.get(endpoint, wake_ms + 1) <= wake_ms:
            return False
        self._wakes[endpoint] = wake_ms
        heapq.heappush(self._order, (wake_ms, next(self._numbers), endpoint))
        return True

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        order, wakes = self._order, self._wakes
        while order and wakes.get(order[0][2]) != order[0][0]:
            heapq.heappop(order)
        if order:
            seconds = max(order[0][0] - self._now_ms(), 0) / 1000
            self._after(min(seconds, LONGEST_SECONDS), self._wake)

    def _wake(self) -> None:
        now_ms = self._now_ms()
        order, wakes = self._order, self._wakes
        while order and order[0][0] <= now_ms:
            wake_ms, _, endpoint = heapq.heappop(order)
            if wakes.get(endpoint) == wake_ms:
                del wakes[endpoint]
                self._busy.add(endpoint)
                self._read(endpoint)
        self._set_timer()

    # --- release --------------------------------------------------------------------------------------------------

    def _read(self, endpoint: Endpoint) -> None:
        room = endpoint.room_for_released
        if not room:
            self._later(endpoint)
            return
        number, limit, below = endpoint.cursor_number, min(room, PAGE), endpoint.retries_below
        if below is None:
            # Messages that are committed meanwhile set this again.
            endpoint.backlog.delayed.next_ms = None
        future = self._reader.submit(
            partial(self._reader.delayed_page, number, (0, 0), limit, below, self._now_ms())
        )
        then = partial(self._was_read, endpoint, number, limit, below)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(then, done))

    def _was_read(
        self,
        endpoint: Endpoint,
        number: int,
        limit: int,
        below: int | None,
        done: Future[list[DelayedMessage]],
    ) -> None:
        if self._is_closed or done.cancelled():
            return
        if endpoint.cursor_number != number:
            self._go_on(endpoint)
            return
        error = done.exception()
        if error is not None:
            self._runtime.report("delayed_messages_not_read", error)
            self._not_released(endpoint, self._now_ms())
            return
        found, now_ms = done.result(), self._now_ms()
        if below is None and found:
            # Messages after the page are not due before its last message, and may be due immediately.
            later = next((message for message in found if message.due_ms > now_ms), found[-1])
            endpoint.backlog.delayed.note_next(later.due_ms)
        put_off = endpoint.backlog.put.coming.union(self._cancelled.get(endpoint, ()))
        asked = self._asked
        due = [
            message
            for message in found
            if message.due_ms <= now_ms and message.id not in put_off and (number, message.id) not in asked
        ]
        if endpoint.retries_below != below:
            due = []  # A replay has ended meanwhile, or advanced.
        if not due:
            # Due messages that are left out here are being released or cancelled elsewhere just now.
            is_held_up = below is not None or any(message.due_ms <= now_ms for message in found)
            self._later(endpoint) if is_held_up else self._go_on(endpoint)
            return
        effect = endpoint.begin_release(due)

        def then(error: WriteFailed | None) -> None:
            if endpoint.end_release(effect, due, is_committed=error is None):
                self._feeds.deliver(endpoint)
            if error is not None and endpoint.cursor_number == number:
                self._not_released(endpoint, due[0].due_ms)
            else:
                self._go_on(endpoint)

        self._committer.commit([effect], then)

    def _not_released(self, endpoint: Endpoint, next_ms: int) -> None:
        endpoint.backlog.delayed.note_next(next_ms)
        self._loop.call_later(TRY_AGAIN_SECONDS, self._go_on, endpoint)

    def _later(self, endpoint: Endpoint) -> None:
        """The endpoint takes nothing for now: look again soon."""
        self._loop.call_later(HELD_UP_SECONDS, self._go_on, endpoint)

    def _go_on(self, endpoint: Endpoint) -> None:
        self._busy.discard(endpoint)
        self._cancelled.pop(endpoint, None)
        if not self._is_closed:
            self._plan(endpoint)
            self._set_timer()

    # --- for administrators -----------------------------------------------------------------------------------------

    async def page(self, endpoint: Endpoint, after: tuple[int, int], limit: int) -> list[DelayedMessage]:
        """
        The delayed messages of an endpoint, by time and then by id.

        Args:
            after: Begin after this time, in ms since the epoch, and id.

        Raises:
            store.errors.ReadFailed: The store cannot be read.
        """
        return await off_loop(self._reader, self._reader.delayed_page, endpoint.cursor_number, after, limit)

    async def _waiting(self, endpoint: Endpoint, message_id: int) -> DelayedMessage:
        """A delayed message for the caller to release or cancel: no other call does until it leaves ``_asked``."""
        reader, key = self._reader, (endpoint.cursor_number, message_id)
        message = None
        if key not in self._asked and message_id not in endpoint.backlog.put.coming:
            self._asked.add(key)
            try:
                message = await off_loop(reader, reader.delayed_message, *key)
            finally:
                if message is None or endpoint.cursor_number != key[0]:
                    self._asked.discard(key)
        if message is None or key not in self._asked:
            raise Refused(ErrorCode.NOT_FOUND, f"message {message_id} is not delayed on {endpoint.name!r}")
        return message

    async def release(self, endpoint: Endpoint, message_id: int) -> None:
        """
        Make a delayed message ready now, before its time. Returns when that is durable.

        Raises:
            Refused: NOT_FOUND, it does not wait here, or is just being released; PRECONDITION_FAILED, a replay
                that has not brought it reads the log; INTERNAL, the store could not write.
            store.errors.ReadFailed: The store cannot be read.
        """
        message = await self._waiting(endpoint, message_id)
        key, below = (endpoint.cursor_number, message_id), endpoint.retries_below
        if below is not None and not (message.is_retry and message_id < below):
            self._asked.discard(key)
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"a replay of {endpoint.name!r} has not read all of the log; release delayed messages when it "
                "has, or cancel it",
            )
        effect = endpoint.begin_release([message])

        def then(error: WriteFailed | None) -> None:
            self._asked.discard(key)
            if endpoint.end_release(effect, [message], is_committed=error is None):
                self._has_gone(endpoint, message_id)

        await self._committer.committed([effect], then)

    def _has_gone(self, endpoint: Endpoint, message_id: int) -> None:
        """An administrator has ended a message's wait."""
        if endpoint in self._busy:
            self._cancelled.setdefault(endpoint, set()).add(message_id)
        self._feeds.deliver(endpoint)

    async def cancel(self, endpoint: Endpoint, message_id: int) -> None:
        """
        Remove a delayed message from the endpoint; the replay log keeps it. Returns when that is durable.

        Raises:
            Refused: NOT_FOUND, it does not wait here, or is just being released; INTERNAL, the store could not write.
            store.errors.ReadFailed: The store cannot be read.
        """
        message = await self._waiting(endpoint, message_id)
        cursor = endpoint.cursor_number

        def then(error: WriteFailed | None) -> None:
            self._asked.discard((cursor, message_id))
            if error is None and endpoint.cursor_number == cursor:
                endpoint.cancelled(message)
                self._has_gone(endpoint, message_id)

        await self._committer.committed([CancelDelayed(cursor, [(message.due_ms, message_id)])], then)
