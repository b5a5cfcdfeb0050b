"""
A Message VPN that only reads: what the active gateway has told of becomes news here, as a commit does there.

Readers see what they would see of a commit of this gateway's own: the log has grown, and topics have news. Streams and
points come and go as they do on the active gateway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.core.broker import Broker
from gateway.core.effects import StoredEndpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionMark
from gateway.core.message_cache import MessageCache
from gateway.core.model import CONTENT, ID, TOPIC, LogState, Row
from gateway.vpn.delivery.readers import Readers
from gateway.vpn.endpoints import Endpoints
from store.following import ToldDefinitions

KEPT_SECONDS: Final = 5.0
"""For which new messages are kept in memory for readers that keep up; what was erased since is gone by then."""


class Following:
    """What is known here of a log that another gateway writes."""

    def __init__(
        self,
        broker: Broker,
        cache: MessageCache,
        readers: Readers,
        endpoints: Endpoints,
        streams: Sequence[StoredEndpoint],
    ) -> None:
        self._broker = broker
        self._cache = cache
        self._readers = readers
        self._endpoints = endpoints
        self._streams = {found.definition.name: _key(found) for found in streams}
        self._runs: deque[tuple[float, int]] = deque()
        """When messages came, and one past the last of them; of those that are kept."""

    def told(self, log: LogState, rows: Sequence[Row], now: float) -> None:
        """
        The active gateway has told of what is below ``log.next_id``.

        Args:
            rows: All logged messages from the last ``next_id`` to this one.
            now: Seconds of a clock that never goes back.
        """
        cache, broker = self._cache, self._broker
        self._forget(now)
        before = cache.next_id
        broker.follow(log)
        if log.next_id == before:
            return
        if len(rows) == log.next_id - before:
            cache.extend(list(rows), sum(len(row[CONTENT]) for row in rows))
            self._runs.append((now, log.next_id))
        else:
            # Ids between them are not the log's: they are read where they are.
            cache.skip(log.next_id)
            self._runs.clear()
        news: dict[str, int] = {}
        for row in rows:
            news.setdefault(row[TOPIC], row[ID])
        if news:
            self._readers.committed((), news)
        else:
            self._readers.not_committed()

    def passed_over(self, log: LogState, now: float) -> None:
        """The same, where what was told of is trimmed already, or too much to be shown one by one."""
        self._forget(now)
        self._broker.follow(log)
        self._cache.skip(log.next_id)
        self._runs.clear()
        self._readers.all_new()

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """
        Rules of retention have taken out of the log what these marks say: readers that were still to read what may be
        gone since the last ones, are told.
        """
        retention = self._broker.retention
        known, new = retention.marks, []
        for mark in marks:
            if mark.rule not in known or known[mark.rule].below < mark.below:
                new.append(mark)
        retention.restore(marks)
        if new:
            # What is in memory may be gone, too.
            self._cache.skip(self._cache.next_id)
            self._runs.clear()
            self._readers.taken_out(new)

    def defined(self, definitions: ToldDefinitions) -> None:
        """Streams and points are these from now on; readers of a stream that has changed are to attach again."""
        found = {stream.definition.name: stream for stream in definitions.streams}
        for name, key in list(self._streams.items()):
            if name not in found or _key(found[name]) != key:
                del self._streams[name]
                endpoint = self._broker.find(name)
                if endpoint is not None:
                    why = "was changed: attach again" if name in found else "was deleted"
                    self._endpoints.forget(endpoint, Refused(ErrorCode.RESOURCE_DELETED, f"{name!r} {why}"))
        new = [stream for name, stream in found.items() if name not in self._streams]
        self._broker.restore(new, [], {}, 1, definitions.points)
        self._streams.update((stream.definition.name, _key(stream)) for stream in new)

    def _forget(self, now: float) -> None:
        cache, stop = self._cache, 0
        while self._runs and now - self._runs[0][0] > KEPT_SECONDS:
            stop = self._runs.popleft()[1]
        if stop > cache.first_id:
            cache.drop_below(stop)


def _key(stream: StoredEndpoint) -> tuple[object, ...]:
    definition = stream.definition
    return definition.number, definition.settings, tuple(stream.subscriptions)
