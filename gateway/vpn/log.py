"""
The replay log of a Message VPN as clients and administrators ask for it: what it holds, where a replay starts, points.

The log is looked at off the loop, and a point is durable before anybody is told that it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ListedPoint, Point
from gateway.core.replay.reading import topic_matcher
from gateway.core.replay.search import Search, search_for
from gateway.core.replay.starts import (
    LogFacts,
    LogProbe,
    Resolved,
    check_is_whole,
    check_start,
    is_before_log,
    last_of,
    resolve,
)
from gateway.vpn.committer import Committer
from gateway.vpn.replay.log_histogram import LogHistogram
from gateway.vpn.replay.log_listing import LogListing
from gateway.vpn.replay.log_search import CountBack, LogSearch, SearchShared
from gateway.vpn.user_turns import ADMINISTRATION
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import Reader

T = TypeVar("T")


class MessageLog:
    def __init__(self, broker: Broker, committer: Committer, search: SearchShared) -> None:
        self._broker = broker
        self._committer = committer
        self._search = search
        self.listing = LogListing(search)
        """Lists of it, for people."""
        self.histogram = LogHistogram(search, broker.history)
        """When what is in it came, for people."""
        self._now_ms = search.runtime.clock.now_ms

    # --- what it holds --------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Which log this is: a replay id of another generation means nothing here."""
        return self._broker.log.generation

    @property
    def first_id(self) -> int:
        """The oldest id that may be read, in the log or in its archive."""
        return self._broker.history.first_id

    @property
    def next_id(self) -> int:
        """One past the last committed id."""
        return self._broker.log.next_id

    @property
    def reader(self) -> Reader:
        """Reads it, off the loop."""
        return self._search.reader

    async def off_loop(self, work: Callable[[], T]) -> T:
        """What is done with something that was read, on a thread that reads."""
        return await asyncio.wrap_future(self._search.reader.submit(work))

    def check_reads(self, without: str) -> None:
        """
        That what is logged can be read; ``without`` says what is not there as long as it cannot.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        self._broker.policy.check_reads(without)

    def facts(self, endpoint: Endpoint | None = None, patterns: Sequence[str] = ()) -> LogFacts:
        """
        What is known of log and archive without reading them.

        Args:
            endpoint: Of the part that it shows, where it is a stream.
            patterns: Of the topics that are asked for; none for all.
        """
        return self._broker.log_facts(endpoint, patterns)

    def patterns_of(self, endpoint: Endpoint) -> tuple[str, ...]:
        """The topics of an endpoint as patterns, to look for in the store."""
        return endpoint.topics.patterns

    def matcher_of(self, endpoint: Endpoint) -> Callable[[str], bool]:
        """Whether a topic is one of the endpoint's, by its subscriptions or, for a queue or stream, by its name."""
        return endpoint.topics.matches

    # --- where a replay starts ------------------------------------------------------------------------------------

    async def resolve_start(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        user: str = ADMINISTRATION,
        *,
        with_archive: bool = True,
    ) -> Resolved:
        """
        Where a replay of these topics starts, as it was asked for.

        Args:
            user: Who asks: of searches, users take turns.
            with_archive: Whether what lies before the log is looked for in its archive.

        Raises:
            Refused: It cannot start there.
        """
        resolved = await self._resolve(
            start, patterns, topic_matcher(patterns), user, with_archive=with_archive
        )
        return self._checked(start, resolved, None, patterns)

    async def resolve_start_on(
        self, endpoint: Endpoint, start: ReplayStart, user: str = ADMINISTRATION
    ) -> Resolved:
        """The same for what an endpoint subscribes to, its exceptions among it, and for the part a stream shows."""
        patterns = self.patterns_of(endpoint)
        resolved = await self._resolve(start, patterns, self.matcher_of(endpoint), user, endpoint)
        return self._checked(start, resolved, endpoint, patterns)

    def _checked(
        self, start: ReplayStart, resolved: Resolved, endpoint: Endpoint | None, patterns: Sequence[str]
    ) -> Resolved:
        """
        By what rules of retention have taken out of the log while it was looked at.

        Raises:
            Refused: START_MESSAGE_UNAVAILABLE, START_TIME_NOT_AVAILABLE.
        """
        taken_out = self.facts(endpoint, patterns).taken_out
        check_is_whole(start, resolved.first, taken_out)
        return replace(resolved, without_below=taken_out.below)

    async def _resolve(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        user: str,
        endpoint: Endpoint | None = None,
        *,
        with_archive: bool = True,
    ) -> Resolved:
        """
        A message-id or a selector is searched for first, and the newest messages are counted, in what the log holds at
        this moment.

        Args:
            patterns: The topics to be replayed.
            matches: Whether a topic is one of them; None when every topic is.
            endpoint: What is replayed or read, if it is not the log itself: a stream may show no more than a part.
            with_archive: Whether what lies before the log is looked for in its archive.
        """
        now_ms = self._now_ms()
        # What can be refused at once is refused before a search that may take minutes.
        facts = self.facts(endpoint, patterns)
        check_start(start, facts)
        with_archive = with_archive and self._search.history.archive is not None
        if with_archive and is_before_log(start, facts, now_ms):
            return await self._resolve_before_log(start, patterns, matches, user, endpoint, now_ms)
        found = await self._look_for(start, search_for(start, matches), patterns, matches, user, facts)
        facts, reader = self.facts(endpoint, patterns), self.reader
        probe: LogProbe = reader
        resolved = await asyncio.wrap_future(
            reader.submit(lambda: resolve(start, facts, probe, now_ms, matches, found))
        )
        if with_archive and self._broker.trimming.below > facts.log_first_id:
            # Some of it may have been trimmed before it was looked at.
            return await self._resolve_before_log(start, patterns, matches, user, endpoint, now_ms)
        return resolved

    async def _resolve_before_log(
        self,
        start: ReplayStart,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        user: str,
        endpoint: Endpoint | None,
        now_ms: int,
    ) -> Resolved:
        """The same for a start that may lie in the archive: whoever asks for one waits until that was seen."""
        history = self._search.history
        try:
            await history.look(user)
            facts = self.facts(endpoint, patterns)
            found = await self._look_for(start, search_for(start, matches), patterns, matches, user, facts)
            facts = self.facts(endpoint, patterns)
            return await history.ask(
                lambda probe: resolve(start, facts, probe, now_ms, matches, found),
                matches,
                user,
                last=start.kind is StartKind.LAST,
            )
        except (LogTrimmed, ReadFailed) as error:
            self._search.runtime.report("archive_read_failed", error)
            raise Refused(
                ErrorCode.INTERNAL,
                f"the start may lie before the replay log, which {self.facts(endpoint, patterns).holds}, and its "
                "archive cannot be read now; the gateway's log says why; try again later",
            ) from None

    async def _look_for(
        self,
        start: ReplayStart,
        search: Search | None,
        patterns: Sequence[str],
        matches: Callable[[str], bool] | None,
        user: str,
        facts: LogFacts,
    ) -> int | None:
        """The message of a start that has to be looked for; None where there is none, and for any other start."""
        if search is not None:
            return await LogSearch(self._search, user, start, search, patterns, facts).run()
        if start.kind is StartKind.NEWEST:
            count = int(start.value)  # type: ignore[arg-type]
            last = await self._last_of(start, facts, user)
            if last is not None:
                facts = replace(facts, next_id=min(facts.next_id, last + 1))
            return await CountBack(self._search, user, start, count, patterns, matches, facts).run()
        return None

    async def _last_of(self, start: ReplayStart, facts: LogFacts, user: str) -> int | None:
        """The end up to which the newest messages are counted."""
        now_ms, history, reader = self._now_ms(), self._search.history, self.reader
        if start.until is None:
            return None
        if history.archive is not None and facts.first_id < facts.log_first_id:
            return await history.ask(
                lambda probe: last_of(start, facts, probe, now_ms), None, user, last=False
            )
        return await asyncio.wrap_future(reader.submit(lambda: last_of(start, facts, reader, now_ms)))

    # --- points ---------------------------------------------------------------------------------------------------

    async def create_point(self, name: str, start: ReplayStart | None = None) -> Point:
        """
        Name a place in the log; returns when that is durable.

        Args:
            start: The place, in any way that a replay start says one; None (or live) for now.

        Raises:
            Refused: The name is taken or bad, the log has no such place, or the store could not write.
        """
        broker, now_ms = self._broker, self._now_ms()
        broker.check_point(name)
        position = time_ms = None
        if start is not None and start.kind is not StartKind.LIVE:
            resolved = await self.resolve_start(start, (">",))
            position, time_ms = resolved.first, resolved.time_ms
        point, effects = broker.create_point(name, position, time_ms, now_ms)

        def written(error: WriteFailed | None) -> None:
            if error is not None:
                broker.points.deleted(point)

        self._committer.commit(effects, written)
        await self._committer.committed()
        return point

    async def delete_point(self, name: str) -> None:
        """
        Take a name away; returns when that is durable.

        Raises:
            Refused: There is none of this name, or the store could not write.
        """
        points = self._broker.points
        point, effects = points.delete(name)

        def written(error: WriteFailed | None) -> None:
            if error is None:
                points.deleted(point)

        self._committer.commit(effects, written)
        await self._committer.committed()

    def points(self) -> list[ListedPoint]:
        """All points, in the order of the log."""
        points = self._broker.points
        in_order = sorted(points.values(), key=lambda point: (point.position, point.name))
        return [ListedPoint(point, points.is_trimmed(point)) for point in in_order]
