"""
Answering an attach to a partition of a queue's log: a reader, in a group of consumers.

The queue is a stream, made by the first attach to it where queues are made on first use; of a queue that is none, what
was sent to it is read from the log. Nothing piles up for a group: it is a name beside which epochs count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from proton import Link

from amqp_ext.addresses import Address, AddressKind, PartitionPosition, queue_topic
from amqp_ext.filters.filter_set import Filters
from amqp_ext.replay_start import ReplayStart
from gateway.amqp.attach.log import read_log
from gateway.amqp.attach.request import epoch_of, kind_for
from gateway.amqp.attach.stream import read_stream
from gateway.amqp.dialects.hooks import GroupMembership, ReaderGroups
from gateway.amqp.links.outgoing import ReadingLink
from gateway.core.endpoint.settings import EndpointKind

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection


class GroupedSource(NamedTuple):
    """A partition that somebody wants to read in a group."""

    address: Address
    """As that of its queue: who may consume from that, may read."""
    position: PartitionPosition
    groups: ReaderGroups


def grouped_source(connection: Connection, address: Address) -> GroupedSource | None:
    """
    The partition that an address names; None where it names something else, or readers are in no groups here.

    Raises:
        Refused: NOT_FOUND, it names a partition that is not there.
    """
    position = address.position
    if position is None:
        return None
    connection.spoken.check_position(position)
    groups = connection.spoken.reader_groups(connection.vpn.name)
    if groups is None:
        return None
    queue = replace(address, kind=AddressKind.QUEUE, position=None)
    if kind_for(connection, queue) is EndpointKind.STREAM:
        queue = replace(queue, options={**address.options, "kind": EndpointKind.STREAM.value})
    return GroupedSource(queue, position, groups)


async def read_partition(
    connection: Connection, link: Link, source: GroupedSource, filters: Filters, start: ReplayStart | None
) -> None:
    """
    Attach a reader.

    Raises:
        Refused: As for log readers; STOLEN, a reader with a higher epoch has the partition.
    """
    vpn, options, groups = connection.vpn, source.address.options, source.groups
    name, group, epoch = source.address.name, source.position.consumer_group, epoch_of(link, options)
    groups.check(name, group, epoch)
    endpoint, effects = vpn.broker.queue_for(
        name,
        kind=vpn.kind_of(options),
        exclusive=vpn.exclusivity_of(options),
        may_create=options.get("create") != "never",
    )
    await vpn.committed(effects)

    def join(reader: ReadingLink) -> GroupMembership:
        return groups.join(name, group, epoch, reader)

    if endpoint.kind is EndpointKind.STREAM:
        await read_stream(connection, link, endpoint, filters, start, options, join)
    else:
        await read_log(connection, link, [queue_topic(name)], filters, start, join)
