"""
Queues, streams and topic endpoints of a Message VPN: found, made, changed, deleted, and declared by the configuration.

Each command is ordered at once, and durable when ``Committer.committed`` returns that is awaited after it.

Invariant: a changed configuration loses no message. A queue on which messages lie does not become a stream, which holds
none: the gateway does not start. A stream may become a queue: its messages are in the log, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from amqp_ext.addresses.address import Address
from gateway.config import Difference, Queue
from gateway.config.toml import dotted, literal
from gateway.config.vpn import QUEUE_KEYS
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import (
    MOST_IDS,
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
from gateway.vpn.consumers import Consumers, Streams
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.replays import ReplayRunner
from gateway.vpn.state import VpnPart, VpnState
from store.errors import StoreError


class Endpoints(VpnPart):
    def __init__(
        self, state: VpnState, feeds: Feeds, consumers: Consumers, streams: Streams, replays: ReplayRunner
    ) -> None:
        super().__init__(state)
        self._vpn = state.name
        self._place = state.store.place
        self.by_name: Mapping[str, Endpoint] = state.broker.endpoints
        self._feeds = feeds
        self._consumers = consumers
        self._streams = streams
        self._replays = replays
        self._senders: dict[str, dict[Callable[[Refused], None], None]] = {}
        """What detaches the links that send to queues, by their names."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._broker.endpoints.values())

    def is_there(self, endpoint: Endpoint) -> bool:
        """Whether this very endpoint was not deleted meanwhile."""
        return self._broker.endpoints.get(endpoint.name) is endpoint

    # --- made -----------------------------------------------------------------------------------------------------

    def create(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Sequence[str] = ()
    ) -> Endpoint:
        """
        Make an endpoint, and the dead message queue that its settings name, if there is none.

        Raises:
            Refused: ALREADY_EXISTS, the name is taken; REPLAY_DISABLED, it would be a stream and there is no log;
                INVALID_FIELD, its dead messages would come back to it, or an age is said for a window of ids that it
                has not; RESOURCE_LIMIT, there are too many, or windows of ids would be too large.
        """
        self._check_dead_message_queue(name, kind, settings, subscriptions)
        if name not in self._broker.endpoints:
            self._check_room(settings)
            self._broker.dedup.check(0, settings.dedup_window, settings.dedup_window_ms)
        if kind.is_view:
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
        if may_create and self._broker.create_queues and name not in self._broker.endpoints:
            self._check_room(EndpointSettings())
        endpoint, effects = self._broker.queue_for(
            name, kind=kind, exclusive=exclusive, may_create=may_create
        )
        if effects:
            self._committer.commit(effects)
        return endpoint

    def queue_at(self, address: Address, kind: EndpointKind | None = None) -> Endpoint:
        """
        The queue or stream at an address, made where that is allowed; await that it is committed.

        Args:
            kind: Of one that the address does not say the kind of.

        Raises:
            Refused: As ``queue_for``.
        """
        options = address.options
        return self.queue_for(
            address.name,
            kind=EndpointKind(options["kind"]) if "kind" in options else kind,
            exclusive=Exclusivity(options["exclusive"]) if "exclusive" in options else None,
            may_create=options.get("create") != "never",
        )

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
        if not name or broker.endpoints.get(name) is not None:
            return []
        return broker.create(name, EndpointKind.QUEUE, EndpointSettings())[1]

    # --- changed --------------------------------------------------------------------------------------------------

    def change(self, endpoint: Endpoint, settings: EndpointSettings) -> None:
        """
        Change what an endpoint is like; what lies on it stays.

        Raises:
            Refused: NOT_ALLOWED, it cannot change live; otherwise as ``create`` has it.
        """
        self._check_dead_message_queue(endpoint.name, endpoint.kind, settings, endpoint.subscriptions)
        for name, setting in SETTINGS.items():
            if setting.fixed and getattr(settings, name) != getattr(endpoint.settings, name):
                raise Refused(
                    ErrorCode.NOT_ALLOWED,
                    f"{name} of {endpoint.name!r} is said when it is made: it {setting.fixed}",
                )
        self._broker.dedup.check(endpoint.number, settings.dedup_window, settings.dedup_window_ms)
        effects = self._broker.change_settings(endpoint, settings)
        self._committer.commit([*effects, *self._dead_message_queue(settings)])

    def changed(self, endpoint: Endpoint) -> None:
        """A change is durable: consumers, and readers of a stream, go by it now."""
        self._feeds.changed(endpoint)
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
        self._feeds.changed(endpoint)
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
        for refuse in self._senders.pop(endpoint.name, ()):
            refuse(told)
        self._feeds.forget(endpoint)
        self._replays.forget(endpoint)
        return self._broker.delete(endpoint)

    def sender_came(self, queue: str, refuse: Callable[[Refused], None]) -> None:
        """A link sends to a queue from now on: ``refuse`` detaches it when that is deleted."""
        self._senders.setdefault(queue, {})[refuse] = None

    def sender_left(self, queue: str, refuse: Callable[[Refused], None]) -> None:
        """It is gone. Twice does no harm."""
        senders = self._senders.get(queue)
        if senders is not None:
            senders.pop(refuse, None)
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
        self._feeds.of(endpoint).kept.clear()
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
        circle = circle_of(name, {**_dead_letter_ways(self), name: way})
        if circle:
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"dead messages of {name!r} would come back to it, from {told(circle)}; have them end somewhere",
            )

    # --- declared by the configuration ---------------------------------------------------------------------------

    def check_declared(self, queues: Mapping[str, Queue]) -> None:
        """
        Whether what is there can become what the configuration declares.

        Raises:
            StoreError: It would cost messages, or bring dead ones back for ever.
        """
        for name, queue in queues.items():
            found = self.by_name.get(name)
            if found is None or found.kind.value == queue.kind:
                continue
            if found.kind is EndpointKind.TOPIC_ENDPOINT:
                cause = f"it keeps {name!r} as a durable topic endpoint, and the configuration makes it a {queue.kind}"
                hint = "Give the queue another name, or have the subscription's owner unsubscribe first"
            elif found.depth and not found.kind.is_view:
                cause = (
                    f"it keeps {name!r} as a {found.kind.value} with messages on it ({found.depth}), "
                    f"and the configuration makes it a {queue.kind}, which holds none"
                )
                hint = f'Start with kind = "{found.kind.value}" and have them consumed first, or give it another name'
            else:
                continue
            raise StoreError("cannot declare the queues of", self._place, cause, hint)
        for name, others in self._oversized(queues):
            cause = (
                f"its queues have a dedup_window of {others} messages together without {name!r}, and with that more "
                f"than {MOST_IDS}"
            )
            hint = "Make `dedup_window` of some smaller, or delete queues that administrators have made"
            raise StoreError("cannot declare the queues of", self._place, cause, hint)
        for name, circle in self._circles(queues):
            cause = f"dead messages of {name!r} would come back to it, from {told(circle)}"
            hint = "Take `dead_message_queue` from one of them that the configuration names"
            raise StoreError("cannot declare the queues of", self._place, cause, hint)

    def _circles(self, queues: Mapping[str, Queue]) -> Iterator[tuple[str, list[str]]]:
        """Declared queues whose dead messages would come back to them, by way of what administrators made, too."""
        ways = {name: way for name, way in _dead_letter_ways(self).items() if name not in queues}
        for name, queue in queues.items():
            kind = EndpointKind(queue.kind)
            way = way_of(name, kind, queue.settings.dead_message_queue, queue.subscriptions)
            if way is not None:
                ways[name] = way
        for name in queues:
            circle = circle_of(name, ways)
            if circle:
                yield name, circle

    def _oversized(self, queues: Mapping[str, Queue]) -> Iterator[tuple[str, int]]:
        """Declared queues whose windows of ids find no room beside all others, and how much those have."""
        there = {endpoint.name: endpoint.settings.dedup_window for endpoint in self}
        taken = sum(there.values())
        # Those first that become smaller.
        for name, queue in sorted(
            queues.items(), key=lambda one: one[1].settings.dedup_window - there.get(one[0], 0)
        ):
            others = taken - there.get(name, 0)
            if others + queue.settings.dedup_window <= MOST_IDS:
                taken = others + queue.settings.dedup_window
            elif queue.settings.dedup_window > there.get(name, 0):
                yield name, others

    def redeclare(
        self, before: Mapping[str, Queue], queues: Mapping[str, Queue], refused: list[Difference]
    ) -> dict[str, Queue]:
        """
        Bring queues to what is declared of them now; one that is declared no longer stays, and is the administrators'.

        Args:
            before: The queues that were declared until now.
            refused: Gets what cannot be as long as the gateway runs.

        Returns:
            The queues that are as they are declared.
        """
        fitting, broker = dict(queues), self._broker
        for name, queue in queues.items():
            found = broker.endpoints.get(name)
            if found is None:
                continue
            path = dotted(["vpn", self._vpn, "queue", name])
            if found.kind.value != queue.kind:
                del fitting[name]
                refused.append(
                    Difference(
                        path, f"a {found.kind.value}", f"a {queue.kind}", "is the name of another endpoint"
                    )
                )
                continue
            for key in QUEUE_KEYS:
                there, asked = key.value_of(found.settings), key.value_of(queue.settings)
                if key.setting.fixed and there != asked:
                    fitting.pop(name, None)
                    reason = key.setting.fixed
                    refused.append(Difference(f"{path}.{key.key}", literal(there), literal(asked), reason))

        def refuse(name: str, key: str, reason: str) -> None:
            path, found = dotted(["vpn", self._vpn, "queue", name, key]), broker.endpoints.get(name)
            was = "not there" if found is None else literal(getattr(found.settings, key))
            asked = literal(getattr(fitting.pop(name).settings, key))
            refused.append(Difference(path, was, asked, reason))

        for name, circle in list(self._circles(fitting)):
            reason = f"would bring dead messages back, from {told(circle)}"
            refuse(name, "dead_message_queue", reason)
        for name, others in list(self._oversized(fitting)):
            reason = f"finds no room beside others of {others}: all together are {MOST_IDS} at most"
            refuse(name, "dedup_window", reason)
        changed = {name: queue for name, queue in fitting.items() if before.get(name) != queue}
        self.declare(changed)
        for name in before.keys() - queues.keys():
            found = broker.endpoints.get(name)
            if found is not None:
                self._committer.commit(broker.change_settings(found, replace(found.settings, declared=False)))
        for name in changed:
            self.redeclared(broker.endpoints[name])
        return fitting

    def declare(self, queues: Mapping[str, Queue]) -> None:
        """Make what is declared and not there, and bring what is there to what is declared; it was checked."""
        broker = self._broker
        effects: list[Effect] = []
        for name, queue in queues.items():
            settings, kind = replace(queue.settings, declared=True), EndpointKind(queue.kind)
            found: Endpoint | None = broker.endpoints.get(name)
            if found is not None and found.kind is not kind:
                effects += broker.delete(found)
                found = None
            if found is None:
                effects += broker.create(name, kind, settings, list(queue.subscriptions))[1]
            else:
                # The store has seen to it: what lies on it was arranged before it was read.
                assert found.settings.priorities == settings.priorities
                purged = found.settings
                settings = replace(settings, purged_below=purged.purged_below, purged_ms=purged.purged_ms)
                effects += broker.change_settings(found, settings)
                effects += broker.set_subscriptions(found, queue.subscriptions)
        for name in {queue.settings.dead_message_queue for queue in queues.values()} - {""}:
            if broker.endpoints.get(name) is None:
                effects += broker.create(name, EndpointKind.QUEUE, EndpointSettings())[1]
        self._committer.commit(effects)


def _dead_letter_ways(endpoints: Iterable[Endpoint]) -> dict[str, DeadLetterWay]:
    """Where the dead messages of endpoints go, by name, for those whose messages can die."""
    return {
        endpoint.name: DeadLetterWay(endpoint.settings.dead_message_queue, endpoint.topics.matches)
        for endpoint in endpoints
        if endpoint.settings.dead_message_queue and not endpoint.kind.is_view
    }
