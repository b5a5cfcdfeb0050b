"""
Carries the log to one log reader's link: as much as the link takes, history first, then live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionMark, taken_by
from gateway.core.message_cache import MessageCache
from gateway.core.model import Row
from gateway.core.replay.reading import LogCursor, Pacer
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.counters import Counters
from gateway.vpn.delivery.history_pace import HistoryPace
from gateway.vpn.delivery.log_source import LogSource
from gateway.vpn.delivery.selection_turns import RowsAtOnce, SelectionTurns, WaitingTurn
from gateway.vpn.delivery.waiting_readers import WaitingReaders
from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.telemetry.message_tracing import MessageTracing
from store.errors import LogTrimmed, ReadFailed

NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})

SHORTEST_WAIT = 0.001
"""Seconds, as exact as the loop's timers are; what is due sooner is done in the loop's next turn."""


@dataclass(frozen=True, slots=True)
class LogFeedShared:
    """What all log feeds of a Message VPN have in common."""

    history: LogHistory
    cache: MessageCache
    counters: Counters
    pace: HistoryPace
    selection: SelectionTurns
    runtime: Runtime
    tracing: MessageTracing | None = None
    """Is told of what is read; None where nothing is traced."""


class LogFeed:
    def __init__(
        self,
        shared: LogFeedShared,
        cursor: LogCursor,
        client: ConsumerLink,
        patterns: tuple[str, ...],
        pacer: Pacer | None,
        waiting: WaitingReaders,
        closed: Callable[[LogFeed], None],
        *,
        gives_way: bool = False,
    ) -> None:
        """
        Args:
            patterns: What the store is asked for; none for all. The cursor decides what is sent.
            pacer: The reader's pace, if it asked for one.
            waiting: Knows when to go on with a reader that has all there is; it is one of them.
            closed: Is told once this feed sends nothing any more; more than once does no harm.
            gives_way: It is for eyes: where live traffic leaves it behind, it waits for that as history does.
        """
        self.cursor = cursor
        self._link = client
        self._patterns = patterns
        self.is_short = False
        """Since its start was resolved rules of retention took messages out that it was to read."""
        self._cache = shared.cache
        self._counters = shared.counters
        self._pace = shared.pace
        self._runtime = shared.runtime
        self._loop = shared.runtime.loop
        self._seconds = shared.runtime.clock.seconds
        self._tuning = shared.runtime.tuning
        self._tell_closed = closed
        # The end of a bounded replay may be any message.
        self.topics = patterns if cursor.last is None else ()
        """What it waits for, as patterns; none where that is whatever is published."""
        self._waiting = waiting
        self._is_waiting = False
        """It has all there is, and its link takes more."""
        self._source = LogSource(
            shared.cache,
            shared.history,
            shared.runtime,
            cursor.position,
            patterns,
            self._woken,
            user=client.client.user,
        )
        self._gives_way = gives_way
        self._closed = False
        self._turn: asyncio.Handle | WaitingTurn | None = None
        self._selection = shared.selection if cursor.selects is not None else None
        self._chosen_from = RowsAtOnce(self._seconds, shared.runtime.tuning.log_slice_rows)
        self._activity = 0
        self._due = 0.0
        """When the next turn may be taken."""
        self._pacer = pacer
        self._due_later: list[Row] = []
        """What the pace holds back; the last of it may be the last before live."""
        self._end_id: int | None = None

    @property
    def is_scheduled(self) -> bool:
        """It goes on by itself, when it is its turn."""
        return self._turn is not None

    @property
    def position(self) -> int:
        """The first id that may not have been sent."""
        if self._due_later:
            return self._due_later[0][0]
        held_back = self.cursor.held_back
        if held_back is not None:
            return held_back[0]
        return max(self.cursor.position, self._waiting.next_id) if self._is_waiting else self.cursor.position

    def takes(self, topic: str) -> bool:
        """Whether it reads a topic."""
        matches = self.cursor.matches
        return matches is None or matches(topic)

    def go_on_from(self, position: int) -> None:
        """It waits no more, and nothing below ``position`` is for it."""
        self._is_waiting = False
        if position > self.cursor.position:
            self._source.skip_to(position)
            self.cursor.offer((), position, position, 0)

    def run(self) -> None:
        """Send while the link takes it and the log has more. Called when credit, room or messages for it came."""
        if self._closed or self._turn is not None:
            return
        if self.is_short:
            self._refuse_rest(self.position)
            return
        if self._is_waiting:
            self._waiting.stop_waiting(self)
            self.go_on_from(self._waiting.next_id)
        if self.cursor.caught_up and not (
            self._gives_way and self._source.is_behind(self._tuning.log_turn_rows)
        ):
            # It is live traffic itself.
            if self._send(self._tuning.log_turn_rows) <= 0:
                self._wait(0.0)
            return
        started = self._seconds()
        wait = self._pace.wait(self._due)
        if wait >= SHORTEST_WAIT:
            self._wait(wait)
            return
        activity, self._activity = self._activity, self._counters.activity
        tuning = self._tuning
        turn = tuning.log_turn_rows if activity == self._activity else tuning.log_turn_rows_beside_live
        left = self._send(turn)
        self._due = self._pace.spent(started, turn - left, self._source.spent_reading())
        if left <= 0 and not self._closed:
            self._wait(self._pace.wait(self._due))

    def _wait(self, delay: float) -> None:
        """Go on after so many seconds."""
        if delay >= SHORTEST_WAIT:
            self._turn = self._loop.call_later(delay, self._run_again)
        else:
            self._turn = self._loop.call_soon(self._run_again)

    def _send(self, left: int) -> int:
        """Send up to so many rows; how many of those there might still have been. None: there are more to send."""
        cursor, link, source = self.cursor, self._link, self._source
        cache, slice_rows, selection = self._cache, self._tuning.log_slice_rows, self._selection
        while not cursor.is_finished or self._due_later:
            room = link.room()
            if room <= 0:
                return max(left, 1)
            if self._due_later:
                if not self._send_due(room):
                    return max(left, 1)
                continue
            if left <= 0:
                return left
            if selection is not None:
                if selection.is_over():
                    self._turn = selection.wait(self._run_again)
                    return max(left, 1)
                slice_rows = self._chosen_from.count
            try:
                found = source.read(min(room, left, slice_rows))
            except (LogTrimmed, ReadFailed) as error:
                self._woken(error)
                return left
            if found is None:
                if not source.is_at_end:
                    return left
                if cursor.held_back is None:
                    self._wait_for_news()
                    return left
                found = (), source.position
            rows, position = found
            left -= max(len(rows), 1)
            if selection is None:
                chosen, is_end = cursor.offer(rows, position, cache.next_id, room)
            else:
                with self._chosen_from:
                    chosen, is_end = cursor.offer(rows, position, cache.next_id, room)
            if is_end:
                self._end_id = chosen[-1][0]
            if chosen and self._pacer is not None:
                self._due_later = chosen
            elif chosen:
                link.send(chosen, NO_ATTEMPTS, self._end_id if is_end else None)
        self.close()
        link.finish()
        return max(left, 1)

    def _wait_for_news(self) -> None:
        """All there is was sent: it is live, and nobody need look at it until something is for it."""
        self.cursor.offer((), self._source.position, self._cache.next_id, 0)
        self._is_waiting = True
        self._waiting.wait(self)
        self._link.nothing_to_send()

    def close(self) -> None:
        """Send nothing any more, and hold no link for it."""
        self._closed = True
        self._is_waiting = False
        self._source.close()
        self._due_later = []
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._tell_closed(self)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""
        self._source.erased(markers)
        self._due_later = with_markers(self._due_later, markers)
        held_back = self.cursor.held_back
        if held_back is not None:
            (self.cursor.held_back,) = with_markers([held_back], markers)

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """
        These messages, (id, topic) with rising ids, are about to leave the log between others: one that is still to
        read some of them is told.
        """
        position, last = self.position, self.cursor.last
        if position > found[-1][0] or not any(
            position <= message_id and (last is None or message_id <= last) and self.takes(topic)
            for message_id, topic in found
        ):
            return
        self._refuse_rest(position)

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """The same of messages that have left it; which they were, nobody knows."""
        position = self.position
        if position < taken_by(marks, self._patterns).below:
            self._refuse_rest(position)

    def _refuse_rest(self, position: int) -> None:
        self.close()
        self._link.refuse(
            Refused(
                ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
                f"the log was trimmed under the replay: from id {position} on a rule of retention took messages out",
            )
        )

    def _send_due(self, room: int) -> bool:
        """Send what the pace lets go; False when the rest has to wait, for which a timer is set."""
        pacer, rows, now_ms = self._pacer, self._due_later, self._runtime.clock.now_ms()
        assert pacer is not None
        count = pacer.due(rows[:room], now_ms)
        if count:
            self._link.send(rows[:count], NO_ATTEMPTS, self._end_id)
            self._due_later = rows[count:]
            return True
        self._wait(pacer.wait_s(rows[0], now_ms))
        return False

    def _run_again(self) -> None:
        self._turn = None
        self.run()

    def _woken(self, error: BaseException | None) -> None:
        if self._closed:
            return
        if error is not None:
            self.close()
            if isinstance(error, LogTrimmed):
                self._link.refuse(
                    Refused(
                        ErrorCode.REPLAY_MESSAGE_UNAVAILABLE, f"the log was trimmed under the replay: {error}"
                    )
                )
                return
            self._link.refuse(
                Refused(ErrorCode.INTERNAL, "the replay log could not be read; the gateway's log says why")
            )
            self._runtime.report("log_read_failed", error)
            return
        self.run()
