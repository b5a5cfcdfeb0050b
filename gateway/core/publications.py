"""
Publications: messages get their ids in order, and are added to their endpoints as soon as they are durable.

``Origins`` knows who published which message, for consumers that do not want their own connection's messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, NamedTuple

from amqp_ext.message.fields import priorities_of
from gateway.core.dedup import Deduplication, DedupWindow, Sifted
from gateway.core.effects import Delays, Publication
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy, Retention
from gateway.core.model import ID, UNROUTED, LogState, stored_bytes
from gateway.core.router import BacklogCounts, FanOut, Route, Router
from gateway.core.trimming import Trimming


class TooLarge(Refused):
    """One or more consecutive messages exceed an endpoint's message size; the messages after them are not affected."""

    def __init__(self, endpoint: Endpoint, count: int) -> None:
        limit = endpoint.settings.max_message_bytes
        super().__init__(
            ErrorCode.RESOURCE_LIMIT,
            f"{endpoint.name!r} accepts messages of at most {limit} bytes (max_message_bytes)",
            **{"rewind:reason": "endpoint-message-size", "rewind:endpoint": endpoint.name},
        )
        self.count = count


MOST_DELAYED_ENDPOINTS: Final = 1_000
"""The most endpoints on which one message may be delayed: each costs a row of its own."""


class Put(NamedTuple):
    """How a publication affects endpoints."""

    parts: tuple[tuple[Route, int, int], ...]
    """The publication's routes, with the messages and bytes of each. All routes lead to the same endpoints."""
    reserved: tuple[Endpoint, ...]
    """The endpoints with a quota, on which room is reserved for the publication."""
    priorities: Sequence[int] | None
    """One priority for each row, 0 to 9, where an endpoint delivers by priority; else None."""
    delayed_on: tuple[Endpoint, ...] = ()
    """The endpoints on which the messages are delayed."""


@dataclass(eq=False)
class Publications:
    """The messages of one Message VPN, from a publisher to the log and to endpoints."""

    _log: LogState
    _policy: LogPolicy
    _retention: Retention
    _router: Router
    _counts: BacklogCounts
    """Is notified of the routes that got messages."""
    dedup: Deduplication
    """Knows the ids that publishers gave to their messages."""
    _trimming: Trimming
    """Makes the refusal that says why the log has no room."""
    unlogged_on_way: dict[Publication, None] = field(default_factory=dict)
    """Publications that the log does not take, and that are not committed yet."""
    delayed_on: dict[Endpoint, None] = field(default_factory=dict)
    """Endpoints that got delayed messages since the timer of delayed messages looked last."""
    _emptied: dict[Endpoint, None] = field(default_factory=dict)
    """Endpoints that were emptied as a whole while publications to them were not committed yet."""

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
        due_ms: Sequence[int] = (),
        ids: Sequence[bytes] = (),
    ) -> tuple[Publication | None, int, Refused | None]:
        """
        Take messages of one topic that arrived together.

        Args:
            now_ms: Arrival time. A time before that of the newest message counts as that message's time.
            contents: Messages as received.
            bares: Where each one's bare message begins.
            receipt: What the caller needs to settle with the publisher afterwards; not looked at.
            is_direct: They came pre-settled: stored if they reach an endpoint, logged only if the policy promotes them.
            origin: The publisher's origin (``Origins``), for endpoints with no-local; empty where it is not known.
            due_ms: When each is to be delivered, in ms since the epoch; empty where none is delayed. The log takes them
                immediately in any case.
            ids: The publishers' ids of the messages, all new (``Deduplication.sift``); empty where no endpoint of the
                topic has a deduplication window.

        Returns:
            The publication to be committed (None when nothing is taken); how many of ``contents``, from the first on,
            it holds; and why the rest was refused. None as the reason means that no endpoint and no log wanted them
            (outcome released). ``TooLarge`` means that its ``count`` messages were too large, and that those after them
            are to be offered again.
        """
        router, policy = self._router, self._policy
        routing = router.cached.get(topic) or router.route(topic)
        if origin in routing.no_local:
            routing = router.route_from(origin, topic)
        logged = routing.logged and (not is_direct or policy.promote_direct)
        # An endpoint that replays gets live messages from the log later, and unlogged messages now. It gets a delayed
        # message when that is due.
        fan_out = routing.live if logged and not due_ms else routing.all
        if due_ms and len(fan_out.endpoints) > MOST_DELAYED_ENDPOINTS:
            return None, 0, _too_many_delayed(topic, len(fan_out.endpoints))
        if not logged and not fan_out.endpoints:
            return None, 0, None
        sizes = list(map(len, contents))
        count = room = len(sizes)
        refused: Refused | None = None
        for endpoint in routing.checked:
            settings = endpoint.settings
            if settings.max_message_bytes:
                fits, larger = _run_of_larger(sizes, settings.max_message_bytes)
                if fits < room:
                    room = fits
                    refused = TooLarge(endpoint, larger)
            if settings.has_quota:
                fits = endpoint.backlog.room_for(contents, settings.quota_messages, settings.quota_bytes)
                if fits < room:
                    room = fits
                    refused = Refused(
                        ErrorCode.RESOURCE_LIMIT,
                        f"{endpoint.name!r} is at its quota; consume from it or raise the quota",
                        **{"rewind:reason": "endpoint-quota", "rewind:endpoint": endpoint.name},
                    )
        log = self._log
        quota = policy.quota_bytes
        if logged and quota and log.size_bytes + stored_bytes(topic, sizes) > quota:
            fits = _fitting(topic, sizes, quota - log.size_bytes)
            if fits < room:
                room = fits
                refused = self._trimming.log_full(stored_bytes(topic, sizes[fits : fits + 1]))
        if room < count:
            if room == 0:
                return None, 0, refused
            contents, sizes = contents[:room], sizes[:room]
        now_ms = log.last_time_ms = max(now_ms, log.last_time_ms)
        first = log.unused_id
        log.unused_id = first + room
        held = None if logged else len(fan_out.endpoints)
        route = fan_out.route
        number = UNROUTED
        numbers: Sequence[int] = ()
        parts: tuple[tuple[Route, int, int], ...] = ()
        priorities = None
        if due_ms:
            pass  # it comes by no route: each endpoint has a row of its own
        elif fan_out.is_ranked:
            priorities = priorities_of(contents, bares)
            numbers, parts = _ranked_parts(fan_out, priorities, contents)
        elif route is not None:
            number = route.definition.number
            parts = ((route, room, sum(sizes)),)
        if room == 1 and not numbers:
            rows = [(first, now_ms, topic, bares[0], number, held, contents[0])]
        else:
            given, each = range(first, first + room), numbers or repeat(number)
            rows = list(
                zip(given, repeat(now_ms), repeat(topic), bares, each, repeat(held), contents, strict=False)
            )
        put = Put(parts, fan_out.limited, priorities, fan_out.endpoints if due_ms else ())
        routes = [part[0].definition for part in parts]
        publication = Publication(rows, topic, routes, logged, sizes, receipt, put)
        if put.delayed_on:
            cursors = [endpoint.cursor_number for endpoint in put.delayed_on]
            publication.delays = Delays(cursors, due_ms[:room])
        if ids:
            self.dedup.publish(routing.numbers, publication, ids[:room])
        log.size_bytes += publication.logged_bytes
        if not logged:
            self.unlogged_on_way[publication] = None
        elif self._retention.rules:
            self._retention.published(topic, first, room, publication.logged_bytes)
        for endpoint in fan_out.limited:
            endpoint.backlog.reserve(room, publication.size_bytes)
        return publication, room, refused

    def committed(self, publication: Publication) -> list[Endpoint]:
        """
        The publication is durable: make its messages ready.

        Returns:
            The endpoints where messages became ready; the caller dispatches each of them.
        """
        rows = publication.rows
        last = rows[-1][ID]
        self._log.next_id = last + 1
        if not publication.logged:
            self.unlogged_on_way.pop(publication, None)
        touched: list[Endpoint] = []
        put: Put = publication.put
        if publication.dedup is not None:
            self.dedup.committed(publication, publication.dedup)
        if publication.delays is not None:
            self._wait(publication, publication.delays)
        if put.parts:
            for one, count, size in put.parts:
                route = one.current()
                route.add(count, size, last)
                self._counts.grew(route)
            for endpoint in put.reserved:
                endpoint.backlog.reserve(-len(rows), -publication.size_bytes)
            ids = range(rows[0][ID], last + 1)
            for endpoint in route.awake:
                if endpoint.add_published(ids, put.priorities, put.parts):
                    touched.append(endpoint)
        if self._emptied:
            for endpoint in list(self._emptied):
                if endpoint.committed_up_to(last):
                    del self._emptied[endpoint]
        return touched

    def _wait(self, publication: Publication, delays: Delays) -> None:
        """The delayed publication is durable: count it. An endpoint that was emptied meanwhile has dropped it."""
        put: Put = publication.put
        for endpoint in put.reserved:
            endpoint.backlog.reserve(-len(publication.rows), -publication.size_bytes)
        for endpoint, cursor in zip(put.delayed_on, delays.cursors, strict=True):
            if endpoint.cursor_number == cursor:
                endpoint.backlog.delayed.add(delays.due_ms, publication.size_bytes)
                self.delayed_on[endpoint] = None

    def failed(self, publication: Publication) -> None:
        """The commit failed: the publication does not exist, and no peer was told of it."""
        self._log.size_bytes -= publication.logged_bytes
        if publication.logged:
            rows = publication.rows
            self._retention.published(publication.topic, rows[0][ID], -len(rows), -publication.logged_bytes)
        if publication.dedup is not None:
            self.dedup.failed(publication)
        self.unlogged_on_way.pop(publication, None)
        for endpoint in publication.put.reserved:
            endpoint.backlog.reserve(-len(publication.rows), -publication.size_bytes)

    def sift(self, topic: str, ids: list[bytes], now_ms: int) -> Sifted | None:
        """Separate duplicates from new messages of a topic; None where all are new (``Deduplication.sift``)."""
        return self.dedup.sift(self._windows_of(topic), ids, now_ms)

    def has_window(self, topic: str) -> bool:
        """Whether an endpoint of this topic has a deduplication window."""
        routing = self._router.cached.get(topic) or self._router.route(topic)
        return not self.dedup.windows.keys().isdisjoint(routing.numbers)

    def count_duplicates(self, topic: str, count: int) -> None:
        """Count messages of a topic that were not stored again because they are duplicates."""
        for window in self._windows_of(topic) if count else ():
            window.duplicates += count

    def _windows_of(self, topic: str) -> list[DedupWindow]:
        """The deduplication windows of a topic's endpoints."""
        routing = self._router.cached.get(topic) or self._router.route(topic)
        return self.dedup.windows_of(routing.numbers)

    def withdraw(self, publications: Sequence[Publication]) -> None:
        """Take back the newest publications, in order, before their commit: their ids are given out again."""
        for publication in publications:
            self.failed(publication)
        if publications:
            self._log.unused_id = publications[0].rows[0][ID]

    def emptied(self, endpoint: Endpoint) -> None:
        """The endpoint was emptied as a whole: it drops the publications that are not committed yet, once they are."""
        if not endpoint.committed_up_to(self._log.newest_id):
            self._emptied[endpoint] = None

    def deleted(self, endpoint: Endpoint) -> None:
        """The endpoint was deleted: no publication concerns it any more."""
        self._emptied.pop(endpoint, None)

    def sweep_routes(self) -> None:
        """Forget routes by which no endpoint has messages. Does nothing while publications are not committed."""
        if self._log.unused_id == self._log.next_id:
            self._router.sweep()


def _too_many_delayed(topic: str, count: int) -> Refused:
    return Refused(
        ErrorCode.RESOURCE_LIMIT,
        f"a message to {topic[:80]!r} would be delayed on {count} queues and topic endpoints, and may be on "
        f"{MOST_DELAYED_ENDPOINTS}; publish it when it is due",
    )


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


def _run_of_larger(sizes: Sequence[int], limit_bytes: int) -> tuple[int, int]:
    """The place of the first message that is larger than the limit, and how many consecutive ones are."""
    first = next((place for place, size in enumerate(sizes) if size > limit_bytes), len(sizes))
    stop = next((place for place in range(first, len(sizes)) if sizes[place] <= limit_bytes), len(sizes))
    return first, stop - first


def _fitting(topic: str, sizes: Sequence[int], room_bytes: int) -> int:
    """How many messages of a topic, from the first on, the log has room for."""
    for count, size in enumerate(sizes):
        room_bytes -= stored_bytes(topic, (size,))
        if room_bytes < 0:
            return count
    return len(sizes)


MAX_RANGES: Final = 65_536
"""The most runs of ids of one origin to remember, some 10 MB. Beyond it, the older half is forgotten."""


class Origins:
    """
    Who published which message, for consumers that do not want their own connection's messages (the no-local filter).

    An origin is a client's container-id (JMS: its client identifier); a client without one gets an origin for its
    connection. Origins are kept only while some connection has such a consumer: then each publication adds one entry,
    or lengthens the one before. A message without an entry has no origin: history is not local.

    The endpoint of a topic subscription does not use this: the messages of its subscriber's own container are never put
    on it (``EndpointSettings.no_local``).
    """

    def __init__(self) -> None:
        self.watchers: dict[Any, None] = {}
        """Those that called ``watch``; while it is empty, publications need not be added."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._origins: list[str] = []

    def watch(self, watcher: Any) -> None:
        """Remember origins from now on, until ``forget`` for the last watcher."""
        self.watchers[watcher] = None

    def forget(self, watcher: Any) -> None:
        """The watcher is gone; it need not have called ``watch``."""
        self.watchers.pop(watcher, None)
        if not self.watchers:
            self._starts.clear()
            self._stops.clear()
            self._origins.clear()

    def add(self, first: int, stop: int, origin: str) -> None:
        """Messages with ids from ``first`` to below ``stop``, higher than all before, came from ``origin``."""
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
        """The origin of a message; empty when it is not known."""
        index = bisect_right(self._starts, message_id) - 1
        return self._origins[index] if index >= 0 and message_id < self._stops[index] else ""
