"""
Whose the temporary and exclusive nodes of a Message VPN are.

Invariant: a node's name belongs to whoever made it: to that connection while the link that made it is there, to its
user afterwards, to nobody once the node is gone.
"""

from __future__ import annotations

from typing import Protocol

from gateway.amqp.connected_client import ConnectedClient
from gateway.amqp.nodes.lease import NodeLease
from gateway.core.endpoint.endpoint import Endpoint


class UsedQueue(Protocol):
    """A temporary queue, which lives as long as its lifetime policy has it."""

    def lease(self) -> NodeLease:
        """One more link has the queue as its source or target."""


class LockedQueue(Protocol):
    """A queue that one connection has to itself."""

    @property
    def owner(self) -> NodeOwner:
        """The connection."""

    @property
    def endpoint(self) -> Endpoint:
        """The queue."""

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted it."""

    def release(self) -> None:
        """Delete it."""


class NodeRegistry:
    """The temporary and exclusive nodes of one Message VPN."""

    def __init__(self) -> None:
        self._owners: dict[str, NodeOwner | str] = {}
        """Temporary queues and topics by name: the connection that made each, or its user where that link is gone."""
        self._private: set[str] = set()
        """Temporary queues that nobody but their owner consumes from, whatever rules there are."""
        self._temporary: dict[str, UsedQueue] = {}
        self._exclusive: dict[str, LockedQueue] = {}

    def own(self, name: str, owner: NodeOwner | str) -> None:
        """A temporary queue or topic is somebody's: a connection's, or a user's once the link that made it is gone."""
        self._owners[name] = owner

    def disown(self, name: str) -> None:
        """A temporary queue or topic is gone."""
        self._owners.pop(name, None)
        self._private.discard(name)

    def keep_private(self, name: str) -> None:
        """A temporary queue was asked for as JMS has them (JMS 2.0 section 6.2.2)."""
        self._private.add(name)

    def is_private(self, name: str) -> bool:
        """Whether nobody but its owner consumes from it."""
        return name in self._private

    def owner_of(self, name: str) -> NodeOwner | str | None:
        """Whose a temporary queue or topic is; None where it is none."""
        return self._owners.get(name)

    def add_temporary(self, name: str, queue: UsedQueue) -> None:
        """A temporary queue was made."""
        self._temporary[name] = queue

    def drop_temporary(self, name: str) -> None:
        """A temporary queue is gone."""
        del self._temporary[name]

    def lease_on(self, queue: str | None) -> NodeLease | None:
        """A lease on the temporary queue of this name, for a link about to be attached; None where it is none."""
        found = self._temporary.get(queue) if queue is not None else None
        return None if found is None else found.lease()

    def exclusive(self, name: str) -> LockedQueue | None:
        """The exclusive queue of this name; None where it is none. It may have been deleted by somebody else."""
        return self._exclusive.get(name)

    def exclusive_queue_of(self, endpoint: Endpoint) -> LockedQueue | None:
        """What makes a queue exclusive; None where nothing does."""
        found = self._exclusive.get(endpoint.name)
        return found if found is not None and found.endpoint is endpoint else None

    def add_exclusive(self, name: str, queue: LockedQueue) -> None:
        """A queue is exclusive from now on."""
        self._exclusive[name] = queue

    def drop_exclusive(self, name: str, queue: LockedQueue) -> None:
        """An exclusive queue is gone; nothing happens where another has its name by now."""
        if self._exclusive.get(name) is queue:
            del self._exclusive[name]


class NodeOwner:
    """
    One connection as the owner of nodes.

    Args:
        client: Whose connection it is.
        registry: Of the Message VPN it opened.
    """

    def __init__(self, client: ConnectedClient, registry: NodeRegistry) -> None:
        self.registry = registry
        self._client = client
        self._exclusive: dict[str, LockedQueue] = {}
        """Queues that go with the connection, by name."""

    def own(self, name: str) -> None:
        """A temporary queue or topic was made on this connection."""
        self.registry.own(name, self)

    def bequeath(self, name: str) -> None:
        """The link that it was made for is gone, and it may live on: it is the user's."""
        self.registry.own(name, self._client.user)

    def disown(self, name: str) -> None:
        """It is gone."""
        self.registry.disown(name)

    def owns(self, name: str) -> bool:
        """Whether this connection, or its user, made the temporary queue or topic."""
        return self.registry.owner_of(name) in (self, self._client.user)

    def add_exclusive(self, name: str, queue: LockedQueue) -> None:
        """A queue goes with this connection."""
        self._exclusive[name] = queue
        self.registry.add_exclusive(name, queue)

    def drop_exclusive(self, name: str, queue: LockedQueue) -> None:
        """It is gone; nothing happens where another has its name by now."""
        self.registry.drop_exclusive(name, queue)
        if self._exclusive.get(name) is queue:
            del self._exclusive[name]

    @property
    def exclusive_queues(self) -> list[LockedQueue]:
        """Queues that go with the connection."""
        return list(self._exclusive.values())
