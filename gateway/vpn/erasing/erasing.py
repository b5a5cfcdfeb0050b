"""
Erasing messages of a Message VPN: the content is no more, in the log, on queues and in memory; slot, id, time and topic
stay.

All of a call is one transaction: it has happened, or it has not. What was read before that, and is held in memory for
whoever wants it next, is exchanged for the markers before the caller is told; from then on nobody is given the content.

The log's archive is another place than the store. It is told before the transaction that this begins, and after it that
this is done. A gateway that ended in between carries it out when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from amqp_ext.replay_start import ReplayStart, StartKind
from gateway import log_keys
from gateway.core.broker import Broker
from gateway.core.erasing import Erasure, erased_row
from gateway.core.errors import ErrorCode, Refused
from gateway.core.message_cache import MessageCache
from gateway.core.model import CONTENT, ID, Row
from gateway.core.replay.reading import topic_matcher
from gateway.core.replay.search import search_for
from gateway.vpn.committer import Committer
from gateway.vpn.erasing.copies import CopySearch
from gateway.vpn.erasing.messages import StoredMessages
from gateway.vpn.log import MessageLog
from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.user_turns import UserTurns
from store.errors import ReadFailed, WriteFailed
from store.ports import BegunErasure, Reader, Store

MOST_IDS: Final = 1_000
"""Messages that one call erases: a transaction of a tenth of a second, and a loop that is busy for as long."""

DOUBT_TRIES: Final = 200
DOUBT_SECONDS: Final = 0.02
"""How often, and how long, it waits for transactions that are about to settle, or to copy, what is to be erased."""

SCRUB_SECONDS: Final = 5.0
"""For which it waits for those who read what was there before."""

NOTED_IDS: Final = 50
"""Ids that go into a line of the gateway's log; of more, the first and the last are named."""


class Holder(Protocol):
    """Who has messages in memory that were read and not sent yet."""

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these are no more: what is held of them is exchanged for the markers."""


class Erased(NamedTuple):
    """What came of it."""

    ids: list[int]
    """Whose content is no more, rising."""
    missing: list[int]
    """Of those asked for, what is neither stored nor archived."""
    is_scrubbed: bool
    """Nothing is left of it in the store's own files; else that is done once those who read at the moment are done."""


class Erasing:
    def __init__(
        self,
        broker: Broker,
        log: MessageLog,
        committer: Committer,
        cache: MessageCache,
        history: LogHistory,
        reader: Reader,
        store: Store,
        turns: UserTurns,
        runtime: Runtime,
        is_moving: Callable[[Collection[int]], bool],
    ) -> None:
        """
        Args:
            turns: Of searches.
            is_moving: Whether one of these messages is on its way to a dead message queue.
        """
        self._broker = broker
        self._log = log
        self._committer = committer
        self._cache = cache
        self._history = history
        self._store = store
        self._runtime = runtime
        self._is_moving = is_moving
        self._messages = messages = StoredMessages(broker, history, reader, turns, runtime)
        self.copies = CopySearch(broker, messages)
        self._holders: list[Holder] = []
        self._lock = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._unended: dict[str, tuple[BegunErasure, bool]] = {}
        """What is begun in the archive, and whether it is to be carried out; by its name."""
        self._tasks: set[asyncio.Task[Erased]] = set()

    def tell(self, *holders: Holder) -> None:
        """These have messages in memory."""
        self._holders += holders

    # --- what is to be erased -------------------------------------------------------------------------------------

    async def found(self, ids: Collection[int]) -> list[int]:
        """
        Those of some messages that are stored or archived, rising.

        Raises:
            Refused: INTERNAL, the log cannot be read.
        """
        return sorted((await self._markers(sorted(set(ids)), 0, ""))[0])

    async def selected(self, selector: str, patterns: Sequence[str], start: ReplayStart) -> list[int]:
        """
        The ids of logged messages that a selector matches; one more than may be erased at once at most.

        Args:
            start: And where it ends.

        Raises:
            Refused: The selector is none; the log has no such place; INTERNAL, it cannot be read.
        """
        matches = topic_matcher(patterns)
        search = search_for(ReplayStart(StartKind.MATCH, selector), matches)
        assert search is not None
        resolved = await self._log.resolve_start(start, patterns)
        stop = self._broker.log.next_id if resolved.last is None else resolved.last + 1
        return await self._messages.matching(search, patterns, resolved.first, stop, MOST_IDS + 1)

    # --- erased ---------------------------------------------------------------------------------------------------

    async def erase(self, ids: Collection[int], reason: str) -> Erased:
        """
        Erase messages, wherever they are; returns when that is durable, and nobody is given the contents any more.
        Whoever waits for it may leave: it goes on.

        Raises:
            Refused: RESOURCE_LIMIT, more than ``MOST_IDS``; RESOURCE_LOCKED, transactions that are about to settle one
                of them do not end; INTERNAL, the store could not be read or written.
        """
        wanted = sorted(set(ids))
        if len(wanted) > MOST_IDS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"at most {MOST_IDS:,} messages are erased at once, copies among them, and these are "
                "more; name fewer",
            )
        task = self._runtime.loop.create_task(self._erase(wanted, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _erase(self, wanted: Sequence[int], reason: str) -> Erased:
        async with self._lock:
            await self._committer.committed()
            now_ms = self._runtime.clock.now_ms()
            markers, sizes = await self._markers(wanted, now_ms, reason)
            missing = [i for i in wanted if i not in markers]
            if not markers:
                return Erased([], missing, is_scrubbed=True)
            begun = await self._begun(markers, now_ms, reason)
            is_scrubbed = await self._carry_out(begun, markers, sizes, reason)
        return Erased(sorted(markers), missing, is_scrubbed)

    async def _carry_out(
        self,
        begun: BegunErasure | None,
        markers: Mapping[int, Row],
        sizes: Mapping[int, int],
        reason: str,
    ) -> bool:
        """Exchange messages for markers, everywhere; whether nothing is left in the store's own files."""
        try:
            erasure = await self._written(markers, sizes)
        except Refused:
            await self._abandon(begun)
            raise
        unwritten: Exception | None = None
        try:
            try:
                await self._history.end_erasure(begun, is_done=True)
            except (ReadFailed, WriteFailed) as error:
                unwritten = error
            is_scrubbed = await self._scrubbed()
        finally:
            for holder in self._holders:
                holder.erased(markers)
            erasure.end()
        done = sorted(markers)
        self._runtime.log.info(
            "messages_erased",
            **{
                log_keys.MESSAGES: len(done),
                log_keys.IDS: done if len(done) <= NOTED_IDS else [done[0], done[-1]],
                log_keys.REASON: reason,
            },
        )
        if begun is not None and unwritten is not None:
            self._end_later(begun, is_wanted=True)
            raise self._not_archived(
                unwritten, "the messages are erased everywhere else, and there as soon as it can be written"
            )
        return is_scrubbed

    async def _abandon(self, begun: BegunErasure | None) -> None:
        if begun is None:
            return
        try:
            await self._history.end_erasure(begun, is_done=False)
        except (ReadFailed, WriteFailed):
            # Should the gateway end before that can be written, the next one carries it out.
            self._end_later(begun, is_wanted=False)

    async def _begun(self, markers: Mapping[int, Row], now_ms: int, reason: str) -> BegunErasure | None:
        """Have the archive know first: what it cannot be told of, is not erased."""
        try:
            return await self._history.begin_erasure(list(markers), now_ms, reason)
        except (ReadFailed, WriteFailed) as error:
            raise self._not_archived(error, "nothing was erased") from None

    def _not_archived(self, error: Exception, consequence: str) -> Refused:
        self._runtime.report("archive_read_failed", error)
        return Refused(
            ErrorCode.INTERNAL,
            f"the log's archive could not be written; the gateway's log says why; {consequence}",
        )

    async def _markers(
        self, ids: Sequence[int], now_ms: int, reason: str
    ) -> tuple[dict[int, Row], dict[int, int]]:
        """What is to stand in the place of messages, and the sizes of their contents."""
        markers: dict[int, Row] = {}
        sizes: dict[int, int] = {}
        async for row in self._messages.rows(ids):
            markers[row[ID]] = erased_row(row, now_ms, reason)
            sizes[row[ID]] = len(row[CONTENT])
        return markers, sizes

    # --- begun, and not ended -------------------------------------------------------------------------------------

    def start(self) -> None:
        """End what is begun in the log's archive, now, or as soon as that can be read and written."""
        if self._history.archive is not None and (self._ending is None or self._ending.done()):
            self._ending = self._runtime.loop.create_task(self._end_begun())

    def close(self) -> None:
        """Leave what is begun to the next start."""
        if self._ending is not None:
            self._ending.cancel()

    def _end_later(self, begun: BegunErasure, *, is_wanted: bool) -> None:
        self._unended[begun.name] = begun, is_wanted
        self.start()

    async def _end_begun(self) -> None:
        unended = self._unended
        while True:
            try:
                async with self._lock:
                    for begun in await self._history.begun_erasures():
                        unended.setdefault(begun.name, (begun, True))
                    for begun, is_wanted in list(unended.values()):
                        await self._end(begun, is_wanted=is_wanted)
                        del unended[begun.name]
                return
            except (ReadFailed, Refused):
                pass  # That is said already: an archive that cannot be read is an alarm.
            except WriteFailed as error:
                self._runtime.report("archive_read_failed", error)
            await asyncio.sleep(self._runtime.tuning.archive_look_seconds)

    async def _end(self, begun: BegunErasure, *, is_wanted: bool) -> None:
        """Carry out what a gateway was at when it ended; where the store has it already, that is as it was."""
        markers, sizes = await self._markers(begun.ids if is_wanted else (), begun.time_ms, begun.reason)
        if markers:
            await self._carry_out(begun, markers, sizes, begun.reason)
        else:
            await self._history.end_erasure(begun, is_done=is_wanted)

    async def _written(self, markers: Mapping[int, Row], sizes: Mapping[int, int]) -> Erasure:
        """The erasure, once it is durable."""
        for _ in range(DOUBT_TRIES):
            if not (self._broker.erasing.is_in_doubt(markers) or self._is_moving(markers)):
                break
            await asyncio.sleep(DOUBT_SECONDS)
            await self._committer.committed()
        else:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                "transactions are about to settle some of these messages, and do not end; try again",
            )
        erasure = self._broker.erasing.begin(list(markers.values()), sizes)
        try:
            await self._committer.committed(erasure.effects)
        except Refused:
            erasure.failed()
            raise
        erasure.committed()
        self._cache.erased(markers)
        return erasure

    async def _scrubbed(self) -> bool:
        """
        Wait until nothing is left in the store's own files, and whoever was reading has what was read; whether nothing
        is left.
        """
        is_scrubbed = await self._runtime.loop.run_in_executor(None, self._store.scrub, SCRUB_SECONDS)
        await self._history.drained()
        # Whoever had asked for it has had a turn of the loop.
        await self._committer.committed()
        return is_scrubbed
