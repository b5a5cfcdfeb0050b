"""
RabbitMQ's dialect: what the clients of RabbitMQ 4 want of a server beyond AMQP 1.0.

``http`` is the node ``/management``, whose requests are HTTP over AMQP 1.0; ``commands`` is what they ask for,
``arguments`` what the arguments of a queue's declaration mean here, and ``exchanges`` what exchanges and bindings do.

Sources: RabbitMQ documentation, "AMQP 1.0" and "AMQP 1.0 Client Libraries"; OASIS, "HTTP over AMQP Version 1.0".
"""

from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from amqp_ext.dialect import Dialect
from amqp_ext.rabbitmq.exchanges import topic_of_address
from amqp_ext.rabbitmq.http import ManagementNode

__all__ = ["DIALECT", "MANAGEMENT", "NODE_NAME", "VERSION"]

VERSION: Final = "4.2.0"
"""What we say we are: the clients ask for 4.0 at least, and for 4.2 where a filter is SQL."""

NODE_NAME: Final = "rewind"
"""The node of the cluster we say we are; the Java client insists on one."""

MANAGEMENT: Final = "/management"


def address_of_queue(name: str) -> str:
    """The address of a queue: its name percent-encoded."""
    return f"/queues/{quote(name, safe='')}"


DIALECT: Final = Dialect(
    open_properties=MappingProxyType({"product": "RabbitMQ", "version": VERSION, "node": NODE_NAME}),
    offered_capabilities=("LINK_PAIR_V1_0",),
    nodes=MappingProxyType({MANAGEMENT: ManagementNode(NODE_NAME)}),
    topic_of_address=topic_of_address,
    address_of_queue=address_of_queue,
    consumer_priority="rabbitmq:priority",
    default_vhost="/",
)
