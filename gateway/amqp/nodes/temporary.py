"""
Temporary nodes, and when their lives end (AMQP 1.0 sections 3.5.10 to 3.5.13).

Each link that has such a node as its source or target has a hold on it, and lets go of it when it is detached, closed
or lost with its connection. A temporary queue lives as its lifetime policy says; a temporary topic, which is no more
than a name and keeps no messages, always goes with the link that made it.

Invariant: a node's name belongs to whoever made it: to that connection while the link that made it is there, to its
user afterwards, to nobody once the node is gone. None outlives the gateway.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from amqp_ext.lifetime import Lifetime
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

LOOK_AGAIN_SECONDS: Final = 1.0
"""How late a queue that only its messages keep alive may be found empty."""


class Hold(Protocol):
    """What a link has on a temporary node."""

    @property
    def lifetime(self) -> Lifetime:
        """The node's."""

    def release(self) -> None:
        """The link is gone. Once is enough, and twice does no harm."""


class OwnedEndpoint:
    """
    The hold on a topic endpoint that one link has to itself.

    Args:
        known_as: The name of the topic that others send to.
    """

    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE

    def __init__(self, connection: Connection, endpoint: Endpoint, known_as: str) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self._known_as = known_as
        connection.access.own(known_as)

    def release(self) -> None:
        self._connection.access.disown(self._known_as)
        vpn = self._connection.vpn
        if vpn.broker.find(self.endpoint.name) is self.endpoint:
            vpn.delete(self.endpoint)


class SharedEndpoint(OwnedEndpoint):
    """The hold on a topic endpoint that several links consume from: gone with the last of them."""

    lifetime: Lifetime = Lifetime.DELETE_ON_NO_LINKS

    def release(self) -> None:
        if not self.endpoint.flows:
            super().release()


class OwnedTopic:
    """The hold on a temporary topic: no more than a name, as long as the link that asked for it."""

    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        connection.access.own(topic)

    def release(self) -> None:
        self._connection.access.disown(self._topic)


class TemporaryQueue:
    """A dynamic node that is a queue, from the attach that made it to the end that its lifetime policy says."""

    def __init__(self, connection: Connection, endpoint: Endpoint, lifetime: Lifetime) -> None:
        self.endpoint = endpoint
        self.lifetime = lifetime
        self._vpn = connection.vpn
        self._access = connection.access
        self._links = 0
        self._has_maker = True
        self._is_over = False
        self._is_waiting = False
        self._access.own(endpoint.name)
        self._access.temporary_queues[endpoint.name] = self

    def hold(self, *, is_maker: bool = False) -> QueueHold:
        """One more link has the queue as its source or target; ``is_maker`` says that the queue is made for it."""
        self._links += 1
        return QueueHold(self, is_maker=is_maker)

    def let_go(self, *, is_maker: bool) -> None:
        """One link less has."""
        self._links -= 1
        if is_maker:
            self._has_maker = False
            self._access.bequeath(self.endpoint.name)
        self._look()

    def _look(self) -> None:
        if self._is_over:
            return
        vpn, endpoint = self._vpn, self.endpoint
        if vpn.broker.find(endpoint.name) is not endpoint:
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
            vpn.delete(endpoint)
        elif is_over(has_maker=has_maker, has_links=has_links, has_messages=False) and not self._is_waiting:
            self._is_waiting = True
            vpn.later(LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._is_waiting = False
        self._look()

    def _end(self) -> None:
        self._is_over = True
        self._access.disown(self.endpoint.name)
        del self._access.temporary_queues[self.endpoint.name]


class QueueHold:
    """The hold of one link on a temporary queue."""

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

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._queue.let_go(is_maker=self._is_maker)


def hold_on(connection: Connection, queue: str | None) -> QueueHold | None:
    """A hold on the temporary queue of this name, for a link that is about to be attached; None where it is none."""
    found = connection.access.temporary_queues.get(queue) if queue is not None else None
    return found.hold() if found is not None else None


class AutoDeleted:
    """The hold of a consumer on a queue that goes with its last one; not when it is the gateway that sends it away."""

    lifetime: Lifetime = Lifetime.DELETE_ON_NO_LINKS

    def __init__(self, connection: Connection, endpoint: Endpoint) -> None:
        self._connection = connection
        self._endpoint = endpoint

    def release(self) -> None:
        connection, endpoint = self._connection, self._endpoint
        if endpoint.flows or connection.container.is_stopping:
            return
        exclusive = connection.access.exclusive_queues.get(endpoint.name)
        if exclusive is not None and exclusive.endpoint is endpoint:
            exclusive.release()
        elif connection.vpn.broker.find(endpoint.name) is endpoint:
            connection.vpn.delete(endpoint)


def hold_of_consumer(connection: Connection, endpoint: Endpoint) -> Hold | None:
    """A hold on the queue that a consumer is about to be bound to; None where the queue does not mind its going."""
    return (
        AutoDeleted(connection, endpoint)
        if endpoint.settings.auto_delete
        else hold_on(connection, endpoint.name)
    )


def temporary_name(kind: str) -> str:
    """A name that nobody else has; Solace's temporary topics and endpoints are called like this."""
    return f"#P2P/{kind}/{secrets.token_urlsafe(16).replace('-', '_')}"


def make_queue(connection: Connection, lifetime: Lifetime) -> tuple[QueueHold, list[Effect]]:
    """A temporary queue for the link that asks for it, and what has to be committed for it."""
    endpoint, effects = connection.vpn.broker.create(
        temporary_name("QTMP"), EndpointKind.QUEUE, EndpointSettings(temporary=True)
    )
    return TemporaryQueue(connection, endpoint, lifetime).hold(is_maker=True), effects


def make_topic_endpoint(
    connection: Connection,
    subscriptions: Sequence[str],
    *,
    known_as: str | None = None,
    no_local: bool = False,
) -> tuple[OwnedEndpoint, list[Effect]]:
    """
    A topic endpoint that lives as long as its link.

    Args:
        known_as: The topic's name for those who send to it.
        no_local: It does not want what its own container publishes.
    """
    name = temporary_name("TETMP")
    settings = EndpointSettings(
        exclusive=Exclusivity.REFUSE, temporary=True, no_local=connection.origin if no_local else ""
    )
    endpoint, effects = connection.vpn.broker.create(
        name, EndpointKind.TOPIC_ENDPOINT, settings, subscriptions
    )
    return OwnedEndpoint(connection, endpoint, known_as or name), effects
