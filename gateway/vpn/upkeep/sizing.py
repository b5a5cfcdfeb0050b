"""
Sizes: the depths of endpoints, saved once a second, and the growth of the log, measured once a minute.

No message causes work here. The store saves an endpoint's depth with its cursor, as of some id, and a start counts the
messages after that id: at most those of one interval. The log's growth serves the planning of its size, and alarms by
the time that is left. For the time before the gateway's start, it is estimated from the log itself: from the ids that
the log had given out at past times, and from the average size of its messages.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from gateway.core import sizing
from gateway.vpn.state import VpnService, VpnState
from gateway.vpn.upkeep.alarms import AlarmWatch
from gateway.vpn.upkeep.trimming import TRIM_AT, TRIM_TO
from store.errors import ReadFailed
from store.ports import DiskUse, Reader

COUNT_SECONDS: Final = 1.0
"""From one count to the next: a start counts the messages of this time, some hundred thousand at most."""

SWEEP_COUNTS: Final = 10
"""Counts from one sweep for unused routes to the next."""

LEAST_MS: Final = 10 * sizing.MINUTE_MS
"""A rate that was measured over less is no reason for an alarm."""


class Counting(VpnService):
    """
    Saves the depths of endpoints. A message that is put on an endpoint causes no write for the endpoint: the endpoint's
    cursor has its depth as of some id.
    """

    def __init__(self, state: VpnState) -> None:
        super().__init__(state)
        self._counts = 0

    def start(self) -> None:
        """Count, again and again."""
        self._after(COUNT_SECONDS, self._count)

    def _count(self) -> None:
        self.save()
        self._counts += 1
        if self._counts % SWEEP_COUNTS == 0:
            self._broker.publications.sweep_routes()
        self.start()

    def save(self) -> None:
        """Save the depths; at a stop this is the last thing that is written."""
        self._committer.commit_when_convenient(*self._broker.counts.effects())


class Sizing(VpnService):
    """Measures how fast the log grows and how much room the disk has."""

    def __init__(self, state: VpnState, alarms: AlarmWatch) -> None:
        super().__init__(state)
        self._alarms = alarms
        self.growth = sizing.LogGrowth()
        self.disk: DiskUse | None = None
        """The result of the last look; None before the first look, and after a failed one."""
        self._is_begun = False

    def start(self) -> None:
        """Look now, and again and again."""
        self._every(self._runtime.tuning.sizing_seconds, partial(self._begin, self._look))

    async def look(self) -> None:
        """Look now; a call during a look waits for the same look."""
        await asyncio.shield(self._begin(self._look))

    def plan(self, keep_ms: int = 0) -> tuple[sizing.Rate | None, sizing.LogPlan]:
        """What follows from the rate of the last week, or of as much of it as is known, by the last look."""
        rate = self.growth.rate(7 * sizing.DAY_MS)
        return rate, sizing.plan(self._size(), rate, keep_ms, self._retention())

    def retention(self) -> list[tuple[sizing.TopicsSize, sizing.TopicsPlan]]:
        """What each retention rule holds and will hold, in the order of the rules; empty while that is counted."""
        _, log = self.plan()
        return [(topics, sizing.plan_of_topics(topics, log.lasts_ms)) for topics in self._retention()]

    def _retention(self) -> list[sizing.TopicsSize]:
        log, retention, now_ms = self._broker.log, self._broker.retention, self._runtime.clock.now_ms()
        if not retention.is_counted:
            return []
        return [
            sizing.TopicsSize(
                kept.size_bytes,
                now_ms - max(log.floor_ms, retention.whole_ms(kept)),
                kept.rule.quota_bytes,
                kept.rule.max_age_hours,
            )
            for kept in retention.rules
        ]

    def _size(self) -> sizing.LogSize:
        log, policy, disk = self._broker.log, self._broker.policy, self.disk
        room = None if disk is None or disk.free_bytes is None else disk.free_bytes + disk.reusable_bytes
        return sizing.LogSize(
            log.size_bytes, policy.quota_bytes, TRIM_AT, TRIM_TO, policy.max_age_hours, room_bytes=room
        )

    async def _look(self) -> None:
        try:
            if not self._is_begun:
                await self._look_back()
            self.disk = await self._state.read(self._reader.disk)
        except ReadFailed as error:
            self._runtime.report("log_read_failed", error)
            self.disk = None
            if not self._is_begun:
                return
        counters = self._counters
        now_ms = self._runtime.clock.now_ms()
        self.growth.note(sizing.Taken(now_ms, counters.logged_messages, counters.logged_bytes))
        self._alarms.sized(self._for_alarms(sizing.HOUR_MS), self._for_alarms(sizing.DAY_MS))

    def _for_alarms(self, period_ms: int) -> sizing.LogPlan:
        rate = self.growth.rate(period_ms)
        rate = rate if rate is not None and rate.period_ms >= LEAST_MS else None
        return sizing.plan(self._size(), rate, retention=self._retention())

    async def _look_back(self) -> None:
        """Note what the log took before now, as far back as it has messages."""
        log, counters, now_ms = self._broker.log, self._counters, self._runtime.clock.now_ms()
        if log.next_id > log.first_id:
            reading = self._state.read(_ids_since, self._reader, log.next_id, now_ms)
            a_message = log.size_bytes / (log.next_id - log.first_id)
            messages, size_bytes = counters.logged_messages, counters.logged_bytes
            for time_ms, ids in await reading:
                self.growth.note(sizing.Taken(time_ms, messages - ids, size_bytes - ids * a_message))
        self._is_begun = True


def _ids_since(reader: Reader, next_id: int, now_ms: int) -> list[tuple[int, int]]:
    """(time in ms, ids given out since then) for the oldest message's time and the beginning of each later period."""
    oldest_id = reader.first_since(0)
    oldest_ms = None if oldest_id is None else reader.time_of(oldest_id)
    if oldest_ms is None:
        return []
    times = {now_ms - period_ms for period_ms in sizing.PERIODS_MS if now_ms - period_ms > oldest_ms}
    found = [(time_ms, reader.first_since(time_ms)) for time_ms in sorted({oldest_ms, *times})]
    return [(time_ms, 0 if since is None else max(next_id - since, 0)) for time_ms, since in found]
