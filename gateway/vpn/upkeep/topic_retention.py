"""
Has messages of some topics leave the log by the rules of retention, beside the quota and the age of the whole log.

Nothing is kept in memory of single messages: what there is of each rule is counted once after a start, page by page,
and what a rule is over is looked for from its oldest message on. A piece is one commit of a thousand messages at most.
Whoever is still to read what is about to leave is told first, so that nobody is short of it in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from gateway.core.broker import Broker
from gateway.core.errors import Refused
from gateway.core.log import KeptTopics
from gateway.core.model import Row, stored_bytes
from gateway.core.trimming import TRIM_IDS
from gateway.vpn.committer import Committer
from gateway.vpn.runtime import Runtime
from gateway.vpn.upkeep.ageing import HOUR_MS
from gateway.vpn.upkeep.trimmer import Trimmer
from store.errors import ReadFailed, WriteFailed
from store.ports import LengthPage, Reader

Leaving: TypeAlias = "Sequence[tuple[int, str]]"
"""(id, topic) of messages that are about to leave the log, ids rising."""

TRIM_SHARE: Final = 0.02
"""Of its quota a rule's topics have so much less when trimming ends, so that it is not begun again for each message."""

AGAIN_SECONDS: Final = 1.0
"""From what could not be done, as for a transaction that is under way, to the next try."""


class TopicRetention:
    """
    Args:
        leaving: Told of messages that are about to leave the log.
    """

    def __init__(
        self,
        broker: Broker,
        committer: Committer,
        reader: Reader,
        trimmer: Trimmer,
        runtime: Runtime,
        leaving: Sequence[Callable[[Leaving], None]],
    ) -> None:
        self._broker = broker
        self._retention = broker.retention
        self._committer = committer
        self._reader = reader
        self._trimmer = trimmer
        self._runtime = runtime
        self._leaving = leaving
        self._timer: asyncio.Handle | None = None
        self._again: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waits = False
        """For transactions, or for an archiver: it is tried again a little later."""

    def start(self) -> None:
        """Look now, and again and again."""
        self.run()
        if not self._is_closed:
            self._timer = self._runtime.loop.call_later(self._runtime.tuning.ageing_seconds, self.start)

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """The log may have grown (``CommitListener``)."""
        if news and self._task is None and not self._waits and self._retention.is_over_quota:
            self.run()

    def not_committed(self) -> None:
        """The log has not grown (``CommitListener``)."""

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more, and take less of the disk."""
        self._retention.recount(self._broker.next_id)
        self.run()

    def run(self) -> None:
        """Look now, unless that is being done."""
        if self._retention.rules and self._task is None and not self._is_closed:
            self._task = self._runtime.loop.create_task(self._work())
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._is_closed:
            return
        if self._waits:
            self._again = self._runtime.loop.call_later(AGAIN_SECONDS, self.run)
        elif self._retention.is_over_quota:
            # By what came when it was nearly through.
            self.run()

    async def _work(self) -> None:
        self._waits = False
        try:
            version = -1
            while version != self._retention.version:
                # What other rules say that came meanwhile is looked at from the beginning.
                await self._count()
                version = self._retention.version
                for kept in list(self._retention.rules):
                    await self._trim(kept, version)
        except ReadFailed as error:
            self._waits = True
            self._runtime.report("log_read_failed", error)
        except Refused as error:
            self._waits = True
            self._runtime.report("trim_failed", error)

    # --- what there is --------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        retention, trimming = self._retention, self._broker.trimming
        version = -1
        while not retention.is_counted:
            if version != retention.version or trimming.below > retention.counted_below:
                # What has lower ids than what is counted as it comes is in the store then, or came to nothing; and
                # what trimming has ordered is done.
                version = retention.version
                await self._committer.committed()
                continue
            position, began = retention.counted_below, self._runtime.clock.seconds()
            page, found = await self._read(partial(_counted, self._reader, position, retention.counts_from))
            if version != retention.version or trimming.below > position:
                continue
            retention.counted(found, page.position)
            # Others come first: it rests for as long as that took.
            await asyncio.sleep(self._runtime.clock.seconds() - began)

    async def _read(
        self, read: Callable[[], tuple[LengthPage, list[tuple[str, int, int]]]]
    ) -> tuple[LengthPage, list[tuple[str, int, int]]]:
        return await asyncio.wrap_future(self._reader.submit(read))

    # --- what is too much -----------------------------------------------------------------------------------------

    async def _trim(self, kept: KeptTopics, version: int) -> None:
        """Take out of the log what a rule is over."""
        broker, rule = self._broker, kept.rule
        aged = await self._aged_below(rule.max_age_hours) if rule.max_age_hours else 0
        is_over = kept.excess_bytes > 0
        excess = kept.excess_bytes + round(rule.quota_bytes * TRIM_SHARE) if is_over else 0
        while version == self._retention.version:
            possible = broker.trimming.possible_of_topics
            stop = possible if excess > 0 else min(aged, possible)
            position = max(kept.cleared_below, broker.log.first_id)
            if position >= stop:
                # What is over the quota is on its way into the store, or is not archived.
                self._waits = self._waits or excess > 0 or possible < aged
                return
            page = await asyncio.wrap_future(
                self._reader.submit(partial(self._reader.lengths_page, position, stop, rule.topics))
            )
            if version != self._retention.version:
                return
            found = [one for one in page.found if self._retention.of(one[1]) is kept]
            if not found:
                kept.cleared_below = max(kept.cleared_below, page.position)
                continue
            chosen: list[tuple[int, str]] = []
            for message_id, topic, length in found[:TRIM_IDS]:
                if message_id >= aged and excess <= 0:
                    break
                chosen.append((message_id, topic))
                if excess > 0:
                    excess -= stored_bytes(topic, (length,))
            if not chosen:
                return
            if not await self._take_out(kept, chosen, version):
                self._waits = True
                return

    async def _aged_below(self, hours: int) -> int:
        """Everything below this is older than so many hours."""
        end = self._broker.log.next_id
        oldest_ms = self._runtime.clock.now_ms() - hours * HOUR_MS
        found = await asyncio.wrap_future(self._reader.submit(partial(self._reader.first_since, oldest_ms)))
        return end if found is None else found

    async def _take_out(self, kept: KeptTopics, chosen: Leaving, version: int) -> bool:
        """Commit a piece; whether that could be done."""
        trimming = self._broker.trimming
        await self._trimmer.take_turn()
        done: asyncio.Future[WriteFailed | None] = self._runtime.loop.create_future()
        try:
            ids = trimming.settled_part([message_id for message_id, _ in chosen])
            if not ids or version != self._retention.version:
                self._trimmer.end_turn()
                return False
            leaving = [one for one in chosen if ids[0] <= one[0] <= ids[-1]]
            for tell in self._leaving:
                tell(leaving)
            effect = trimming.next_of_topics(kept, ids)
        except BaseException:
            self._trimmer.end_turn()
            raise

        def committed(error: WriteFailed | None) -> None:
            if error is None:
                trimming.topics_trimmed(effect)
            else:
                self._runtime.report("trim_failed", error)
                trimming.topics_not_trimmed(kept, effect)
            self._trimmer.end_turn()
            if not done.done():
                done.set_result(error)

        self._committer.commit([*trimming.replay_positions(), effect], committed)
        return await done is None


def _counted(reader: Reader, position: int, end: int) -> tuple[LengthPage, list[tuple[str, int, int]]]:
    """A page of the log, and (topic, messages, bytes of the disk) of what is on it."""
    page = reader.lengths_page(position, end, ())
    lengths: dict[str, list[int]] = {}
    for _, topic, length in page.found:
        lengths.setdefault(topic, []).append(length)
    return page, [(topic, len(found), stored_bytes(topic, found)) for topic, found in lengths.items()]
