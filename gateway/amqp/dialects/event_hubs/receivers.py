"""
Receivers of event hubs, on listeners that speak Event Hubs' dialect: ``<hub>/ConsumerGroups/<group>/Partitions/0``.

A hub is a stream, made by the first attach to it where queues are made on first use; of a queue, what was sent to it is
read from the log. Nothing piles up on a hub for a consumer group: a group is a name beside which owner levels count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from proton import Link

from amqp_ext.addresses import Address, AddressKind, EventHubPosition, queue_topic
from amqp_ext.filters.filter_set import Filters
from amqp_ext.replay_start import ReplayStart
from gateway.amqp.attach.log import read_log
from gateway.amqp.attach.request import epoch_of, kind_for
from gateway.amqp.attach.stream import read_stream
from gateway.amqp.dialects.event_hubs.consumer_groups import Membership
from gateway.amqp.dialects.event_hubs.nodes import check_partition
from gateway.amqp.links.outgoing import ReadingLink
from gateway.core.endpoint.settings import EndpointKind

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection


class Hub(NamedTuple):
    """A hub that somebody wants to receive from."""

    address: Address
    """As that of a queue: who may consume from that, may receive."""
    position: EventHubPosition


def hub_at(connection: Connection, address: Address) -> Hub | None:
    """
    The hub that an address names; None where it names something else, or the listener does not speak the dialect.

    Raises:
        Refused: NOT_FOUND, it names a partition that is not there.
    """
    position = address.event_hub
    if position is None:
        return None
    # On any listener: whoever reads four partitions must not get everything four times.
    check_partition(position.partition)
    if not connection.listening.spoken.has_hubs:
        return None
    queue = replace(address, kind=AddressKind.QUEUE, event_hub=None)
    if kind_for(connection, queue) is EndpointKind.STREAM:
        queue = replace(queue, options={**address.options, "kind": EndpointKind.STREAM.value})
    return Hub(queue, position)


async def read_hub(
    connection: Connection, link: Link, hub: Hub, filters: Filters, start: ReplayStart | None
) -> None:
    """
    Attach a receiver.

    Raises:
        Refused: As for log readers; STOLEN, a receiver with a higher owner level has the partition.
    """
    vpn, options = connection.vpn, hub.address.options
    name, group, epoch = hub.address.name, hub.position.consumer_group, epoch_of(link, options)
    groups = connection.access.consumer_groups
    groups.check(name, group, epoch)
    endpoint, effects = vpn.broker.queue_for(
        name,
        kind=vpn.kind_of(options),
        exclusive=vpn.exclusivity_of(options),
        may_create=options.get("create") != "never",
    )
    await vpn.committed(effects)

    def join(reader: ReadingLink) -> Membership:
        return groups.join(name, group, epoch, reader)

    if endpoint.kind is EndpointKind.STREAM:
        await read_stream(connection, link, endpoint, filters, start, options, join)
    else:
        await read_log(connection, link, [queue_topic(name)], filters, start, join)
