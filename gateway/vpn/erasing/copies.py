"""
Copies of messages: those for dead message queues, and those that jobs made, found in the log by the marks on them.

A copy for a dead message queue names the message that died. One that a job made names the job, and the message that it
all began with (``amqp_ext.message.copies``). Which jobs there were is on record: where none can have copied a message,
nothing is looked for; where records were dropped, every mark counts that fits. Marks are the word of whoever published
the message that has them, so they lead from a message to its copies, and not back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.codec import Long, Symbol, encode
from amqp_ext.message.annotations import REPLAY_NAME
from amqp_ext.message.copies import SOURCE_ID, SOURCE_TOPIC, origin_of
from amqp_ext.message.sections import MessageView, message_annotations
from gateway.core.broker import Broker
from gateway.core.model import CONTENT, COPY, DEAD_RETURN, ID, TOPIC, ReplayRecord
from gateway.core.replay.reading import topic_matcher
from gateway.core.replay.search import Search
from gateway.vpn.erasing.messages import StoredMessages

MOST_COPIES: Final = 1_001
"""Of each kind: one more than are erased at once."""

MOST_NEEDLES: Final = 4
"""Messages of which copies are looked for by bytes that name them; of more, by what all copies have."""

MOST_ELSEWHERE: Final = 20
"""Replays into other gateways that are named."""

DEAD_ID: Final = Symbol("x-opt-dead-sequence-number")

_LONG: Final = struct.Struct(">q").pack


class Copies(NamedTuple):
    """Ids, rising."""

    dead: list[int]
    """Copies for dead message queues, and copies of those."""
    others: list[int]
    """Copies that jobs made, and copies of those, for dead message queues, too."""
    origins: list[int]
    """What some of the messages are copies of, as jobs of this Message VPN say."""
    elsewhere: list[str]
    """Replays that may have copied one of the messages into other gateways: ``name: peer address``."""

    def later(self, found: Copies) -> Copies:
        """With what was found later."""
        return self._replace(
            dead=sorted({*self.dead, *found.dead}), others=sorted({*self.others, *found.others})
        )


@dataclass(slots=True)
class _Jobs:
    """Those on record that may have copied messages."""

    names: set[str] = field(default_factory=set)
    """Of all there were."""
    has_returns: bool = False
    """Dead letters were sent back: they need not name the job."""
    first: int | None = None
    """Their copies have no lower id; None where there was no job."""
    is_whole: bool = True
    """No record was dropped."""
    elsewhere: list[ReplayRecord] = field(default_factory=list)


class CopySearch:
    def __init__(self, broker: Broker, messages: StoredMessages) -> None:
        self._broker = broker
        self._messages = messages

    async def of(self, ids: Collection[int], since: int = 0) -> Copies:
        """
        Copies of some messages that the log holds; ``MOST_COPIES`` of a kind at most.

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
        others = [] if jobs.first is None else await self._others(topics, {*ids, *dead}, jobs, since)
        elsewhere = [
            f"{record.name}: {record.remote} {record.target}"
            for record in jobs.elsewhere
            if any(i < record.position and _takes(record, topic) for i, topic in topics.items())
        ]
        return Copies(dead, others, sorted(origins - set(ids)), elsewhere[-MOST_ELSEWHERE:])

    def _jobs(self, first: int) -> _Jobs:
        """Those that may have copied messages from an id on."""
        found = _Jobs()
        records = self._broker.replay_records
        number = 0
        for record in records:
            number += 1
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
        queues = {endpoint.settings.dead_message_queue for endpoint in self._broker.endpoints.values()}
        topics = {queue_topic(queue) for queue in queues if queue}
        if not topics:
            return []
        return await self._all(ids, since, sorted(topics), lambda wanted: _dead_search(wanted, topics))

    async def _others(
        self, topics: Mapping[int, str], known: Collection[int], jobs: _Jobs, since: int
    ) -> list[int]:
        assert jobs.first is not None
        return await self._all(
            known, max(since, jobs.first), (), lambda wanted: _copy_search(topics, wanted, jobs)
        )

    async def _all(
        self,
        known: Collection[int],
        since: int,
        patterns: Collection[str],
        search_for: Callable[[Collection[int]], Search],
    ) -> list[int]:
        """What searches find for some messages, and for what was found, until that is all."""
        messages = self._messages
        found: set[int] = set()
        wanted = set(known)
        while wanted and len(found) < MOST_COPIES:
            # A copy is newer than what it is of.
            first = max(min(wanted) + 1, messages.first_id, since)
            there = await messages.matching(
                search_for(wanted), list(patterns), first, messages.next_id, MOST_COPIES
            )
            wanted = set(there) - found - set(known)
            found |= wanted
        return sorted(found)


def _takes(record: ReplayRecord, topic: str) -> bool:
    """Whether a job was after messages of a topic."""
    matches = topic_matcher(record.subscriptions)
    return matches is None or matches(topic)


def _dead_search(ids: Collection[int], topics: Collection[str]) -> Search:
    """What finds the copies for dead message queues of some messages."""

    def accepts(message: MessageView) -> bool:
        return _id_in(message.message_annotations, DEAD_ID) in ids

    return Search(accepts, lambda topic: topic in topics, needles=_dead_needles(ids))


def _copy_search(topics: Mapping[int, str], ids: Collection[int], jobs: _Jobs) -> Search:
    """
    What finds the copies that jobs made of some messages, and those for dead message queues of others.

    Args:
        topics: By the ids of the messages that all began with.
        ids: Of which copies for dead message queues are looked for.
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
    """An id that an annotation says; 0 where it says none, which is nobody's."""
    found = annotations.get(key)
    return int(found) if isinstance(found, int) and not isinstance(found, bool) else 0


def _is_of(annotations: Mapping[str, Any], jobs: _Jobs) -> bool:
    """Whether a copy says that one of these jobs made it."""
    name = annotations.get(REPLAY_NAME)
    return isinstance(name, str) and name in jobs.names


def _dead_needles(ids: Collection[int]) -> tuple[bytes, ...]:
    key = encode(DEAD_ID)
    return tuple(key + encode(Long(i)) for i in ids) if len(ids) <= MOST_NEEDLES else (key,)
