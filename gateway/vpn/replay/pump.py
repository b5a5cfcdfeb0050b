"""
Puts the log on one replaying endpoint again: windowed, in order, until it meets live traffic.

Each step reads what there is room for, makes the references durable, and only then lets them be delivered. When the
end of the log is reached, the endpoint is routed to again (``ReplayCommands.hand_over``); what was still on its way
into the store at that moment is read as it is committed, and live messages line up behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode
from gateway.core.log.cursor import LogCursor
from gateway.core.log.message_cache import MessageCache
from gateway.core.model import CONTENT, ID, Row
from gateway.core.replay.states import Replay
from gateway.vpn.committer import Committer
from gateway.vpn.delivery.endpoint_feed import EndpointFeed
from gateway.vpn.delivery.log_source import LogSource
from gateway.vpn.runtime import Runtime
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import Reader

STEP_ROWS = 1_000
"""Messages of the log looked at in one step."""


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
    cache: MessageCache
    runtime: Runtime


class ReplayPump:
    def __init__(self, shared: PumpShared, feed: EndpointFeed, owner: PumpOwner, *, ahead: int) -> None:
        """
        Args:
            ahead: Messages put on an endpoint ahead of a bound consumer, where the endpoint has no max_unsettled of
                its own: its max delivered-unacked.
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
        self._busy = False
        self._read_from(self._replay.position)

    def _read_from(self, position: int) -> None:
        """Read the log from here on, by the endpoint's subscriptions as they are now."""
        shared, endpoint, live_from = self._shared, self._endpoint, self._replay.live_from
        last = live_from - 1 if live_from is not None else None
        self._cursor = LogCursor(position, last, endpoint.topics.matches, is_live=False)
        patterns = endpoint.topics.patterns
        self._source = LogSource(shared.cache, shared.reader, shared.runtime, position, patterns, self._woken)

    def subscriptions_changed(self) -> None:
        """
        What was not put yet is read by the new ones: live messages of theirs are in the log alone until they are read.
        """
        self._read_from(self._considered)
        self._loop.call_soon(self.run)

    @property
    def _considered(self) -> int:
        """Everything before this id was put, or is not wanted."""
        held_back = self._cursor.held_back
        return self._cursor.position if held_back is None else held_back[0]

    @property
    def is_over(self) -> bool:
        """A newer replay has taken its place, the endpoint is gone, or it has put everything."""
        return self._endpoint.replay is not self._replay or not self._replay.is_reading

    @property
    def is_full(self) -> bool:
        """It waits for messages to be acknowledged."""
        return not self._busy and self._room() <= 0

    def run(self) -> None:
        """Go on as far as there is room. Called when messages were committed or acknowledged."""
        while not self._busy and not self.is_over:
            if self._cursor.is_finished or self._replay.is_forced:
                self._finish()
                return
            room = self._room()
            if room <= 0:
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
            chosen, is_end = self._cursor.offer(rows, position, end, room)
            if is_end:
                self._replay.found_end(chosen[-1][0])
            if chosen:
                self._put(chosen)

    def _room(self) -> int:
        if self._replay.live_from is not None:
            # What is left is what was in flight at the hand-over: live messages wait for it.
            return STEP_ROWS
        ahead = self._endpoint.settings.max_unsettled or self._ahead
        limit = ahead if self._endpoint.flows else self._shared.runtime.tuning.replay_ahead_without_consumer
        return limit - self._replay.outstanding

    def _put(self, rows: list[Row]) -> None:
        self._busy = True
        position = self._considered
        ids = [row[ID] for row in rows]
        if ids[0] < self._broker.trimming_below:
            self._woken(LogTrimmed(ids[0], self._broker.trimming_below))
            return
        # Messages that the log did not take are on the endpoint already; in its order they have their place here.
        passed = self._endpoint.pop_awaiting(position)
        replays, number = self._broker.replay_commands, self._endpoint.storage_number
        size = sum(len(row[CONTENT]) for row in rows)
        effects = replays.put(self._endpoint, rows, size, position, len(passed))

        def committed(error: WriteFailed | None) -> None:
            self._busy = False
            if error is not None:
                replays.not_put(self._endpoint, number, len(ids), size)
            if self.is_over:
                return
            if error is not None:
                self._owner.fail(self._endpoint, f"its messages could not be written: {error}")
                return
            self._feed.keep(rows)
            self._endpoint.add_committed(sorted(ids + passed))
            self._feed.run()
            self.run()

        self._committer.commit(effects, committed)

    def _hand_over(self) -> None:
        if self._replay.live_from is not None:
            return
        self._committer.commit(self._broker.replay_commands.hand_over(self._endpoint))
        self._cursor.last = self._broker.next_id - 1

    def _finish(self) -> None:
        self._committer.commit(self._broker.replay_commands.finish_reading(self._endpoint))
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
