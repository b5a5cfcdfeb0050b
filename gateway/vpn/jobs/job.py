"""
A job: work over the log or a queue that an administrator began, and that goes on after a stop.

What a job publishes and its record, which says how far it is, are one commit: a stop at any moment neither doubles a
message nor leaves one out. So one batch is on its way at a time. What hinders a job, a full queue or a disk that takes
nothing, it waits for, and says so in its record: no message is skipped.

States: ``running``, ``paused``, ``complete``, ``cancelled``, ``failed``.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from amqp_ext.addresses.address import AddressKind, parse_target, queue_of_topic, queue_topic
from amqp_ext.addresses.forms import AddressError
from amqp_ext.filters.filter_set import Filters
from amqp_ext.topics import TopicSyntaxError
from gateway.core.effects import Effect, SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.core.model import CANCELLED, COMPLETE, FAILED, ID, ReplayRecord, Row
from gateway.core.replay.reading import compile_filters
from gateway.logging import log_keys
from gateway.vpn.consumers import Consumers
from gateway.vpn.endpoints import Endpoints
from gateway.vpn.publishing import Publishing
from gateway.vpn.state import VpnPart, VpnState
from gateway.vpn.turns import RowsAtOnce
from store.errors import WriteFailed

_HOST: Final = re.compile(r"amqps?://", re.IGNORECASE)
RUNNING: Final = "running"
PAUSED: Final = "paused"
FIRST_WAIT_SECONDS: Final = 0.02
"""Until what hindered a job is tried again: a queue that is consumed from has room soon."""

LONGEST_WAIT_SECONDS: Final = 1.0
"""It doubles up to this."""

RATE_SECONDS: Final = 10.0
"""Over this long a job's rate is measured."""


class JobShared(NamedTuple):
    """What all jobs of a Message VPN have in common."""

    state: VpnState
    publishing: Publishing
    consumers: Consumers
    endpoints: Endpoints
    why_not: Callable[[ReplayRecord], str]
    """Why a job may not go on in its requester's name, as users are now; empty where it may."""


class Progress(NamedTuple):
    """How quickly a job gets on."""

    per_second: float
    """Messages that it publishes, over the last seconds."""
    seconds_left: float | None
    """At this rate; None where that cannot be said."""


class Job(VpnPart, ABC):
    """
    Args:
        record: As it was stored, or as it begins.
    """

    def __init__(self, shared: JobShared, record: ReplayRecord) -> None:
        super().__init__(shared.state)
        self.record = record
        """What is durable of it, but for ``outcome`` while it waits."""
        self._shared = shared
        self._wanted = record.state
        """The state that it is to be in as soon as what is on its way is committed."""
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._wake = self._woken.set
        self._commands = asyncio.Lock()
        self._hindrance_seconds = FIRST_WAIT_SECONDS
        self._unknown_from = 0
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=64)
        """(seconds, next id, messages sent), the last of some seconds."""

    # --- what each kind of job does -------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """It begins, or goes on; raises Refused where it cannot."""

    @abstractmethod
    async def _step(self) -> bool:
        """Do a little; whether all is done. Returns early once another state is wanted."""

    @abstractmethod
    def _let_go(self) -> None:
        """It stops, for good or for now: hold nothing."""

    @abstractmethod
    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""

    def _said(self) -> str:
        """What became of it, once it is complete."""
        return f"{self.record.sent} messages"

    def _seconds_left(self, seconds: float, ids: int, sent: int) -> float | None:
        """How long it will take, where so many ids were passed, and messages sent, in so many seconds."""
        return None

    # --- commands -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on, if that is the state it is in."""
        if self._wanted == RUNNING and self._task is None:
            self._samples.clear()
            self._task = self._runtime.loop.create_task(self._run())

    def close(self) -> None:
        """The Message VPN stops: what is on its way is committed without it, and a start goes on from there."""
        if self._task is not None:
            self._task.cancel()

    async def pause(self, why: str = "") -> None:
        """
        Stop for now; returns when that is durable.

        Args:
            why: For its record, where nobody asked for it.

        Raises:
            Refused: PRECONDITION_FAILED, it is over; INTERNAL, the store could not write.
        """
        async with self._commands:
            await self._stop(PAUSED)
            self._check_under_way()
            await self._save(replace(self.record, state=PAUSED, outcome=why[:500]))

    async def resume(self) -> None:
        """
        Go on; returns when that is durable.

        Raises:
            Refused: PRECONDITION_FAILED, it is over; NOT_ALLOWED, its requester may not do it any more; INTERNAL, the
                store could not write.
        """
        async with self._commands:
            self._check_under_way()
            self._check_permitted()
            if self.record.state != RUNNING:
                await self._save(replace(self.record, state=RUNNING, outcome=""))
            self._wanted = RUNNING
            self.start()

    async def cancel(self, by: str) -> None:
        """
        End it; what it has published stays. Returns when that is durable.

        Args:
            by: Who has it ended, for its record.

        Raises:
            Refused: PRECONDITION_FAILED, it is over; INTERNAL, the store could not write.
        """
        async with self._commands:
            await self._stop(CANCELLED)
            self._check_under_way()
            outcome = f"cancelled by {by}" if by else "cancelled"
            await self._save(self._ended(CANCELLED, outcome))
            self._tell_end()

    async def _stop(self, wanted: str) -> None:
        if not self.record.is_ended:
            self._wanted = wanted
        self._woken.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._task = None

    def _check_under_way(self) -> None:
        if self.record.is_ended:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"the job {self.record.name!r} is over: it is {self.record.state}",
            )

    def _check_permitted(self) -> None:
        why = self._shared.why_not(self.record)
        if why:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"the job {self.record.name!r} stays as it is: {why}; begin one of your own",
            )

    async def check_requester(self) -> None:
        """Users are others now: it pauses, durably, if its requester may not do any more what it does."""
        why = self._shared.why_not(self.record) if self.record.state == RUNNING else ""
        if not why:
            return
        self._wanted = PAUSED
        with suppress(Refused):
            await self.pause(why)

    # --- progress -------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """How quickly it gets on, by what it did in the last seconds."""
        if self._task is None or len(self._samples) < 2:
            return Progress(0.0, None)
        began, first, sent_before = self._samples[0]
        ended, position, sent = self._samples[-1]
        seconds = ended - began
        if seconds <= 0:
            return Progress(0.0, None)
        return Progress(
            (sent - sent_before) / seconds, self._seconds_left(seconds, position - first, sent - sent_before)
        )

    def _note_progress(self) -> None:
        now, samples = self._runtime.clock.seconds(), self._samples
        if len(samples) > 1 and now - samples[-2][0] < RATE_SECONDS / 32:
            samples.pop()
        samples.append((now, self.record.position, self.record.sent))
        while now - samples[0][0] > RATE_SECONDS:
            samples.popleft()

    # --- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        ended: ReplayRecord | None = None
        try:
            self._begin()
            while self._wanted == RUNNING and ended is None:
                if await self._step():
                    ended = self._ended(COMPLETE, self._said())
        except Refused as refused:
            ended = self._ended(FAILED, refused.text)
        except Exception as error:
            self._runtime.report("replay_job_failed", error)
            ended = self._ended(FAILED, "a mistake of the gateway; its log says why")
        finally:
            self._let_go()
        while ended is not None:
            try:
                await self._save(ended)
            except Refused as refused:
                if self._committer.is_deposed or self._wanted != RUNNING:
                    return
                self._say(refused.text)
                await self._wait(LONGEST_WAIT_SECONDS)
                continue
            self._tell_end()
            return

    def _ended(self, state: str, outcome: str) -> ReplayRecord:
        return replace(self.record, state=state, ended_ms=self._runtime.clock.now_ms(), outcome=outcome[:500])

    def _tell_end(self) -> None:
        record = self.record
        self._runtime.log.info(
            "replay_job_ended",
            **{
                log_keys.REPLAY: record.name,
                log_keys.REPLAY_STATE: record.state,
                log_keys.MESSAGES: record.sent,
                log_keys.REASON: record.outcome,
            },
        )

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait so long at most, or until something was told; whoever waits looks again then."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _too_costly(self, row: Row) -> None:
        """Its selector is unknown of a message, which is not taken; said of the first one."""
        self._runtime.log.warning(
            "selection_too_costly", **{log_keys.REPLAY: self.record.name, log_keys.FIRST: row[ID]}
        )
        self._unknown_from = row[ID]

    @property
    def _unknown_said(self) -> str:
        unknown = self._unknown_from
        return f"; from message {unknown} on the selector took too long of some" if unknown else ""

    def _say(self, hindrance: str) -> None:
        """What it waits for now; nothing, once it goes on."""
        if self.record.outcome != hindrance[:500]:
            self.record = replace(self.record, outcome=hindrance[:500])
            self._broker.replay_records.put(self.record)

    async def _wait_for(self, hindrance: str) -> None:
        """Something hinders it: say so, and try again a little later."""
        self._say(hindrance)
        await self._wait(self._hindrance_seconds)
        self._hindrance_seconds = min(2 * self._hindrance_seconds, LONGEST_WAIT_SECONDS)

    def _further(self, read: int, sent: int, size_bytes: int, position: int | None = None) -> ReplayRecord:
        """Its record once so much more was read, and sent."""
        record = self.record
        return replace(
            record,
            position=record.position if position is None else position,
            read=record.read + read,
            sent=record.sent + sent,
            size_bytes=record.size_bytes + size_bytes,
            outcome="",
        )

    async def _save(self, record: ReplayRecord) -> None:
        """
        Make this its record; returns when that is durable.

        Raises:
            Refused: INTERNAL, the store could not write.
        """
        effects = self._broker.replay_records.put(record)
        try:
            await self._committer.committed(effects)
        except Refused:
            self._broker.replay_records.put(self.record)
            raise
        self.record = record

    async def _commit(self, record: ReplayRecord, effects: Iterable[Effect] = ()) -> WriteFailed | None:
        """
        Commit how far it is with what was published in this turn of the loop; why that failed, if it did.

        Args:
            effects: What is to be durable with it, beside publications.
        """

        def then(error: WriteFailed | None) -> None:
            if error is None:
                # Before anybody is told anything else: a stop of the job meanwhile does not undo it.
                self.record = record
                self._broker.replay_records.put(record)
                self._hindrance_seconds = FIRST_WAIT_SECONDS
                self._note_progress()
            self._written(error)

        return await self._committer.tried([*effects, SaveReplayRecord(record)], then)

    @abstractmethod
    def _written(self, error: WriteFailed | None) -> None:
        """What was on its way is durable, or came to nothing."""


def selector_of(text: str, too_costly: Callable[[Row], None] | None = None) -> Callable[[Row], bool] | None:
    """
    What a selector takes; None where it is empty, and everything is taken. A message that cannot be read is not taken.

    Args:
        too_costly: See ``compile_filters``.

    Raises:
        Refused: INVALID_FIELD, it is none; the text says where.
    """
    return compile_filters(Filters(selector=text), too_costly) if text else None


class Choosing:
    """
    A job's selector over pages of messages.

    Args:
        takes: None takes everything.
    """

    def __init__(self, takes: Callable[[Row], bool] | None, state: VpnState) -> None:
        runtime = state.runtime
        self._takes = takes
        self._turns = state.selection
        self._loop = runtime.loop
        self._at_once = RowsAtOnce(runtime.clock.seconds, runtime.tuning.log_slice_rows)

    async def among(self, rows: list[Row]) -> list[Row]:
        """Those of these messages that the job takes."""
        takes = self._takes
        if takes is None:
            return rows
        chosen: list[Row] = []
        looked_at = 0
        while looked_at < len(rows):
            while self._turns.is_over():
                await self._next_turn()
            part: Sequence[Row] = rows[looked_at : looked_at + self._at_once.count]
            with self._at_once:
                chosen += filter(takes, part)
            looked_at += len(part)
        return chosen

    async def _next_turn(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        waiting = self._turns.wait(lambda: None if turn.done() else turn.set_result(None))
        try:
            await turn
        finally:
            waiting.cancel()


def topic_of(address: str, endpoints: Endpoints, publishing: Publishing) -> str:
    """
    The topic that an address publishes to; a queue that it names is made where that is allowed.

    Raises:
        Refused: INVALID_FIELD, NOT_ALLOWED, NOT_FOUND: nothing can be sent there, or there is no such queue.
    """
    check_no_host(address)
    return topic_at(address, endpoints, publishing)


def topic_at(address: str, endpoints: Endpoints, publishing: Publishing) -> str:
    """
    The topic that an address publishes to; a queue it names is made where that is allowed.

    Raises:
        Refused: It is no address of a queue or a topic, or there is nobody to take what is published there.
    """
    with refusing(AddressError, TopicSyntaxError):
        parsed = parse_target(address)
        if parsed.kind is AddressKind.TOPIC:
            topic = publishing.check_topic(parsed.name)
            check_leads_somewhere(topic, endpoints)
            return topic
    if parsed.kind is not AddressKind.QUEUE:
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"nothing can be sent to {address[:80]!r}; name a queue or a topic"
        )
    return queue_topic(endpoints.queue_at(parsed).name)


def check_no_host(address: str) -> None:
    """
    That an address names no host: where that is, the configuration alone says.

    Raises:
        Refused: INVALID_FIELD.
    """
    if _HOST.match(address.lstrip()):
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"a job publishes to an address of its own Message VPN, such as queue://orders; {address[:80]!r} names "
            "another host, which is for the configuration to name (replay_target)",
        )


def check_leads_somewhere(topic: str, endpoints: Endpoints) -> None:
    """
    That the queue is there, where a topic is a queue's: published all the same, messages would be in the log alone.

    Args:
        find: The endpoint of a name.

    Raises:
        Refused: NOT_FOUND.
    """
    queue = queue_of_topic(topic)
    if queue is not None and endpoints.by_name.get(queue) is None:
        raise Refused(ErrorCode.NOT_FOUND, f"there is no queue {queue!r}")
