"""
Queues, streams and topic endpoints of a Message VPN: find, create, change and delete them, and declare those of the
configuration.

Each command changes the broker immediately; await ``Committer.committed`` after it, and it is durable.

Invariant: a changed configuration loses no message. If a queue with messages is to become a stream, which holds none,
the gateway does not start. A stream may become a queue: its messages are in the log, as before.
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
        """By queue: the functions that detach the links which send to it."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._broker.endpoints.values())

    def is_there(self, endpoint: Endpoint) -> bool:
        """Whether this endpoint still exists, and not another one of its name."""
        return self._broker.endpoints.get(endpoint.name) is endpoint

    # --- made -----------------------------------------------------------------------------------------------------

    def create(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Sequence[str] = ()
    ) -> Endpoint:
        """
        Create an endpoint, and the dead message queue that its settings name, if that does not exist.

        Raises:
            Refused: ALREADY_EXISTS, the name is taken; REPLAY_DISABLED, it would be a stream and there is no log;
                INVALID_FIELD, its dead messages would come back to it, or it sets the age of a window of ids without a
                window; RESOURCE_LIMIT, there are too many endpoints, or windows of ids would be too large.
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
        The queue or stream of this name, created on first use.

        Raises:
            Refused: NOT_FOUND, it does not exist and may not be created; PRECONDITION_FAILED, ``kind`` or ``exclusive``
                contradict its settings (the text names both values); REPLAY_DISABLED, it would be a stream and there is
                no log; RESOURCE_LIMIT, there are too many endpoints.
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
        The queue or stream at an address, created if that is allowed; await its commit.

        Args:
            kind: The kind, if the address does not say one.

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
        """Check that the limits allow one more endpoint, with its dead message queue, and one more of its user."""
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
        Change an endpoint's settings; its messages stay.

        Raises:
            Refused: NOT_ALLOWED, a setting cannot change after the creation; otherwise as ``create``.
        """
        self._check_dead_message_queue(endpoint.name, endpoint.kind, settings, endpoint.subscriptions)
        for name, setting in SETTINGS.items():
            if setting.fixed and getattr(settings, name) != getattr(endpoint.settings, name):
                raise Refused(
                    ErrorCode.NOT_ALLOWED,
                    f"{name} of {endpoint.name!r} can only be set when the endpoint is created: it "
                    f"{setting.fixed}",
                )
        self._broker.dedup.check(endpoint.number, settings.dedup_window, settings.dedup_window_ms)
        effects = self._broker.change_settings(endpoint, settings)
        self._committer.commit([*effects, *self._dead_message_queue(settings)])

    def changed(self, endpoint: Endpoint) -> None:
        """A change is durable: apply it to consumers, and to readers of a stream."""
        self._feeds.changed(endpoint)
        self._streams.settings_changed(endpoint)

    def set_no_local(self, endpoint: Endpoint, origin: str) -> None:
        """
        From now on, put no messages on the endpoint that this origin publishes; messages there stay.

        Args:
            origin: See ``Origins``; empty for no origin.
        """
        if endpoint.settings.no_local != origin:
            settings = replace(endpoint.settings, no_local=origin)
            self._committer.commit(self._broker.change_settings(endpoint, settings))

    def set_subscriptions(self, endpoint: Endpoint, subscriptions: Collection[str]) -> None:
        """
        Set an endpoint's subscriptions; its messages stay, and its readers and replays continue by the new ones.

        Raises:
            amqp_ext.topics.TopicSyntaxError: One is invalid.
            Refused: INVALID_FIELD, its dead messages would come back to it.
        """
        if endpoint.settings.dead_message_queue:
            self._check_dead_message_queue(endpoint.name, endpoint.kind, endpoint.settings, subscriptions)
        self._committer.commit(self._broker.set_subscriptions(endpoint, subscriptions))
        self._subscriptions_changed(endpoint)

    def _subscriptions_changed(self, endpoint: Endpoint) -> None:
        self._streams.subscriptions_changed(endpoint)
        self._replays.subscriptions_changed(endpoint)

    # --- gone -----------------------------------------------------------------------------------------------------

    def delete(self, endpoint: Endpoint) -> None:
        """Delete the endpoint with its messages; links that consume from it or send to it are detached."""
        deleted = Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted")
        self._committer.commit(self.forget(endpoint, deleted))

    def forget(self, endpoint: Endpoint, told: Refused) -> list[Effect]:
        """
        The same, if somebody else deletes it from the store, or the returned effects do.

        Args:
            told: The error for the links that consume from it or send to it.
        """
        self._consumers.displace_all(endpoint, told)
        for refuse in self._senders.pop(endpoint.name, ()):
            refuse(told)
        self._feeds.forget(endpoint)
        self._replays.forget(endpoint)
        return self._broker.delete(endpoint)

    def sender_came(self, queue: str, refuse: Callable[[Refused], None]) -> None:
        """A link sends to a queue from now on: ``refuse`` detaches it when the queue is deleted."""
        self._senders.setdefault(queue, {})[refuse] = None

    def sender_left(self, queue: str, refuse: Callable[[Refused], None]) -> None:
        """The link is gone. A second call does no harm."""
        senders = self._senders.get(queue)
        if senders is not None:
            senders.pop(refuse, None)
            if not senders:
                del self._senders[queue]

    def purge(self, endpoint: Endpoint) -> int:
        """
        Drop all messages of a queue or topic endpoint, including those that are unsettled at consumers; the log keeps
        them.

        Returns:
            How many those were, without the ones that are being committed (``Backlog.take_dropped_on_way``).

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
                f"{name!r} cannot be its own dead message queue: its dead messages would come back; name "
                "another queue",
            )
        way = way_of(name, kind, queue, subscriptions)
        if way is None:
            return
        circle = circle_of(name, {**_dead_letter_ways(self), name: way})
        if circle:
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"dead messages of {name!r} would come back to it, from {told(circle)}; give one of them "
                "another dead message queue",
            )

    # --- declared by the configuration ---------------------------------------------------------------------------

    def check_declared(self, queues: Mapping[str, Queue]) -> None:
        """
        Check that the existing endpoints can become what the configuration declares.

        Raises:
            StoreError: Messages would be lost, or dead messages would come back for ever.
        """
        for name, queue in queues.items():
            found = self.by_name.get(name)
            if found is None or found.kind.value == queue.kind:
                continue
            if found.kind is EndpointKind.TOPIC_ENDPOINT:
                cause = (
                    f"{name!r} is a durable topic endpoint there, and the configuration declares it as a "
                    f"{queue.kind}"
                )
                hint = "Give the queue another name, or have the subscription's owner unsubscribe first"
            elif found.depth and not found.kind.is_view:
                cause = (
                    f"{name!r} is a {found.kind.value} there with messages on it ({found.depth}), and the "
                    f"configuration declares it as a {queue.kind}, which holds none"
                )
                hint = f'Start with kind = "{found.kind.value}" and have them consumed first, or give it another name'
            else:
                continue
            raise StoreError("cannot declare the queues of", self._place, cause, hint)
        for name, others in self._oversized(queues):
            cause = (
                f"the queues other than {name!r} have dedup_windows of {others} messages together, and with "
                f"it more than {MOST_IDS}"
            )
            hint = "Reduce the `dedup_window` of some, or delete queues that administrators have created"
            raise StoreError("cannot declare the queues of", self._place, cause, hint)
        for name, circle in self._circles(queues):
            cause = f"dead messages of {name!r} would come back to it, from {told(circle)}"
            hint = "Remove `dead_message_queue` from one of them that the configuration names"
            raise StoreError("cannot declare the queues of", self._place, cause, hint)

    def _circles(self, queues: Mapping[str, Queue]) -> Iterator[tuple[str, list[str]]]:
        """Declared queues whose dead messages would come back to them, also by way of undeclared queues."""
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
        """Declared queues whose windows of ids are too large together with all others, and the size of these others."""
        there = {endpoint.name: endpoint.settings.dedup_window for endpoint in self}
        taken = sum(there.values())
        # Windows that become smaller come first.
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
        Change queues to what is declared now. A queue that is no longer declared stays, and administrators may change
        it.

        Args:
            before: The queues that were declared until now.
            refused: Gets the differences that cannot be applied while the gateway runs.

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
            reason = f"does not fit: other windows have {others}, and all together may have {MOST_IDS}"
            refuse(name, "dedup_window", reason)
        changed = {name: queue for name, queue in fitting.items() if before.get(name) != queue}
        self.declare(changed)
        for name in before.keys() - queues.keys():
            found = broker.endpoints.get(name)
            if found is not None:
                self._committer.commit(broker.change_settings(found, replace(found.settings, declared=False)))
        for endpoint in [broker.endpoints[name] for name in changed]:
            self._feeds.changed(endpoint)
            self._subscriptions_changed(endpoint)
        return fitting

    def declare(self, queues: Mapping[str, Queue]) -> None:
        """Create declared queues that do not exist, and change the others to what is declared; that was checked."""
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
                # The store rearranged the queue's messages by its priorities when it was opened.
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
