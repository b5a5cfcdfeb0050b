"""
Answering an attach: what the peer asked for, read from source or target; made durable; then the reply.

A refusal is what AMQP 1.0 section 2.6.3 has it be: the attach is answered with a null terminus and detached with the
error. The reply to a consumer says which filters are in place, and where its replay really starts.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from proton import DataException, Described, Link, Terminus, symbol, timestamp, ulong

from amqp_ext import codec
from amqp_ext.addresses import Address, AddressError, AddressKind, parse_source, queue_topic
from amqp_ext.annotations import Splicer
from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters import (
    REPLAY_START,
    STREAM_OFFSET_SPEC,
    FilterError,
    Filters,
    combine,
    read_filter_set,
)
from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import ReplayStart, ReplayStartError, StartKind, from_options, parse_text
from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway import log_keys
from gateway.amqp.conditions import condition_of
from gateway.amqp.links import (
    AttachedLink,
    LogReaderLink,
    OwnedEndpoint,
    PublishingLink,
    QueueConsumer,
    topic_of_target,
)
from gateway.core.effects import Effect
from gateway.core.endpoint import Endpoint, EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay import Resolved

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

_STARTS = frozenset({str(REPLAY_START), str(STREAM_OFFSET_SPEC)})

NOTHING_YET = ReplayStart(StartKind.LIVE)


async def attach(connection: Connection, link: Link) -> None:
    """Answer an attach; never raises for a mistake of the peer's."""
    try:
        if not link.name:
            # Mandatory (AMQP 1.0 section 2.7.3); a durable subscription is named by it.
            raise Refused(ErrorCode.INVALID_FIELD, "an attach needs a name for its link")
        if link.is_receiver:
            await _attach_publisher(connection, link)
        else:
            await _attach_consumer(connection, link)
    except Refused as refused:
        connection.warn(
            "attach_refused",
            **{
                log_keys.LINK: link.name,
                log_keys.ADDRESS: (link.remote_target if link.is_receiver else link.remote_source).address,
                log_keys.CONDITION: refused.code.condition,
                log_keys.REPLAY_ERROR: refused.code.replay_error,
                log_keys.REASON: refused.text,
            },
        )
        if not link.state & Link.REMOTE_CLOSED:
            refuse(link, refused)


def refuse(link: Link, refused: Refused) -> None:
    """Answer an attach with a refusal."""
    if link.is_receiver:
        link.source.copy(link.remote_source)
        link.target.type = Terminus.UNSPECIFIED
    else:
        link.source.type = Terminus.UNSPECIFIED
        link.target.copy(link.remote_target)
    link.open()
    link.condition = condition_of(refused)
    link.close()


def _is_gone(connection: Connection, link: Link) -> bool:
    """Whether the peer has left while we were busy for it."""
    return bool(link.state & Link.REMOTE_CLOSED) or not connection.is_open


def _register(connection: Connection, link: Link, attached: AttachedLink) -> None:
    connection.attached[link] = attached


# --- publishers ---------------------------------------------------------------------------------------------------


async def _attach_publisher(connection: Connection, link: Link) -> None:
    vpn = connection.vpn
    target = link.remote_target
    owned: OwnedEndpoint | None = None
    topic: str | None = None
    address: str | None = target.address
    if target.type == Terminus.COORDINATOR:
        raise Refused(ErrorCode.NOT_IMPLEMENTED, "transactions are not there yet")
    if target.dynamic:
        endpoint, topic, address, effects = _make_temporary(connection, target)
        owned = OwnedEndpoint(connection, endpoint) if endpoint is not None else None
        await vpn.committed(effects)
    elif address:
        topic = topic_of_target(connection, address, _capabilities(target))
        # What was made for it, or is being made, is durable before the reply.
        await vpn.committed(())
    if _is_gone(connection, link):
        if owned is not None:
            owned.delete()
        return
    link.source.copy(link.remote_source)
    link.target.copy(target)
    if target.dynamic and address is not None:
        link.target.address = address
    link.snd_settle_mode = link.remote_snd_settle_mode
    # We settle with the outcome: a receiver in mode second would wait for a settlement nobody needs.
    link.rcv_settle_mode = Link.RCV_FIRST
    link.max_message_size = connection.limits.max_message_bytes
    publisher = PublishingLink(connection, link, topic, owned)
    connection.links.incoming[publisher.key] = publisher.transfers
    _register(connection, link, publisher)
    link.open()
    publisher.transfers.open()
    connection.log_event(
        "link_attached", **{log_keys.LINK: link.name, log_keys.TOPIC: topic, log_keys.ADDRESS: address}
    )


def _make_temporary(connection: Connection, terminus: Any) -> tuple[Endpoint | None, str, str, list[Effect]]:
    """
    A node made for this link: (endpoint, topic, address, effects). A temporary topic is no more than its name.
    """
    name = secrets.token_urlsafe(16).replace("-", "_")
    if "temporary-topic" in _capabilities(terminus):
        topic = f"#P2P/TTMP/{name}"
        return None, topic, f"topic://{topic}", []
    queue = f"#P2P/QTMP/{name}"
    endpoint, effects = connection.vpn.broker.create(
        queue, EndpointKind.QUEUE, EndpointSettings(temporary=True)
    )
    return endpoint, queue_topic(queue), queue, effects


# --- consumers ----------------------------------------------------------------------------------------------------


async def _attach_consumer(connection: Connection, link: Link) -> None:
    source = link.remote_source
    capabilities = _capabilities(source)
    filters = _filters(source)
    if source.dynamic:
        endpoint, _, name, effects = _make_temporary(connection, source)
        if endpoint is None:
            raise Refused(ErrorCode.NOT_IMPLEMENTED, "a temporary topic is made by attaching a sender to it")
        await connection.vpn.committed(effects)
        owned = OwnedEndpoint(connection, endpoint)
        await _consume(connection, link, endpoint, name, filters, filters.start, owned)
        return
    if not source.address:
        raise Refused(ErrorCode.INVALID_FIELD, "a source needs an address, or dynamic")
    try:
        address = parse_source(source.address, capabilities)
        start = combine(filters.start, from_options(address.options))
    except ReplayStartError as error:
        raise Refused(ErrorCode.UNKNOWN_START, str(error)) from error
    except AddressError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    match address.kind:
        case AddressKind.LOG:
            await _read_log(connection, link, [address.name], filters, start)
        case AddressKind.EVENT_HUB:
            await _read_log(connection, link, [queue_topic(address.name)], filters, start)
        case AddressKind.QUEUE:
            await _consume_queue(connection, link, address, filters, start)
        case AddressKind.TOPIC:
            await _subscribe(connection, link, address, filters, start)
        case _:
            raise Refused(ErrorCode.NOT_IMPLEMENTED, f"{address.name} is not there yet")


def _filters(source: Any) -> Filters:
    try:
        encoded = source.filter.encode()
        entries = codec.decode(encoded)[0] if encoded else None
    except (CodecError, DataException) as error:
        raise Refused(ErrorCode.DECODE_ERROR, f"the filter-set: {error}", field=Symbol("filter")) from error
    if entries is None:
        entries = {}
    if not isinstance(entries, dict):
        raise Refused(ErrorCode.INVALID_FIELD, "a filter-set is a map", field=Symbol("filter"))
    try:
        return read_filter_set(entries)
    except ReplayStartError as error:
        raise Refused(ErrorCode.UNKNOWN_START, str(error), field=Symbol("filter")) from error
    except FilterError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error), field=Symbol("filter")) from error


async def _read_log(
    connection: Connection, link: Link, patterns: Sequence[str], filters: Filters, start: ReplayStart | None
) -> None:
    vpn = connection.vpn
    resolved = await vpn.resolve_start(start or NOTHING_YET, patterns)
    if _is_gone(connection, link):
        return
    splicer = Splicer(vpn.broker.log.generation, stream_offset=filters.wants_stream_offset)
    reader = LogReaderLink(connection, link, splicer)
    _reply(connection, link, link.remote_source.address, filters, resolved, copies=True)
    connection.links.outgoing[reader.key] = reader.transfers
    _register(connection, link, reader)
    link.open()
    reader.feed = vpn.read_log(resolved, patterns, reader)
    _log_attach(connection, link, start, resolved)
    reader.feed.run()


async def _consume_queue(
    connection: Connection, link: Link, address: Address, filters: Filters, start: ReplayStart | None
) -> None:
    vpn = connection.vpn
    endpoint, effects = vpn.broker.queue_for(
        address.name,
        exclusive=vpn.exclusivity_of(address.options),
        may_create=address.options.get("create") != "never",
    )
    await vpn.committed(effects)
    await _consume(connection, link, endpoint, link.remote_source.address, filters, start, None)


async def _subscribe(
    connection: Connection, link: Link, address: Address, filters: Filters, start: ReplayStart | None
) -> None:
    """A topic as source: a durable topic endpoint named by the link, or a temporary one, subscribed to it."""
    vpn, broker = connection.vpn, connection.vpn.broker
    try:
        TopicPattern.parse(address.name)
    except TopicSyntaxError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    is_durable = link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
    owned: OwnedEndpoint | None = None
    if is_durable:
        found = broker.find(link.name)
        if found is not None and found.kind is not EndpointKind.TOPIC_ENDPOINT:
            raise Refused(ErrorCode.PRECONDITION_FAILED, f"{link.name!r} is a queue, not a topic endpoint")
        effects: list[Effect] = []
        if found is not None and list(found.subscriptions) != [address.name]:
            if found.flows:
                raise Refused(
                    ErrorCode.RESOURCE_LOCKED,
                    f"topic endpoint {link.name!r} has a consumer of another subscription",
                )
            # A changed subscription is a new one under the same name (JMS 2.0 section 8.3.3).
            effects += broker.delete(found)
            found = None
        if found is None:
            settings = EndpointSettings(exclusive=Exclusivity.REFUSE)
            found, made = broker.create(link.name, EndpointKind.TOPIC_ENDPOINT, settings, [address.name])
            effects += made
        endpoint = found
    else:
        name = f"#P2P/TETMP/{secrets.token_urlsafe(16)}"
        settings = EndpointSettings(exclusive=Exclusivity.REFUSE, temporary=True)
        endpoint, effects = broker.create(name, EndpointKind.TOPIC_ENDPOINT, settings, [address.name])
        owned = OwnedEndpoint(connection, endpoint)
    await vpn.committed(effects)
    await _consume(connection, link, endpoint, link.remote_source.address, filters, start, owned)


async def _consume(
    connection: Connection,
    link: Link,
    endpoint: Endpoint,
    address: str | None,
    filters: Filters,
    start: ReplayStart | None,
    owned: OwnedEndpoint | None,
) -> None:
    """Bind a consumer to an endpoint, after a replay if one is asked for."""
    vpn = connection.vpn
    try:
        if start is None and endpoint.settings.default_start:
            start = parse_text(endpoint.settings.default_start)
        resolved = await vpn.resolve_start(start or NOTHING_YET, vpn.broker.topic_patterns(endpoint))
        if resolved.last is not None:
            raise Refused(
                ErrorCode.UNKNOWN_START, "until is for log readers: an endpoint's replay goes on live"
            )
        if vpn.broker.find(endpoint.name) is not endpoint:
            raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")
        if _is_gone(connection, link):
            if owned is not None:
                owned.delete()
            return
        consumer = QueueConsumer(
            connection,
            link,
            Splicer(vpn.broker.log.generation, stream_offset=filters.wants_stream_offset),
            owned=owned,
        )
        wants_replay = start is not None and start.kind is not StartKind.LIVE
        if wants_replay:
            vpn.broker.check_replay(endpoint, by_client=True)
        flow = vpn.bind(endpoint, consumer, _epoch(link))
    except Refused:
        if owned is not None:
            owned.delete()
        raise
    if wants_replay:
        await vpn.committed(vpn.start_replay(endpoint, resolved.first, flow))
    if _is_gone(connection, link) or flow not in endpoint.flows:
        vpn.unbind(flow)
        if owned is not None:
            owned.delete()
        return
    _reply(connection, link, address, filters, resolved, copies=False)
    connection.links.outgoing[consumer.key] = consumer.transfers
    _register(connection, link, consumer)
    link.open()
    consumer.flow = flow
    _log_attach(connection, link, start, resolved)
    vpn.ask(flow, consumer.room())


def _reply(
    connection: Connection,
    link: Link,
    address: str | None,
    filters: Filters,
    resolved: Resolved,
    *,
    copies: bool,
) -> None:
    """Fill in our side of the attach: the source as it is in place, and the log's bounds."""
    source, asked = link.source, link.remote_source
    source.copy(asked)
    if address is not None:
        source.address = address
    source.distribution_mode = Terminus.DIST_MODE_COPY if copies else Terminus.DIST_MODE_MOVE
    vpn = connection.vpn
    log = vpn.broker.log
    in_place = _entries_in_place(asked, filters)
    in_place[symbol(REPLAY_START)] = Described(
        symbol(REPLAY_START), _described_start(resolved, log.generation)
    )
    source.filter.clear()
    source.filter.put_object(in_place)
    source.capabilities.clear()
    source.capabilities.put_object(symbol(REPLAY_START))
    link.target.copy(link.remote_target)
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    link.properties = {
        symbol("rewind:replay-first"): ulong(log.first_id),
        symbol("rewind:replay-last"): ulong(log.next_id - 1),
        symbol("rewind:replay-generation"): ulong(log.generation),
    }


def _entries_in_place(asked: Any, filters: Filters) -> dict[Any, Any]:
    """The entries of the peer's filter-set that are applied, unchanged: a replay start, in whatever form it came."""
    if filters.start is None:
        return {}
    asked.filter.rewind()
    entries = asked.filter.get_object() if asked.filter.next() else {}
    # Selectors and property filters are not applied yet: leaving them out of the reply says so (3.5.8).
    return {
        key: value
        for key, value in entries.items()
        if key in filters.accepted and (_descriptor(key, value) in _STARTS or filters.selector is None)
    }


def _descriptor(key: Any, value: Any) -> str:
    return str(value.descriptor if isinstance(value, Described) else key)


def _described_start(resolved: Resolved, generation: int) -> dict[Any, Any]:
    start: dict[Any, Any] = {
        symbol("offset"): ulong(resolved.first),
        symbol("id"): format_replay_id(generation, resolved.first),
        symbol("generation"): ulong(generation),
    }
    if resolved.time_ms is not None:
        start[symbol("date")] = timestamp(resolved.time_ms)
    if resolved.last is not None:
        start[symbol("until")] = ulong(max(resolved.last, 0))
    return start


def _log_attach(connection: Connection, link: Link, start: ReplayStart | None, resolved: Resolved) -> None:
    connection.log_event(
        "link_attached",
        **{
            log_keys.LINK: link.name,
            log_keys.ADDRESS: link.source.address,
            log_keys.START: str(start) if start is not None else None,
            log_keys.FIRST: resolved.first,
            log_keys.UNTIL: resolved.last,
        },
    )


def _capabilities(terminus: Any) -> list[str]:
    data = terminus.capabilities
    data.rewind()
    if not data.next():
        return []
    found = data.get_object()
    if isinstance(found, str):
        return [str(found)]
    elements = getattr(found, "elements", found)
    return [str(capability) for capability in elements] if isinstance(elements, list | tuple) else []


def _epoch(link: Link) -> int | None:
    properties = link.remote_properties
    value = properties.get(symbol("com.microsoft:epoch")) if isinstance(properties, dict) else None
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
