"""
Sources, from which a peer receives: a queue or topic endpoint that it consumes from or browses, the replay log, a
stream, or a partition. ``source_setup`` decides which of them an attach asks for, and whether its client may have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from proton import Described, Link, Terminus, symbol, timestamp, ulong

from amqp_ext.addresses.address import Address, AddressKind, queue_topic
from amqp_ext.addresses.forms import PartitionPosition
from amqp_ext.filters.filter_set import REPLAY_START, Filters
from amqp_ext.message.annotations import ReplayMark, Splicer
from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import ReplayStart, StartKind, parse_text
from amqp_ext.terminus_fields import Lifetime, in_order
from gateway.amqp.attach.attach import BATCHES_KEY, AttachRequest, LinkSetup, say_lifetime, symbols
from gateway.amqp.attach.subscriptions import Subscription, endpoint_for, kept_endpoint, told_apart
from gateway.amqp.client import Client
from gateway.amqp.dialects.hooks import ReaderGroups
from gateway.amqp.engine.conditions import room_of
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.links.base_link import UnsubscribingLink, give_up
from gateway.amqp.links.consumer import Consumer
from gateway.amqp.links.reader import Feed, ReaderLink
from gateway.amqp.nodes import Lease, lease_of_consumer, make_queue, make_topic_endpoint, temporary_name
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, ReplayRequest, Row
from gateway.core.replay.reading import Pacer, compile_filters
from gateway.core.replay.starts import Resolved
from gateway.logging import log_keys

_SAYING_WHAT_IT_IS: Final = frozenset(
    {"queue", "topic", "temporary-queue", "temporary-topic", "stream", "shared", "global"}
)
"""Capabilities of a source that say which node its address means, or how it is subscribed to."""

_FIXED_BYTES: Final = 120
"""Bytes of an attach that are always there: frame header, descriptors, sizes, and fields of fixed width."""

_PROPERTIES_BYTES: Final = 140
"""Bytes of the link's properties, with 64-bit numbers."""

_ID_BYTES: Final = 9
"""Bytes of one id in a list; a list's name and size take less than five of them."""

NOTHING_YET: Final = ReplayStart(StartKind.LIVE)
"""The start of a link that asks for none: messages that are published from now on."""

JoinGroup: TypeAlias = "Callable[[ReaderLink], Lease]"
"""Called with a reader before the reply. Returns its place in its consumer group; raises Refused if it may not read."""


# --- which source it is -----------------------------------------------------------------------------------------------


async def source_setup(client: Client, request: AttachRequest) -> LinkSetup:
    """
    The setup of a link that the peer receives on.

    Raises:
        Refused: Its source is not valid, does not exist, or may not be consumed from.
    """
    # The whole request is read before anything is made for it.
    subscription = Subscription(
        request.name,
        request.capabilities,
        client.identity.peer_container,
        is_durable=request.terminus.expiry_policy == Terminus.EXPIRE_NEVER or not request.address,
        selector=told_apart(request.filters.selection),
        no_local=client.identity.origin if request.filters.no_local else "",
    )
    if not request.address:
        client.require_active()
        if request.is_dynamic:
            return _dynamic(client, request, subscription)
        return UnsubscribeSource(client, request, subscription)
    address, start = request.source, request.start
    if client.token_check is not None:
        client.token_check.require(address, publishes=False)
    grouped = grouped_partition(client, address)
    if grouped is not None:
        client.require_active()  # which knows the readers of each group
    if grouped is not None and not grouped.is_stream:
        client.authorization.require_log_of(
            address.name, makes=client.vpn.endpoints.by_name.get(address.name) is None
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
        return await _partition(client, request, grouped)
    if not _is_read_anywhere(client, address):
        client.require_active()
    match address.kind:
        case AddressKind.LOG:
            return LogSource(client, request, [address.name])
        case AddressKind.PARTITION:
            return LogSource(client, request, [queue_topic(address.name)])
        case AddressKind.QUEUE:
            return await _queue(client, request)
        case AddressKind.TOPIC:
            client.owner.registry.check_topic(address.name)
            return _topic(client, request, subscription)
    raise Refused(ErrorCode.NOT_IMPLEMENTED, f"{address.name} is not supported")


def _is_read_anywhere(client: Client, address: Address) -> bool:
    """Whether a gateway that is not active may serve a source: the log, and streams that are not exclusive."""
    if address.kind is not AddressKind.QUEUE:
        return address.kind in (AddressKind.LOG, AddressKind.PARTITION)
    endpoint = client.vpn.endpoints.by_name.get(address.name)
    return (
        endpoint is not None
        and endpoint.kind is EndpointKind.STREAM
        and endpoint.settings.exclusive is Exclusivity.NONE
    )


def _dynamic(client: Client, request: AttachRequest, subscription: Subscription) -> LinkSetup:
    """Make a node for the link: a temporary queue, or a temporary topic with an endpoint for the link."""
    lifetime = request.lifetime
    if "temporary-topic" in request.capabilities:
        topic = temporary_name("TTMP")
        owned = make_topic_endpoint(
            client.owner,
            [topic],
            known_as=topic,
            no_local=subscription.no_local,
            selector=subscription.selector,
        )
        node = ConsumedNode(owned.endpoint, f"topic://{topic}", owned, is_made=True, sees_to_no_local=True)
        return ConsumerSource(client, request, node)
    lease = make_queue(client.owner, lifetime, is_private=request.is_for_jms)
    address = client.spoken.address_of(lease.endpoint.name)
    return ConsumerSource(client, request, ConsumedNode(lease.endpoint, address, lease, is_made=True))


async def _queue(client: Client, request: AttachRequest) -> LinkSetup:
    endpoint = client.queue_at(request.source)
    await client.vpn.committer.committed()
    if endpoint.kind.is_view:
        return StreamSource(client, request, endpoint)
    if request.wants_copies:
        return BrowserSource(client, request, endpoint)
    lease = lease_of_consumer(client.owner, endpoint, client.is_stopping)
    return ConsumerSource(client, request, ConsumedNode(endpoint, request.address, lease))


def _topic(client: Client, request: AttachRequest, subscription: Subscription) -> LinkSetup:
    """A durable topic endpoint, or a temporary one, subscribed to the topic."""
    endpoint, lease = endpoint_for(client, subscription, request.source.name)
    node = ConsumedNode(
        endpoint, request.address, lease, is_made=True, sees_to_no_local=not subscription.is_shared
    )
    return ConsumerSource(client, request, node)


# --- sources that messages come from ----------------------------------------------------------------------------------


class MessageSource(LinkSetup):
    """A source that messages come from, and the reply that describes it."""

    def __init__(self, client: Client, request: AttachRequest) -> None:
        super().__init__(client, request)
        self._start = request.start
        """Where the peer wants to start; None where it does not say."""
        self._filters = request.filters
        """The filters that are applied."""
        self._selects: Callable[[Row], bool] | None = None
        """Selects the messages that go to the link; None where all do."""
        self._resolved: Resolved
        """The start, resolved."""
        self._address = request.address
        """The address of the node; None where it is the one that the peer has given."""
        self._lifetime = Lifetime.DELETE_ON_CLOSE
        """The lifetime of a dynamic source."""
        self._is_copied = True
        """Whether the node keeps what is sent."""
        self._replays = True
        """Whether the link begins with a replay. If not, the reply says that it is live: a client that attaches again
        with the filters of the reply (section 2.6.3) does not mean to rewind a queue."""
        self._settles = False
        """Whether deliveries go out settled, whatever was asked for."""
        self._is_batched = False
        """Whether messages go out in batches: only where the reply has room to say so."""
        self._first_id = 0
        """Of a stream: the first id in its view, where the log has older ones."""
        self._taken_below: Sequence[int] = ()
        """For each retention rule, the id below which it has removed messages of the topics that are read."""

    def _selection(self, mark: ReplayMark | None = None) -> Callable[[Row], bool] | None:
        """
        The function that selects messages: those that pass the filters and, with no-local, did not come from the
        client's own container, as far as that is known (see ``Origins``). None when everything passes.

        Args:
            mark: The mark that a reader's messages get.

        Raises:
            Refused: INVALID_FIELD, with the place in the selector and the reason.
        """
        client, log, link = self._client, self._client.log, self._link.name

        def too_costly(row: Row) -> None:
            log.warning("selection_too_costly", **{log_keys.LINK: link, log_keys.FIRST: row[ID]})

        passes = compile_filters(self._filters, too_costly, mark)
        if not self._filters.no_local:
            return passes
        origins, own = client.vpn.publishing.origins, client.identity.origin
        if client.is_connected:
            origins.watch(client)
        if passes is None:
            return lambda row: origins.of(row[ID]) != own
        return lambda row: origins.of(row[ID]) != own and passes(row)

    def _splicer(self) -> Splicer:
        """What puts header and annotations in front of the messages that this source sends."""
        return Splicer(
            self._client.vpn.broker.log.generation, stream_offset=self._filters.wants_stream_offset
        )

    async def _resolve_on(self, endpoint: Endpoint) -> None:
        """
        Resolve where on an endpoint or stream the link starts.

        Raises:
            Refused: The start cannot be resolved, or the endpoint was deleted meanwhile.
        """
        vpn = self._client.vpn
        self._resolved = await vpn.log.resolve_start_on(
            endpoint, self._start or NOTHING_YET, self._client.identity.user
        )
        self._require_there(endpoint)

    def _require_there(self, endpoint: Endpoint) -> None:
        """Check that an endpoint was not deleted while the attach waited for a commit."""
        if not self._client.vpn.endpoints.is_there(endpoint):
            raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")

    def reply(self) -> None:
        """
        Fill in our side of the attach: the source as it is in place, and the log's bounds. An attach is one frame
        (section 2.3.1): what does not fit into the peer's largest frame is left out, our additions first.
        """
        request, link, broker = self._request, self._link, self._client.vpn.broker
        source, requested = link.source, link.remote_source
        source.copy(requested)
        if self._address is not None:
            source.address = self._address
        source.distribution_mode = Terminus.DIST_MODE_COPY if self._is_copied else Terminus.DIST_MODE_MOVE
        if requested.dynamic:
            say_lifetime(source, self._lifetime)
        entries = _entries_in_place(requested, self._filters)
        start = Described(symbol(REPLAY_START), self._described_start(broker.log.generation))
        _put_filters(source, {**entries, symbol(REPLAY_START): start})
        # Capabilities that say which node it is: without them the address would mean another one.
        found = [name for name in request.capabilities if name in _SAYING_WHAT_IT_IS]
        source.capabilities.clear()
        source.capabilities.put_object(symbols([*found, REPLAY_START]) if found else symbol(REPLAY_START))
        source.outcomes.clear()
        source.outcomes.put_object(symbols(in_order(request.outcomes)))
        link.target.copy(link.remote_target)
        link.snd_settle_mode = Link.SND_SETTLED if self._settles else link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        room = room_of(link) - _bytes_of(link)
        if room < 0:
            source.outcomes.clear()
            room = room_of(link) - _bytes_of(link)
        if room < 0:
            _put_filters(source, entries)
        self._is_batched = self._is_batched and room >= _PROPERTIES_BYTES
        if room < _PROPERTIES_BYTES:
            return
        properties: dict[symbol, Any] = {
            symbol("rewind:replay-first"): ulong(max(broker.history.first_id, self._first_id)),
            symbol("rewind:replay-last"): ulong(broker.log.next_id - 1),
            symbol("rewind:replay-generation"): ulong(broker.log.generation),
        }
        if self._is_batched:
            properties[BATCHES_KEY] = True
        taken_below = list(map(ulong, self._taken_below))
        if taken_below and room >= _PROPERTIES_BYTES + _ID_BYTES * (len(taken_below) + 5):
            properties[symbol("rewind:replay-taken-below")] = taken_below
        link.properties = properties

    def _described_start(self, generation: int) -> dict[Any, Any]:
        resolved = self._resolved
        start: dict[Any, Any] = {
            symbol("offset"): ulong(resolved.first),
            symbol("id"): format_replay_id(generation, resolved.first),
            symbol("generation"): ulong(generation),
        }
        if not self._replays:
            start[symbol("from")] = symbol("live")
        if resolved.time_ms is not None:
            start[symbol("date")] = timestamp(resolved.time_ms)
        if resolved.last is not None:
            start[symbol("until")] = ulong(max(resolved.last, 0))
        return start

    def log_values(self) -> dict[str, Any]:
        """What was asked for, and what is given."""
        return {
            log_keys.ADDRESS: self._link.source.address,
            log_keys.START: str(self._start) if self._start is not None else None,
            log_keys.FIRST: self._resolved.first,
            log_keys.UNTIL: self._resolved.last,
        }


def _put_filters(source: Terminus, entries: Mapping[Any, Any]) -> None:
    source.filter.clear()
    if entries:
        source.filter.put_object(entries)


def _bytes_of(link: Link) -> int:
    """An upper bound of the bytes of our attach, without its properties."""
    size = _FIXED_BYTES + len(link.name.encode())
    for end in (link.source, link.target):
        size += len((end.address or "").encode())
        size += sum(
            len(data.encode()) for data in (end.filter, end.capabilities, end.properties, end.outcomes)
        )
    return size


def _entries_in_place(requested: Any, filters: Filters) -> dict[Any, Any]:
    """The entries of the peer's filter-set that are applied, unchanged; a reply leaves out all others (3.5.8)."""
    requested.filter.rewind()
    entries = requested.filter.get_object() if requested.filter.next() else None
    return {key: value for key, value in (entries or {}).items() if key in filters.accepted}


class ConsumedNode(NamedTuple):
    """The endpoint that a consumer consumes from, as its source describes it."""

    endpoint: Endpoint
    address: str | None
    """The address of the source in the reply."""
    lease: Lease | None
    """The link's lease on it; None where it is not temporary."""
    is_made: bool = False
    """Whether it may have been made for this link, and may not be durable yet."""
    sees_to_no_local: bool = False
    """Whether it leaves out messages of its consumer's own when they are published."""


class ConsumerSource(MessageSource):
    """An endpoint that is consumed from: the link is bound to it, after a replay if one is asked for."""

    def __init__(self, client: Client, request: AttachRequest, node: ConsumedNode) -> None:
        super().__init__(client, request)
        self._is_copied = False
        self._address = node.address
        if node.lease is not None:
            self._lifetime = node.lease.lifetime
        self._node = node
        self._endpoint = node.endpoint
        if node.sees_to_no_local:
            self._filters = replace(self._filters, no_local=False)
        self._flow: Flow | None = None
        self._consumer: Consumer

    @property
    def _asked(self) -> ReplayRequest:
        """The replay, as it is recorded."""
        start, identity = self._start, self._client.identity
        assert start is not None
        requester = f"{identity.user}@{identity.peer_container}"
        return ReplayRequest(requester, start.name or "", str(replace(start, name=None)))

    async def prepare(self) -> None:
        vpn, endpoint = self._client.vpn, self._endpoint
        if self._node.is_made:
            await vpn.committer.committed()
        self._selects = self._selection()
        # The default start is for a consumer that comes alone: one that asks for no start must not be refused because
        # there are other consumers.
        if self._start is None and endpoint.settings.default_start and not endpoint.flows:
            self._start = parse_text(endpoint.settings.default_start)
        start = self._start
        self._replays = start is not None and start.kind is not StartKind.LIVE
        await self._resolve_on(endpoint)
        if start is not None and (start.speed or start.rate):
            raise Refused(
                ErrorCode.UNKNOWN_START,
                "speed and rate are for log readers: an endpoint's consumers set its pace",
            )
        if self._resolved.last is not None:
            raise Refused(
                ErrorCode.UNKNOWN_START,
                "until is for log readers: an endpoint's replay continues with live messages",
            )

    async def bind(self) -> AttachedLink | None:
        client, request, endpoint = self._client, self._request, self._endpoint
        vpn = client.vpn
        consumer = self._consumer = Consumer(
            self._link,
            client,
            self._splicer(),
            lease=self._node.lease,
            default_outcome=request.termini.default_outcome,
        )
        if self._replays:
            vpn.replays.check(endpoint, by_client=True, name=self._asked.name)
        priority = request.number(client.spoken.consumer_priorities) or 0
        lock_timeout_ms = request.number(client.spoken.consumer_timeouts, least=1)
        flow = self._flow = vpn.consumers.bind(
            endpoint, consumer, request.epoch(), self._selects, priority, lock_timeout_ms
        )
        # With no-local, a message that is not for this consumer may be for another one of a shared subscription.
        flow.passes_over = bool(endpoint.settings.selector) and not self._filters.no_local
        if self._replays:
            vpn.replays.start(endpoint, self._resolved.first, flow, self._asked)
            await vpn.committer.committed()
        return consumer if flow in endpoint.flows else None

    def opened(self) -> None:
        assert self._flow is not None
        self._consumer.begin(self._flow)

    def release(self) -> None:
        if self._flow is not None:
            self._client.vpn.consumers.unbind(self._flow)
        if self._node.lease is not None:
            self._node.lease.release()


class BrowserSource(MessageSource):
    """A queue, or topic endpoint, that is browsed: the link sees its messages, and takes none (section 3.5.6)."""

    def __init__(self, client: Client, request: AttachRequest, endpoint: Endpoint) -> None:
        super().__init__(client, request)
        self._replays = False
        self._endpoint = endpoint
        self._reader: ReaderLink

    async def prepare(self) -> None:
        if self._start is not None and self._start.kind is not StartKind.LIVE:
            raise Refused(
                ErrorCode.BROWSER_FLOW, "a browser cannot ask for a replay; consume, or read log://"
            )
        self._require_there(self._endpoint)
        self._selects = self._selection()

    async def bind(self) -> AttachedLink:
        client = self._client
        self._reader = ReaderLink(self._link, client, self._splicer())
        self._resolved = Resolved(client.vpn.broker.log.next_id, None, None, is_live=True)
        self._reader.lease = client.owner.registry.lease_on(self._endpoint.name)
        return self._reader

    def opened(self) -> None:
        self._reader.begin(self._client.vpn.readers.browse(self._endpoint, self._reader, self._selects))


class HistorySource(MessageSource):
    """
    A source that is read from the replay log, history first, then live: the log itself, or a stream.

    Args:
        join: Makes the link a reader of a consumer group; None where there is no group.
    """

    def __init__(self, client: Client, request: AttachRequest, join: JoinGroup | None) -> None:
        super().__init__(client, request)
        self._settles = join is not None
        self._join = join
        self._mark: ReplayMark | None = None
        self._reader: ReaderLink | None = None
        self._feed: Feed | None = None

    async def prepare(self) -> None:
        self._client.vpn.broker.policy.check_reads("there is nothing to read")
        if self._start is not None and self._start.name:
            self._mark = ReplayMark(self._start.name)
        self._selects = self._selection(self._mark)

    def _new_reader(self) -> ReaderLink:
        reader = self._reader = ReaderLink(self._link, self._client, self._splicer(), settles=self._settles)
        if self._mark is not None:
            self._mark.below = self._client.vpn.broker.log.unused_id
            reader.mark(self._mark.name, self._mark.below)
        return reader

    def _pacer(self) -> Pacer | None:
        """The pace that the replay is to have, if one is asked for."""
        start = self._start
        return Pacer(start.speed, start.rate) if start is not None and (start.speed or start.rate) else None

    def opened(self) -> None:
        assert self._reader is not None and self._feed is not None
        self._reader.begin(self._feed)

    def release(self) -> None:
        if self._feed is not None:
            self._feed.close()
        if self._reader is not None and self._reader.lease is not None:
            self._reader.lease.release()


class LogSource(HistorySource):
    """
    The replay log: a reader of the topics that match.

    Args:
        patterns: The topics that it reads.
    """

    def __init__(
        self, client: Client, request: AttachRequest, patterns: Sequence[str], join: JoinGroup | None = None
    ) -> None:
        super().__init__(client, request, join)
        self._patterns = patterns

    async def prepare(self) -> None:
        await super().prepare()
        self._resolved = await self._client.vpn.log.resolve_start(
            self._start or NOTHING_YET, self._patterns, self._client.identity.user
        )

    async def bind(self) -> AttachedLink:
        reader = self._new_reader()
        self._is_batched = self._request.wants_batches
        self._taken_below = self._client.vpn.broker.retention.taken_below(self._patterns)
        if self._join is not None:
            reader.lease = self._join(reader)
        return reader

    def opened(self) -> None:
        assert self._reader is not None
        self._reader.transfers.in_batches = self._is_batched
        self._feed = self._client.vpn.readers.read_log(
            self._resolved, self._patterns, self._reader, self._selects, self._pacer()
        )
        super().opened()


class StreamSource(HistorySource):
    """
    A stream: a reader of the stream's view of the log, within the stream's exclusivity. A last-value queue is a stream,
    too: its readers get the newest message of each key first, unless they give a start.

    The reader gives a start, or gets the stream's default start. The start is resolved before the reply. A reader that
    has to wait until it is active begins at this start, too.
    """

    def __init__(
        self, client: Client, request: AttachRequest, endpoint: Endpoint, join: JoinGroup | None = None
    ) -> None:
        super().__init__(client, request, join)
        self._endpoint = endpoint
        self._epoch: int | None = None

    async def prepare(self) -> None:
        await super().prepare()
        self._epoch = self._request.epoch()
        default, asked = self._endpoint.settings.default_start, self._start
        if asked is None and default:
            self._start = parse_text(default)
        await self._resolve_on(self._endpoint)
        is_live = self._start is None or self._start.kind is StartKind.LIVE
        if self._endpoint.values is not None and asked is None and is_live:
            first = await self._client.vpn.last_values.values_below(self._endpoint)
            self._resolved = Resolved(first, None, None, values_from=0)

    async def bind(self) -> AttachedLink:
        reader = self._new_reader()
        self._first_id = self._endpoint.settings.purged_below
        self._feed = self._client.vpn.streams.read(
            self._endpoint,
            reader,
            self._resolved,
            epoch=self._epoch,
            selects=self._selects,
            pacer=self._pacer(),
        )
        if self._join is not None:
            reader.lease = self._join(reader)
        return reader


# --- a partition, in a group of consumers -----------------------------------------------------------------------------


class GroupedPartition(NamedTuple):
    """
    A partition that a client wants to read in a consumer group.

    Its queue is a stream, made by the first attach where queues are made on first use. If it is no stream, its
    messages are read from the log. A group has no backlog: it is only a name, within which epochs are compared.
    """

    address: Address
    """The partition's address, as one of its queue."""
    is_stream: bool
    """Whether the queue is a stream: then ``consume`` on the queue permits reading it. Messages of another queue are
    read from the log, and need the rule for that: to browse a queue, or to consume from it, shows no history."""
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
    found = client.vpn.endpoints.by_name.get(address.name)
    is_stream = client.kind_of_queue(queue) is EndpointKind.STREAM
    if is_stream:
        queue = replace(queue, options={**address.options, "kind": EndpointKind.STREAM.value})
    if found is not None:
        is_stream = found.kind is EndpointKind.STREAM
    return GroupedPartition(queue, is_stream, position, groups)


async def _partition(client: Client, request: AttachRequest, partition: GroupedPartition) -> LinkSetup:
    """
    The setup of a reader's link; its queue is durable.

    Raises:
        Refused: STOLEN, a reader with a higher epoch has the partition; also what refuses other links to the queue.
    """
    name, group, epoch = partition.address.name, partition.position.consumer_group, request.epoch()
    groups = partition.groups
    groups.check(name, group, epoch)
    endpoint = client.queue_at(partition.address)
    await client.vpn.committer.committed()

    def join(reader: ReaderLink) -> Lease:
        return groups.join(name, group, epoch, reader)

    if endpoint.kind is EndpointKind.STREAM:
        return StreamSource(client, request, endpoint, join)
    return LogSource(client, request, [queue_topic(name)], join)


# --- a subscription that is deleted -----------------------------------------------------------------------------------


class UnsubscribeSource(LinkSetup):
    """
    No source: the close of the link deletes the durable subscription of its name.

    Args:
        subscription: The subscription that the link's name and capabilities mean.
    """

    def __init__(self, client: Client, request: AttachRequest, subscription: Subscription) -> None:
        super().__init__(client, request)
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

    async def bind(self) -> AttachedLink:
        return UnsubscribingLink(self._link, self._client, self._endpoint)

    def closed_early(self) -> None:
        give_up(self._client, self._endpoint)

    def reply(self) -> None:
        source = self._link.source
        source.address = next(iter(self._endpoint.subscriptions), "")
        source.durability = Terminus.DELIVERIES
        source.expiry_policy = Terminus.EXPIRE_NEVER
        self._link.target.copy(self._link.remote_target)

    def log_values(self) -> None:
        return None
