"""
Erasing messages of a Message VPN: the content is no more, in the log, on queues and in memory; slot, id, time and topic
stay.

All of a call is one transaction: it has happened, or it has not. What was read before that, and is held in memory for
whoever wants it next, is exchanged for the markers before the caller is told; from then on nobody is given the content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.codec import Long, Symbol, encode
from amqp_ext.message.sections import MessageView
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway import log_keys
from gateway.core.broker import Broker
from gateway.core.erasing import Erasure, erased_row
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.cursor import topic_matcher
from gateway.core.log.message_cache import MessageCache
from gateway.core.model import CONTENT, ID, Row
from gateway.core.replay.search import Search, search_for
from gateway.vpn.committer import Committer
from gateway.vpn.log import MessageLog
from gateway.vpn.log_history import LogHistory
from gateway.vpn.runtime import Runtime
from gateway.vpn.user_turns import ADMINISTRATION, UserTurns
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import Reader, Store

MOST_IDS: Final = 1_000
"""Messages that one call erases: a transaction of a tenth of a second, and a loop that is busy for as long."""

DOUBT_TRIES: Final = 200
DOUBT_SECONDS: Final = 0.02
"""How often, and how long, it waits for transactions that are about to settle, or to copy, what is to be erased."""

SCRUB_SECONDS: Final = 5.0
"""For which it waits for those who read what was there before."""

MOST_NEEDLES: Final = 8
"""Messages of which copies are looked for by bytes that name them; of more, by what all copies have."""

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
    copies: list[int]
    """Those of ``ids`` that are copies of others, for dead messages."""
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
        self._reader = reader
        self._store = store
        self._turns = turns
        self._runtime = runtime
        self._is_moving = is_moving
        self._holders: list[Holder] = []
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Erased]] = set()

    def tell(self, *holders: Holder) -> None:
        """These have messages in memory."""
        self._holders += holders

    # --- what is to be erased -------------------------------------------------------------------------------------

    async def matching(
        self, search: Search, patterns: Sequence[str], first: int, stop: int, most: int
    ) -> list[int]:
        """
        The ids of logged messages from ``first`` on, below ``stop``, that a search takes.

        Args:
            patterns: Topics that it looks at.
            most: It is not looked for more than so many.

        Raises:
            Refused: INTERNAL, the log cannot be read.
        """
        found: list[int] = []
        position, end = first, min(stop, self._broker.log.next_id)
        while position < end and len(found) < most:
            try:
                async with self._turns.turn(ADMINISTRATION):
                    page = await self._history.search_page(search, patterns, position, end, ADMINISTRATION)
            except LogTrimmed as trimmed:
                position = max(trimmed.first_id, position + 1)
                continue
            except ReadFailed as error:
                raise self._not_read(error) from None
            if page.found is not None:
                found.append(page.found)
                position = page.found + 1
            else:
                position = page.position
        return found

    async def copies_of(self, ids: Collection[int]) -> list[int]:
        """
        Copies of some messages, and copies of those, that the log holds for what are dead message queues now; rising.

        Raises:
            Refused: As ``matching`` has it.
        """
        queues = {endpoint.settings.dead_message_queue for endpoint in self._broker.endpoints.values()}
        topics = {queue_topic(queue) for queue in queues if queue}
        found: set[int] = set()
        looked_for = set(ids) if topics else set()
        while looked_for:
            search = _search_for_copies(looked_for, topics)
            # A copy is newer than what it is of.
            first = max(min(looked_for) + 1, self._history.first_id)
            there = await self.matching(search, sorted(topics), first, self._broker.log.next_id, MOST_IDS + 1)
            looked_for = set(there) - found - set(ids)
            found |= looked_for
        return sorted(found)

    # --- erased ---------------------------------------------------------------------------------------------------

    async def found(self, ids: Collection[int]) -> list[int]:
        """
        Those of some messages that are stored or archived, rising.

        Raises:
            Refused: As ``matching`` has it.
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
        return await self.matching(search, patterns, resolved.first, stop, MOST_IDS + 1)

    # --- erased ---------------------------------------------------------------------------------------------------

    async def erase(self, ids: Collection[int], copies: Collection[int], reason: str) -> Erased:
        """
        Erase messages, wherever they are; returns when that is durable, and nobody is given the contents any more.
        Whoever waits for it may leave: it goes on.

        Args:
            copies: Those of them that are copies of others (``copies_of``), erased as well.

        Raises:
            Refused: RESOURCE_LIMIT, more than ``MOST_IDS``; RESOURCE_LOCKED, transactions that are about to settle one
                of them do not end; INTERNAL, the store could not be read or written.
        """
        wanted = sorted({*ids, *copies})
        if len(wanted) > MOST_IDS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"at most {MOST_IDS:,} messages are erased at once, copies of dead ones among them, and these are "
                "more; name fewer",
            )
        task = self._runtime.loop.create_task(self._erase(wanted, copies, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _erase(self, wanted: Sequence[int], copies: Collection[int], reason: str) -> Erased:
        async with self._lock:
            await self._committer.committed()
            now_ms = self._runtime.clock.now_ms()
            markers, sizes = await self._markers(wanted, now_ms, reason)
            missing = [i for i in wanted if i not in markers]
            if not markers:
                return Erased([], missing, [], is_scrubbed=True)
            await self._archived(markers, now_ms, reason)
            erasure = await self._written(markers, sizes)
            try:
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
        return Erased(done, missing, sorted(i for i in copies if i in markers), is_scrubbed)

    async def _archived(self, markers: Mapping[int, Row], now_ms: int, reason: str) -> None:
        """Have the archive say so first: what it cannot be told of, is not erased."""
        try:
            await self._history.erase_archived(list(markers), now_ms, reason)
        except (ReadFailed, WriteFailed) as error:
            self._runtime.report("archive_read_failed", error)
            raise Refused(
                ErrorCode.INTERNAL,
                "the log's archive could not be written; the gateway's log says why; nothing was erased",
            ) from None

    async def _markers(
        self, ids: Sequence[int], now_ms: int, reason: str
    ) -> tuple[dict[int, Row], dict[int, int]]:
        """What is to stand in the place of messages, and the sizes of their contents."""
        markers: dict[int, Row] = {}
        sizes: dict[int, int] = {}
        reader, history = self._reader, self._history
        first_id, next_id = history.first_id, self._broker.log.next_id
        # What the log begins behind may lie on an endpoint still.
        held = [i for i in ids if i < first_id]
        rest = [i for i in ids if first_id <= i < next_id]
        while held or rest:
            try:
                async with self._turns.turn(ADMINISTRATION):
                    asked = reader.submit(partial(reader.messages, held)) if held else history.messages(rest)
                    rows = await asyncio.wrap_future(asked)
            except ReadFailed as error:
                raise self._not_read(error) from None
            for row in rows:
                markers[row[ID]] = erased_row(row, now_ms, reason)
                sizes[row[ID]] = len(row[CONTENT])
            last = rows[-1][ID] if rows else next_id
            if held:
                held = [i for i in held if i > last]
            else:
                rest = [i for i in rest if i > last]
        return markers, sizes

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

    def _not_read(self, error: ReadFailed) -> Refused:
        self._runtime.report("log_read_failed", error)
        return Refused(
            ErrorCode.INTERNAL,
            "the replay log could not be read; the gateway's log says why; nothing was erased",
        )


def _search_for_copies(ids: Collection[int], topics: Collection[str]) -> Search:
    """What finds the copies for dead message queues of some messages."""
    key = Symbol("x-opt-dead-sequence-number")
    needle = encode(key)

    def accepts(message: MessageView) -> bool:
        return message.message_annotations.get(key) in ids

    needles = tuple(needle + encode(Long(i)) for i in ids) if len(ids) <= MOST_NEEDLES else (needle,)
    return Search(accepts, lambda topic: topic in topics, needles=needles)
