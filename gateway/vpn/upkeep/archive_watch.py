"""
Looks at what the log's archive has, now and then and when an archiver has told of more, so that whoever asks where the
history begins need not wait for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from store.errors import ReadFailed


class ArchiveWatch:
    def __init__(self, history: LogHistory, runtime: Runtime) -> None:
        self._history = history
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    def start(self) -> None:
        """Look now, and again and again, where there is an archive."""
        if self._history.archive is not None:
            self._task = self._runtime.loop.create_task(self._watch())

    def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def archived(self) -> None:
        """An archiver has told of more."""
        self._is_due.set()

    async def _watch(self) -> None:
        while True:
            self._is_due.clear()
            with suppress(ReadFailed):  # The archive says so itself, and that is an alarm.
                await self._history.look(anew=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._runtime.tuning.archive_look_seconds):
                    await self._is_due.wait()
