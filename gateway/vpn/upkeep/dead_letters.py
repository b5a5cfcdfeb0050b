"""
Messages that no consumer is to have, and their copies on a dead message queue.

A copy has the bare message as it was, and annotations that say why it is there:

=============================  =========  ========================================================
``x-opt-dead-reason``          string     ``expired``, ``max-redelivery`` or ``rejected``
``x-opt-dead-endpoint``        string     the endpoint that it was on
``x-opt-dead-time``            timestamp  when it left the endpoint
``x-opt-dead-sequence-number`` long       the id that it had there
=============================  =========  ========================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from amqp_ext.addresses.address import queue_topic
from amqp_ext.codec import Long, Timestamp
from amqp_ext.message.annotations import annotated
from amqp_ext.message.fields import DELIVERY_ANNOTATIONS
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.errors import Refused
from gateway.core.model import CONTENT, ID, Row
from gateway.core.settlements import PendingSettlement
from gateway.logging import log_keys
from gateway.vpn.consumers import Consumers
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.publishing import ArrivedMessages, Publishing
from gateway.vpn.runtime import keep
from gateway.vpn.state import VpnPart, VpnState
from store.errors import ReadFailed, WriteFailed

TRY_AGAIN_S: Final = 1.0
"""Seconds from a failed read or write to the next read of messages for their copies."""


class _Copies:
    """The publisher of the copies for one dead message queue."""

    def __init__(self) -> None:
        self.refused_messages = 0
        """How many copies the queue does not take."""
        self.reason = ""
        self.are_offered = False
        """The queue has said what it takes: copies that are not stored after that are put again."""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        pass

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        if not self.are_offered:
            self.refused_messages += len(deliveries)
            self.reason = refused.text if refused is not None else "no endpoint takes them"


class Discarded(NamedTuple):
    """Dead messages that their queue did not take: at most the log still has them."""

    reason: str
    time_ms: int
    """The last time, in ms since the epoch."""


def dead_copy(row: Row, endpoint: str, reason: str, now_ms: int) -> tuple[bytes, int]:
    """The content of the copy, and where its bare message begins."""
    return annotated(
        row[CONTENT],
        {
            "x-opt-dead-reason": reason,
            "x-opt-dead-endpoint": endpoint,
            "x-opt-dead-time": Timestamp(now_ms),
            "x-opt-dead-sequence-number": Long(row[ID]),
        },
        DELIVERY_ANNOTATIONS,
    )


def _nothing() -> None:
    """No caller waits."""


@dataclass(eq=False, slots=True)
class DeadLetters:
    """Messages that are being moved from an endpoint to its dead message queue."""

    endpoint: Endpoint
    queue: str
    reason: str
    time_ms: int
    cursor_number: int
    """The endpoint's; with another one, the endpoint no longer has the messages."""
    keeper: Flow
    """A flow without a consumer: it has the messages between a failed write and the next, so that no consumer does."""
    ids: list[int]
    offered: _Copies = field(default_factory=_Copies)
    """The copies that were last offered to the queue."""


class DeadLetterMover(VpnPart):
    """Removes messages from endpoints for good, to the endpoint's dead message queue if it has one."""

    def __init__(self, state: VpnState, publishing: Publishing, consumers: Consumers, feeds: Feeds) -> None:
        super().__init__(state)
        self._most_under_way = state.runtime.tuning.dead_letters_under_way
        self._publishing = publishing
        self._consumers = consumers
        self._feeds = feeds
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[DeadLetters, None] = {}
        self.discarded: dict[str, Discarded] = {}
        """By dead message queue; ``AlarmWatch`` removes old entries."""

    def holds_up(self, endpoint: Endpoint) -> bool:
        """
        Whether so many of the endpoint's messages are being moved that no more are to be looked at: if the disk is
        full, a backlog of dead messages must not fill the memory.
        """
        if not self._under_way:
            return False
        return sum(len(b.ids) for b in self._under_way if b.endpoint is endpoint) >= self._most_under_way

    def is_moving(self, ids: Collection[int]) -> bool:
        """Whether one of these messages is being moved."""
        return any(i in ids for letters in self._under_way for i in letters.ids)

    def remove(self, flow: Flow, rows: Sequence[Row], reason: str) -> None:
        """
        Remove messages that a flow has unsettled from the endpoint, and put their copies on its dead message queue, if
        it has one, in the same commit. If the commit fails, it is tried again until it succeeds, and no consumer gets
        the messages meanwhile.
        """
        endpoint = flow.endpoint
        queue, ids = endpoint.settings.dead_message_queue, [row[ID] for row in rows]
        self._runtime.log.info(
            "messages_buried",
            **{log_keys.ENDPOINT: endpoint.name, log_keys.MESSAGES: len(ids), log_keys.REASON: reason},
        )
        if not queue or queue == endpoint.name:
            self._consumers.settle(flow, ids)
            return
        now_ms = self._runtime.clock.now_ms()
        letters = DeadLetters(
            endpoint,
            queue,
            reason,
            now_ms,
            endpoint.cursor_number,
            Flow(endpoint, None),
            ids,
        )
        self._under_way[letters] = None
        self._put(letters, flow, rows)

    def _put(self, letters: DeadLetters, flow: Flow, rows: Sequence[Row]) -> None:
        """Commit the copies, together with the removal of the messages."""
        endpoint = letters.endpoint
        # Messages that are being erased are copied without their content.
        rows = self._broker.erasing.sized(rows)
        copies = [dead_copy(row, endpoint.name, letters.reason, letters.time_ms) for row in rows]
        contents, bares = [content for content, _ in copies], [bare for _, bare in copies]
        offered = _Copies()
        topic, deliveries = queue_topic(letters.queue), list(letters.ids)
        arrived = ArrivedMessages(offered, topic, contents, bares, deliveries)
        self._publishing.take(arrived, is_new=False)
        offered.are_offered = True
        settlement = self._broker.settlements.begin(flow, letters.ids)
        letters.offered = offered
        self._committer.commit(settlement.effects, lambda error: self._written(letters, settlement, error))

    def _discarded(self, queue: str, copies: _Copies) -> None:
        """Some copies were not taken, and that is durable: log and count them."""
        self._counters.dead_discarded_messages += copies.refused_messages
        self.discarded[queue] = Discarded(copies.reason, self._runtime.clock.now_ms())
        self._runtime.log.warning(
            "dead_messages_discarded",
            **{
                log_keys.ENDPOINT: queue,
                log_keys.MESSAGES: copies.refused_messages,
                log_keys.REASON: copies.reason,
            },
        )

    def _written(
        self, letters: DeadLetters, settlement: PendingSettlement, error: WriteFailed | None
    ) -> None:
        if error is None:
            del self._under_way[letters]
            if letters.offered.refused_messages:
                self._discarded(letters.queue, letters.offered)
            self._consumers.settled_by_transaction(settlement)
            self._feeds.deliver(letters.endpoint)
            return
        left = self._broker.settlements.kept(settlement)
        if left is None:
            del self._under_way[letters]
            return
        self._committer.commit(left)
        self._feeds.replays.acknowledged(letters.endpoint)
        letters.keeper.unsettled.update(settlement.messages)
        self._start(self._put_again(letters))

    async def _put_again(self, letters: DeadLetters) -> None:
        # Contents are not kept in memory meanwhile: there may be many, and the disk may stay full for hours.
        rows: list[Row] | None = None
        while rows is None:
            await asyncio.sleep(TRY_AGAIN_S)
            try:
                rows = await self._history.all_messages(letters.ids)
            except ReadFailed as error:
                self._runtime.report("dead_messages_not_read", error)
        endpoint = letters.endpoint
        if endpoint.cursor_number == letters.cursor_number:
            # A replay may have failed meanwhile, which removed what it had put.
            rows = [row for row in rows if endpoint.backlog.has(row)]
            letters.ids = [row[ID] for row in rows]
        else:
            # The endpoint was emptied or deleted.
            letters.ids = []
        if letters.ids:
            self._put(letters, letters.keeper, rows)
        else:
            del self._under_way[letters]
            self._feeds.deliver(endpoint)

    def reject(self, flow: Flow, ids: list[int], done: Callable[[], None] = _nothing) -> None:
        """
        Remove messages that a consumer rejected.

        Args:
            done: Called once the flow has none of them.
        """
        if not flow.endpoint.settings.dead_message_queue:
            self._consumers.settle(flow, ids)
            done()
            return
        ids = sorted(i for i in ids if i in flow.unsettled)
        if ids and ids[0] < self._cache.first_id:
            self._start(self._read_and_remove(flow, ids, done))
            return
        if ids:
            self.remove(flow, self._cache.pick(ids), "rejected")
        done()

    async def _read_and_remove(self, flow: Flow, ids: list[int], done: Callable[[], None]) -> None:
        while ids:
            try:
                rows = await asyncio.wrap_future(self._history.messages(ids))
            except ReadFailed as error:
                # They are not released: a consumer would get them, and a rejected message must not be redelivered.
                self._runtime.report("dead_messages_not_read", error)
                self._loop.call_later(TRY_AGAIN_S, partial(self.reject, flow, ids, done))
                return
            if not rows:
                break
            # The flow may have ended meanwhile, and given back its messages.
            rejected = [row for row in rows if row[ID] in flow.unsettled]
            if rejected:
                self.remove(flow, rejected, "rejected")
                # Its link may have waited for fewer unsettled messages.
                self._consumers.set_demand(flow, flow.link.room())
            ids = ids[len(rows) :]
        done()

    def _start(self, reading: Coroutine[Any, Any, None]) -> None:
        keep(self._loop.create_task(reading), self._tasks)
