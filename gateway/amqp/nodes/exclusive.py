"""
Exclusive queues, as RabbitMQ has them: a queue that belongs to the connection that declared it, and goes with it.

Whoever may publish to its name does; only its own connection consumes from it, binds, purges or deletes it.

Invariant: an exclusive queue is temporary, so that none outlives the gateway; one that somebody else has deleted holds
nobody off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_ext.lifetime import Lifetime

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.core.endpoint.endpoint import Endpoint


class ExclusiveQueue:
    """The hold of a connection on a queue that it has to itself."""

    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE

    def __init__(self, connection: Connection, endpoint: Endpoint) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self.owner = connection.access
        connection.access.exclusive_queues[endpoint.name] = self
        connection.belongings[endpoint.name] = self

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted it."""
        return self._connection.vpn.broker.find(self.endpoint.name) is self.endpoint

    def release(self) -> None:
        name = self.endpoint.name
        if self.owner.exclusive_queues.get(name) is self:
            del self.owner.exclusive_queues[name]
        if self._connection.belongings.get(name) is self:
            del self._connection.belongings[name]
        if self.is_there:
            self._connection.vpn.delete(self.endpoint)


def locked_text(queue: str) -> str:
    """Why somebody is held off; RabbitMQ's words, by which its Java client knows that it may try again."""
    return (
        f"cannot obtain exclusive access to locked queue {queue!r}: it was declared on another connection, or "
        "the exclusive property value does not match that of the original declaration"
    )
