"""
Copies of a part of the log, published at another gateway.

A commit is on one machine, so the two cannot be one step: what the peer has accepted is saved here when it has said so.
After a stop in between it is sent once more, with the same ``x-opt-replay-name`` and ``x-opt-replay-source-id``, by
which the other side drops what it has had. Nothing is left out, and nothing is passed over that was not accepted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gateway.config import ReplayTarget
from gateway.core.message_cache import MessageCache
from gateway.core.model import ID, ReplayRecord
from gateway.vpn.jobs.copy_job import Batch, CopyJob
from gateway.vpn.jobs.job import RUNNING, JobShared
from gateway.vpn.jobs.remote_target import OpenRemote, RemotePublisher

MOST_UNSETTLED: Final = 1_000
"""Messages on their way to the peer at once."""

ROUND_TRIP_MS: Final = 1_000
"""Made up for, of a rate (``Pacer``): to a peer that is far, or busy, it takes longer than a commit here."""

LEAVE_SECONDS: Final = 2.0
"""How long a pause waits for what is on its way: what is not accepted by then is sent once more."""

FindTarget = Callable[[], ReplayTarget | None]
"""The settings of a job's peer as they are now; None where they are gone."""


class RemoteCopyJob(CopyJob):
    """
    Raises:
        Refused: INVALID_FIELD, its selector is none.
    """

    def __init__(
        self,
        shared: JobShared,
        record: ReplayRecord,
        cache: MessageCache,
        find_target: FindTarget,
        open_remote: OpenRemote,
    ) -> None:
        super().__init__(shared, record, "", cache, ROUND_TRIP_MS)
        self._find_target = find_target
        self._open_remote = open_remote
        self._remote: RemotePublisher | None = None

    def _let_go(self) -> None:
        super()._let_go()
        self._close_remote()

    def _close_remote(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    async def _publish(self, batch: Batch) -> None:
        """Publish copies, and save that everything before the first one that was not accepted is done."""
        clock, pace = self._runtime.clock, self._shared.pace
        while self._wanted == RUNNING:
            count = await self._let_through(batch)
            if count is None:
                continue
            count = min(count, MOST_UNSETTLED)
            started = clock.seconds() - batch.seconds
            self._exchange_erased(batch)
            sizes = [len(content) for content in batch.contents[:count]]
            reasons = await self._send(batch.contents[:count])
            if reasons is None:
                return
            accepted = [place for place, reason in enumerate(reasons) if not reason]
            record, before = self.record, len(batch.rows)
            refused = next((reason for reason in reasons if reason), "")
            looked_at = batch.looked_at if len(accepted) == before else min(len(accepted), batch.looked_at)
            batch.take_out(accepted, looked_at)
            after = replace(
                record,
                position=batch.rows[0][ID] if batch.rows else batch.position,
                read=record.read + looked_at,
                sent=record.sent + len(accepted),
                size_bytes=record.size_bytes + sum(sizes[place] for place in accepted),
                outcome="",
            )
            self._due = pace.spent(started, len(accepted), 0.0)
            if after != replace(record, outcome=""):
                await self._save_until_done(after)
            if refused:
                await self._wait_for(refused)
            elif not batch.rows:
                return

    async def _save_until_done(self, after: ReplayRecord) -> None:
        """What was accepted stays so: only the record is written again where the store cannot."""
        while True:
            error = await self._commit(after)
            if error is None or self._wanted != RUNNING:
                return
            await self._wait_for(f"the store could not write: {error}")

    async def _send(self, contents: list[bytes]) -> list[str] | None:
        """Why each was not accepted; None once another state is wanted, and nothing is known in time."""
        if not contents:
            return []
        settings = self._find_target()
        if settings is None:
            self._close_remote()
            return [f"the configuration has no replay target {self.record.remote!r} any more"] * len(contents)
        remote = self._remote
        if remote is None:
            remote = self._remote = self._open_remote(self.record.target, self.record.name)
        found: list[list[str]] = []
        loop = self._runtime.loop

        def publish() -> None:
            try:
                found.append(remote.publish(settings, contents))
            except Exception as error:  # a mistake of ours must not leave the job waiting
                loop.call_soon_threadsafe(self._runtime.report, "replay_job_failed", error)
                found.append([f"{type(error).__name__} at publishing"] * len(contents))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake)

        threading.Thread(target=publish, name="remote copy", daemon=True).start()
        while not found and self._wanted == RUNNING:
            await self._wait()
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    while not found:
                        await self._wait()
            self._close_remote()
        return found[0] if found else None
