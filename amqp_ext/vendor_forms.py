"""
The vendors' forms that every listener accepts: addresses, filters, mechanisms and link properties with which a client
that was written for another broker says the same as our own clients.

Only this module names the vendors to the readers of addresses and filters. Forms that only some listeners accept are
composed in the gateway, from the listeners' settings.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.event_hubs import forms as event_hubs
from amqp_ext.rabbitmq import forms as rabbitmq

REQUEST_NODES: Final = frozenset({event_hubs.CBS, event_hubs.MANAGEMENT, rabbitmq.MANAGEMENT})
"""Addresses of nodes that answer requests, and that are no queues on any listener."""

# Each of these returns None for a text that is not the vendor's, and raises an error for an invalid one.
queue_of_path: Final = rabbitmq.queue_of
partition_of_source: Final = event_hubs.partition_of_source
queue_of_target: Final = event_hubs.hub_of_target
start_of_selector: Final = event_hubs.from_position_selector
start_of_filters: Final = rabbitmq.start_of
message_filter_of: Final = rabbitmq.stream_filter_of

MessageFilter = rabbitmq.StreamFilter
"""A filter on messages, read and not yet compiled. Equal to every filter that asks for the same."""

FILTERS: Final = rabbitmq.FILTERS
"""Filters in addition to AMQP's and our own. Clients that send one of them read ``x-stream-offset`` on each message."""

START_FILTERS: Final = frozenset({rabbitmq.STREAM_OFFSET_SPEC})
"""Those of them that ask for a start: such a key with another descriptor is refused, not left out."""

ANONYMOUS_MECHANISMS: Final = (event_hubs.CBS_MECHANISM,)
"""SASL mechanisms that identify a peer no more than ANONYMOUS does."""

EPOCH_PROPERTIES: Final[tuple[str, ...]] = (event_hubs.EPOCH,)
"""Link properties that give the link's epoch, a whole number, as the address option ``epoch`` does."""
