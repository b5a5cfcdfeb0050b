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
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from amqp_ext.addresses import queue_topic
from amqp_ext.annotations import annotated
from amqp_ext.codec import Long, Timestamp
from gateway import log_keys
from gateway.core.effects import Row
from gateway.core.endpoint import Flow
from gateway.core.errors import Refused

if TYPE_CHECKING:
    from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()

TRY_AGAIN_S = 1.0
"""Seconds after a failed read until rejected messages are read again for their copies."""


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


class DeadMessages:
    """Takes messages off endpoints for good, to the dead message queue of those that have one."""

    def __init__(self, vpn: MessageVpn) -> None:
        self._vpn = vpn
        self._log = log.bind(**{log_keys.VPN: vpn.name})
        self._tasks: set[asyncio.Task[None]] = set()

    def is_their_queue(self, name: str) -> bool:
        """Whether some endpoint's dead messages come to this queue."""
        endpoints = self._vpn.broker.endpoints.values()
        return any(endpoint.settings.dead_message_queue == name for endpoint in endpoints)

    def bury(self, flow: Flow, rows: Sequence[Row], reason: str) -> None:
        """
        Messages that a flow has unsettled leave the endpoint; for its dead message queue where it has one, in the
        same commit.
        """
        vpn, endpoint = self._vpn, flow.endpoint
        name = endpoint.settings.dead_message_queue
        if name and name != endpoint.name:
            now = vpn.now_ms()
            copies = [dead_copy(row, endpoint.name, reason, now) for row in rows]
            contents, bares = [content for content, _ in copies], [bare for _, bare in copies]
            ids = [row[0] for row in rows]
            vpn.publish(_Copies(vpn.name, name), queue_topic(name), contents, bares, ids)
        self._log.info(
            "messages_buried",
            **{log_keys.ENDPOINT: endpoint.name, log_keys.MESSAGES: len(rows), log_keys.REASON: reason},
        )
        vpn.settle(flow, [row[0] for row in rows])

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
            task = asyncio.get_running_loop().create_task(self._read_and_bury(flow, ids))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read_and_bury(self, flow: Flow, ids: list[int]) -> None:
        vpn = self._vpn
        while ids:
            try:
                rows = await asyncio.wrap_future(vpn.reader.submit(partial(vpn.reader.messages, ids)))
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
