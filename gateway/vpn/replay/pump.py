"""
Puts the log on one replaying endpoint again: windowed, in order, until it meets live traffic.

Each step reads what there is room for and has it delivered: it lies in the log, so nothing is written. When the end of
the log is reached, the endpoint is routed to again (``ReplayCommands.hand_over``); what was still on its way
into the store at that moment is read as it is committed, and live messages line up behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode
from gateway.core.message_cache import MessageCache
from gateway.core.model import CONTENT, HELD, ID, ID_OF, TOPIC, Columns, Row, sizes_of
from gateway.core.replay.reading import LogCursor, logged, of_topics
from gateway.core.replay.states import Replay
from gateway.vpn.committer import Committer
from gateway.vpn.delivery.endpoint_feed import EndpointFeed
from gateway.vpn.delivery.log_source import LogSource
from gateway.vpn.log_history import HeldMessages, LogHistory
from gateway.vpn.replay.content_ahead import ContentAhead, held_bytes
from gateway.vpn.runtime import Runtime
from store.errors import LogTrimmed, ReadFailed
from store.ports import Reader

STEP_ROWS = 1_000
"""Messages of the log looked at in one step."""

FEW_READY = STEP_ROWS // 2
"""With so many ready ahead of a consumer nothing is put: what lies in memory for long is no longer near the processor,
and long lists are slow to take from."""


class PumpOwner(Protocol):
    """Whom a pump tells how its replay ends."""

    def fail(self, endpoint: Endpoint, reason: str, code: ErrorCode = ErrorCode.REPLAY_FAILED) -> None:
        """The replay cannot go on."""

    def reached_end(self, endpoint: Endpoint) -> None:
        """It has reached the end of the log."""


@dataclass(frozen=True, slots=True)
class PumpShared:
    """What all replays onto endpoints of a Message VPN have in common."""

    broker: Broker
    committer: Committer
    reader: Reader
    history: LogHistory
    cache: MessageCache
    runtime: Runtime


class _ReplayCursor(LogCursor):
    """
    What of the log an endpoint is to have again: what it subscribes to, by the subscriptions that were in force at each
    id, and was not acknowledged.
    """

    __slots__ = ("_endpoint", "_matchers", "_starts")

    def __init__(self, endpoint: Endpoint, position: int, last: int | None) -> None:
        super().__init__(position, last, None, is_live=False)
        assert endpoint.replay is not None
        self._endpoint = endpoint
        in_force = endpoint.replay.subscriptions
        self._starts = [first for first, _ in in_force]
        self._matchers = [endpoint.topics.matching(texts) for _, texts in in_force]

    def choose(self, rows: list[Row], topics: Collection[str] | None = None) -> list[Row]:
        backlog, starts, matchers = self._endpoint.backlog, self._starts, self._matchers
        replayed, references = backlog.put.replayed, backlog.put.references
        assert replayed is not None
        if len(matchers) == 1 and rows and not references and not replayed.has_done_after(rows[0][ID]):
            return of_topics(rows, matchers[0], topics)
        return [
            row
            for row in rows
            if matchers[max(bisect_right(starts, row[ID]) - 1, 0)](row[TOPIC])
            and not replayed.is_done(row[ID])
            # Put before a stop, and kept by a reference when the log was trimmed under it.
            and row[ID] not in references
        ]


class ReplayPump:
    def __init__(
        self,
        shared: PumpShared,
        feed: EndpointFeed,
        owner: PumpOwner,
        *,
        ahead: int,
        most_bytes: Callable[[], int],
    ) -> None:
        """
        Args:
            ahead: Messages put on an endpoint ahead of a bound consumer, where the endpoint has no max_unsettled of
                its own: its max delivered-unacked.
            most_bytes: Content that it keeps ahead of consumers, before it waits for them.
        """
        endpoint = feed.endpoint
        assert endpoint.replay is not None
        self._shared = shared
        self._broker = shared.broker
        self._committer = shared.committer
        self._cache = shared.cache
        self._loop = shared.runtime.loop
        self._owner = owner
        self._feed = feed
        self._endpoint = endpoint
        self._replay: Replay = endpoint.replay
        self._ahead = ahead
        self._kept = ContentAhead(feed.kept, most_bytes)
        self._most_bytes = most_bytes
        self.waits_for_hunger = False
        """It keeps as much content as it may: consumers take of it what they can, before there is more."""
        self._is_hungry = False
        self._unmarked: int | None = None
        """A message that may be the last before live, and was put before that could be known."""
        self._read_from(self._replay.position)

    def _read_from(self, position: int) -> None:
        """Read the log from here on."""
        shared, endpoint, replay = self._shared, self._endpoint, self._replay
        last = replay.live_from - 1 if replay.live_from is not None else None
        self._cursor = _ReplayCursor(endpoint, position, last)
        self._routed: list[Row] = []
        """Messages that the log did not take, and that lie on the endpoint by their routes: they have their place
        between those that it did."""
        self._routed_bytes = 0
        patterns = {
            text: None for _, texts in replay.subscriptions for text in endpoint.topics.patterns_with(texts)
        }
        self._source = LogSource(
            shared.cache,
            shared.history,
            shared.runtime,
            position,
            tuple(patterns),
            self._woken,
            user=endpoint.settings.owner,
            held=HeldMessages(self._routes, self._is_routed),
        )

    def _routes(self) -> list[int]:
        """By what the log does not take comes to the endpoint."""
        backlog = self._endpoint.backlog
        return sorted({number for part in backlog.parts for number in backlog.route_numbers(part)})

    def _is_routed(self, row: Row) -> bool:
        """Whether a message lies on the endpoint by a route, and not by what the replay puts."""
        backlog, kept_up_to = self._endpoint.backlog, self._replay.kept_up_to
        return (
            # Whoever has it may have it as it was while the log had it, yet.
            (row[HELD] is not None or row[ID] <= kept_up_to)
            and backlog.has(row)
            # Put before a stop, and kept by a reference when a rule took it out of the log: it is there.
            and row[ID] not in backlog.put.references
        )

    def subscriptions_changed(self) -> None:
        """
        What was not put yet is read by the new ones: live messages of theirs are in the log alone until they are read.
        """
        position = self.position
        self._committer.commit(self._broker.replay_commands.subscriptions_changed(self._endpoint, position))
        self._read_from(position)
        self._loop.call_soon(self.run)

    @property
    def position(self) -> int:
        """Everything before this id was put, or is not wanted."""
        # What was read and could not be put as the log was trimmed is gone, but for what the log did not take.
        return min(self._read_up_to, self._routed[0][ID]) if self._routed else self._read_up_to

    @property
    def _read_up_to(self) -> int:
        held_back = self._cursor.held_back
        return self._cursor.position if held_back is None else held_back[0]

    @property
    def is_over(self) -> bool:
        """A newer replay has taken its place, the endpoint is gone, or it has put everything."""
        return self._endpoint.replay is not self._replay or not self._replay.is_reading

    @property
    def is_full(self) -> bool:
        """It waits for messages to be acknowledged."""
        return self._room() <= 0

    def run(self) -> None:
        """Go on as far as there is room. Called when messages were committed or acknowledged."""
        self.waits_for_hunger = False
        while not self.is_over:
            if self._cursor.is_finished or self._replay.is_forced:
                self._finish()
                return
            room = self._room()
            if room > 0 and not self._is_hungry and self._replay.live_from is None:
                self.waits_for_hunger = self._kept.is_full
            if room <= 0 or self.waits_for_hunger:
                if not self._endpoint.flows:
                    # It may be a long time until somebody comes.
                    self._source.let_go()
                return
            try:
                found = self._source.read(min(room, STEP_ROWS))
            except (LogTrimmed, ReadFailed) as error:
                self._woken(error)
                return
            if found is None:
                if not self._source.is_at_end:
                    return
                self._hand_over()
                assert self._cursor.last is not None
                if self._source.position <= self._cursor.last:
                    return
                found = (), self._source.position
            rows, position = found
            end = self._cache.next_id
            if position >= end:
                self._hand_over()
            if self._cursor.last is not None:
                # What is still on its way may match, too: until it is here, the last message is not known. What lies
                # beyond it is live, however much of it the page has already.
                end = self._cursor.last + 1
                position = min(position, end)
            columns = self._source.columns or Columns.of(rows)
            of_log = list(rows) if columns.are_logged else logged(rows)
            if len(of_log) < len(rows) or (rows and rows[0][ID] <= self._replay.kept_up_to):
                routed = [row for row in rows if row[ID] < position and self._is_routed(row)]
                self._routed += routed
                self._routed_bytes += sum(map(held_bytes, routed))
            held_back = self._cursor.held_back
            chosen, is_end = self._cursor.offer_logged(of_log, position, end, room, columns.topics)
            self._find_end(chosen, is_end=is_end)
            self._put(chosen, *_ids_and_sizes(chosen, held_back, columns))
            if chosen:
                self._is_hungry = False

    def feed_hungry(self) -> None:
        """Consumers have taken what there was: a step more is put, whatever is kept."""
        if self.waits_for_hunger:
            self._is_hungry = True
            self.run()

    def _find_end(self, chosen: list[Row], *, is_end: bool) -> None:
        """Which of these is the last message before live, if one is; and whether it can be waited for."""
        cursor, replay = self._cursor, self._replay
        if chosen:
            self._unmarked = None
        if is_end and replay.end_id is None:
            # After a restart it is known already, and may have been acknowledged.
            replay.found_end(chosen[-1][0])
        elif cursor.held_back is not None and self._routed_bytes >= self._most_bytes():
            # What the log did not take waits behind it, and there may be any number of that.
            self._unmarked = cursor.held_back[ID]
            if cursor.last is not None and cursor.position > cursor.last and replay.end_id is None:
                # There was no room for it, no more: it is the last.
                replay.found_end(self._unmarked)
            chosen.append(cursor.held_back)
            cursor.held_back = None
        elif cursor.caught_up and self._unmarked is not None and replay.end_id is None:
            # It has its mark, if it is still here.
            replay.found_end(self._unmarked)

    def _room(self) -> int:
        if self._replay.live_from is not None:
            # What is left is what was in flight at the hand-over: live messages wait for it.
            return STEP_ROWS
        endpoint = self._endpoint
        if not endpoint.flows:
            return self._shared.runtime.tuning.replay_ahead_without_consumer - self._replay.outstanding
        if endpoint.ready.has_enough(FEW_READY):
            return 0
        return (endpoint.settings.max_unsettled or self._ahead) - self._replay.outstanding

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""
        self._source.erased(markers)
        self._routed = with_markers(self._routed, markers)
        self._routed_bytes = sum(map(held_bytes, self._routed))
        held_back = self._cursor.held_back
        if held_back is not None:
            (self._cursor.held_back,) = with_markers([held_back], markers)

    def _put(self, rows: list[Row], ids: list[int], sizes: list[int]) -> None:
        # What an earlier gateway has trimmed, too.
        below = max(self._broker.trimming.below, self._broker.log.first_id)
        archived = [row[ID] for row in rows if row[ID] < below] if rows and rows[0][ID] < below else []
        if archived:
            history = self._shared.history
            if history.archive is None:
                self._woken(LogTrimmed(archived[0], below))
                return
            if not (history.is_archived(archived[0]) and history.is_archived(archived[-1])):
                # It was read before it was trimmed: whether the archive has it, is seen by reading it there.
                self._read_from(min(archived[0], self._routed[0][ID]) if self._routed else archived[0])
                return
            if not self._replay.is_archived:
                self._committer.commit(self._broker.replay_commands.reads_archive(self._endpoint))
        position = self._read_up_to
        passed = [row for row in self._routed if row[ID] < position]
        beside = 0
        if passed:
            self._routed = self._routed[len(passed) :]
            beside = sum(map(held_bytes, passed))
            self._routed_bytes -= beside
        counted = self._broker.erasing.sized(rows)
        size = sum(sizes if counted is rows else sizes_of(counted))
        routed = list(map(ID_OF, passed))
        if passed:
            rows = sorted([*rows, *passed])
            ids, sizes = list(map(ID_OF, rows)), sizes_of(rows)
        self._broker.replay_commands.put(self._endpoint, ids, rows, size, routed, position, archived)
        if rows:
            self._feed.keep(ids, rows, sizes)
            self._kept.added(len(rows), size + beside)
            self._feed.run()

    def _hand_over(self) -> None:
        if self._replay.live_from is not None:
            return
        self._committer.commit(self._broker.replay_commands.hand_over(self._endpoint))
        self._cursor.last = self._broker.next_id - 1

    def _finish(self) -> None:
        self._committer.commit(self._broker.replay_commands.finish_reading(self._endpoint, self.position))
        self._owner.reached_end(self._endpoint)
        self._feed.run()

    def _woken(self, error: BaseException | None) -> None:
        if self.is_over:
            return
        if isinstance(error, LogTrimmed):
            self._owner.fail(
                self._endpoint, f"the log was trimmed under it: {error}", ErrorCode.REPLAY_MESSAGE_UNAVAILABLE
            )
            return
        if error is not None:
            self._shared.runtime.report("log_read_failed", error)
            self._loop.call_later(1.0, self.run)
            return
        self.run()


def _ids_and_sizes(chosen: list[Row], held_back: Row | None, columns: Columns) -> tuple[list[int], list[int]]:
    """
    Of rows that were chosen.

    Args:
        held_back: What was held back before them: the first, if it is there now.
        columns: Of the rows that they were chosen from. The caller's no longer.
    """
    first = 0 if held_back is None else 1
    count = len(chosen) - first
    # Most often they are all, but for one at the end that is held back now. They rise: then no other is among them.
    if count <= 0 or not (
        count <= len(columns.ids)
        and chosen[first][ID] == columns.ids[0]
        and chosen[-1][ID] == columns.ids[count - 1]
    ):
        return list(map(ID_OF, chosen)), sizes_of(chosen)
    ids, sizes = columns.ids, columns.sizes
    if held_back is not None:
        ids.insert(0, held_back[ID])
        sizes.insert(0, len(held_back[CONTENT]))
    del ids[first + count :], sizes[first + count :]
    return ids, sizes
