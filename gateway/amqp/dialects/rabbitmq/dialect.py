"""
The dialect of RabbitMQ's clients, composed: how a listener introduces itself, its node and its addresses.
"""

from __future__ import annotations

from amqp_ext.rabbitmq import introduction
from amqp_ext.rabbitmq.addresses import MANAGEMENT, address_of_queue, topic_of_address
from amqp_ext.rabbitmq.requests import ManagementNode
from gateway.amqp.dialects.hooks import Dialect, ServedNode
from gateway.amqp.dialects.rabbitmq.management import Management


def rabbitmq_dialect() -> Dialect:
    """The dialect, with what its clients declare in all Message VPNs of a gateway."""
    return Dialect(
        open_properties=introduction.OPEN_PROPERTIES,
        offered_capabilities=introduction.OFFERED_CAPABILITIES,
        default_vhost=introduction.DEFAULT_VHOST,
        nodes={MANAGEMENT: ServedNode(ManagementNode(introduction.NODE_NAME), Management().perform)},
        topic_of_address=topic_of_address,
        address_of_queue=address_of_queue,
        consumer_priority=introduction.CONSUMER_PRIORITY,
    )
