"""
The dialects a listener speaks, as its named switches have it, and who serves their request nodes.

A dialect itself is pure (``amqp_ext.dialect``). Beside each of its nodes stands here what carries out its commands.
A listener without a switch speaks AMQP 1.0 and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqp_ext import event_hubs, rabbitmq
from amqp_ext.dialect import Dialect, RequestNode
from gateway.amqp.dialects.event_hubs import nodes as event_hubs_commands
from gateway.amqp.dialects.rabbitmq import management as rabbitmq_commands

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.config import Listener

Perform = Callable[["Connection", Any], Awaitable[Any]]
"""
Carries out a command for the user of a connection, and returns what came of it once that is durable.

Raises:
    Refused: It is not carried out; the answer says why.
"""


class ServedNode(NamedTuple):
    """A request node, and who carries out what is asked of it."""

    node: RequestNode
    perform: Perform


_PERFORM: Final[Mapping[str, Perform]] = {
    rabbitmq.MANAGEMENT: rabbitmq_commands.perform,
    event_hubs.CBS: event_hubs_commands.perform,
    event_hubs.MANAGEMENT: event_hubs_commands.perform,
}


class Spoken:
    """What a listener speaks beyond AMQP 1.0. Later dialects win where two say the same property."""

    def __init__(self, listener: Listener) -> None:
        dialects: list[Dialect] = []
        if listener.rabbitmq_mode:
            dialects.append(rabbitmq.DIALECT)
        if listener.event_hubs_mode:
            dialects.append(event_hubs.DIALECT)
        self.open_properties: dict[str, str] = {"product": "Rewind"}
        self.offered_capabilities: tuple[str, ...] = ()
        self.nodes: dict[str, ServedNode] = {}
        """Request nodes by address."""
        self.has_frames_of_event_hubs = any(dialect.frames_of_event_hubs for dialect in dialects)
        self.has_hubs = any(dialect.hubs_are_streams for dialect in dialects)
        self._default_vhosts = {f"vhost:{d.default_vhost}" for d in dialects if d.default_vhost is not None}
        self.consumer_priorities = [d.consumer_priority for d in dialects if d.consumer_priority is not None]
        """Properties of a consumer's link that say its priority."""
        self._topics = [d.topic_of_address for d in dialects if d.topic_of_address is not None]
        self._queues = [d.address_of_queue for d in dialects if d.address_of_queue is not None]
        for dialect in dialects:
            self.open_properties |= dialect.open_properties
            self.offered_capabilities += dialect.offered_capabilities
            for address, node in dialect.nodes.items():
                self.nodes[address] = ServedNode(node, _PERFORM[address])

    def topic_of(self, address: str) -> str | None:
        """
        The topic that a target's address stands for in a dialect; None where none has such addresses.

        Raises:
            amqp_ext.addresses.AddressError: It looks like such an address, and is none.
        """
        for read in self._topics:
            if (topic := read(address)) is not None:
                return topic
        return None

    def vpn_name_of(self, hostname: str | None) -> str | None:
        """The hostname of an open frame; None, which names no Message VPN, where it is a dialect's own default."""
        return None if hostname in self._default_vhosts else hostname

    def address_of(self, queue: str) -> str:
        """The address of a queue that was made for a client: what its kind of client can send to."""
        return self._queues[0](queue) if self._queues else queue
