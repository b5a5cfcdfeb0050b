"""
Queues, streams and topic endpoints of a Message VPN: found, made, changed and deleted.

Each command is ordered at once, and durable when ``Committer.committed`` returns that is awaited after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.core.broker import Broker
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import (
    SETTINGS,
    DeadLetterWay,
    EndpointKind,
    EndpointSettings,
    Exclusivity,
    circle_of,
    told,
    way_of,
)
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.committer import Committer
from gateway.vpn.delivery.consumers import Consumers
from gateway.vpn.delivery.feeds import Feeds
from gateway.vpn.delivery.streams import Streams
from gateway.vpn.replay.runner import ReplayRunner
from gateway.vpn.settings import CurrentSettings


def dead_letter_ways(endpoints: Iterable[Endpoint]) -> dict[str, DeadLetterWay]:
    """Where the dead messages of endpoints go, by name, for those whose messages can die."""
    return {
        endpoint.name: DeadLetterWay(endpoint.settings.dead_message_queue, endpoint.topics.matches)
        for endpoint in endpoints
        if endpoint.settings.dead_message_queue and endpoint.kind is not EndpointKind.STREAM
    }


class SenderLink(Protocol):
    """A link that sends to a queue."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""


class Endpoints:
    def __init__(
        self,
        settings: CurrentSettings,
        broker: Broker,
        committer: Committer,
        feeds: Feeds,
        consumers: Consumers,
        streams: Streams,
        replays: ReplayRunner,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._committer = committer
        self._feeds = feeds
        self._consumers = consumers
        self._streams = streams
        self._replays = replays
        self._senders: dict[str, dict[SenderLink, None]] = {}
        """Who sends to queues, by their names."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._broker.endpoints.values())

    def __len__(self) -> int:
        return len(self._broker.endpoints)

    def find(self, name: str) -> Endpoint | None:
        """The endpoint of this name, whatever its kind; None when there is none."""
        return self._broker.endpoints.get(name)

    def is_there(self, endpoint: Endpoint) -> bool:
        """Whether this very endpoint was not deleted meanwhile."""
        return self._broker.endpoints.get(endpoint.name) is endpoint

    @property
    def are_created_on_use(self) -> bool:
        """Whether queues are made on first use."""
        return self._broker.create_queues

    # --- made -----------------------------------------------------------------------------------------------------

    def create(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Sequence[str] = ()
    ) -> Endpoint:
        """
        Make an endpoint, and the dead message queue that its settings name, if there is none.

        Raises:
            Refused: ALREADY_EXISTS, the name is taken; REPLAY_DISABLED, it would be a stream and there is no log;
                INVALID_FIELD, its dead messages would come back to it; RESOURCE_LIMIT, there are too many.
        """
        self._check_dead_message_queue(name, kind, settings, subscriptions)
        if name not in self._broker.endpoints:
            self._check_room(settings)
        if kind is EndpointKind.STREAM:
            self._broker.policy.check_can_be_viewed()
        endpoint, effects = self._broker.create(name, kind, settings, subscriptions)
        self._committer.commit([*effects, *self._dead_message_queue(settings)])
        return endpoint

    def queue_for(
        self,
        name: str,
        *,
        kind: EndpointKind | None = None,
        exclusive: Exclusivity | None = None,
        may_create: bool = True,
    ) -> Endpoint:
        """
        The queue or stream of this name, made on first use.

        Raises:
            Refused: NOT_FOUND where it may not be made; PRECONDITION_FAILED when ``kind`` or ``exclusive`` contradict
                what it is, naming both values; REPLAY_DISABLED, it would be a stream and there is no log;
                RESOURCE_LIMIT, there are too many.
        """
        if may_create and self.are_created_on_use and name not in self._broker.endpoints:
            self._check_room(EndpointSettings())
        endpoint, effects = self._broker.queue_for(
            name, kind=kind, exclusive=exclusive, may_create=may_create
        )
        if effects:
            self._committer.commit(effects)
        return endpoint

    def _check_room(self, settings: EndpointSettings) -> None:
        """That there may be one more endpoint, its dead message queue beside it, and one more of its user's."""
        limits, endpoints = self._settings.vpn, self._broker.endpoints
        dead_message_queue = settings.dead_message_queue
        more = 2 if dead_message_queue and dead_message_queue not in endpoints else 1
        if len(endpoints) + more > limits.max_endpoints:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"the Message VPN has {len(endpoints)} queues and topic endpoints, and may have {limits.max_endpoints}"
                " (max_endpoints)",
            )
        if settings.owner:
            count = sum(endpoint.settings.owner == settings.owner for endpoint in endpoints.values())
            if count >= limits.max_subscriptions_per_user:
                raise Refused(
                    ErrorCode.RESOURCE_LIMIT,
                    f"user {settings.owner!r} has {count} durable subscriptions, and may have"
                    f" {limits.max_subscriptions_per_user} (max_subscriptions_per_user)",
                )

    def _dead_message_queue(self, settings: EndpointSettings) -> list[Effect]:
        name, broker = settings.dead_message_queue, self._broker
        if not name or broker.find(name) is not None:
            return []
        return broker.create(name, EndpointKind.QUEUE, EndpointSettings())[1]

    # --- changed --------------------------------------------------------------------------------------------------

    def change(self, endpoint: Endpoint, settings: EndpointSettings) -> None:
        """
        Change what an endpoint is like; what lies on it stays.

        Raises:
            Refused: NOT_ALLOWED, it cannot change live; INVALID_FIELD, its dead messages would come back to it.
        """
        self._check_dead_message_queue(endpoint.name, endpoint.kind, settings, endpoint.subscriptions)
        for name, setting in SETTINGS.items():
            if setting.fixed and getattr(settings, name) != getattr(endpoint.settings, name):
                raise Refused(
                    ErrorCode.NOT_ALLOWED,
                    f"{name} of {endpoint.name!r} is said when it is made: it {setting.fixed}",
                )
        effects = self._broker.change_settings(endpoint, settings)
        self._committer.commit([*effects, *self._dead_message_queue(settings)])

    def changed(self, endpoint: Endpoint) -> None:
        """A change is durable: consumers, and readers of a stream, go by it now."""
        self._feeds.deliver(endpoint)
        self._streams.settings_changed(endpoint)

    def set_no_local(self, endpoint: Endpoint, origin: str) -> None:
        """
        From now on what this origin publishes is not put on the endpoint; what lies there stays.

        Args:
            origin: See ``Origins``; empty for nobody's.
        """
        if endpoint.settings.no_local != origin:
            settings = replace(endpoint.settings, no_local=origin)
            self._committer.commit(self._broker.change_settings(endpoint, settings))

    def set_subscriptions(self, endpoint: Endpoint, subscriptions: Collection[str]) -> None:
        """
        Make these an endpoint's subscriptions; what lies on it stays, and who reads the log for it goes by them.

        Raises:
            amqp_ext.topics.TopicSyntaxError: One is none.
            Refused: INVALID_FIELD, its dead messages would come back to it.
        """
        if endpoint.settings.dead_message_queue:
            self._check_dead_message_queue(endpoint.name, endpoint.kind, endpoint.settings, subscriptions)
        self._committer.commit(self._broker.set_subscriptions(endpoint, subscriptions))
        self._subscriptions_changed(endpoint)

    def _subscriptions_changed(self, endpoint: Endpoint) -> None:
        self._streams.subscriptions_changed(endpoint)
        self._replays.subscriptions_changed(endpoint)

    def redeclared(self, endpoint: Endpoint) -> None:
        """The configuration says anew what the endpoint is like and subscribes to, which is being committed."""
        self._feeds.deliver(endpoint)
        self._subscriptions_changed(endpoint)

    # --- gone -----------------------------------------------------------------------------------------------------

    def delete(self, endpoint: Endpoint) -> None:
        """The endpoint is gone with what lies on it; those that consume from it, or send to it, are told."""
        deleted = Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted")
        self._committer.commit(self.forget(endpoint, deleted))

    def forget(self, endpoint: Endpoint, told: Refused) -> list[Effect]:
        """
        The same, where somebody else deletes it from the store, or what is returned does.

        Args:
            told: What those that consume from it, or send to it, are told.
        """
        self._consumers.displace_all(endpoint, told)
        for sender in self._senders.pop(endpoint.name, ()):
            sender.refuse(told)
        self._feeds.forget(endpoint)
        self._replays.forget(endpoint)
        return self._broker.delete(endpoint)

    def sender_came(self, queue: str, sender: SenderLink) -> None:
        """A link sends to a queue from now on: it is detached when that is deleted."""
        self._senders.setdefault(queue, {})[sender] = None

    def sender_left(self, queue: str, sender: SenderLink) -> None:
        """It is gone. Twice does no harm."""
        senders = self._senders.get(queue)
        if senders is not None:
            senders.pop(sender, None)
            if not senders:
                del self._senders[queue]

    def purge(self, endpoint: Endpoint) -> int:
        """
        Drop everything that lies on a queue or topic endpoint, what consumers have not settled among it; the log
        keeps it.

        Returns:
            How many messages that were, without those on their way (``Backlog.take_dropped_on_way``).

        Raises:
            Refused: PRECONDITION_FAILED, a replay is under way.
        """
        count, effects = self._broker.purge(endpoint)
        self._feeds.of(endpoint).clear()
        self._committer.commit(effects)
        return count

    def _check_dead_message_queue(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Iterable[str]
    ) -> None:
        queue = settings.dead_message_queue
        if queue == name:
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"{name!r} cannot be its own dead message queue: its dead messages would come back; name another",
            )
        way = way_of(name, kind, queue, subscriptions)
        if way is None:
            return
        circle = circle_of(name, {**dead_letter_ways(self), name: way})
        if circle:
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"dead messages of {name!r} would come back to it, from {told(circle)}; have them end somewhere",
            )
