"""
Erases messages of a Message VPN: the content goes from the log, from queues and from memory; slot, id, time and topic
stay.

Each call is one transaction, which happens as a whole or not at all. Rows in memory that were read before are exchanged
for markers before the caller is told; from then on nobody gets the content. The log's archive is not part of the
transaction: before it, the archive is told that the erasure begins, and after it, that it is done. If the gateway ends
in between, the next start carries the erasure out.

``CopySearch`` finds copies in the log by their annotations: a copy on a dead message queue names the message that died;
a copy that a job made names the job and the original message (``amqp_ext.message.annotations``). The jobs are on
record: if none of them can have copied a message, there is no search; if records were dropped, every annotation that
fits counts. Any publisher may have written the annotations, so they lead from a message to its copies, and not back.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from amqp_ext.addresses.address import queue_topic
from amqp_ext.codec import Long, Symbol, encode
from amqp_ext.message.annotations import REPLAY_NAME, SOURCE_ID, SOURCE_TOPIC, origin_of
from amqp_ext.message.fields import publisher_ids
from amqp_ext.message.sections import MessageView, message_annotations
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.broker import Broker
from gateway.core.erasing import Erasure, erased_row
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BARE, CONTENT, COPY, DEAD_RETURN, ID, TOPIC, ReplayRecord, Row
from gateway.core.replay.reading import topic_matcher
from gateway.core.replay.search import Search, search_for
from gateway.logging import log_keys
from gateway.vpn.history import off_loop
from gateway.vpn.log import MessageLog
from gateway.vpn.runtime import keep
from gateway.vpn.state import VpnPart, VpnService, VpnState
from gateway.vpn.turns import ADMINISTRATION
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import BegunErasure

MOST_COPIES: Final = 1_001
"""Copies of each kind that are searched for: one more than one call erases."""

MOST_NEEDLES: Final = 4
"""Messages whose copies are searched for by the bytes of their ids; with more, by the bytes that all copies have."""

MOST_ELSEWHERE: Final = 20
"""Replays to other gateways that a result names."""

DEAD_ID: Final = Symbol("x-opt-dead-sequence-number")
_LONG: Final = struct.Struct(">q").pack
MOST_IDS: Final = 1_000
"""Messages that one call erases: a transaction of a tenth of a second, and a loop that is busy for as long."""

DOUBT_TRIES: Final = 200
DOUBT_SECONDS: Final = 0.02
"""How often, and how long, it waits for transactions that are about to settle, or to copy, what is to be erased."""

SCRUB_SECONDS: Final = 5.0
"""How long it waits for reads of the old content to end."""

NOTED_IDS: Final = 50
"""Ids that go into a line of the gateway's log; of more, the first and the last are named."""


class Erased(NamedTuple):
    """The result of an erasure."""

    ids: list[int]
    """The erased messages, rising."""
    missing: list[int]
    """Requested messages that are neither stored nor archived."""
    is_scrubbed: bool
    """Whether the content is gone from the store's own files; if not, it goes when the present reads have ended."""


class _Marked(NamedTuple):
    """Messages that are to be erased, by their ids."""

    markers: dict[int, Row]
    """The rows that replace them."""
    sizes: dict[int, int]
    """The sizes of their contents, in bytes."""
    names: dict[int, bytes]
    """The ids that their publishers gave them (``publisher_ids``)."""


class Erasing(VpnService):
    """
    Args:
        is_moving: Whether one of these messages is being moved to a dead message queue.
        holders: Hold messages in memory that were read and not sent yet; called with the markers that replace them.
    """

    def __init__(
        self,
        state: VpnState,
        log: MessageLog,
        is_moving: Callable[[Collection[int]], bool],
        holders: Sequence[Callable[[Mapping[int, Row]], None]],
    ) -> None:
        super().__init__(state)
        self._archive = state.history.archive
        self._log = log
        self._is_moving = is_moving
        self._holders = holders
        self._messages = StoredMessages(state)
        self.copies = CopySearch(state.broker, self._messages)
        self._lock = asyncio.Lock()
        self._unended: dict[str, tuple[BegunErasure, bool]] = {}
        """By name: an erasure that is begun in the archive, and whether it is to be carried out."""
        self._tasks: set[asyncio.Task[Erased]] = set()

    # --- what is to be erased -------------------------------------------------------------------------------------

    async def found(self, ids: Collection[int]) -> list[int]:
        """
        Those of some messages that are stored or archived, rising.

        Raises:
            Refused: INTERNAL, the log cannot be read.
        """
        return sorted((await self._marked(sorted(set(ids)), 0, "")).markers)

    async def selected(self, selector: str, patterns: Sequence[str], start: ReplayStart) -> list[int]:
        """
        The ids of logged messages that a selector matches; at most one more than one call may erase.

        Args:
            start: The place to begin at, and to end at.

        Raises:
            Refused: The selector is invalid; the log has no such place; INTERNAL, the log cannot be read.
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
        Erase messages, wherever they are; returns when that is durable, and nobody gets the contents any more. It goes
        on even if the caller is cancelled.

        Raises:
            Refused: RESOURCE_LIMIT, more than ``MOST_IDS``; RESOURCE_LOCKED, transactions that are about to settle one
                of them do not end; INTERNAL, the store could not be read or written.
        """
        wanted = sorted(set(ids))
        if len(wanted) > MOST_IDS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"at most {MOST_IDS:,} messages are erased in one request, with their copies, and these are "
                "more; name fewer",
            )
        return await asyncio.shield(keep(self._loop.create_task(self._erase(wanted, reason)), self._tasks))

    async def _erase(self, wanted: Sequence[int], reason: str) -> Erased:
        async with self._lock:
            await self._committer.committed()
            now_ms = self._runtime.clock.now_ms()
            marked = await self._marked(wanted, now_ms, reason)
            missing = [i for i in wanted if i not in marked.markers]
            if not marked.markers:
                return Erased([], missing, is_scrubbed=True)
            begun = await self._begun(marked.markers, now_ms, reason)
            is_scrubbed = await self._carry_out(begun, marked, reason)
        return Erased(sorted(marked.markers), missing, is_scrubbed)

    async def _carry_out(self, begun: BegunErasure | None, marked: _Marked, reason: str) -> bool:
        """Exchange messages for markers, everywhere; whether the content is gone from the store's own files."""
        markers = marked.markers
        try:
            erasure = await self._written(marked)
        except Refused:
            await self._abandon(begun)
            raise
        unwritten: Exception | None = None
        try:
            try:
                await self._end_archived(begun, is_done=True)
            except (ReadFailed, WriteFailed) as error:
                unwritten = error
            is_scrubbed = await self._scrubbed()
        finally:
            for erased in self._holders:
                erased(markers)
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
                unwritten,
                "the messages are erased everywhere else, and in the archive as soon as it can be written",
            )
        return is_scrubbed

    async def _abandon(self, begun: BegunErasure | None) -> None:
        if begun is None:
            return
        try:
            await self._end_archived(begun, is_done=False)
        except (ReadFailed, WriteFailed):
            # If the gateway ends before that can be written, the next start carries the erasure out.
            self._end_later(begun, is_wanted=False)

    async def _begun(self, markers: Mapping[int, Row], now_ms: int, reason: str) -> BegunErasure | None:
        """Tell the archive first: if that is not possible, nothing is erased."""
        archive = self._archive
        if archive is None:
            return None
        try:
            return await off_loop(archive, archive.begin_erasure, list(markers), now_ms, reason)
        except (ReadFailed, WriteFailed) as error:
            raise self._not_archived(error, "nothing was erased") from None

    async def _end_archived(self, begun: BegunErasure | None, *, is_done: bool) -> None:
        """End an erasure in the archive, durably: it gives markers from now on, or all is as before the erasure."""
        archive = self._archive
        if archive is not None and begun is not None:
            await off_loop(archive, partial(archive.end_erasure, begun, is_done=is_done))

    def _not_archived(self, error: Exception, consequence: str) -> Refused:
        self._runtime.report("archive_read_failed", error)
        return Refused(
            ErrorCode.INTERNAL,
            f"the log's archive could not be written; the gateway's log says why; {consequence}",
        )

    async def _marked(self, ids: Sequence[int], now_ms: int, reason: str) -> _Marked:
        marked = _Marked({}, {}, {})
        async for row in self._messages.rows(ids):
            marked.markers[row[ID]] = erased_row(row, now_ms, reason)
            marked.sizes[row[ID]] = len(row[CONTENT])
            (marked.names[row[ID]],) = publisher_ids([row[CONTENT]], [row[BARE]])
        return marked

    # --- begun, and not ended -------------------------------------------------------------------------------------

    def start(self) -> None:
        """End the erasures that are begun in the archive, now, or as soon as it can be read and written."""
        if self._archive is not None:
            self._begin(self._end_begun)

    def _end_later(self, begun: BegunErasure, *, is_wanted: bool) -> None:
        self._unended[begun.name] = begun, is_wanted
        self.start()

    async def _end_begun(self) -> None:
        unended, archive = self._unended, self._archive
        assert archive is not None
        while True:
            try:
                async with self._lock:
                    for begun in await off_loop(archive, archive.begun_erasures):
                        unended.setdefault(begun.name, (begun, True))
                    for begun, is_wanted in list(unended.values()):
                        await self._end(begun, is_wanted=is_wanted)
                        del unended[begun.name]
                return
            except (ReadFailed, Refused):
                pass  # It is reported already: an archive that cannot be read is an alarm.
            except WriteFailed as error:
                self._runtime.report("archive_read_failed", error)
            await asyncio.sleep(self._runtime.tuning.archive_look_seconds)

    async def _end(self, begun: BegunErasure, *, is_wanted: bool) -> None:
        """End an erasure that was interrupted; to erase again what the store has erased changes nothing."""
        marked = await self._marked(begun.ids if is_wanted else (), begun.time_ms, begun.reason)
        if marked.markers:
            await self._carry_out(begun, marked, begun.reason)
        else:
            await self._end_archived(begun, is_done=is_wanted)

    async def _written(self, marked: _Marked) -> Erasure:
        """The erasure, once it is durable."""
        markers, dedup = marked.markers, self._broker.dedup
        for _ in range(DOUBT_TRIES):
            if not (self._broker.erasing.is_in_doubt(markers) or self._is_moving(markers)):
                break
            await asyncio.sleep(DOUBT_SECONDS)
            await self._committer.committed()
        else:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                "transactions are about to settle some of these messages, and have not ended; try again",
            )
        erasure = self._broker.erasing.begin(list(markers.values()), marked.sizes)
        forgotten = dedup.forget(marked.names)
        try:
            await self._committer.committed([*erasure.effects, *forgotten])
        except Refused:
            erasure.failed()
            raise
        erasure.committed()
        dedup.forgotten(forgotten)
        self._state.cache.erased(markers)
        return erasure

    async def _scrubbed(self) -> bool:
        """
        Wait until the content is gone from the store's own files, and present reads have given it to their callers;
        whether it is gone.
        """
        is_scrubbed = await self._runtime.loop.run_in_executor(None, self._state.store.scrub, SCRUB_SECONDS)
        await self._history.drained()
        # The callers of these reads have had a turn of the loop then, even if others' writes fail.
        await self._committer.tried()
        return is_scrubbed


class Copies(NamedTuple):
    """Ids, rising."""

    dead: list[int]
    """Copies for dead message queues, and copies of those."""
    others: list[int]
    """Copies that jobs made, and copies of those, for dead message queues, too."""
    origins: list[int]
    """The originals of which some of the messages are copies, by the annotations of this Message VPN's jobs."""
    elsewhere: list[str]
    """Replays that may have copied one of the messages into other gateways: ``name: peer address``."""

    def later(self, found: Copies) -> Copies:
        """These, and the copies that were found later."""
        return self._replace(
            dead=sorted({*self.dead, *found.dead}), others=sorted({*self.others, *found.others})
        )


@dataclass(slots=True)
class _Jobs:
    """The jobs on record that may have copied messages."""

    names: set[str] = field(default_factory=set)
    """The names of all jobs that published here."""
    has_returns: bool = False
    """Dead letters were sent back; they need not name the job."""
    first: int | None = None
    """No copy of theirs has a lower id; None if there was no job."""
    is_whole: bool = True
    """No record was dropped."""
    elsewhere: list[ReplayRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CopySearch:
    _broker: Broker
    _messages: StoredMessages

    async def of(self, ids: Collection[int], since: int = 0) -> Copies:
        """
        The copies that the log holds of some messages; at most ``MOST_COPIES`` of a kind.

        Args:
            since: The first id that is looked at.

        Raises:
            Refused: INTERNAL, the log cannot be read.
        """
        if not ids:
            return Copies([], [], [], [])
        jobs = self._jobs(min(ids))
        topics: dict[int, str] = {}
        origins: set[int] = set()
        if jobs.first is not None or jobs.names or jobs.elsewhere:
            async for row in self._messages.rows(sorted(ids)):
                topics[row[ID]] = row[TOPIC]
                origin, _ = origin_of(row[CONTENT])
                if origin and _is_of(message_annotations(row[CONTENT]), jobs):
                    origins.add(origin)
        dead = await self._dead(ids, since)
        others: list[int] = []
        if jobs.first is not None:
            since = max(since, jobs.first)
            others = await self._all({*ids, *dead}, since, (), lambda new: _copy_search(topics, new, jobs))
        elsewhere = [
            f"{record.name}: {record.remote} {record.target}"
            for record in jobs.elsewhere
            if any(i < record.position and _takes(record, topic) for i, topic in topics.items())
        ]
        return Copies(dead, others, sorted(origins - set(ids)), elsewhere[-MOST_ELSEWHERE:])

    def _jobs(self, first: int) -> _Jobs:
        """The jobs that may have copied messages from an id on."""
        found = _Jobs()
        for number, record in enumerate(self._broker.replay_records, 1):
            found.is_whole = found.is_whole and record.number == number
            if record.kind not in {COPY, DEAD_RETURN}:
                continue
            is_later = record.end > first
            if not record.remote:
                found.names.add(record.name)
            elif is_later and record.sent:
                found.elsewhere.append(record)
            if is_later and not record.remote:
                found.has_returns = found.has_returns or record.kind == DEAD_RETURN
                found.first = record.end if found.first is None else min(found.first, record.end)
        if not found.is_whole:
            found.first = first
        return found

    async def _dead(self, ids: Collection[int], since: int) -> list[int]:
        topics = {queue_topic(queue) for queue in self._broker.dead_message_queues}
        if not topics:
            return []
        return await self._all(ids, since, sorted(topics), lambda wanted: _dead_search(wanted, topics))

    async def _all(
        self,
        known: Collection[int],
        since: int,
        patterns: Collection[str],
        search_for: Callable[[Collection[int]], Search],
    ) -> list[int]:
        """What searches find for some messages, and then for what was found, until nothing more is found."""
        messages = self._messages
        found: set[int] = set()
        wanted = set(known)
        while wanted and len(found) < MOST_COPIES:
            # A copy is newer than its original.
            first = max(min(wanted) + 1, self._broker.history.first_id, since)
            there = await messages.matching(
                search_for(wanted), list(patterns), first, self._broker.log.next_id, MOST_COPIES
            )
            wanted = set(there) - found - set(known)
            found |= wanted
        return sorted(found)


class StoredMessages(VpnPart):
    """Finds messages by their ids, or by a search, in the store and in the log's archive."""

    async def matching(
        self, search: Search, patterns: Sequence[str], first: int, stop: int, most: int
    ) -> list[int]:
        """
        The ids of logged messages from ``first`` on, below ``stop``, that a search takes.

        Args:
            patterns: Topics to look at; empty for all.
            most: How many to find, at most.

        Raises:
            Refused: INTERNAL, the log cannot be read.
        """
        found: list[int] = []
        position, end = first, min(stop, self._broker.log.next_id)
        while position < end and len(found) < most:
            try:
                async with self._state.search_turns.turn(ADMINISTRATION):
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

    async def rows(self, ids: Sequence[int]) -> AsyncIterator[Row]:
        """
        Those of some messages (rising ids) that are stored or archived.

        Raises:
            Refused: As ``matching``.
        """
        reader, history = self._state.reader, self._history
        first_id, next_id = history.first_id, self._broker.log.next_id
        # Messages from before the log's beginning may still be on an endpoint.
        held = [i for i in ids if i < first_id]
        rest = [i for i in ids if first_id <= i < next_id]
        ways = ((held, lambda ids: reader.submit(partial(reader.messages, ids))), (rest, history.messages))
        for wanted, ask in ways:
            left = wanted
            while left:
                try:
                    async with self._state.search_turns.turn(ADMINISTRATION):
                        rows = await asyncio.wrap_future(ask(left))
                except ReadFailed as error:
                    raise self._not_read(error) from None
                for row in rows:
                    yield row
                left = [i for i in left if rows and i > rows[-1][ID]]

    def _not_read(self, error: ReadFailed) -> Refused:
        self._state.runtime.report("log_read_failed", error)
        return Refused(
            ErrorCode.INTERNAL,
            "the replay log could not be read; the gateway's log says why; nothing was erased",
        )


def _takes(record: ReplayRecord, topic: str) -> bool:
    """Whether a job copies messages of a topic."""
    matches = topic_matcher(record.subscriptions)
    return matches is None or matches(topic)


def _dead_search(ids: Collection[int], topics: Collection[str]) -> Search:
    """A search for the copies of some messages on dead message queues."""

    def accepts(message: MessageView) -> bool:
        return _id_in(message.message_annotations, DEAD_ID) in ids

    return Search(accepts, lambda topic: topic in topics, needles=_dead_needles(ids))


def _copy_search(topics: Mapping[int, str], ids: Collection[int], jobs: _Jobs) -> Search:
    """
    A search for the copies that jobs made of some messages, and for copies of others on dead message queues.

    Args:
        topics: The topics of the original messages, by their ids.
        ids: The messages whose copies on dead message queues are searched for.
    """

    def accepts(message: MessageView) -> bool:
        annotations = message.message_annotations
        if _id_in(annotations, DEAD_ID) in ids:
            return True
        topic = topics.get(_id_in(annotations, SOURCE_ID))
        if topic is None:
            return False
        source_topic = annotations.get(SOURCE_TOPIC)
        if source_topic is None:
            return jobs.has_returns or not jobs.is_whole
        return source_topic == topic and (not jobs.is_whole or _is_of(annotations, jobs))

    key = encode(Symbol(SOURCE_ID))
    needles: tuple[bytes, ...] = (key,)
    if len(topics) <= MOST_NEEDLES:
        needles = tuple({key + said for i in topics for said in (encode(Long(i)), b"\x81" + _LONG(i))})
    return Search(accepts, needles=(*needles, *_dead_needles(ids)))


def _id_in(annotations: Mapping[str, Any], key: str) -> int:
    """The id in an annotation; 0 if there is none, which is no message's id."""
    found = annotations.get(key)
    return int(found) if isinstance(found, int) and not isinstance(found, bool) else 0


def _is_of(annotations: Mapping[str, Any], jobs: _Jobs) -> bool:
    """Whether a copy says that one of these jobs made it."""
    name = annotations.get(REPLAY_NAME)
    return isinstance(name, str) and name in jobs.names


def _dead_needles(ids: Collection[int]) -> tuple[bytes, ...]:
    key = encode(DEAD_ID)
    return tuple(key + encode(Long(i)) for i in ids) if len(ids) <= MOST_NEEDLES else (key,)
