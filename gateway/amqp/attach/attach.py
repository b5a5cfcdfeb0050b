"""
Answering an attach: what the peer asked for, read from source or target; made durable; then the reply.

A refusal is what AMQP 1.0 section 2.6.3 has it be: the attach is answered with a null terminus and detached with the
error. The reply to a consumer says which filters are in place, and where its replay really starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from proton import Link, Terminus

from amqp_ext.addresses import (
    NO_OPTIONS,
    Address,
    AddressError,
    AddressKind,
    parse_source,
    queue_of_topic,
    queue_topic,
    without_host,
)
from amqp_ext.filters.filter_set import Filters
from amqp_ext.lifetime import Lifetime
from amqp_ext.message.annotations import Splicer
from amqp_ext.replay_start import (
    ReplayStart,
    ReplayStartError,
    StartKind,
    combine,
    from_options,
    parse_text,
)
from gateway import log_keys
from gateway.amqp.attach.authorization import Denied
from gateway.amqp.attach.log import NOTHING_YET, read_log
from gateway.amqp.attach.partition import grouped_source, read_partition
from gateway.amqp.attach.reply import fill_reply, log_attach, say_lifetime
from gateway.amqp.attach.request import (
    capabilities_of,
    consumer_priority_of,
    epoch_of,
    filters_of,
    is_gone,
    kind_for,
    lifetime_of,
)
from gateway.amqp.attach.selection import selection_of
from gateway.amqp.attach.stream import read_stream
from gateway.amqp.attach.targets import topic_of_target
from gateway.amqp.engine.conditions import condition_of, room_of
from gateway.amqp.links.coordinator import attach_to_coordinator
from gateway.amqp.links.outgoing import AttachedLink, QueueConsumer, ReadingLink
from gateway.amqp.links.publisher import PublishingLink
from gateway.amqp.links.requests import attach_to_node
from gateway.amqp.nodes.subscriptions import (
    durable_name,
    endpoint_for,
    unsubscribe,
)
from gateway.amqp.nodes.temporary import (
    Hold,
    OwnedEndpoint,
    OwnedTopic,
    QueueHold,
    hold_of_consumer,
    hold_on,
    make_queue,
    make_topic_endpoint,
    temporary_name,
)
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay.starts import Resolved

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.vpn.message_vpn import MessageVpn


async def attach(connection: Connection, link: Link) -> None:
    """Answer an attach; never raises for a mistake of the peer's."""
    try:
        if not link.name:
            # Mandatory (AMQP 1.0 section 2.7.3); a durable subscription is named by it.
            raise Refused(ErrorCode.INVALID_FIELD, "an attach needs a name for its link")
        asked = link.remote_target if link.is_receiver else link.remote_source
        served = connection.spoken.nodes.get(without_host(asked.address or ""))
        if served is not None:
            attach_to_node(connection, link, served)
            return
        if connection.token_check is not None:
            connection.token_check.require(asked.address or "")
        if link.is_receiver and asked.type == Terminus.COORDINATOR:
            attach_to_coordinator(connection, link)
        elif link.is_receiver:
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
                log_keys.RULE: refused.rule if isinstance(refused, Denied) else None,
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
    link.condition = condition_of(refused, room_of(link))
    link.close()


def _register(connection: Connection, link: Link, attached: AttachedLink) -> None:
    connection.attached[link] = attached


# --- publishers ---------------------------------------------------------------------------------------------------


async def _attach_publisher(connection: Connection, link: Link) -> None:
    vpn = connection.vpn
    target = link.remote_target
    if target.type == Terminus.UNSPECIFIED:
        # Nothing may be sent to it (AMQP 1.0 section 2.7.3), and answered with none it were neither taken nor refused.
        raise Refused(
            ErrorCode.INVALID_FIELD,
            "a link to send on needs a target, its descriptor a number; one without an address is the anonymous relay",
        )
    held: Hold | None = None
    topic: str | None = None
    address: str | None = target.address
    if target.dynamic:
        lifetime = lifetime_of(target)
        if "temporary-topic" in capabilities_of(target):
            # Endpoints come with those who subscribe.
            topic = temporary_name("TTMP")
            address = f"topic://{topic}"
            held = OwnedTopic(connection, topic)
        else:
            held, effects = make_queue(connection, lifetime)
            address = connection.spoken.address_of(held.endpoint.name)
            topic = queue_topic(held.endpoint.name)
            await _committed(vpn, effects, held)
    elif address:
        topic = topic_of_target(connection, address, capabilities_of(target))
        held = hold_on(connection, queue_of_topic(topic))
        # What was made for it, or is being made, is durable before the reply.
        await _committed(vpn, (), held)
    if is_gone(connection, link):
        if held is not None:
            held.release()
        return
    link.source.copy(link.remote_source)
    link.target.copy(target)
    if target.dynamic and address is not None and held is not None:
        link.target.address = address
        say_lifetime(link.target, held.lifetime)
    link.snd_settle_mode = link.remote_snd_settle_mode
    # We settle with the outcome: a receiver in mode second would wait for a settlement nobody needs.
    link.rcv_settle_mode = Link.RCV_FIRST
    link.max_message_size = _largest_message(connection, topic)
    publisher = PublishingLink(connection, link, topic, held)
    connection.links.incoming[publisher.key] = publisher.transfers
    _register(connection, link, publisher)
    link.open()
    publisher.transfers.open()
    connection.log_event(
        "link_attached", **{log_keys.LINK: link.name, log_keys.TOPIC: topic, log_keys.ADDRESS: address}
    )


def _largest_message(connection: Connection, topic: str | None) -> int:
    """Bytes of the largest message that a link takes: the gateway's limit, or its queue's where that is smaller."""
    largest = connection.limits.max_message_bytes
    name = queue_of_topic(topic) if topic is not None else None
    queue = connection.vpn.broker.find(name) if name is not None else None
    return largest if queue is None else min(largest, queue.settings.max_message_bytes or largest)


async def _committed(vpn: MessageVpn, effects: Iterable[Effect], held: Hold | None) -> None:
    """Make what an attach needs durable; its temporary node is let go if the link does not live to see that."""
    try:
        await vpn.committed(effects)
    except BaseException:
        if held is not None:
            held.release()
        raise


# --- consumers ----------------------------------------------------------------------------------------------------


async def _attach_consumer(connection: Connection, link: Link) -> None:
    source = link.remote_source
    capabilities = capabilities_of(source)
    filters = filters_of(source)
    if source.dynamic:
        lifetime = lifetime_of(source)
        owned: OwnedEndpoint | QueueHold
        if "temporary-topic" in capabilities:
            topic = temporary_name("TTMP")
            name = f"topic://{topic}"
            no_local, filters = filters.no_local, replace(filters, no_local=False)
            owned, effects = make_topic_endpoint(connection, [topic], known_as=topic, no_local=no_local)
        else:
            owned, effects = make_queue(connection, lifetime)
            name = connection.spoken.address_of(owned.endpoint.name)
        await _committed(connection.vpn, effects, owned)
        await _consume(connection, link, owned.endpoint, name, filters, filters.start, owned)
        return
    if not source.address:
        unsubscribing = unsubscribe(connection, link, capabilities)
        _register(connection, link, unsubscribing)
        link.open()
        return
    try:
        address = parse_source(source.address, capabilities)
        start = combine(filters.start, from_options(address.options))
    except ReplayStartError as error:
        raise Refused(ErrorCode.UNKNOWN_START, str(error)) from error
    except AddressError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    grouped = grouped_source(connection, address)
    if grouped is not None:
        address = grouped.address
    connection.access.require_source(
        address,
        start,
        browses=source.distribution_mode == Terminus.DIST_MODE_COPY,
        durable_name=durable_name(connection, link, capabilities),
    )
    if grouped is not None:
        await read_partition(connection, link, grouped, filters, start)
        return
    match address.kind:
        case AddressKind.LOG:
            await read_log(connection, link, [address.name], filters, start)
        case AddressKind.PARTITION:
            await read_log(connection, link, [queue_topic(address.name)], filters, start)
        case AddressKind.QUEUE:
            await _consume_queue(connection, link, address, filters, start)
        case AddressKind.TOPIC:
            await _subscribe(connection, link, address, filters, start)
        case _:
            raise Refused(ErrorCode.NOT_IMPLEMENTED, f"{address.name} is not there yet")


async def _consume_queue(
    connection: Connection, link: Link, address: Address, filters: Filters, start: ReplayStart | None
) -> None:
    vpn = connection.vpn
    endpoint, effects = vpn.broker.queue_for(
        address.name,
        kind=kind_for(connection, address),
        exclusive=vpn.exclusivity_of(address.options),
        may_create=address.options.get("create") != "never",
    )
    await vpn.committed(effects)
    if endpoint.kind is EndpointKind.STREAM:
        await read_stream(connection, link, endpoint, filters, start, address.options)
    elif link.remote_source.distribution_mode == Terminus.DIST_MODE_COPY:
        _browse(connection, link, endpoint, filters, start)
    else:
        held = hold_of_consumer(connection, endpoint)
        await _consume(
            connection,
            link,
            endpoint,
            link.remote_source.address,
            filters,
            start,
            held,
            address.options,
        )


def _browse(
    connection: Connection, link: Link, endpoint: Endpoint, filters: Filters, start: ReplayStart | None
) -> None:
    """A browser sees what lies on a queue and takes nothing (distribution mode copy, AMQP 1.0 section 3.5.6)."""
    vpn = connection.vpn
    if start is not None and start.kind is not StartKind.LIVE:
        raise Refused(ErrorCode.BROWSER_FLOW, "a browser cannot ask for a replay; consume, or read log://")
    selects = selection_of(connection, filters)
    if is_gone(connection, link):
        return
    splicer = Splicer(vpn.broker.log.generation, stream_offset=filters.wants_stream_offset)
    browser = ReadingLink(connection, link, splicer)
    live = Resolved(vpn.broker.log.next_id, None, None, is_live=True)
    fill_reply(connection, link, link.remote_source.address, filters, live, copies=True, replays=False)
    connection.links.outgoing[browser.key] = browser.transfers
    browser.held = hold_on(connection, endpoint.name)
    _register(connection, link, browser)
    link.open()
    browser.feed = vpn.onlookers.browse(endpoint, browser, selects)
    log_attach(connection, link, start, live)
    browser.feed.run()


async def _subscribe(
    connection: Connection, link: Link, address: Address, filters: Filters, start: ReplayStart | None
) -> None:
    """A topic as source: a durable topic endpoint, or a temporary one, subscribed to it."""
    capabilities = capabilities_of(link.remote_source)
    endpoint, effects, owned = endpoint_for(
        connection, link, address.name, capabilities, no_local=filters.no_local
    )
    if "shared" not in capabilities:
        # Its endpoint sees to it.
        filters = replace(filters, no_local=False)
    await _committed(connection.vpn, effects, owned)
    await _consume(connection, link, endpoint, link.remote_source.address, filters, start, owned)


async def _consume(
    connection: Connection,
    link: Link,
    endpoint: Endpoint,
    address: str | None,
    filters: Filters,
    start: ReplayStart | None,
    held: Hold | None,
    options: Mapping[str, str] = NO_OPTIONS,
) -> None:
    """Bind a consumer to an endpoint, after a replay if one is asked for."""
    vpn = connection.vpn
    flow: Flow | None = None
    is_attached = False
    try:
        selects = selection_of(connection, filters)
        # A default is for who comes alone: nobody who asked for nothing is refused because others are there.
        if start is None and endpoint.settings.default_start and not endpoint.flows:
            start = parse_text(endpoint.settings.default_start)
        resolved = await vpn.resolve_start_on(endpoint, start or NOTHING_YET)
        if start is not None and (start.speed or start.rate):
            raise Refused(
                ErrorCode.UNKNOWN_START, "speed and rate are for log readers: an endpoint sets its own pace"
            )
        if resolved.last is not None:
            raise Refused(
                ErrorCode.UNKNOWN_START, "until is for log readers: an endpoint's replay goes on live"
            )
        if vpn.broker.find(endpoint.name) is not endpoint:
            raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")
        if is_gone(connection, link):
            return
        consumer = QueueConsumer(
            connection,
            link,
            Splicer(vpn.broker.log.generation, stream_offset=filters.wants_stream_offset),
            held=held,
        )
        wants_replay = start is not None and start.kind is not StartKind.LIVE
        if wants_replay:
            vpn.broker.replays.check(endpoint, by_client=True)
        priority = consumer_priority_of(connection, link)
        flow = vpn.bind(endpoint, consumer, epoch_of(link, options), selects, priority)
        if wants_replay:
            vpn.replays.start(endpoint, resolved.first, flow)
            await vpn.committed(())
        is_attached = flow in endpoint.flows and not is_gone(connection, link)
    finally:
        # Refused, or the link or its connection did not wait for the answer.
        if not is_attached:
            if flow is not None:
                vpn.unbind(flow)
            if held is not None:
                held.release()
    if not is_attached:
        return
    lifetime = held.lifetime if held is not None else Lifetime.DELETE_ON_CLOSE
    fill_reply(
        connection,
        link,
        address,
        filters,
        resolved,
        copies=False,
        lifetime=lifetime,
        replays=wants_replay,
    )
    connection.links.outgoing[consumer.key] = consumer.transfers
    _register(connection, link, consumer)
    link.open()
    consumer.flow = flow
    log_attach(connection, link, start, resolved)
    vpn.ask(flow, consumer.room())
