"""
Messages that nobody is to have, and the copies of them on a dead message queue.

A copy has the bare message as it was, and annotations that say why it is there:

=============================  =========  ========================================================
``x-opt-dead-reason``          string     ``expired``, ``max-redelivery`` or ``rejected``
``x-opt-dead-endpoint``        string     where it lay
``x-opt-dead-time``            timestamp  when it left
``x-opt-dead-sequence-number`` long       the id it had there
=============================  =========  ========================================================
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from amqp_ext.addresses import queue_topic
from amqp_ext.codec import Long, Timestamp
from amqp_ext.message.annotations import annotated
from gateway import log_keys
from gateway.core.endpoint.endpoint import Endpoint, Flow, Retired
from gateway.core.errors import Refused
from gateway.core.model import Row

if TYPE_CHECKING:
    from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()

TRY_AGAIN_S: Final = 1.0
"""Seconds after a read or a write that failed until messages are read again for their copies."""

UNDER_WAY_MOST = 1_000
"""Messages of one endpoint that are on their way to its dead message queue, beyond which no more are taken off."""


class _Copies:
    """The publisher of the copies for one dead message queue: what that does not take is discarded, and logged."""

    def __init__(self, vpn: str, queue: str) -> None:
        self._vpn = vpn
        self._queue = queue

    def accepted(self, deliveries: Any) -> None:
        pass

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        log.warning(
            "dead_messages_discarded",
            **{
                log_keys.VPN: self._vpn,
                log_keys.ENDPOINT: self._queue,
                log_keys.MESSAGES: len(deliveries),
                log_keys.REASON: refused.text if refused is not None else "nobody takes them",
            },
        )


def dead_copy(row: Row, endpoint: str, reason: str, now_ms: int) -> tuple[bytes, int]:
    """The content of the copy, and where its bare message begins."""
    return annotated(
        row[5],
        {
            "x-opt-dead-reason": reason,
            "x-opt-dead-endpoint": endpoint,
            "x-opt-dead-time": Timestamp(now_ms),
            "x-opt-dead-sequence-number": Long(row[0]),
        },
    )


@dataclass(eq=False, slots=True)
class Burial:
    """Messages on their way from an endpoint to its dead message queue."""

    endpoint: Endpoint
    queue: str
    reason: str
    time_ms: int
    number: int
    era: int
    """The endpoint's: with another number or era it has forgotten them, or knows them from the store alone."""
    grave: Flow
    """Bound to nothing; has them between a write that failed and the next, so that they go to nobody else."""
    ids: list[int]


class DeadMessages:
    """Takes messages off endpoints for good, to the dead message queue of those that have one."""

    def __init__(self, vpn: MessageVpn) -> None:
        self._vpn = vpn
        self._log = log.bind(**{log_keys.VPN: vpn.name})
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[Burial, None] = {}

    def is_their_queue(self, name: str) -> bool:
        """Whether some endpoint's dead messages come to this queue."""
        endpoints = self._vpn.broker.endpoints.values()
        return any(endpoint.settings.dead_message_queue == name for endpoint in endpoints)

    def holds_up(self, endpoint: Endpoint) -> bool:
        """
        Whether so many of the endpoint's messages are on their way that no more are to be looked at: on a disk that
        takes nothing, a backlog of dead messages must not become memory.
        """
        if not self._under_way:
            return False
        return sum(len(b.ids) for b in self._under_way if b.endpoint is endpoint) >= UNDER_WAY_MOST

    def bury(self, flow: Flow, rows: Sequence[Row], reason: str) -> None:
        """
        Messages that a flow has unsettled leave the endpoint; for its dead message queue where it has one, in the
        same commit. One that fails is tried again until it succeeds, and nobody else is given them meanwhile.
        """
        vpn, endpoint = self._vpn, flow.endpoint
        queue, ids = endpoint.settings.dead_message_queue, [row[0] for row in rows]
        self._log.info(
            "messages_buried",
            **{log_keys.ENDPOINT: endpoint.name, log_keys.MESSAGES: len(ids), log_keys.REASON: reason},
        )
        if not queue or queue == endpoint.name:
            vpn.settle(flow, ids)
            return
        burial = Burial(
            endpoint, queue, reason, vpn.now_ms(), endpoint.number, endpoint.era, Flow(endpoint, None), ids
        )
        self._under_way[burial] = None
        self._put(burial, flow, rows)

    def _put(self, burial: Burial, flow: Flow, rows: Sequence[Row]) -> None:
        """Have the copies written, and with them that the messages are gone."""
        vpn, endpoint = self._vpn, burial.endpoint
        copies = [dead_copy(row, endpoint.name, burial.reason, burial.time_ms) for row in rows]
        contents, bares = [content for content, _ in copies], [bare for _, bare in copies]
        vpn.publish(
            _Copies(vpn.name, burial.queue), queue_topic(burial.queue), contents, bares, list(burial.ids)
        )
        retired = endpoint.retire(flow, burial.ids)
        vpn.commit([retired.effect()], lambda error: self._written(burial, retired, error))

    def _written(self, burial: Burial, retired: Retired, error: sqlite3.Error | None) -> None:
        vpn = self._vpn
        if error is None:
            del self._under_way[burial]
            vpn.retired(retired)
            vpn.look_at(burial.endpoint)
        elif retired.counts_again():
            burial.grave.unsettled.update(retired.held)
            vpn.later(TRY_AGAIN_S, partial(self._put_again, burial))
        else:
            del self._under_way[burial]

    def _put_again(self, burial: Burial) -> None:
        self._start(self._read_and_put(burial))

    async def _read_and_put(self, burial: Burial) -> None:
        # Contents were let go of meanwhile: there may be many of them, and the disk may stay as it is for hours.
        rows: list[Row] = []
        while len(rows) < len(burial.ids):
            try:
                page = await self._read(burial.ids[len(rows) :])
            except sqlite3.Error as error:
                self._vpn.report("dead_messages_not_read", error)
                self._vpn.later(TRY_AGAIN_S, partial(self._put_again, burial))
                return
            if not page:
                break
            rows += page
        endpoint = burial.endpoint
        if len(rows) == len(burial.ids) and (endpoint.number, endpoint.era) == (burial.number, burial.era):
            self._put(burial, burial.grave, rows)
        else:
            # The endpoint was emptied or deleted, or knows them from the store, where they are as they were.
            del self._under_way[burial]
            self._vpn.look_at(endpoint)

    def bury_rejected(self, flow: Flow, ids: list[int]) -> None:
        """Messages that a consumer rejected."""
        vpn = self._vpn
        if not flow.endpoint.settings.dead_message_queue:
            vpn.settle(flow, ids)
            return
        ids = sorted(i for i in ids if i in flow.unsettled)
        if ids and ids[0] >= vpn.tail.first_id:
            self.bury(flow, vpn.tail.pick(ids), "rejected")
        elif ids:
            self._start(self._read_and_bury(flow, ids))

    async def _read_and_bury(self, flow: Flow, ids: list[int]) -> None:
        vpn = self._vpn
        while ids:
            try:
                rows = await self._read(ids)
            except sqlite3.Error as error:
                # Given back, they would be delivered to somebody, and rejected means never again.
                vpn.report("dead_messages_not_read", error)
                vpn.later(TRY_AGAIN_S, partial(self.bury_rejected, flow, ids))
                return
            if not rows:
                return
            # Meanwhile the flow may have gone, and given back what it had.
            rejected = [row for row in rows if row[0] in flow.unsettled]
            if rejected:
                self.bury(flow, rejected, "rejected")
                # Its link may have waited for room among what it has unsettled.
                vpn.ask(flow, flow.link.room())
            ids = ids[len(rows) :]

    async def _read(self, ids: Sequence[int]) -> list[Row]:
        reader = self._vpn.reader
        return await asyncio.wrap_future(reader.submit(partial(reader.messages, ids)))

    def _start(self, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(reading)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
