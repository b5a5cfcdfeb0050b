"""
Temporary nodes, and when their lives end (AMQP 1.0 sections 3.5.10 to 3.5.13).

Each link that has such a node as its source or target has a lease on it, and releases it when it ceases to exist: when
it is closed, when its session ends after it was detached, or with its connection. A temporary queue lives as its
lifetime policy says; a temporary topic, which is no more than a name and keeps no messages, always goes with the link
that made it. None outlives the gateway.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from amqp_ext.lifetime import Lifetime
from gateway.amqp.nodes.lease import NodeLease
from gateway.amqp.nodes.ownership import NodeOwner
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.vpn.endpoints import Endpoints

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
