"""
Exclusive queues, as RabbitMQ has them: a queue that belongs to the connection that declared it, and goes with it.

Whoever may publish to its name does; only its own connection consumes from it, binds, purges or deletes it.

Invariant: an exclusive queue is temporary, so that none outlives the gateway; one that somebody else has deleted keeps
nobody from its name.
"""

from __future__ import annotations

from gateway.amqp.nodes.ownership import NodeOwner
from gateway.core.endpoint.endpoint import Endpoint
from gateway.vpn.endpoints import Endpoints


class ExclusiveQueue:
    """
    A queue that a connection has to itself.

    Args:
        owner: The connection.
    """

    def __init__(self, owner: NodeOwner, endpoints: Endpoints, endpoint: Endpoint) -> None:
        self.owner = owner
        self.endpoint = endpoint
        self._endpoints = endpoints
        owner.add_exclusive(endpoint.name, self)

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted it."""
        return self._endpoints.is_there(self.endpoint)

    def release(self) -> None:
        """Delete it: its connection is gone, or has asked for that."""
        self.owner.drop_exclusive(self.endpoint.name, self)
        if self.is_there:
            self._endpoints.delete(self.endpoint)


def locked_text(queue: str) -> str:
    """Why somebody is refused; RabbitMQ's words, by which its Java client knows that it may try again."""
    return (
        f"cannot obtain exclusive access to locked queue {queue!r}: it was declared on another connection, or "
        "the exclusive property value does not match that of the original declaration"
    )
