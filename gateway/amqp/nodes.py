"""
Temporary and exclusive nodes: their owners, and when they are deleted (AMQP 1.0 sections 3.5.10 to 3.5.13).

A link that has a temporary node as its source or target has a lease on it, and releases the lease when the link ceases
to exist: when it is closed, when its session ends after it was detached, or with its connection. A temporary queue
lives as its lifetime policy says; a temporary topic, which is no more than a name and keeps no messages, always ends
with the link that made it. An exclusive queue (RabbitMQ) ends with the connection that declared it: every client with
the permission may publish to it, but only that connection may consume from it, bind, purge or delete it. None of these
outlives the gateway.

Invariant: a node's name belongs to the connection that made the node while the link that made it exists, then to the
user of that connection, and to nobody once the node is deleted. An exclusive queue that somebody else has deleted does
not reserve its name.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from amqp_ext.addresses.address import TEMPORARY_TOPICS
from amqp_ext.terminus_fields import Lifetime
from gateway.amqp.connection import ConnectedClient
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.endpoints import Endpoints

LOOK_AGAIN_SECONDS: Final = 1.0
"""How late the gateway may notice that a temporary queue is empty, if only its messages kept it alive."""


# --- owners -----------------------------------------------------------------------------------------------------------


class NodeRegistry:
    """The temporary and exclusive nodes of one Message VPN."""

    def __init__(self) -> None:
        self.owners: dict[str, NodeOwner | str] = {}
        """Temporary queues and topics by name: the connection that made each, or its user once that link is gone."""
        self.private: set[str] = set()
        """Temporary queues and topics of JMS clients: only their owner may consume from them, whatever the rules permit
        (JMS 2.0 section 6.2.2)."""
        self.temporary: dict[str, TemporaryQueue] = {}
        self.exclusive: dict[str, ExclusiveQueue] = {}
        """Exclusive queues by name. Somebody else may have deleted one."""

    def is_without_topic(self, topic: str) -> bool:
        """Whether a topic is named like a temporary topic, and there is no such temporary topic (any more)."""
        return topic.startswith(TEMPORARY_TOPICS) and topic not in self.owners

    def check_topic(self, topic: str) -> None:
        """
        Check that a topic exists, where its name is a temporary topic's.

        Raises:
            Refused: NOT_FOUND.
        """
        if self.is_without_topic(topic):
            raise Refused(
                ErrorCode.NOT_FOUND,
                f"there is no temporary topic {topic!r}: it is deleted with the link that it was created for",
            )

    def lease_on(self, queue: str | None) -> Lease | None:
        """A lease on the temporary queue of this name, for a link about to be attached; None for any other queue."""
        found = self.temporary.get(queue) if queue is not None else None
        return None if found is None else found.lease()

    def exclusive_queue_of(self, endpoint: Endpoint) -> ExclusiveQueue | None:
        """The exclusive queue of an endpoint; None where the endpoint is not exclusive."""
        found = self.exclusive.get(endpoint.name)
        return found if found is not None and found.endpoint is endpoint else None


class NodeOwner:
    """
    One connection as the owner of nodes.

    Args:
        client: The client of the connection.
        registry: The nodes of the Message VPN that the client opened.
        endpoints: The endpoints of that Message VPN.
    """

    def __init__(self, client: ConnectedClient, registry: NodeRegistry, endpoints: Endpoints) -> None:
        self.registry = registry
        self.endpoints = endpoints
        self.exclusive: dict[str, ExclusiveQueue] = {}
        """The exclusive queues of the connection, by name."""
        self._client = client

    def own(self, name: str, *, is_private: bool = False) -> None:
        """
        Make this connection the owner of a temporary queue or topic.

        Args:
            is_private: Only its owner may consume from it, whatever the rules permit.
        """
        self.registry.owners[name] = self
        if is_private:
            self.registry.private.add(name)

    def bequeath(self, name: str) -> None:
        """Make the user the owner: the link that the node was made for is gone, and the node may live on."""
        self.registry.owners[name] = self._client.user

    def disown(self, name: str) -> None:
        """The node is deleted: its name belongs to nobody."""
        self.registry.owners.pop(name, None)
        self.registry.private.discard(name)

    def made(self, name: str) -> bool:
        """Whether the temporary queue or topic was made on this connection, by a link that is still there."""
        return self.registry.owners.get(name) is self

    def owns(self, name: str) -> bool:
        """Whether this connection, or its user, made the temporary queue or topic."""
        return self.registry.owners.get(name) in (self, self._client.user)


class ExclusiveQueue:
    """
    A queue that one connection has to itself.

    Args:
        owner: The connection.
    """

    def __init__(self, owner: NodeOwner, endpoint: Endpoint) -> None:
        self.owner = owner
        self.endpoint = endpoint
        owner.exclusive[endpoint.name] = owner.registry.exclusive[endpoint.name] = self

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted it."""
        return self.owner.endpoints.is_there(self.endpoint)

    def release(self) -> None:
        """Delete it: its connection is gone, or has asked for that."""
        for queues in (self.owner.exclusive, self.owner.registry.exclusive):
            if queues.get(self.endpoint.name) is self:
                del queues[self.endpoint.name]
        if self.is_there:
            self.owner.endpoints.delete(self.endpoint)


def locked_text(queue: str) -> str:
    """Why a client is refused, in RabbitMQ's words: its Java client recognizes by them that it may try again."""
    return (
        f"cannot obtain exclusive access to locked queue {queue!r}: it was declared on another connection, or "
        "the exclusive property value does not match that of the original declaration"
    )


# --- leases -----------------------------------------------------------------------------------------------------------


class Lease(ABC):
    """
    A link's claim on a temporary node, or on a place in a consumer group. It ends when the link ceases to exist.

    Attributes:
        lifetime: The node's lifetime policy.
        lasts_suspended: Whether the node also lives while the link is suspended: true where the peer asked for a node.
    """

    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE
    lasts_suspended: bool = False

    @abstractmethod
    def release(self) -> None:
        """The link is gone. A second call does nothing."""

    def take_over(self, older: Lease) -> None:  # noqa: B027
        """The link takes the place of a suspended one, whose lease is about to be released."""


class OwnedTopic(Lease):
    """The lease on a temporary topic. The topic is only a name; it lives as long as the link that asked for it."""

    def __init__(self, owner: NodeOwner, topic: str, *, lasts_suspended: bool = True) -> None:
        self.lasts_suspended = lasts_suspended
        self._owner = owner
        self._topic = topic
        owner.own(topic, is_private=lasts_suspended)

    def release(self) -> None:
        """The link is gone, and the name with it."""
        self._owner.disown(self._topic)


class OwnedEndpoint(OwnedTopic):
    """
    The lease on a topic endpoint that one link has to itself.

    Args:
        known_as: The name of the topic that others send to.
    """

    def __init__(self, owner: NodeOwner, endpoint: Endpoint, known_as: str) -> None:
        # Known by another name it is a temporary topic; else a subscription that ends with its consumer.
        super().__init__(owner, known_as, lasts_suspended=known_as != endpoint.name)
        self.endpoint = endpoint

    def release(self) -> None:
        """The link is gone, and the endpoint with it."""
        super().release()
        if self._owner.endpoints.is_there(self.endpoint):
            self._owner.endpoints.delete(self.endpoint)


class SharedEndpoint(OwnedEndpoint):
    """The lease on a topic endpoint that several links consume from: gone with the last of them."""

    lifetime = Lifetime.DELETE_ON_NO_LINKS

    def release(self) -> None:
        """The link is gone, and the endpoint with the last one."""
        if not self.endpoint.flows:
            super().release()


class QueueLease(Lease):
    """The lease of one link on a temporary queue."""

    lasts_suspended = True

    def __init__(self, queue: TemporaryQueue, *, is_maker: bool) -> None:
        self.endpoint = queue.endpoint
        self.lifetime = queue.lifetime
        self._queue = queue
        self._is_maker = is_maker
        self._is_released = False

    def take_over(self, older: Lease) -> None:
        """Where the queue was made for the older link, count it as made for this one."""
        if isinstance(older, QueueLease) and older._queue is self._queue and older._is_maker:
            self._is_maker, older._is_maker = True, False

    def release(self) -> None:
        """The link is gone."""
        if not self._is_released:
            self._is_released = True
            self._queue.released(is_maker=self._is_maker)


class AutoDeleted(Lease):
    """
    The lease of a consumer on a queue that is deleted with its last consumer, unless the gateway is being stopped.

    Args:
        is_stopping: Whether the gateway is being stopped.
    """

    lifetime = Lifetime.DELETE_ON_NO_LINKS

    def __init__(self, owner: NodeOwner, endpoint: Endpoint, is_stopping: Callable[[], bool]) -> None:
        self._owner = owner
        self._endpoint = endpoint
        self._is_stopping = is_stopping

    def release(self) -> None:
        """The consumer is gone, and the queue with the last one."""
        owner, endpoint = self._owner, self._endpoint
        if endpoint.flows or self._is_stopping():
            return
        exclusive = owner.registry.exclusive_queue_of(endpoint)
        if exclusive is not None:
            exclusive.release()
        elif owner.endpoints.is_there(endpoint):
            owner.endpoints.delete(endpoint)


class TemporaryQueue:
    """A dynamic node that is a queue, from the attach that made it to the end that its lifetime policy says."""

    def __init__(self, owner: NodeOwner, endpoint: Endpoint, lifetime: Lifetime, *, is_private: bool) -> None:
        self.endpoint = endpoint
        self.lifetime = lifetime
        self._owner = owner
        self._links = 0
        self._has_maker = True
        self._is_over = False
        self._is_waiting = False
        owner.own(endpoint.name, is_private=is_private)
        owner.registry.temporary[endpoint.name] = self

    def lease(self, *, is_maker: bool = False) -> QueueLease:
        """One more link has the queue as its source or target; ``is_maker`` says that the queue is made for it."""
        self._links += 1
        return QueueLease(self, is_maker=is_maker)

    def released(self, *, is_maker: bool) -> None:
        """A link has released its lease."""
        self._links -= 1
        if is_maker:
            self._has_maker = False
            self._owner.bequeath(self.endpoint.name)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_over:
            return
        endpoints, endpoint = self._owner.endpoints, self.endpoint
        if not endpoints.is_there(endpoint):
            # An administrator has deleted it.
            self._end()
            return
        # A replay under way will bring messages.
        is_replaying = endpoint.replay is not None and endpoint.replay.is_reading
        has_messages = endpoint.depth > 0 or endpoint.backlog.delayed.messages > 0 or is_replaying
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
        del self._owner.registry.temporary[self.endpoint.name]


# --- for an attach ----------------------------------------------------------------------------------------------------


def lease_of_consumer(owner: NodeOwner, endpoint: Endpoint, is_stopping: Callable[[], bool]) -> Lease | None:
    """A lease on the queue that a consumer is about to be bound to; None where the queue outlives its consumers."""
    if endpoint.settings.auto_delete:
        return AutoDeleted(owner, endpoint, is_stopping)
    return owner.registry.lease_on(endpoint.name)


def temporary_name(kind: str) -> str:
    """A unique name, in the form of Solace's temporary topics and endpoints."""
    return f"#P2P/{kind}/{secrets.token_urlsafe(16).replace('-', '_')}"


def make_queue(owner: NodeOwner, lifetime: Lifetime, *, is_private: bool) -> QueueLease:
    """
    Make a temporary queue for the link that asks for it; the caller awaits the commit.

    Args:
        is_private: Only its owner may consume from it, whatever the rules permit.
    """
    name = temporary_name("QTMP")
    endpoint = owner.endpoints.create(name, EndpointKind.QUEUE, EndpointSettings(temporary=True))
    return TemporaryQueue(owner, endpoint, lifetime, is_private=is_private).lease(is_maker=True)


def make_topic_endpoint(
    owner: NodeOwner,
    subscriptions: Sequence[str],
    *,
    known_as: str | None = None,
    no_local: str = "",
    selector: str = "",
) -> OwnedEndpoint:
    """
    Make a topic endpoint that lives as long as its link; the caller awaits the commit.

    Args:
        known_as: The topic's name for those who send to it.
        no_local: The origin whose messages it leaves out; empty where it leaves out none.
        selector: The subscription's selector, in the form that is stored; empty where it takes every message.
    """
    name = temporary_name("TETMP")
    settings = EndpointSettings(
        exclusive=Exclusivity.REFUSE, temporary=True, no_local=no_local, selector=selector
    )
    endpoint = owner.endpoints.create(name, EndpointKind.TOPIC_ENDPOINT, settings, subscriptions)
    return OwnedEndpoint(owner, endpoint, known_as or name)
