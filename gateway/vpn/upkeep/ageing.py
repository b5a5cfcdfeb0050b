"""
Has the log trimmed of what is older than it may be, a little behind: it is looked at now and then, not for a message.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from gateway.core.broker import Broker
from gateway.vpn.runtime import Runtime
from gateway.vpn.upkeep.trimmer import Trimmer
from store.errors import ReadFailed
from store.ports import Reader

HOUR_MS: Final = 3_600_000


class Ageing:
    def __init__(self, broker: Broker, reader: Reader, trimmer: Trimmer, runtime: Runtime) -> None:
        self._broker = broker
        self._reader = reader
        self._trimmer = trimmer
        self._runtime = runtime
        self._timer: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Look now, and again and again."""
        self.run()
        if not self._is_closed:
            self._timer = self._runtime.loop.call_later(self._runtime.tuning.ageing_seconds, self.start)

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def run(self) -> None:
        """Look now, unless that is being done."""
        if self._broker.policy.max_age_hours and self._task is None and not self._is_closed:
            self._task = self._runtime.loop.create_task(self._trim())
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def _trim(self) -> None:
        log = self._broker.log
        end = log.next_id
        if log.first_id >= end:
            return
        oldest_ms = self._runtime.clock.now_ms() - self._broker.policy.max_age_hours * HOUR_MS
        try:
            found = await asyncio.wrap_future(
                self._reader.submit(partial(self._reader.first_since, oldest_ms))
            )
        except ReadFailed as error:
            self._runtime.report("log_read_failed", error)
            return
        # What came meanwhile is younger.
        self._trimmer.trim_aged(end if found is None else found)
