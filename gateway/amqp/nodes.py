"""
Temporary and exclusive nodes: whose they are, and when their lives end (AMQP 1.0 sections 3.5.10 to 3.5.13).

A link that has a temporary node as its source or target has a lease on it, and releases the lease when the link ceases
to exist: when it is closed, when its session ends after it was detached, or with its connection. A temporary queue
lives as its lifetime policy says; a temporary topic, which is no more than a name and keeps no messages, always goes
with the link that made it. An exclusive queue, as RabbitMQ has them, goes with the connection that declared it:
whoever may publish to its name does, and only that connection consumes from it, binds, purges or deletes it. None of
these outlives the gateway.

Invariant: a node's name belongs to whoever made it: to that connection while the link that made it is there, to its
user afterwards, to nobody once the node is gone. An exclusive queue that somebody else has deleted keeps nobody from
its name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from amqp_ext.lifetime import Lifetime
from gateway.amqp.connection import ConnectedClient
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.vpn.endpoints import Endpoints


class Lease(Protocol):
    """What a link has, and gives back."""

    @property
    def lifetime(self) -> Lifetime:
        """The node's."""

    def release(self) -> None:
        """The link is gone. Once is enough, and twice does no harm."""


class NodeLease(Lease, Protocol):
    """What a link has on a temporary node while it exists."""

    @property
    def lasts_suspended(self) -> bool:
        """Whether the node is there as long as the link is, attached or suspended: it was asked for as a node."""

    def take_over(self, older: NodeLease) -> None:
        """The link takes the place of a suspended one, which is about to release this lease."""


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


LOOK_AGAIN_SECONDS: Final = 1.0
"""How late a queue that only its messages keep alive may be found empty."""


class OwnedEndpoint:
    """
    The lease on a topic endpoint that one link has to itself.

    Args:
        known_as: The name of the topic that others send to.
    """

    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE

    def __init__(self, owner: NodeOwner, endpoints: Endpoints, endpoint: Endpoint, known_as: str) -> None:
        self.endpoint = endpoint
        self.lasts_suspended = known_as != endpoint.name
        """A temporary topic; else a subscription that ends when nobody listens."""
        self._owner = owner
        self._endpoints = endpoints
        self._known_as = known_as
        owner.own(known_as)

    def take_over(self, older: NodeLease) -> None:
        """There is nothing to take over: each link has an endpoint of its own."""

    def release(self) -> None:
        """The link is gone, and the endpoint with it."""
        self._owner.disown(self._known_as)
        if self._endpoints.is_there(self.endpoint):
            self._endpoints.delete(self.endpoint)


class SharedEndpoint(OwnedEndpoint):
    """The lease on a topic endpoint that several links consume from: gone with the last of them."""

    lifetime: Lifetime = Lifetime.DELETE_ON_NO_LINKS

    def release(self) -> None:
        """The link is gone, and the endpoint with the last one."""
        if not self.endpoint.flows:
            super().release()


class OwnedTopic:
    """The lease on a temporary topic: no more than a name, as long as the link that asked for it."""

    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE
    lasts_suspended: bool = True

    def __init__(self, owner: NodeOwner, topic: str) -> None:
        self._owner = owner
        self._topic = topic
        owner.own(topic)

    def take_over(self, older: NodeLease) -> None:
        """There is nothing to take over: each link has a name of its own."""

    def release(self) -> None:
        """The link is gone, and the name with it."""
        self._owner.disown(self._topic)


class TemporaryQueue:
    """A dynamic node that is a queue, from the attach that made it to the end that its lifetime policy says."""

    def __init__(
        self, owner: NodeOwner, endpoints: Endpoints, endpoint: Endpoint, lifetime: Lifetime
    ) -> None:
        self.endpoint = endpoint
        self.lifetime = lifetime
        self._owner = owner
        self._endpoints = endpoints
        self._links = 0
        self._has_maker = True
        self._is_over = False
        self._is_waiting = False
        owner.own(endpoint.name)
        owner.registry.add_temporary(endpoint.name, self)

    def lease(self, *, is_maker: bool = False) -> QueueLease:
        """One more link has the queue as its source or target; ``is_maker`` says that the queue is made for it."""
        self._links += 1
        return QueueLease(self, is_maker=is_maker)

    def released(self, *, is_maker: bool) -> None:
        """One link less has."""
        self._links -= 1
        if is_maker:
            self._has_maker = False
            self._owner.bequeath(self.endpoint.name)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_over:
            return
        endpoints, endpoint = self._endpoints, self.endpoint
        if not endpoints.is_there(endpoint):
            # An administrator was first.
            self._end()
            return
        # A replay under way is a promise of messages.
        is_replaying = endpoint.replay is not None and endpoint.replay.is_reading
        has_messages = endpoint.depth > 0 or is_replaying
        has_maker, has_links = self._has_maker, self._links > 0
        is_over = self.lifetime.is_over
        if is_over(has_maker=has_maker, has_links=has_links, has_messages=has_messages):
            self._end()
            endpoints.delete(endpoint)
        elif is_over(has_maker=has_maker, has_links=has_links, has_messages=False) and not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._is_waiting = False
        self._end_if_over()

    def _end(self) -> None:
        self._is_over = True
        self._owner.disown(self.endpoint.name)
        self._owner.registry.drop_temporary(self.endpoint.name)


class QueueLease:
    """The lease of one link on a temporary queue."""

    lasts_suspended: bool = True

    def __init__(self, queue: TemporaryQueue, *, is_maker: bool) -> None:
        self._queue = queue
        self._is_maker = is_maker
        self._is_released = False

    @property
    def endpoint(self) -> Endpoint:
        """The queue."""
        return self._queue.endpoint

    @property
    def lifetime(self) -> Lifetime:
        """The queue's."""
        return self._queue.lifetime

    def take_over(self, older: NodeLease) -> None:
        """Where the older link is the one that the queue was made for, it is this one from now on."""
        if isinstance(older, QueueLease) and older._queue is self._queue and older._is_maker:
            self._is_maker, older._is_maker = True, False

    def release(self) -> None:
        """The link is gone."""
        if not self._is_released:
            self._is_released = True
            self._queue.released(is_maker=self._is_maker)


class AutoDeleted:
    """
    The lease of a consumer on a queue that goes with its last one; not when it is the gateway that sends it away.

    Args:
        is_stopping: Whether the gateway is being stopped.
    """

    lifetime: Lifetime = Lifetime.DELETE_ON_NO_LINKS
    lasts_suspended: bool = False

    def __init__(
        self, owner: NodeOwner, endpoints: Endpoints, endpoint: Endpoint, is_stopping: Callable[[], bool]
    ) -> None:
        self._owner = owner
        self._endpoints = endpoints
        self._endpoint = endpoint
        self._is_stopping = is_stopping

    def take_over(self, older: NodeLease) -> None:
        """There is nothing to take over: the last consumer counts."""

    def release(self) -> None:
        """The consumer is gone, and the queue with the last one."""
        endpoint = self._endpoint
        if endpoint.flows or self._is_stopping():
            return
        exclusive = self._owner.registry.exclusive_queue_of(endpoint)
        if exclusive is not None:
            exclusive.release()
        elif self._endpoints.is_there(endpoint):
            self._endpoints.delete(endpoint)


def lease_of_consumer(
    owner: NodeOwner, endpoints: Endpoints, endpoint: Endpoint, is_stopping: Callable[[], bool]
) -> NodeLease | None:
    """A lease on the queue that a consumer is about to be bound to; None where the queue outlives its consumers."""
    if endpoint.settings.auto_delete:
        return AutoDeleted(owner, endpoints, endpoint, is_stopping)
    return owner.registry.lease_on(endpoint.name)


def temporary_name(kind: str) -> str:
    """A name that nobody else has; Solace's temporary topics and endpoints are called like this."""
    return f"#P2P/{kind}/{secrets.token_urlsafe(16).replace('-', '_')}"


def make_queue(owner: NodeOwner, endpoints: Endpoints, lifetime: Lifetime) -> QueueLease:
    """A temporary queue for the link that asks for it; await that it is committed."""
    endpoint = endpoints.create(temporary_name("QTMP"), EndpointKind.QUEUE, EndpointSettings(temporary=True))
    return TemporaryQueue(owner, endpoints, endpoint, lifetime).lease(is_maker=True)


def make_topic_endpoint(
    owner: NodeOwner,
    endpoints: Endpoints,
    subscriptions: Sequence[str],
    *,
    known_as: str | None = None,
    no_local: str = "",
) -> OwnedEndpoint:
    """
    A topic endpoint that lives as long as its link; await that it is committed.

    Args:
        known_as: The topic's name for those who send to it.
        no_local: The origin whose messages it does not want; empty where it wants everybody's.
    """
    name = temporary_name("TETMP")
    settings = EndpointSettings(exclusive=Exclusivity.REFUSE, temporary=True, no_local=no_local)
    endpoint = endpoints.create(name, EndpointKind.TOPIC_ENDPOINT, settings, subscriptions)
    return OwnedEndpoint(owner, endpoints, endpoint, known_as or name)
