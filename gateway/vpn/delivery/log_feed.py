"""
Carries the log to one log reader's link: as much as the link takes, history first, then live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.cursor import LogCursor
from gateway.core.log.message_cache import MessageCache
from gateway.core.model import Row
from gateway.core.replay.pacing import Pacer
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.counters import Counters
from gateway.vpn.delivery.history_pace import HistoryPace
from gateway.vpn.delivery.log_source import LogSource
from gateway.vpn.runtime import Runtime
from store.errors import LogTrimmed, ReadFailed
from store.ports import Reader

NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})

SHORTEST_WAIT = 0.001
"""Seconds, as exact as the loop's timers are; what is due sooner is done in the loop's next turn."""


@dataclass(frozen=True, slots=True)
class LogFeedShared:
    """What all log feeds of a Message VPN have in common."""

    reader: Reader
    cache: MessageCache
    counters: Counters
    pace: HistoryPace
    runtime: Runtime


class LogFeed:
    def __init__(
        self,
        shared: LogFeedShared,
        cursor: LogCursor,
        client: ConsumerLink,
        patterns: Sequence[str],
        pacer: Pacer | None,
        closed: Callable[[LogFeed], None],
    ) -> None:
        """
        Args:
            patterns: What the store is asked for; none for all. The cursor decides what is sent.
            pacer: The reader's pace, if it asked for one.
            closed: Is told once this feed sends nothing any more; more than once does no harm.
        """
        self.cursor = cursor
        self._link = client
        self._cache = shared.cache
        self._counters = shared.counters
        self._pace = shared.pace
        self._runtime = shared.runtime
        self._loop = shared.runtime.loop
        self._seconds = shared.runtime.clock.seconds
        self._tuning = shared.runtime.tuning
        self._tell_closed = closed
        self._source = LogSource(
            shared.cache, shared.reader, shared.runtime, cursor.position, patterns, self._woken
        )
        self._closed = False
        self.is_scheduled = False
        """It goes on by itself, when it is its turn."""
        self._activity = 0
        self._due = 0.0
        """When the next turn may be taken."""
        self._pacer = pacer
        self._due_later: list[Row] = []
        """What the pace holds back; the last of it may be the last before live."""
        self._end_id: int | None = None

    @property
    def position(self) -> int:
        """The first id that may not have been sent."""
        if self._due_later:
            return self._due_later[0][0]
        held_back = self.cursor.held_back
        return self.cursor.position if held_back is None else held_back[0]

    def run(self) -> None:
        """Send while the link takes it and the log has more. Called when credit, room or messages came."""
        if self._closed or self.is_scheduled:
            return
        if self.cursor.caught_up:
            # It is live traffic itself.
            if self._send(self._tuning.log_turn_rows) <= 0:
                self._wait(0.0)
            return
        started = self._seconds()
        if self._due - started >= SHORTEST_WAIT:
            self._wait(self._due - started)
            return
        activity, self._activity = self._activity, self._counters.activity
        tuning = self._tuning
        turn = tuning.log_turn_rows if activity == self._activity else tuning.log_turn_rows_beside_live
        left = self._send(turn)
        self._due = self._pace.spent(started, turn - left, self._source.spent_reading())
        if left <= 0 and not self._closed:
            self._wait(self._due - self._seconds())

    def _wait(self, delay: float) -> None:
        """Go on after so many seconds."""
        self.is_scheduled = True
        if delay >= SHORTEST_WAIT:
            self._loop.call_later(delay, self._run_again)
        else:
            self._loop.call_soon(self._run_again)

    def _send(self, left: int) -> int:
        """Send up to so many rows; how many of those there might still have been. None: there are more to send."""
        cursor, link, source = self.cursor, self._link, self._source
        cache, slice_rows = self._cache, self._tuning.log_slice_rows
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
            try:
                found = source.read(min(room, left, slice_rows))
            except (LogTrimmed, ReadFailed) as error:
                self._woken(error)
                return left
            if found is None:
                if not source.is_at_end:
                    return left
                if cursor.held_back is None:
                    link.nothing_to_send()
                    return left
                found = (), source.position
            rows, position = found
            left -= max(len(rows), 1)
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

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        self._tell_closed(self)

    def _send_due(self, room: int) -> bool:
        """Send what the pace lets go; False when the rest has to wait, for which a timer is set."""
        pacer, rows, now_ms = self._pacer, self._due_later, self._runtime.clock.now_ms()
        assert pacer is not None
        count = pacer.due(rows[:room], now_ms)
        if count:
            self._link.send(rows[:count], NO_ATTEMPTS, self._end_id)
            self._due_later = rows[count:]
            return True
        self.is_scheduled = True
        self._loop.call_later(max(pacer.due_ms(rows[0], now_ms) - now_ms, 1) / 1_000, self._run_again)
        return False

    def _run_again(self) -> None:
        self.is_scheduled = False
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
