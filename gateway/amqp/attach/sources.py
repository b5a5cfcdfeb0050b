"""
Sources of links that a peer receives on: a queue or topic endpoint that it consumes from or browses, the replay log, a
stream, a partition. Here is decided which of them an attach asks for, and whether its client may have that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from proton import Terminus

from amqp_ext.addresses.address import Address, AddressKind, parse_source
from amqp_ext.addresses.forms import PartitionPosition
from amqp_ext.addresses.options import NO_OPTIONS
from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.addresses.texts import AddressError
from amqp_ext.filters.filter_set import Filters
from amqp_ext.lifetime import Lifetime
from amqp_ext.replay_start import ReplayStart, ReplayStartError, StartKind, combine, from_options, parse_text
from gateway.amqp.attach.client import Client, exclusivity_of, kind_of, kind_of_queue, queue_at
from gateway.amqp.attach.request import (
    AttachRequest,
    LinkSetup,
    ReadyLink,
    SourceInPlace,
    log_values_of,
    reply_to_source,
    splicer_for,
)
from gateway.amqp.attach.subscriptions import Subscription, endpoint_for, kept_endpoint
from gateway.amqp.dialects.hooks import GroupMembership, ReaderGroups
from gateway.amqp.links.base_link import UnsubscribingLink, give_up
from gateway.amqp.links.consumer import Consumer
from gateway.amqp.links.reader import Feed, ReaderLink
from gateway.amqp.nodes import (
    Lease,
    NodeLease,
    lease_of_consumer,
    make_queue,
    make_topic_endpoint,
    temporary_name,
)
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, ReplayRequest, Row
from gateway.core.replay.reading import Pacer, ReplayMark, compile_filters
from gateway.core.replay.starts import Resolved
from gateway.logging import log_keys


async def source_setup(client: Client, request: AttachRequest) -> LinkSetup:
    """
    How a link that the peer receives on is set up.

    Raises:
        Refused: Its source is no good, is not there, or may not be consumed from.
    """
    # Both are read before anything is made for it.
    _ = request.capabilities, request.filters
    if request.is_dynamic:
        client.require_active()
        return _dynamic(client, request)
    if not request.address:
        client.require_active()
        return UnsubscribeSource(client, request, _subscription_of(client, request))
    try:
        address = parse_source(request.address, request.capabilities)
        start = combine(request.filters.start, from_options(address.options))
    except ReplayStartError as error:
        raise Refused(ErrorCode.UNKNOWN_START, str(error)) from error
    except AddressError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    client.authorization.require_token(address)
    grouped = grouped_partition(client, address)
    if grouped is not None:
        client.require_active()  # whose turn it is in a group, is known there
    subscription = _subscription_of(client, request)
    if grouped is not None and not grouped.is_stream:
        client.authorization.require_log_of(
            address.name, makes=client.vpn.endpoints.find(address.name) is None
        )
    else:
        client.authorization.require_source(
            address if grouped is None else grouped.address,
            start,
            browses=request.wants_copies,
            durable_name=subscription.durable_name,
            is_everybodys=subscription.is_everybodys,
        )
    if grouped is not None:
        return await partition_setup(client, request, grouped, start)
    if not _is_read_anywhere(client, address):
        client.require_active()
    match address.kind:
        case AddressKind.LOG:
            return LogSource(client, request, [address.name], start)
        case AddressKind.PARTITION:
            return LogSource(client, request, [queue_topic(address.name)], start)
        case AddressKind.QUEUE:
            return await _queue(client, request, address, start)
        case AddressKind.TOPIC:
            return _topic(client, request, address, start)
    raise Refused(ErrorCode.NOT_IMPLEMENTED, f"{address.name} is not there yet")


def _is_read_anywhere(client: Client, address: Address) -> bool:
    """Whether a gateway that is not active may serve a source: the log, and streams that many read at once."""
    if address.kind is not AddressKind.QUEUE:
        return address.kind in (AddressKind.LOG, AddressKind.PARTITION)
    endpoint = client.vpn.endpoints.find(address.name)
    return (
        endpoint is not None
        and endpoint.kind is EndpointKind.STREAM
        and endpoint.settings.exclusive is Exclusivity.NONE
    )


def _subscription_of(client: Client, request: AttachRequest) -> Subscription:
    return Subscription(
        request.name,
        request.capabilities,
        client.identity.peer_container,
        is_durable=request.never_expires or not request.address,
    )


def _dynamic(client: Client, request: AttachRequest) -> LinkSetup:
    """A node is made for the link: a temporary queue, or a temporary topic with an endpoint for the link."""
    lifetime, filters = request.lifetime, request.filters
    if "temporary-topic" in request.capabilities:
        topic = temporary_name("TTMP")
        # Its endpoint sees to no-local.
        no_local, filters = filters.no_local, replace(filters, no_local=False)
        owned = make_topic_endpoint(
            client.owner,
            client.vpn.endpoints,
            [topic],
            known_as=topic,
            no_local=client.origin if no_local else "",
        )
        endpoint, address = owned.endpoint, f"topic://{topic}"
        return ConsumerSource(
            client,
            request,
            endpoint,
            address=address,
            filters=filters,
            start=filters.start,
            lease=owned,
            is_made=True,
        )
    lease = make_queue(client.owner, client.vpn.endpoints, lifetime)
    if request.is_for_jms:
        client.owner.registry.keep_private(lease.endpoint.name)
    return ConsumerSource(
        client,
        request,
        lease.endpoint,
        address=client.spoken.address_of(lease.endpoint.name),
        filters=filters,
        start=filters.start,
        lease=lease,
        is_made=True,
    )


async def _queue(
    client: Client, request: AttachRequest, address: Address, start: ReplayStart | None
) -> LinkSetup:
    endpoint = queue_at(client, address)
    await client.vpn.committer.committed()
    if endpoint.kind is EndpointKind.STREAM:
        return StreamSource(client, request, endpoint, start, address.options)
    if request.wants_copies:
        return BrowserSource(client, request, endpoint, start)
    return ConsumerSource(
        client,
        request,
        endpoint,
        address=request.address,
        filters=request.filters,
        start=start,
        lease=lease_of_consumer(client.owner, client.vpn.endpoints, endpoint, client.is_stopping),
        options=address.options,
    )


def _topic(client: Client, request: AttachRequest, address: Address, start: ReplayStart | None) -> LinkSetup:
    """A durable topic endpoint, or a temporary one, subscribed to the topic."""
    filters, subscription = request.filters, _subscription_of(client, request)
    endpoint, lease = endpoint_for(
        client.owner,
        client.vpn.endpoints,
        client.authorization,
        subscription,
        address.name,
        no_local=client.origin if filters.no_local else "",
    )
    if not subscription.is_shared:
        # Its endpoint sees to it.
        filters = replace(filters, no_local=False)
    return ConsumerSource(
        client,
        request,
        endpoint,
        address=request.address,
        filters=filters,
        start=start,
        lease=lease,
        is_made=True,
    )


def selection_of(
    client: Client, filters: Filters, link: str, mark: ReplayMark | None = None
) -> Callable[[Row], bool] | None:
    """
    What the consumer of a source is to be given: what passes its filters, and with no-local what did not come from
    its own container, as far as that is known (see ``Origins``). None when everything passes.

    Args:
        link: The consumer's, for the log.
        mark: What a reader's messages are given.

    Raises:
        Refused: INVALID_FIELD, with the place in the selector and the reason.
    """
    log = client.log

    def too_costly(row: Row) -> None:
        log.warning("selection_too_costly", **{log_keys.LINK: link, log_keys.FIRST: row[ID]})

    passes = compile_filters(filters, too_costly, mark)
    if not filters.no_local:
        return passes
    origins, own = client.vpn.origins, client.origin
    if client.is_connected:
        origins.watch(client)
    if passes is None:
        return lambda row: origins.of(row[ID]) != own
    return lambda row: origins.of(row[ID]) != own and passes(row)


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


JoinGroup: TypeAlias = "Callable[[ReaderLink], Lease]"
"""Called with a reader before it is answered: its place in its group of readers; raises Refused if it may not read."""


def pacer_for(start: ReplayStart | None) -> Pacer | None:
    """The pace that a replay is to have, if one is asked for."""
    return Pacer(start.speed, start.rate) if start is not None and (start.speed or start.rate) else None


class LogSource(LinkSetup):
    """
    A log reader.

    Args:
        patterns: The topics that it reads.
        join: Makes it one of a group of readers.
    """

    def __init__(
        self,
        client: Client,
        request: AttachRequest,
        patterns: Sequence[str],
        start: ReplayStart | None,
        join: JoinGroup | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._patterns = patterns
        self._start = start
        self._join = join
        self._selects: Callable[[Row], bool] | None = None
        self._mark: ReplayMark | None = None
        self._resolved: Resolved
        self._wants_batches = False
        self._reader: ReaderLink | None = None

    @property
    def _filters(self) -> Filters:
        return self._request.filters

    async def prepare(self) -> None:
        vpn = self._client.vpn
        vpn.log.check_reads("there is nothing to read")
        if self._start is not None and self._start.name:
            self._mark = ReplayMark(self._start.name)
        self._selects = selection_of(self._client, self._filters, self._request.link.name, self._mark)
        self._resolved = await vpn.log.resolve_start(
            self._start or NOTHING_YET, self._patterns, self._client.identity.user
        )

    async def bind(self) -> ReadyLink:
        client, request = self._client, self._request
        splicer = splicer_for(self._filters, client.vpn.log)
        reader = self._reader = ReaderLink(
            request.link,
            client.carrier,
            client.identity,
            splicer,
            settles=self._join is not None,
            max_unsettled=client.limits.max_unsettled_per_flow,
        )
        if self._mark is not None:
            self._mark.below = client.vpn.broker.next_id
            reader.mark(self._mark.name, self._mark.below)
        self._wants_batches = request.wants_batches
        if self._join is not None:
            reader.lease = self._join(reader)
        return reader

    def reply(self) -> None:
        in_place = SourceInPlace(
            self._request.address,
            self._filters,
            self._resolved,
            copies=True,
            settles=self._join is not None,
            batches=self._wants_batches,
            taken_below=self._client.vpn.broker.retention.taken_below(self._patterns),
        )
        is_said = reply_to_source(self._request, in_place, self._client.vpn.log)
        assert self._reader is not None
        self._reader.transfers.in_batches = self._wants_batches and is_said

    def opened(self) -> None:
        assert self._reader is not None
        self._reader.begin(
            self._client.vpn.readers.read_log(
                self._resolved, self._patterns, self._reader, self._selects, pacer_for(self._start)
            )
        )

    def log_values(self) -> dict[str, Any]:
        return log_values_of(self._request.link, self._start, self._resolved)

    def release(self) -> None:
        if self._reader is not None and self._reader.lease is not None:
            self._reader.lease.release()


class StreamSource(LinkSetup):
    """
    A reader of a stream.

    Args:
        options: Of the source's address.
        join: Makes it one of a group of readers.
    """

    def __init__(
        self,
        client: Client,
        request: AttachRequest,
        endpoint: Endpoint,
        start: ReplayStart | None,
        options: Mapping[str, str],
        join: JoinGroup | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._endpoint = endpoint
        self._start = start
        self._options = options
        self._join = join
        self._selects: Callable[[Row], bool] | None = None
        self._mark: ReplayMark | None = None
        self._epoch: int | None = None
        self._resolved: Resolved
        self._reader: ReaderLink
        self._feed: Feed | None = None

    @property
    def _filters(self) -> Filters:
        return self._request.filters

    async def prepare(self) -> None:
        vpn, endpoint = self._client.vpn, self._endpoint
        vpn.log.check_reads("there is nothing to read")
        if self._start is not None and self._start.name:
            self._mark = ReplayMark(self._start.name)
        self._selects = selection_of(self._client, self._filters, self._request.link.name, self._mark)
        self._epoch = self._request.epoch(self._options)
        if self._start is None and endpoint.settings.default_start:
            self._start = parse_text(endpoint.settings.default_start)
        self._resolved = await vpn.log.resolve_start_on(
            endpoint, self._start or NOTHING_YET, self._client.identity.user
        )
        if not vpn.endpoints.is_there(endpoint):
            raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")

    async def bind(self) -> ReadyLink:
        client = self._client
        splicer = splicer_for(self._filters, client.vpn.log)
        reader = self._reader = ReaderLink(
            self._request.link,
            client.carrier,
            client.identity,
            splicer,
            settles=self._join is not None,
            max_unsettled=client.limits.max_unsettled_per_flow,
        )
        if self._mark is not None:
            self._mark.below = client.vpn.broker.next_id
            reader.mark(self._mark.name, self._mark.below)
        self._feed = client.vpn.streams.read(
            self._endpoint,
            reader,
            self._resolved,
            epoch=self._epoch,
            selects=self._selects,
            pacer=pacer_for(self._start),
        )
        if self._join is not None:
            reader.lease = self._join(reader)
        return reader

    def reply(self) -> None:
        in_place = SourceInPlace(
            self._request.address,
            self._filters,
            self._resolved,
            copies=True,
            settles=self._join is not None,
            first_id=self._endpoint.settings.purged_below,
        )
        reply_to_source(self._request, in_place, self._client.vpn.log)

    def opened(self) -> None:
        assert self._feed is not None
        self._reader.begin(self._feed)

    def log_values(self) -> dict[str, Any]:
        return log_values_of(self._request.link, self._start, self._resolved)

    def release(self) -> None:
        if self._feed is not None:
            self._feed.close()
            if self._reader.lease is not None:
                self._reader.lease.release()


class GroupedPartition(NamedTuple):
    """A partition that somebody wants to read in a group."""

    address: Address
    """As that of its queue."""
    is_stream: bool
    """Who may consume from a stream may read it. What was sent to a queue is read from the log, and needs the rule for
    that: to browse a queue, or to consume from it, is to see what lies there, and no history."""
    position: PartitionPosition
    groups: ReaderGroups


def grouped_partition(client: Client, address: Address) -> GroupedPartition | None:
    """
    The partition that an address names; None where it names something else, or readers are in no groups here.

    Raises:
        Refused: NOT_FOUND, it names a partition that is not there.
    """
    position = address.position
    if position is None:
        return None
    client.spoken.check_position(position)
    groups = client.spoken.reader_groups(client.vpn.name)
    if groups is None:
        return None
    queue = replace(address, kind=AddressKind.QUEUE, position=None)
    found = client.vpn.endpoints.find(address.name)
    is_stream = kind_of_queue(client, queue) is EndpointKind.STREAM
    if is_stream:
        queue = replace(queue, options={**address.options, "kind": EndpointKind.STREAM.value})
    if found is not None:
        is_stream = found.kind is EndpointKind.STREAM
    return GroupedPartition(queue, is_stream, position, groups)


async def partition_setup(
    client: Client, request: AttachRequest, partition: GroupedPartition, start: ReplayStart | None
) -> LinkSetup:
    """
    How the link of a reader is set up; its queue is durable.

    Raises:
        Refused: STOLEN, a reader with a higher epoch has the partition; as for other links to the queue.
    """
    vpn, options, groups = client.vpn, partition.address.options, partition.groups
    name, group, epoch = partition.address.name, partition.position.consumer_group, request.epoch(options)
    groups.check(name, group, epoch)
    endpoint = vpn.endpoints.queue_for(
        name,
        kind=kind_of(options),
        exclusive=exclusivity_of(options),
        may_create=options.get("create") != "never",
    )
    await vpn.committer.committed()

    def join(reader: ReaderLink) -> GroupMembership:
        return groups.join(name, group, epoch, reader)

    if endpoint.kind is EndpointKind.STREAM:
        return StreamSource(client, request, endpoint, start, options, join)
    return LogSource(client, request, [queue_topic(name)], start, join)


class UnsubscribeSource(LinkSetup):
    """
    A link that gives a subscription up.

    Args:
        subscription: As the link's name and capabilities say which.
    """

    def __init__(self, client: Client, request: AttachRequest, subscription: Subscription) -> None:
        self._client = client
        self._request = request
        self._subscription = subscription
        self._endpoint: Endpoint

    async def prepare(self) -> None:
        client = self._client
        found = self._endpoint = kept_endpoint(client.vpn.endpoints, self._subscription)
        client.authorization.require_deletion(found)
        if found.flows:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                f"the subscription {self._subscription.link_name!r} has a consumer; close that first",
            )

    async def bind(self) -> ReadyLink:
        return UnsubscribingLink(
            self._request.link, self._client.carrier, self._client.vpn.endpoints, self._endpoint
        )

    def closed_early(self) -> None:
        give_up(self._client.vpn.endpoints, self._endpoint, self._client.log)

    def reply(self) -> None:
        link = self._request.link
        source = link.source
        source.address = next(iter(self._endpoint.subscriptions), "")
        source.durability = Terminus.DELIVERIES
        source.expiry_policy = Terminus.EXPIRE_NEVER
        link.target.copy(link.remote_target)

    def log_values(self) -> None:
        return None
