"""
An attach whose source is an endpoint that it consumes from: it is bound to that, after a replay if one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from amqp_ext.addresses.options import NO_OPTIONS
from amqp_ext.filters.filter_set import Filters
from amqp_ext.lifetime import Lifetime
from amqp_ext.replay_start import ReplayStart, StartKind, parse_text
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.message_filter import selection_of
from gateway.amqp.attach.reply import SourceInPlace, log_values_of, reply_to_source, splicer_for
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.links.consumer import Consumer
from gateway.amqp.nodes.lease import NodeLease
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ReplayRequest, Row
from gateway.core.replay.starts import Resolved

NOTHING_YET: Final = ReplayStart(StartKind.LIVE)
"""The start of who asks for none: what is published from now on."""


class ConsumerSource(LinkSetup):
    """
    A consumer of an endpoint.

    Args:
        is_made: The endpoint may have been made for this link, and has yet to become durable then.
        address: Of the source, as the reply says it.
        filters: Those that the consumer applies.
        start: Where the peer wants to start; None where it does not say.
        lease: What the link has on a temporary node.
        options: Of the source's address.
    """

    def __init__(
        self,
        client: Client,
        request: AttachRequest,
        endpoint: Endpoint,
        *,
        address: str | None,
        filters: Filters,
        start: ReplayStart | None,
        lease: NodeLease | None,
        is_made: bool = False,
        options: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        self._client = client
        self._request = request
        self._endpoint = endpoint
        self._address = address
        self._filters = filters
        self._start = start
        self._lease = lease
        self._is_made = is_made
        self._options = options
        self._selects: Callable[[Row], bool] | None = None
        self._resolved: Resolved
        self._flow: Flow | None = None
        self._consumer: Consumer

    @property
    def _replays(self) -> bool:
        return self._start is not None and self._start.kind is not StartKind.LIVE

    @property
    def _asked(self) -> ReplayRequest:
        """The replay as it goes on record."""
        start, identity = self._start, self._client.identity
        assert start is not None
        requester = f"{identity.user}@{identity.peer_container}"
        return ReplayRequest(requester, start.name or "", str(replace(start, name=None)))

    async def prepare(self) -> None:
        vpn, endpoint = self._client.vpn, self._endpoint
        if self._is_made:
            await vpn.committer.committed()
        self._selects = selection_of(self._client, self._filters, self._request.link.name)
        # A default is for who comes alone: nobody who asked for nothing is refused because others are there.
        if self._start is None and endpoint.settings.default_start and not endpoint.flows:
            self._start = parse_text(endpoint.settings.default_start)
        start = self._start
        self._resolved = await vpn.log.resolve_start_on(
            endpoint, start or NOTHING_YET, self._client.identity.user
        )
        if start is not None and (start.speed or start.rate):
            raise Refused(
                ErrorCode.UNKNOWN_START, "speed and rate are for log readers: an endpoint sets its own pace"
            )
        if self._resolved.last is not None:
            raise Refused(
                ErrorCode.UNKNOWN_START, "until is for log readers: an endpoint's replay goes on live"
            )
        if not vpn.endpoints.is_there(endpoint):
            raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")

    async def bind(self) -> ReadyLink | None:
        client, request, endpoint = self._client, self._request, self._endpoint
        vpn = client.vpn
        consumer = self._consumer = Consumer(
            request.link,
            client.carrier,
            client.identity,
            splicer_for(self._filters, vpn.log),
            consumers=vpn.consumers,
            committer=vpn.committer,
            transactions=client.transactions,
            lease=self._lease,
            default_outcome=request.termini.default_outcome,
            is_stopping=client.is_stopping,
            max_unsettled=client.limits.max_unsettled_per_flow,
        )
        if self._replays:
            vpn.replays.check(endpoint, by_client=True, name=self._asked.name)
        priority = request.consumer_priority(client.spoken.consumer_priorities)
        flow = self._flow = vpn.consumers.bind(
            endpoint, consumer, request.epoch(self._options), self._selects, priority
        )
        if self._replays:
            vpn.replays.start(endpoint, self._resolved.first, flow, self._asked)
            await vpn.committer.committed()
        return consumer if flow in endpoint.flows else None

    def reply(self) -> None:
        lifetime = self._lease.lifetime if self._lease is not None else Lifetime.DELETE_ON_CLOSE
        in_place = SourceInPlace(
            self._address,
            self._filters,
            self._resolved,
            copies=False,
            lifetime=lifetime,
            replays=self._replays,
        )
        reply_to_source(self._request, in_place, self._client.vpn.log)

    def opened(self) -> None:
        assert self._flow is not None
        self._consumer.begin(self._flow)

    def log_values(self) -> dict[str, Any]:
        return log_values_of(self._request.link, self._start, self._resolved)

    def release(self) -> None:
        if self._flow is not None:
            self._client.vpn.consumers.unbind(self._flow)
        if self._lease is not None:
            self._lease.release()
