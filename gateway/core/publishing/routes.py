"""
Routes: the sets of endpoints that messages are put on, interned, so that a message names its set by one number.

What is done for a publication is done once for its route, however many endpoints that has: those that nobody consumes
from at the moment are told nothing, and learn from the route what there is when they ask. Invariant: every number that
a stored message may name and that an endpoint still cares for is one of ``RouteTable``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.routed_messages import RoutedMessages
from gateway.core.model import RouteDefinition
from gateway.core.recovered import StoredRoute


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
        """Those of its endpoints that are told of each message."""
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


class Put(NamedTuple):
    """What a publication is to endpoints."""

    parts: tuple[tuple[Route, int, int], ...]
    """Its routes, and how many messages and bytes go by each; all to the same endpoints."""
    reserved: tuple[Endpoint, ...]
    """Those where it has room reserved."""


class RouteTable:
    """All routes of a Message VPN."""

    def __init__(self) -> None:
        self._routes: dict[tuple[tuple[int, ...], int | None], Route] = {}
        self._next_number = 1

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def __len__(self) -> int:
        return len(self._routes)

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
            new_key = (tuple(other.number for other in left), route.priority)
            same = self._routes.get(new_key)
            if same is None:
                # Messages that name its number are those of the others as before; new ones name another.
                same = self._routes[new_key] = Route(
                    RouteDefinition(self._next_number, *new_key), left, route.newest_id
                )
                self._next_number += 1
                for other in left:
                    other.backlog.add_route(same)
            same.numbers += route.numbers
            same.messages += route.messages
            same.size_bytes += route.size_bytes
            same.newest_id = max(same.newest_id, route.newest_id)
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
