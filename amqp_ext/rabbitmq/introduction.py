"""
How a server introduces itself to RabbitMQ's clients, and what they say on the connection and its links.

Source: RabbitMQ's AMQP 1.0 clients for Python, Java, Go and .NET, which insist on it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

VERSION: Final = "4.2.0"
"""What we say we are: the clients ask for 4.0 at least, and for 4.2 where a filter is SQL."""

NODE_NAME: Final = "rewind"
"""The node of the cluster we say we are; the Java client insists on one."""

OPEN_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType(
    {"product": "RabbitMQ", "version": VERSION, "node": NODE_NAME}
)
"""Properties of the open frame."""

OFFERED_CAPABILITIES: Final = ("LINK_PAIR_V1_0",)
"""Capabilities of the open frame."""

CONSUMER_PRIORITY: Final = "rabbitmq:priority"
"""The property of a consumer's link that says its priority, a whole number; 0 where it is not there."""

DEFAULT_VHOST: Final = "/"
"""The virtual host that the clients open when their user names none."""
