"""
Copies of a part of the log, published to a queue or topic as ordinary messages.

The end was fixed when the job began: a job that copies the log into itself ends. Nothing is left out: where the target
takes no more the job waits, and where the log was trimmed under it, it fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from amqp_ext.message.copies import CopyFronts
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.cursor import logged, of_topics
from gateway.core.log.message_cache import MessageCache
from gateway.core.model import ID, Row
from gateway.core.replay.pacing import Pacer
from gateway.core.replay.record import ReplayRecord
from gateway.vpn.delivery.log_source import LogSource
from gateway.vpn.jobs.job import RUNNING, Job, JobShared
from gateway.vpn.jobs.selection import Choosing, selector_of
from gateway.vpn.jobs.target import check_leads_somewhere
from gateway.vpn.jobs.topics import matcher_of, positive
from store.errors import LogTrimmed, ReadFailed, WriteFailed

SHORTEST_WAIT: Final = 0.001
"""Seconds, as exact as the loop's timers are."""


class CopyJob(Job):
    """
    Args:
        topic: What its target publishes to.

    Raises:
        Refused: INVALID_FIELD, its selector is none.
    """

    def __init__(self, shared: JobShared, record: ReplayRecord, topic: str, cache: MessageCache) -> None:
        super().__init__(shared, record)
        self._topic = topic
        self._cache = cache
        self._tuning = shared.runtime.tuning
        self._matches = matcher_of(record.subscriptions)
        self._fronts = CopyFronts(record.name)
        self._choosing = Choosing(
            selector_of(record.selector, self._too_costly),
            shared.selection,
            shared.runtime,
            self._tuning.log_slice_rows,
        )
        paced = record.rate is not None or record.speed is not None
        self._pacer = Pacer(record.speed, record.rate) if paced else None
        self._source: LogSource | None = None
        self._failed: BaseException | None = None
        self._activity = 0
        self._due = 0.0
        self._on_its_way = 0
        """Messages, as live traffic is told from copies."""

    def _begin(self) -> None:
        patterns = () if self._matches is None else positive(self.record.subscriptions)
        self._source = LogSource(
            self._cache,
            self._shared.history,
            self._runtime,
            self.record.position,
            patterns,
            self._read,
            user=self.record.requester,
        )

    def _let_go(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _read(self, error: BaseException | None) -> None:
        self._failed = error
        self._wake()

    def _said(self) -> str:
        return f"{self.record.sent} copies of {self.record.read} messages looked at{self._unknown_said}"

    def _seconds_left(self, seconds: float, ids: int, sent: int) -> float | None:
        return (self.record.end - self.record.position) * seconds / ids if ids else None

    async def _step(self) -> bool:
        end = self.record.end
        if self.record.position >= end:
            return True
        while (wait := self._shared.pace.wait(self._due)) >= SHORTEST_WAIT:
            await self._wait(wait)
            if self._wanted != RUNNING:
                return False
        activity, self._activity = self._activity, self._shared.counters.activity
        is_beside_live = activity != self._activity
        limit = self._tuning.log_turn_rows_beside_live if is_beside_live else self._tuning.log_turn_rows
        found = await self._next(limit)
        if found is None:
            return False
        rows, position = found
        position = min(position, end)
        of_log = logged(rows)
        if of_log and of_log[-1][ID] >= end:
            of_log = [row for row in of_log if row[ID] < end]
        wanted = of_log if self._matches is None else of_topics(of_log, self._matches)
        chosen = await self._choosing.among(wanted)
        await self._publish(chosen, position, len(of_log))
        return False

    async def _next(self, limit: int) -> tuple[list[Row] | tuple[Row, ...], int] | None:
        """The next messages, and the position after them; None once another state is wanted."""
        while self._wanted == RUNNING:
            source = self._source
            assert source is not None
            error, self._failed = self._failed, None
            try:
                if error is not None:
                    raise error
                found = source.read(limit)
            except LogTrimmed as trimmed:
                raise Refused(
                    ErrorCode.REPLAY_MESSAGE_UNAVAILABLE, f"the log was trimmed under it: {trimmed}"
                ) from None
            except ReadFailed as failed:
                self._runtime.report("log_read_failed", failed)
                await self._wait_for("the log could not be read; the gateway's log says why")
                continue
            if found is not None:
                return list(found[0]), found[1]
            await self._wait()
        return None

    async def _publish(self, rows: list[Row], position: int, looked_at: int) -> None:
        """Publish copies of these, and save that everything below ``position`` is done."""
        while self._wanted == RUNNING:
            now = rows
            if self._pacer is not None and rows:
                now_ms = self._runtime.clock.now_ms()
                count = self._pacer.due(rows, now_ms)
                if not count:
                    await self._wait(max(self._pacer.due_ms(rows[0], now_ms) - now_ms, 1) / 1_000)
                    continue
                now = rows[:count]
            left = await self._publish_due(now, rows, position, looked_at)
            if left is None:
                return
            rows, looked_at = left

    async def _publish_due(
        self, now: list[Row], rows: list[Row], position: int, looked_at: int
    ) -> tuple[list[Row], int] | None:
        """
        Publish ``now``, the first of ``rows``.

        Returns:
            What is left of ``rows`` and of ``looked_at``; None when that is nothing.
        """
        started = self._runtime.clock.seconds()
        contents, bares = self._fronts.copies(now)
        while self._wanted == RUNNING:
            taken, refused = len(now), None
            if now:
                try:
                    check_leads_somewhere(self._topic, self._broker)
                    taken, refused = self._shared.publishing.put_what_fits(self._topic, contents, bares)
                except Refused as error:
                    taken, refused = 0, error
                if not taken:
                    why = f"nobody takes messages of {self._topic!r}" if refused is None else refused.text
                    await self._wait_for(why)
                    started = self._runtime.clock.seconds()
                    continue
            is_all = taken == len(rows)
            record = self.record
            passed = looked_at if is_all else min(taken, looked_at)
            after = replace(
                record,
                position=position if is_all else rows[taken][ID],
                read=record.read + passed,
                sent=record.sent + taken,
                size_bytes=record.size_bytes + sum(map(len, contents[:taken])),
                outcome="",
            )
            self._on_its_way = taken
            reading = 0.0 if self._source is None else self._source.spent_reading()
            self._due = self._shared.pace.spent(started, taken, reading)
            error_of_store = await self._commit(after)
            if error_of_store is not None:
                await self._wait_for(f"the store could not write: {error_of_store}")
                started = self._runtime.clock.seconds()
                continue
            return None if is_all else (rows[taken:], looked_at - passed)
        return None

    def _written(self, error: WriteFailed | None) -> None:
        if error is None:
            self._shared.counters.copied_messages += self._on_its_way
        self._on_its_way = 0
