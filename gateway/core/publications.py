"""
What is published: messages get their ids in order, and once they are durable they are on the endpoints they go to.

Invariant: between ``LogState.next_id`` and ``Publications.next_id`` lies what is taken and not committed yet, which
counts already against the log's quota and those of endpoints.

``Origins`` knows who published what, for consumers that do not want what their own connection sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from amqp_ext.message.priority import priorities_of
from gateway.core.effects import Publication
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy, Retention
from gateway.core.model import ID, UNROUTED, LogState, Row, stored_bytes
from gateway.core.router import BacklogCounts, FanOut, Put, Route, Router, RouteTable
from gateway.core.trimming import Trimming


class TooLarge(Refused):
    """One message, or some in a row, larger than an endpoint takes: those that came behind them are not affected."""

    def __init__(self, endpoint: Endpoint, count: int) -> None:
        limit = endpoint.settings.max_message_bytes
        super().__init__(
            ErrorCode.RESOURCE_LIMIT,
            f"{endpoint.name!r} takes messages of at most {limit} bytes (max_message_bytes)",
            **{"rewind:reason": "endpoint-message-size", "rewind:endpoint": endpoint.name},
        )
        self.count = count


class PublishedBroker(Protocol):
    """What publishing needs of the broker that it belongs to."""

    @property
    def policy(self) -> LogPolicy:
        """What the log takes and keeps."""

    @property
    def log(self) -> LogState:
        """The log as the store has it."""

    @property
    def retention(self) -> Retention:
        """What is kept of some topics."""

    @property
    def trimming(self) -> Trimming:
        """Says why the log has no room."""


class Publications:
    """
    Messages of one Message VPN on their way from a publisher to the log and to endpoints.

    Args:
        router: Says where a topic goes.
        routes: Those that it interns.
        counts: Is told where messages came.
    """

    def __init__(
        self, broker: PublishedBroker, router: Router, routes: RouteTable, counts: BacklogCounts
    ) -> None:
        self._broker = broker
        self._log = broker.log
        self._retention = broker.retention
        self._router = router
        self._routes = routes
        self._counts = counts
        self.next_id = broker.log.next_id
        """The next id to be given out; ``log.next_id`` is one past the last committed."""
        self.unlogged_on_way: dict[Publication, None] = {}
        """What the log does not take, and is not committed yet."""
        self._emptied: dict[Endpoint, None] = {}
        """Endpoints that were emptied as a whole, and may be told of what was on its way then."""

    def publish(
        self,
        now_ms: int,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        receipt: Any,
        *,
        is_direct: bool = False,
        origin: str = "",
    ) -> tuple[Publication | None, int, Refused | None]:
        """
        Take messages of one topic that arrived together.

        Args:
            now_ms: Arrival time; an earlier one than the last is taken as the last.
            contents: Messages as received.
            bares: Where each one's bare message begins.
            receipt: Whatever the caller needs to tell the publisher afterwards; not looked at.
            is_direct: They came settled: kept where they land on an endpoint, logged only if the policy promotes them.
            origin: Whom they came from, for endpoints that do not want their own; empty for nobody.

        Returns:
            The publication to be committed (None when nothing is taken), how many of ``contents``, from the first on,
            it holds, and why the rest was refused: None there means that nobody wanted them (outcome released),
            ``TooLarge`` that some of the rest was, and what is behind that is to be offered again.
        """
        router, policy = self._router, self._broker.policy
        routing = router.cached.get(topic) or router.route(topic)
        if routing.is_picky and origin:
            routing = routing.seen_from(origin)
        logged = routing.logged and (not is_direct or policy.promote_direct)
        # An endpoint that replays gets live messages from the log later; what the log does not take it gets now.
        fan_out = routing.live if logged else routing.all
        if not logged and not fan_out.endpoints:
            return None, 0, None
        count = len(contents)
        room = count
        refused: Refused | None = None
        for endpoint in routing.checked:
            settings = endpoint.settings
            if settings.max_message_bytes:
                fits = first_larger(contents, settings.max_message_bytes)
                if fits < room:
                    room = fits
                    larger = first_not_larger(contents, fits, settings.max_message_bytes) - fits
                    refused = TooLarge(endpoint, larger)
            if settings.has_quota:
                fits = endpoint.room_for(contents)
                if fits < room:
                    room = fits
                    refused = Refused(
                        ErrorCode.RESOURCE_LIMIT,
                        f"{endpoint.name!r} is at its quota; consume from it or raise the quota",
                        **{"rewind:reason": "endpoint-quota", "rewind:endpoint": endpoint.name},
                    )
        sizes = list(map(len, contents))
        log = self._log
        quota = policy.quota_bytes
        if logged and quota and log.size_bytes + stored_bytes(topic, sizes) > quota:
            fits = fitting(topic, sizes, quota - log.size_bytes)
            if fits < room:
                room = fits
                refused = self._broker.trimming.log_full(stored_bytes(topic, sizes[fits : fits + 1]))
        if room < count:
            if room == 0:
                return None, 0, refused
            contents, sizes = contents[:room], sizes[:room]
        now_ms = log.last_time_ms = max(now_ms, log.last_time_ms)
        first = self.next_id
        self.next_id = first + room
        held = None if logged else len(fan_out.endpoints)
        route = fan_out.route
        parts: tuple[tuple[Route, int, int], ...] = ()
        priorities = None
        if fan_out.is_ranked:
            priorities = priorities_of(contents, bares)
            numbers, parts = _ranked_parts(fan_out, priorities, contents)
            rows = _rows(first, now_ms, topic, bares, numbers, held, contents)
        else:
            number = UNROUTED
            if route is not None:
                number = route.definition.number
                parts = ((route, room, sum(sizes)),)
            if room == 1:
                rows = [(first, now_ms, topic, bares[0], number, held, contents[0])]
            else:
                rows = _rows(first, now_ms, topic, bares, repeat(number), held, contents)
        put = Put(parts, fan_out.limited)
        routes = [part[0].definition for part in parts]
        publication = Publication(rows, topic, routes, logged, sizes, receipt, put, priorities)
        log.size_bytes += publication.logged_bytes
        if not logged:
            self.unlogged_on_way[publication] = None
        elif self._retention.rules:
            self._retention.published(topic, first, room, publication.logged_bytes)
        for endpoint in fan_out.limited:
            endpoint.reserve(room, publication.size_bytes)
        return publication, room, refused

    def committed(self, publication: Publication) -> list[Endpoint]:
        """
        The publication is durable: its messages are ready.

        Returns:
            The endpoints that are told of it, each to be looked at for consumers.
        """
        rows = publication.rows
        last = rows[-1][ID]
        self._log.next_id = last + 1
        if not publication.logged:
            self.unlogged_on_way.pop(publication, None)
        touched: list[Endpoint] = []
        put: Put = publication.put
        if put.parts:
            for one, count, size in put.parts:
                route = one.current()
                route.add(count, size, last)
                self._counts.grew(route)
            for endpoint in put.reserved:
                endpoint.reserve(-len(rows), -publication.size_bytes)
            ids = range(rows[0][ID], last + 1)
            for endpoint in route.awake:
                if endpoint.add_published(ids, publication.priorities, put.parts):
                    touched.append(endpoint)
        if self._emptied:
            for endpoint in list(self._emptied):
                if endpoint.committed_up_to(last):
                    del self._emptied[endpoint]
        return touched

    def failed(self, publication: Publication) -> None:
        """The commit failed: nobody was told, nothing of it exists."""
        self._log.size_bytes -= publication.logged_bytes
        if publication.logged:
            rows = publication.rows
            self._retention.published(publication.topic, rows[0][ID], -len(rows), -publication.logged_bytes)
        self.unlogged_on_way.pop(publication, None)
        for endpoint in publication.put.reserved:
            endpoint.reserve(-len(publication.rows), -publication.size_bytes)

    def withdraw(self, publications: Sequence[Publication]) -> None:
        """The newest publications, in order, are not even to be committed: their ids are given out again."""
        for publication in publications:
            self.failed(publication)
        if publications:
            self.next_id = publications[0].rows[0][ID]

    def emptied(self, endpoint: Endpoint) -> None:
        """It was emptied as a whole: until all that is on its way is committed, it is told of what is not for it."""
        if self.next_id > self._log.next_id:
            self._emptied[endpoint] = None
        else:
            endpoint.committed_up_to(self._log.next_id - 1)

    def deleted(self, endpoint: Endpoint) -> None:
        """It is gone: nobody tells it anything any more."""
        self._emptied.pop(endpoint, None)

    def follow(self) -> None:
        """Another gateway gives out the ids, and the log knows of more of them."""
        self.next_id = self._log.next_id

    def sweep_routes(self) -> None:
        """Forget routes that no endpoint has messages by any more; to be called when nothing is on its way."""
        if self.next_id == self._log.next_id:
            self._routes.sweep(self._router.numbers())


def _rows(
    first: int,
    now_ms: int,
    topic: str,
    bares: Iterable[int],
    routes: Iterable[int],
    held: int | None,
    contents: Sequence[bytes],
) -> list[Row]:
    """Messages with ids from ``first`` on, as many as ``contents``."""
    ids = range(first, first + len(contents))
    return list(zip(ids, repeat(now_ms), repeat(topic), bares, routes, repeat(held), contents, strict=False))


def _ranked_parts(
    fan_out: FanOut, priorities: Sequence[int], contents: Sequence[bytes]
) -> tuple[list[int], tuple[tuple[Route, int, int], ...]]:
    """The number of each message's route, and how many messages and bytes go by each route."""
    found: dict[int, list[int]] = {}
    for priority, content in zip(priorities, contents, strict=True):
        found.setdefault(priority, []).append(len(content))
    routes = {priority: fan_out.ranked(priority) for priority in found}
    numbers = [routes[priority].definition.number for priority in priorities]
    parts = [(routes[priority], len(sizes), sum(sizes)) for priority, sizes in found.items()]
    return numbers, tuple(parts)


def first_larger(contents: Sequence[bytes], limit_bytes: int) -> int:
    return next((i for i, content in enumerate(contents) if len(content) > limit_bytes), len(contents))


def first_not_larger(contents: Sequence[bytes], start: int, limit_bytes: int) -> int:
    return next((i for i in range(start, len(contents)) if len(contents[i]) <= limit_bytes), len(contents))


def fitting(topic: str, sizes: Sequence[int], room_bytes: int) -> int:
    for count, size in enumerate(sizes):
        room_bytes -= stored_bytes(topic, (size,))
        if room_bytes < 0:
            return count
    return len(sizes)


MAX_RANGES: Final = 65_536
"""Runs of ids of one origin that are remembered, some 10 MB; beyond, the older half is forgotten."""


class Origins:
    def __init__(self) -> None:
        self.watchers: dict[Any, None] = {}
        """Who asked; while there is nobody, publications need not be told of."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._origins: list[str] = []

    def watch(self, watcher: Any) -> None:
        """Remember origins from now on, until ``forget`` is told of the last watcher."""
        self.watchers[watcher] = None

    def forget(self, watcher: Any) -> None:
        """It is gone, whether it had asked or not."""
        self.watchers.pop(watcher, None)
        if not self.watchers:
            self._starts.clear()
            self._stops.clear()
            self._origins.clear()

    def add(self, first: int, stop: int, origin: str) -> None:
        """Messages with ids from ``first`` below ``stop``, above all before, came from ``origin``."""
        if self._stops and self._stops[-1] == first and self._origins[-1] == origin:
            self._stops[-1] = stop
            return
        if len(self._starts) >= MAX_RANGES:
            for kept in (self._starts, self._stops, self._origins):
                del kept[: MAX_RANGES // 2]
        self._starts.append(first)
        self._stops.append(stop)
        self._origins.append(origin)

    def of(self, message_id: int) -> str:
        """Where a message came from; empty when that is not known."""
        index = bisect_right(self._starts, message_id) - 1
        return self._origins[index] if index >= 0 and message_id < self._stops[index] else ""
