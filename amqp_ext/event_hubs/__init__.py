"""
Event Hubs' dialect: what the clients of Azure Event Hubs want of a server beyond AMQP 1.0.

``nodes`` are ``$cbs`` and ``$management``, ``tokens`` the shared access signatures that come to the first, ``batch``
what a transfer with several events is, and ``frames`` what these clients want of frames.
"""

from types import MappingProxyType
from typing import Final

from amqp_ext.dialect import Dialect
from amqp_ext.event_hubs.nodes import CBS, MANAGEMENT, PARTITION, CbsNode, ManagementNode

__all__ = ["CBS", "DIALECT", "MANAGEMENT", "PARTITION"]

DIALECT: Final = Dialect(
    open_properties=MappingProxyType({}),
    nodes=MappingProxyType({CBS: CbsNode(), MANAGEMENT: ManagementNode()}),
    frames_of_event_hubs=True,
    hubs_are_streams=True,
)
