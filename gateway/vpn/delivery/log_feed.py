"""
Carries the log to one log reader's link: as much as the link takes, history first, then live.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.cursor import LogReader
from gateway.core.model import Row
from gateway.core.replay.pacing import Pacer
from gateway.vpn.clock import seconds
from gateway.vpn.delivery.log_source import LogSource
from store.errors import LogTrimmed

if TYPE_CHECKING:
    from gateway.vpn.links import ConsumingLink
    from gateway.vpn.message_vpn import MessageVpn

NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})

SLICE_ROWS = 256
"""Rows sent before the link is asked again whether it can take more."""

TURN_ROWS = 1_024
"""Rows sent in one turn of the loop when nobody else wants it."""

TURN_ROWS_BESIDE_LIVE = 128
"""The same while there is live traffic, which then waits for a third of a millisecond; see ``history_pace``."""

SHORTEST_WAIT = 0.001
"""Seconds, as exact as the loop's timers are; what is due sooner is done in the loop's next turn."""


class LogFeed:
    def __init__(
        self,
        vpn: MessageVpn,
        reader: LogReader,
        link: ConsumingLink,
        patterns: Sequence[str],
        pacer: Pacer | None = None,
    ) -> None:
        self.reader = reader
        self._link = link
        self._vpn = vpn
        self._source = LogSource(vpn.tail, vpn.reader, reader.position, patterns, self._woken)
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
        held_back = self.reader.held_back
        return self.reader.position if held_back is None else held_back[0]

    def run(self) -> None:
        """Send while the link takes it and the log has more. Called when credit, room or messages came."""
        if self._closed or self.is_scheduled:
            return
        if self.reader.caught_up:
            # It is live traffic itself.
            if self._send(TURN_ROWS) <= 0:
                self._wait(0.0)
            return
        started = seconds()
        if self._due - started >= SHORTEST_WAIT:
            self._wait(self._due - started)
            return
        activity, self._activity = self._activity, self._vpn.activity
        turn = TURN_ROWS if activity == self._activity else TURN_ROWS_BESIDE_LIVE
        left = self._send(turn)
        self._due = self._vpn.history_pace.spent(started, turn - left, self._source.spent_reading())
        if left <= 0 and not self._closed:
            self._wait(self._due - seconds())

    def _wait(self, delay: float) -> None:
        """Go on after so many seconds."""
        self.is_scheduled = True
        if delay >= SHORTEST_WAIT:
            self._vpn.later(delay, self._run_again)
        else:
            self._vpn.next_turn(self._run_again)

    def _send(self, left: int) -> int:
        """Send up to so many rows; how many of those there might still have been. None: there are more to send."""
        reader, link, source = self.reader, self._link, self._source
        tail = self._vpn.tail
        while not reader.is_finished or self._due_later:
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
                taken = source.take(min(room, left, SLICE_ROWS))
            except (LogTrimmed, sqlite3.Error) as error:
                self._woken(error)
                return left
            if taken is None:
                if not source.is_at_end:
                    return left
                if reader.held_back is None:
                    link.idle()
                    return left
                taken = (), source.position
            rows, position = taken
            left -= max(len(rows), 1)
            chosen, is_end = reader.offer(rows, position, tail.next_id, room)
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
        self._closed = True
        self._vpn.onlookers.forget_log_feed(self)

    def _send_due(self, room: int) -> bool:
        """Send what the pace lets go; False when the rest has to wait, for which a timer is set."""
        pacer, rows, now_ms = self._pacer, self._due_later, self._vpn.now_ms()
        assert pacer is not None
        count = pacer.due(rows[:room], now_ms)
        if count:
            self._link.send(rows[:count], NO_ATTEMPTS, self._end_id)
            self._due_later = rows[count:]
            return True
        self.is_scheduled = True
        self._vpn.later(max(pacer.due_ms(rows[0], now_ms) - now_ms, 1) / 1_000, self._run_again)
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
            self._vpn.report("log_read_failed", error)
            return
        self.run()
