"""
Routing by topic: to which endpoints messages of a topic go, whether the replay log takes them, and the routes by which
messages name their endpoints.

A route is a set of endpoints that messages are put on, interned, so that a message names its set by one number. What is
done for a publication is done once for its route, however many endpoints that has: those that nobody consumes from at
the moment are told nothing, and learn from the route what there is when they ask. Invariant: every number that a stored
message may name and that an endpoint still cares for is one of ``RouteTable``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from amqp_ext.addresses.address import queue_of_topic, topic_endpoint_of_topic
from amqp_ext.topics import SubscriptionTrie, TopicPattern
from gateway.core.effects import CountedUpTo, Effect, StoredRoute
from gateway.core.endpoint.backlog import RoutedMessages
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.model import LogState, RouteDefinition


class Route(RoutedMessages):
    """A set of endpoints, and the priority of the messages where one of them looks at it."""

    __slots__ = ("_awake", "definition", "endpoints", "merged_into")

    def __init__(
        self, definition: RouteDefinition, endpoints: tuple[Endpoint, ...], newest_id: int = 0
    ) -> None:
        super().__init__(definition.number, definition.priority, newest_id)
        self.definition = definition
        """What new messages name."""
        self.endpoints = endpoints
        self._awake: tuple[Endpoint, ...] | None = None
        self.merged_into: Route | None = None
        """The route that is the same since an endpoint is gone."""

    @property
    def awake(self) -> tuple[Endpoint, ...]:
        """Those of its endpoints that are awake: they are told of each message."""
        if self._awake is None:
            self._awake = tuple(endpoint for endpoint in self.endpoints if endpoint.is_awake)
        return self._awake

    def endpoints_changed(self) -> None:
        self._awake = None

    def current(self) -> Route:
        """This route, or the one it has been merged into."""
        route = self
        while route.merged_into is not None:
            route = route.merged_into
        return route

    def add(self, messages: int, size_bytes: int, newest_id: int) -> None:
        """Messages of it are durable."""
        self.messages += messages
        self.size_bytes += size_bytes
        self.newest_id = max(self.newest_id, newest_id)


class RouteTable:
    """All routes of a Message VPN."""

    def __init__(self) -> None:
        self._routes: dict[tuple[tuple[int, ...], int | None], Route] = {}
        self._next_number = 1

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def restore(self, routes: Sequence[StoredRoute], by_number: Mapping[int, Endpoint]) -> None:
        """Routes that messages in the store may name; endpoints that are gone are left out."""
        self._next_number = max((route.definition.number + 1 for route in routes), default=1)
        for definition, newest_id in routes:
            endpoints = [by_number[number] for number in definition.endpoints if number in by_number]
            if endpoints:
                self._restore(definition, endpoints, newest_id)

    def _restore(self, definition: RouteDefinition, endpoints: Sequence[Endpoint], newest_id: int) -> None:
        key = (tuple(endpoint.number for endpoint in endpoints), definition.priority)
        known = self._routes.get(key)
        if known is not None:
            known.numbers.append(definition.number)
            known.newest_id = max(known.newest_id, newest_id)
            return
        if len(endpoints) == len(definition.endpoints):
            self._add(key, Route(definition, tuple(endpoints), newest_id))
            return
        route = self.intern(endpoints, definition.priority)
        route.numbers.append(definition.number)
        route.newest_id = newest_id

    def intern(self, endpoints: Iterable[Endpoint], priority: int | None) -> Route:
        """The route to these endpoints, which are in the order of their numbers."""
        endpoints = tuple(endpoints)
        key = (tuple(endpoint.number for endpoint in endpoints), priority)
        route = self._routes.get(key)
        if route is None:
            route = Route(RouteDefinition(self._next_number, *key), endpoints)
            self._next_number += 1
            self._add(key, route)
        return route

    def _add(self, key: tuple[tuple[int, ...], int | None], route: Route) -> None:
        self._routes[key] = route
        for endpoint in route.endpoints:
            endpoint.backlog.add_route(route)

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        """An endpoint is gone: routes that differed by it alone are one from now on."""
        for routed in list(endpoint.backlog.routes):
            assert isinstance(routed, Route)
            route = routed
            del self._routes[route.definition.endpoints, route.definition.priority]
            left = tuple(other for other in route.endpoints if other is not endpoint)
            if not left:
                continue
            # Messages that name its number are those of the others as before; new ones name another.
            same = self.intern(left, route.priority)
            same.numbers += route.numbers
            same.add(route.messages, route.size_bytes, route.newest_id)
            route.merged_into = same
            for other in left:
                other.backlog.remove_route(route)

    def sweep(self, in_use: set[int]) -> None:
        """
        Forget routes that no endpoint has messages by any more.

        Args:
            in_use: Numbers of those that the next message may name, or one that is not committed yet does.
        """
        for key, route in list(self._routes.items()):
            if route.definition.number in in_use:
                continue
            if all(endpoint.backlog.is_done_with(route) for endpoint in route.endpoints):
                del self._routes[key]
                for endpoint in route.endpoints:
                    endpoint.backlog.retire_route(route)


UNCOUNTED_IDS: Final = 100_000
"""Ids that a start may have to look at in vain, where nothing came to any endpoint."""


class BacklogCounts:
    """
    How much lies on endpoints, as far as the store knows it: what messages were put on is counted once in a while.

    Invariant: what the store is told of an endpoint by others speaks of the last committed id, too.
    """

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._grown: dict[Route, None] = {}
        """Routes that messages came by since everything was counted."""
        self.uncounted: list[Endpoint] = []
        """Endpoints of which the store knew less, when this began, than was there."""
        self._counted_id = 0

    def grew(self, route: Route) -> None:
        """Messages came by a route."""
        self._grown[route] = None

    def effects(self) -> list[Effect]:
        """
        Have the store know how much lies on endpoints to which messages came since the last time, so that a start has
        little to count; nothing where that is known.
        """
        newest_id = self._log.newest_id
        grown = dict.fromkeys(self.uncounted)
        self.uncounted.clear()
        for route in self._grown:
            grown.update(dict.fromkeys(route.current().endpoints))
        self._grown.clear()
        effects: list[Effect] = []
        for endpoint in grown:
            effects += endpoint.backlog.count_effects(newest_id)
        if newest_id > self._counted_id and (effects or newest_id - self._counted_id > UNCOUNTED_IDS):
            self._counted_id = newest_id
            effects.append(CountedUpTo(newest_id))
        return effects


CACHED_TOPICS: Final = 10_000
"""Topics whose routing is remembered; the cache starts anew when it is full or a subscription changes."""

CACHED_ORIGINS: Final = 1_000
"""Origins whose view of a topic is remembered; then that starts anew."""


class FanOut:
    """
    The endpoints that a message of a topic is put on, and its route.

    Args:
        endpoints: In the order of their numbers.
    """

    __slots__ = ("_routes", "endpoints", "is_ranked", "limited", "route", "table")

    def __init__(self, endpoints: tuple[Endpoint, ...], table: RouteTable) -> None:
        self.endpoints = endpoints
        self.limited = tuple(e for e in endpoints if e.settings.has_quota)
        """Those whose room is counted."""
        self.is_ranked = any(e.settings.priorities for e in endpoints)
        """Some of them deliver by priority: messages of each have a route."""
        self.table = table
        self.route = table.intern(endpoints, None) if endpoints and not self.is_ranked else None
        """The one route of its messages; None where there is none, or one for each priority."""
        self._routes: dict[int, Route] = {}

    def ranked(self, priority: int) -> Route:
        """The route of messages of a priority."""
        route = self._routes.get(priority)
        if route is None:
            route = self._routes[priority] = self.table.intern(self.endpoints, priority)
        return route

    @property
    def numbers(self) -> Iterator[int]:
        """Those of its routes that may be named by the next message."""
        if self.route is not None:
            yield self.route.definition.number
        for route in self._routes.values():
            yield route.definition.number


class TopicRouting(NamedTuple):
    """Where messages of one topic go."""

    checked: tuple[Endpoint, ...]
    """Those of the endpoints that match which take messages of some size only, or have a quota."""
    all: FanOut
    """All endpoints that match: where they go if the log does not take them."""
    live: FanOut
    """Those that do not replay at the moment: the others get what the log takes from there."""
    logged: bool
    is_picky: bool
    """Some endpoint leaves out what comes from its subscriber's own container."""
    numbers: tuple[int, ...]
    """Of all endpoints whose topic it is, streams among them."""
    by_origin: dict[str, TopicRouting]
    """The same as seen from origins that some endpoint leaves out, as far as they were asked for."""

    @classmethod
    def to(
        cls, endpoints: tuple[Endpoint, ...], table: RouteTable, numbers: tuple[int, ...], *, logged: bool
    ) -> TopicRouting:
        """Messages go to these, which are in the order of their numbers; ``numbers`` has the streams' too."""
        everyone = live = FanOut(endpoints, table)
        caught_up = tuple(e for e in endpoints if e.replay is None or not e.replay.is_behind)
        if len(caught_up) < len(endpoints):
            live = FanOut(caught_up, table)
        checked = tuple(e for e in endpoints if e.settings.max_message_bytes or e.settings.has_quota)
        return cls(checked, everyone, live, logged, any(e.settings.no_local for e in endpoints), numbers, {})

    def seen_from(self, origin: str) -> TopicRouting:
        """Without the endpoints that do not want what this origin publishes."""
        routing = self.by_origin.get(origin)
        if routing is None:
            if len(self.by_origin) >= CACHED_ORIGINS:
                self.by_origin.clear()
            wanting = tuple(e for e in self.all.endpoints if e.settings.no_local != origin)
            routing = self
            if len(wanting) < len(self.all.endpoints):
                routing = TopicRouting.to(wanting, self.all.table, self.numbers, logged=self.logged)
            self.by_origin[origin] = routing
        return routing


class Router:
    """
    Args:
        endpoints: All of a Message VPN, by name.
        is_logged: Whether the replay log takes a topic.
        table: Where routes are interned.
    """

    def __init__(
        self, endpoints: Mapping[str, Endpoint], is_logged: Callable[[str], bool], table: RouteTable
    ) -> None:
        self.cached: dict[str, TopicRouting] = {}
        """What is known, by topic; ``route`` finds all others. To be cleared whenever something else changes that
        routing looks at: endpoints, settings, replays, the log's policy."""
        self._table = table
        self._endpoints = endpoints
        self._is_logged = is_logged
        # A first-level wildcard leaves traffic sent to other queues by name alone.
        self._trie: SubscriptionTrie[str] = SubscriptionTrie(reserved=False)

    def add(self, pattern: TopicPattern, name: str) -> None:
        """An endpoint subscribes to this."""
        self._trie.add(pattern, name)
        self.cached.clear()

    def remove(self, pattern: TopicPattern, name: str) -> None:
        """An endpoint does not subscribe to this any more."""
        self._trie.remove(pattern, name)
        self.cached.clear()

    def remove_all(self, name: str) -> None:
        """An endpoint is gone."""
        self._trie.remove_all(name)
        self.cached.clear()

    def subscribers(self, topic: str) -> list[Endpoint]:
        """Those of which a topic is one, streams among them, for whoever asks: nothing is made ready for messages."""
        found = {name: self._endpoints[name] for name in self._trie.match(topic)}
        own = self._endpoints.get(queue_of_topic(topic) or "")
        if own is not None and own.kind is not EndpointKind.TOPIC_ENDPOINT:
            found[own.name] = own
        return list(found.values())

    def route(self, topic: str) -> TopicRouting:
        """Where messages of a topic go; remembered."""
        # A view is read out of the log: nothing is put on it.
        found = [self._endpoints[name] for name in self._trie.match(topic)]
        matched = {endpoint for endpoint in found if not endpoint.kind.is_view}
        for name, kind in (
            (queue_of_topic(topic), EndpointKind.QUEUE),
            (topic_endpoint_of_topic(topic), EndpointKind.TOPIC_ENDPOINT),
        ):
            own = self._endpoints.get(name or "")
            if own is not None and own.kind is kind:
                matched.add(own)
        if len(self.cached) >= CACHED_TOPICS:
            self.cached.clear()
        endpoints = tuple(sorted(matched, key=lambda endpoint: endpoint.number))
        numbers = tuple(
            sorted({endpoint.number for endpoint in (*found, *matched, *self.subscribers(topic))})
        )
        routing = TopicRouting.to(endpoints, self._table, numbers, logged=self._is_logged(topic))
        self.cached[topic] = routing
        return routing

    def sweep(self) -> None:
        """Forget routes that no endpoint has messages by any more; nothing is on its way."""
        in_use = {
            number
            for cached in self.cached.values()
            for routing in (cached, *cached.by_origin.values())
            for fan_out in (routing.all, routing.live)
            for number in fan_out.numbers
        }
        self._table.sweep(in_use)
