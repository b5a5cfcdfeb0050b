"""
Which kind of source an attach asks for, and whether its client may have that.
"""

from __future__ import annotations

from dataclasses import replace

from amqp_ext.addresses.address import Address, AddressKind, parse_source
from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.addresses.texts import AddressError
from amqp_ext.replay_start import ReplayStart, ReplayStartError, combine, from_options
from gateway.amqp.attach.addressed_queue import queue_at
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.attach.source_browser import BrowserSource
from gateway.amqp.attach.source_consumer import ConsumerSource
from gateway.amqp.attach.source_log import LogSource
from gateway.amqp.attach.source_partition import grouped_partition, partition_setup
from gateway.amqp.attach.source_stream import StreamSource
from gateway.amqp.attach.source_unsubscribe import UnsubscribeSource
from gateway.amqp.nodes.subscriptions import Subscription, endpoint_for
from gateway.amqp.nodes.temporary import (
    lease_of_consumer,
    make_queue,
    make_topic_endpoint,
    temporary_name,
)
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused


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
