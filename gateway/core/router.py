"""
Routing by topic: to which endpoints messages of a topic go, and whether the replay log takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from amqp_ext.addresses.queue_names import queue_of_topic
from amqp_ext.topics import SubscriptionTrie, TopicPattern
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind

CACHED_TOPICS: Final = 10_000
"""Topics whose routing is remembered; the cache starts anew when it is full or a subscription changes."""


class Route(NamedTuple):
    """Where messages of one topic go."""

    endpoints: tuple[Endpoint, ...]
    """Endpoints that match: their checks apply."""
    numbers: tuple[int, ...]
    """Their storage numbers."""
    live: tuple[int, ...]
    """The numbers of those that do not replay at the moment."""
    logged: bool
    is_picky: bool
    """Some endpoint leaves out what comes from its subscriber's own container."""
    ranked: tuple[int, ...]
    """The numbers of those that deliver by priority."""

    def seen_from(self, origin: str) -> Route:
        """Without the endpoints that do not want what this origin publishes."""
        unwanting = {e.storage_number for e in self.endpoints if e.settings.no_local == origin}
        return Route(
            tuple(e for e in self.endpoints if e.storage_number not in unwanting),
            tuple(number for number in self.numbers if number not in unwanting),
            tuple(number for number in self.live if number not in unwanting),
            self.logged,
            False,
            self.ranked,
        )


class Router:
    """
    Args:
        endpoints: All of a Message VPN, by name.
        is_logged: Whether the replay log takes a topic.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], is_logged: Callable[[str], bool]) -> None:
        self.cached: dict[str, Route] = {}
        """Routes by topic that are known; ``route`` finds all others."""
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

    def route(self, topic: str) -> Route:
        """Where messages of a topic go; remembered."""
        # A stream is read out of the log: nothing is put on it.
        found = [self._endpoints[name] for name in self._trie.match(topic)]
        matched = [endpoint for endpoint in found if endpoint.kind is not EndpointKind.STREAM]
        queue = queue_of_topic(topic)
        if queue is not None:
            own = self._endpoints.get(queue)
            if own is not None and own.kind is EndpointKind.QUEUE and own not in matched:
                matched.append(own)
        if len(self.cached) >= CACHED_TOPICS:
            self.cached.clear()
        route = self.cached[topic] = Route(
            tuple(matched),
            tuple(e.storage_number for e in matched),
            tuple(e.storage_number for e in matched if e.replay is None or not e.replay.is_behind),
            self._is_logged(topic),
            any(e.settings.no_local for e in matched),
            tuple(e.storage_number for e in matched if e.settings.priorities),
        )
        return route
