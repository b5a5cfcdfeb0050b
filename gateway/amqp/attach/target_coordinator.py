"""
An attach whose target is the transaction coordinator (AMQP 1.0 section 4.3).
"""

from __future__ import annotations

from typing import Any, cast

from proton import UNDESCRIBED, Array, Data, Link, Terminus, symbol

from amqp_ext.transactions import LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS
from gateway import log_keys
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.links.coordinator import MAX_CONTROL_BYTES, CoordinatorLink


class CoordinatorTarget(LinkSetup):
    """The coordinator as a target."""

    def __init__(self, client: Client, request: AttachRequest) -> None:
        self._client = client
        self._link = request.link
        self._outcomes = request.outcomes

    async def bind(self) -> ReadyLink:
        return CoordinatorLink(self._link, self._client.carrier, self._client.transactions, self._outcomes)

    def reply(self) -> None:
        link = self._link
        link.source.copy(link.remote_source)
        link.source.type = Terminus.SOURCE
        link.target.type = Terminus.COORDINATOR
        link.target.capabilities.put_object(
            # An array, as multiple values are (section 1.4): Qpid JMS takes no list.
            Array(
                cast("Any", UNDESCRIBED),
                Data.SYMBOL,
                *map(symbol, (LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS)),
            )
        )
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = Link.RCV_FIRST
        link.max_message_size = MAX_CONTROL_BYTES

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: "the coordinator"}
