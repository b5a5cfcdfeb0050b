"""
An attach that browses a queue: it sees what lies there and takes nothing (distribution mode copy, AMQP 1.0 section
3.5.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp_ext.filters.filter_set import Filters
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.message_filter import selection_of
from gateway.amqp.attach.reply import SourceInPlace, log_values_of, reply_to_source, splicer_for
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.links.reader import ReaderLink
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.starts import Resolved


class BrowserSource(LinkSetup):
    """
    A queue, or topic endpoint, that is browsed.

    Args:
        start: Where the peer wants to start; None where it does not say.
    """

    def __init__(
        self, client: Client, request: AttachRequest, endpoint: Endpoint, start: ReplayStart | None
    ) -> None:
        self._client = client
        self._request = request
        self._endpoint = endpoint
        self._start = start
        self._selects: Callable[[Row], bool] | None = None
        self._resolved: Resolved
        self._reader: ReaderLink

    @property
    def _filters(self) -> Filters:
        return self._request.filters

    async def prepare(self) -> None:
        if self._start is not None and self._start.kind is not StartKind.LIVE:
            raise Refused(
                ErrorCode.BROWSER_FLOW, "a browser cannot ask for a replay; consume, or read log://"
            )
        self._selects = selection_of(self._client, self._filters, self._request.link.name)

    async def bind(self) -> ReadyLink:
        client, log = self._client, self._client.vpn.log
        splicer = splicer_for(self._filters, log)
        self._reader = ReaderLink(
            self._request.link,
            client.carrier,
            client.identity,
            splicer,
            max_unsettled=client.limits.max_unsettled_per_flow,
        )
        self._resolved = Resolved(log.next_id, None, None, is_live=True)
        self._reader.lease = client.owner.registry.lease_on(self._endpoint.name)
        return self._reader

    def reply(self) -> None:
        in_place = SourceInPlace(
            self._request.address, self._filters, self._resolved, copies=True, replays=False
        )
        reply_to_source(self._request, in_place, self._client.vpn.log)

    def opened(self) -> None:
        self._reader.begin(self._client.vpn.readers.browse(self._endpoint, self._reader, self._selects))

    def log_values(self) -> dict[str, Any]:
        return log_values_of(self._request.link, self._start, self._resolved)
