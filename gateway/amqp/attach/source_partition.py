"""
An attach that reads a partition of a queue's log: a reader, in a group of consumers.

The queue is a stream, made by the first attach to it where queues are made on first use; of a queue that is none, what
was sent to it is read from the log. Nothing piles up for a group: it is a name beside which epochs count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from amqp_ext.addresses.address import Address, AddressKind
from amqp_ext.addresses.forms import PartitionPosition
from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.replay_start import ReplayStart
from gateway.amqp.attach.addressed_queue import exclusivity_of, kind_of, kind_of_queue
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.attach.source_log import LogSource
from gateway.amqp.attach.source_stream import StreamSource
from gateway.amqp.dialects.hooks import GroupMembership, ReaderGroups
from gateway.amqp.links.reader import ReaderLink
from gateway.core.endpoint.settings import EndpointKind


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
