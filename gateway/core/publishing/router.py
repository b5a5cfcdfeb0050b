"""
Routing by topic: to which endpoints messages of a topic go, and whether the replay log takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from amqp_ext.addresses.queue_names import queue_of_topic, topic_endpoint_of_topic
from amqp_ext.topics import SubscriptionTrie, TopicPattern
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.publishing.routes import Route, RouteTable

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
    by_origin: dict[str, TopicRouting]
    """The same as seen from origins that some endpoint leaves out, as far as they were asked for."""

    def seen_from(self, origin: str) -> TopicRouting:
        """Without the endpoints that do not want what this origin publishes."""
        routing = self.by_origin.get(origin)
        if routing is None:
            if len(self.by_origin) >= CACHED_ORIGINS:
                self.by_origin.clear()
            if all(e.settings.no_local != origin for e in self.all.endpoints):
                routing = self
            else:
                routing = TopicRouting(
                    tuple(e for e in self.checked if e.settings.no_local != origin),
                    _without(self.all, origin),
                    _without(self.live, origin),
                    self.logged,
                    False,
                    {},
                )
            self.by_origin[origin] = routing
        return routing


def _without(fan_out: FanOut, origin: str) -> FanOut:
    return FanOut(tuple(e for e in fan_out.endpoints if e.settings.no_local != origin), fan_out.table)


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
        """What is known, by topic; ``route`` finds all others."""
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

    def forget(self) -> None:
        """Something else that routing looks at has changed: endpoints, settings, replays, the log's policy."""
        self.cached.clear()

    def subscribers(self, topic: str) -> list[Endpoint]:
        """Those of which a topic is one, streams among them, for whoever asks: nothing is made ready for messages."""
        found = {name: self._endpoints[name] for name in self._trie.match(topic)}
        queue = queue_of_topic(topic)
        own = None if queue is None else self._endpoints.get(queue)
        if own is not None and own.kind is not EndpointKind.TOPIC_ENDPOINT:
            found[own.name] = own
        return list(found.values())

    def route(self, topic: str) -> TopicRouting:
        """Where messages of a topic go; remembered."""
        # A stream is read out of the log: nothing is put on it.
        found = [self._endpoints[name] for name in self._trie.match(topic)]
        matched = [endpoint for endpoint in found if endpoint.kind is not EndpointKind.STREAM]
        queue = queue_of_topic(topic)
        if queue is not None:
            own = self._endpoints.get(queue)
            if own is not None and own.kind is EndpointKind.QUEUE and own not in matched:
                matched.append(own)
        topic_endpoint = topic_endpoint_of_topic(topic)
        if topic_endpoint is not None:
            own = self._endpoints.get(topic_endpoint)
            if own is not None and own.kind is EndpointKind.TOPIC_ENDPOINT and own not in matched:
                matched.append(own)
        if len(self.cached) >= CACHED_TOPICS:
            self.cached.clear()
        matched.sort(key=lambda endpoint: endpoint.number)
        everyone = FanOut(tuple(matched), self._table)
        behind = any(e.replay is not None and e.replay.is_behind for e in matched)
        live = everyone
        if behind:
            live = FanOut(
                tuple(e for e in matched if e.replay is None or not e.replay.is_behind), self._table
            )
        routing = self.cached[topic] = TopicRouting(
            tuple(e for e in matched if e.settings.max_message_bytes or e.settings.has_quota),
            everyone,
            live,
            self._is_logged(topic),
            any(e.settings.no_local for e in matched),
            {},
        )
        return routing

    def numbers(self) -> set[int]:
        """The routes that the next message may name."""
        return {
            number
            for cached in self.cached.values()
            for routing in (cached, *cached.by_origin.values())
            for fan_out in (routing.all, routing.live)
            for number in fan_out.numbers
        }
