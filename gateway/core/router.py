"""
Routing by topic: which endpoints get the messages of a topic, whether the replay log takes them, and which route the
messages name.

A route is a set of endpoints that messages are put on. Each different set has one number, so a message names its
endpoints by one number. The work for a publication is done once for its route, however many endpoints the route has. An
endpoint without consumers is not notified; it reads its messages from the route when a consumer comes. Invariant:
``RouteTable`` has every number that a stored message may name, if an endpoint still needs the message.
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
    """A set of endpoints, and the priority of its messages if one of the endpoints delivers by priority."""

    __slots__ = ("_awake", "definition", "endpoints", "merged_into")

    def __init__(
        self, definition: RouteDefinition, endpoints: tuple[Endpoint, ...], newest_id: int = 0
    ) -> None:
        super().__init__(definition.number, definition.priority, newest_id)
        self.definition = definition
        """The number that new messages name, and what it stands for."""
        self.endpoints = endpoints
        self._awake: tuple[Endpoint, ...] | None = None
        self.merged_into: Route | None = None
        """The route to the same endpoints, since an endpoint was deleted."""

    @property
    def awake(self) -> tuple[Endpoint, ...]:
        """The route's endpoints that are awake: they are notified of each publication."""
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
        """Count messages of the route that are durable."""
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
        """Take over the routes that stored messages may name, without endpoints that are deleted."""
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
        """The route to these endpoints, made if it does not exist. The endpoints are in the order of their numbers."""
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
        """An endpoint was deleted: merge the routes that differed only by it."""
        for routed in list(endpoint.backlog.routes):
            assert isinstance(routed, Route)
            route = routed
            del self._routes[route.definition.endpoints, route.definition.priority]
            left = tuple(other for other in route.endpoints if other is not endpoint)
            if not left:
                continue
            # Stored messages that name the old number stay with the other endpoints; new messages name the new number.
            same = self.intern(left, route.priority)
            same.numbers += route.numbers
            same.add(route.messages, route.size_bytes, route.newest_id)
            route.merged_into = same
            for other in left:
                other.backlog.remove_route(route)

    def sweep(self, in_use: set[int]) -> None:
        """
        Forget routes by which no endpoint has messages any more.

        Args:
            in_use: Numbers of routes that the next message may name, or that uncommitted messages name.
        """
        for key, route in list(self._routes.items()):
            if route.definition.number in in_use:
                continue
            if all(endpoint.backlog.is_done_with(route) for endpoint in route.endpoints):
                del self._routes[key]
                for endpoint in route.endpoints:
                    endpoint.backlog.retire_route(route)


UNCOUNTED_IDS: Final = 100_000
"""How many ids a start may have to look at in vain, if no endpoint got messages."""


class BacklogCounts:
    """
    The counts of the endpoints' messages in the store. The counts of endpoints that got messages are written from time
    to time.

    Invariant: counts that other modules write for an endpoint also refer to the last committed id.
    """

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._grown: dict[Route, None] = {}
        """Routes that got messages since the last count."""
        self.uncounted: list[Endpoint] = []
        """Endpoints whose count in the store was too low at the start."""
        self._counted_id = 0

    def grew(self, route: Route) -> None:
        """Messages came by this route."""
        self._grown[route] = None

    def effects(self) -> list[Effect]:
        """
        The effects that write the counts of endpoints that got messages since the last call, so that a start has little
        to count; empty where the store has all counts.
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


CACHED_ROUTINGS: Final = 10_000
"""The most routings that are cached: one for each topic, and one for each publisher whose messages an endpoint of the
topic excludes. The cache is cleared when it is full or a subscription changes."""


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
        """The endpoints with a quota."""
        self.is_ranked = any(e.settings.priorities for e in endpoints)
        """Whether an endpoint delivers by priority: then each priority has its own route."""
        self.table = table
        self.route = table.intern(endpoints, None) if endpoints and not self.is_ranked else None
        """The route of the messages; None without endpoints, or where each priority has its own route."""
        self._routes: dict[int, Route] = {}

    def ranked(self, priority: int) -> Route:
        """The route of the messages with this priority."""
        route = self._routes.get(priority)
        if route is None:
            route = self._routes[priority] = self.table.intern(self.endpoints, priority)
        return route

    @property
    def numbers(self) -> Iterator[int]:
        """The numbers of the routes that the next message may name."""
        if self.route is not None:
            yield self.route.definition.number
        for route in self._routes.values():
            yield route.definition.number


class TopicRouting(NamedTuple):
    """The endpoints that get the messages of one topic, and whether the log takes them."""

    checked: tuple[Endpoint, ...]
    """The endpoints that limit the message size or have a quota."""
    all: FanOut
    """All matching endpoints: they get messages that the log does not take."""
    live: FanOut
    """The endpoints that are not replaying: they get logged messages. A replaying endpoint gets those from the log."""
    logged: bool
    no_local: frozenset[str]
    """The origins whose messages an endpoint excludes, because they are of its subscriber's own container."""
    numbers: tuple[int, ...]
    """The numbers of all endpoints of the topic, streams included."""


class Router:
    """
    Args:
        endpoints: All endpoints of a Message VPN, by name.
        is_logged: Whether the replay log takes a topic.
        table: The table of routes.
    """

    def __init__(
        self, endpoints: Mapping[str, Endpoint], is_logged: Callable[[str], bool], table: RouteTable
    ) -> None:
        self.cached: dict[str | tuple[str, str], TopicRouting] = {}
        """Routing by topic, or by topic and origin; ``route`` and ``route_from`` add what is missing. The caller clears
        it whenever endpoints, settings, replays or the log's policy change, because routing depends on them."""
        self._table = table
        self._endpoints = endpoints
        self._is_logged = is_logged
        # A wildcard at the first level does not match the topics of queues (messages sent to a queue by name).
        self._trie: SubscriptionTrie[str] = SubscriptionTrie(reserved=False)

    def add(self, pattern: TopicPattern, name: str) -> None:
        """Add a subscription of an endpoint."""
        self._trie.add(pattern, name)
        self.cached.clear()

    def remove(self, pattern: TopicPattern, name: str) -> None:
        """Remove a subscription of an endpoint."""
        self._trie.remove(pattern, name)
        self.cached.clear()

    def remove_all(self, name: str) -> None:
        """Remove all subscriptions of an endpoint that was deleted."""
        self._trie.remove_all(name)
        self.cached.clear()

    def subscribers(self, topic: str) -> list[Endpoint]:
        """The endpoints of a topic, streams included. This is a query only: it makes no routes."""
        found = {name: self._endpoints[name] for name in self._trie.match(topic)}
        own = self._endpoints.get(queue_of_topic(topic) or "")
        if own is not None and own.kind is not EndpointKind.TOPIC_ENDPOINT:
            found[own.name] = own
        return list(found.values())

    def route(self, topic: str) -> TopicRouting:
        """Find the routing of a topic, and cache it."""
        found = {*self.subscribers(topic)}
        own = self._endpoints.get(topic_endpoint_of_topic(topic) or "")
        if own is not None and own.kind is EndpointKind.TOPIC_ENDPOINT:
            found.add(own)
        everyone = sorted(found, key=lambda endpoint: endpoint.number)
        # A view shows the log: no message is put on it.
        endpoints = tuple(endpoint for endpoint in everyone if not endpoint.kind.is_view)
        numbers = tuple(endpoint.number for endpoint in everyone)
        return self._cache(topic, endpoints, numbers, logged=self._is_logged(topic))

    def route_from(self, origin: str, topic: str) -> TopicRouting:
        """The routing of a topic without the endpoints that exclude messages of this origin; cached, too."""
        found = self.cached.get((topic, origin))
        if found is None:
            whole = self.cached.get(topic) or self.route(topic)
            wanting = tuple(e for e in whole.all.endpoints if e.settings.no_local != origin)
            found = self._cache((topic, origin), wanting, whole.numbers, logged=whole.logged)
        return found

    def _cache(
        self,
        key: str | tuple[str, str],
        endpoints: tuple[Endpoint, ...],
        numbers: tuple[int, ...],
        *,
        logged: bool,
    ) -> TopicRouting:
        """Make and cache the routing to these endpoints, which are in the order of their numbers."""
        everyone = live = FanOut(endpoints, self._table)
        caught_up = tuple(e for e in endpoints if e.replay is None or not e.replay.is_behind)
        if len(caught_up) < len(endpoints):
            live = FanOut(caught_up, self._table)
        checked = tuple(e for e in endpoints if e.settings.max_message_bytes or e.settings.has_quota)
        no_local = frozenset(e.settings.no_local for e in endpoints if e.settings.no_local)
        if len(self.cached) >= CACHED_ROUTINGS:
            self.cached.clear()
        routing = self.cached[key] = TopicRouting(checked, everyone, live, logged, no_local, numbers)
        return routing

    def sweep(self) -> None:
        """Forget routes by which no endpoint has messages any more. All publications are committed."""
        in_use = {
            number
            for routing in self.cached.values()
            for fan_out in (routing.all, routing.live)
            for number in fan_out.numbers
        }
        self._table.sweep(in_use)
