"""
A job: work over the log or a queue that an administrator begins, and that continues after a restart.

A job commits the messages that it publishes together with its record, which has its position: a stop at any moment
neither duplicates nor loses a message. So only one batch is in progress at a time. When something hinders a job, such
as a full queue or a full disk, the job waits and its record says why: it skips no message.

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
"""How long a hindered job waits before its next try: a queue with consumers soon has room."""

LONGEST_WAIT_SECONDS: Final = 1.0
"""The wait doubles up to this."""

RATE_SECONDS: Final = 10.0
"""The time over which a job's rate is measured."""


class JobShared(NamedTuple):
    """What all jobs of a Message VPN have in common."""

    state: VpnState
    publishing: Publishing
    consumers: Consumers
    endpoints: Endpoints
    why_not: Callable[[ReplayRecord], str]
    """Why a job may not continue in its requester's name, by present permissions; empty if it may."""


class Progress(NamedTuple):
    """How fast a job advances."""

    per_second: float
    """Messages that it published a second, over the last seconds."""
    seconds_left: float | None
    """Until it ends, at this rate; None if that is not known."""


class Job(VpnPart, ABC):
    """
    Args:
        record: The stored one, or that of a new job.
    """

    def __init__(self, shared: JobShared, record: ReplayRecord) -> None:
        super().__init__(shared.state)
        self.record = record
        """As it is durable, except for ``outcome`` while the job waits."""
        self._shared = shared
        self._wanted = record.state
        """The state to enter when the batch in progress is committed."""
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._wake = self._woken.set
        self._commands = asyncio.Lock()
        self._hindrance_seconds = FIRST_WAIT_SECONDS
        self._unknown_from = 0
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=64)
        """(seconds, position, messages sent) of the last seconds."""

    # --- what each kind of job does -------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Begin, or continue; raises Refused if that is not possible."""

    @abstractmethod
    async def _step(self) -> bool:
        """Do a part of the work; whether all is done. Returns early once another state is wanted."""

    @abstractmethod
    def _let_go(self) -> None:
        """The job stops, for good or for now: release everything that it holds."""

    @abstractmethod
    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""

    def _said(self) -> str:
        """The outcome of a complete job, as text."""
        return f"{self.record.sent} messages"

    def _seconds_left(self, seconds: float, ids: int, sent: int) -> float | None:
        """How long the rest takes, if in ``seconds`` it advanced by ``ids`` ids and sent ``sent`` messages."""
        return None

    # --- commands -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin or continue the work, if the job's state is ``running``."""
        if self._wanted == RUNNING and self._task is None:
            self._samples.clear()
            self._task = self._runtime.loop.create_task(self._run())

    def close(self) -> None:
        """The Message VPN stops: the batch in progress is still committed, and a restart continues after it."""
        if self._task is not None:
            self._task.cancel()

    async def pause(self, why: str = "") -> None:
        """
        Stop for now; returns when that is durable.

        Args:
            why: The reason for its record; empty if an administrator asked for the pause.

        Raises:
            Refused: PRECONDITION_FAILED, it is over; INTERNAL, the store could not write.
        """
        async with self._commands:
            await self._stop(PAUSED)
            self._check_under_way()
            await self._save_stopped(replace(self.record, state=PAUSED, outcome=why[:500]))

    async def resume(self) -> None:
        """
        Continue; returns when that is durable.

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
            by: Who cancels it, for its record.

        Raises:
            Refused: PRECONDITION_FAILED, it is over; INTERNAL, the store could not write.
        """
        async with self._commands:
            await self._stop(CANCELLED)
            self._check_under_way()
            outcome = f"cancelled by {by}" if by else "cancelled"
            await self._save_stopped(self._ended(CANCELLED, outcome))
            self._tell_end()

    async def _stop(self, wanted: str) -> None:
        if not self.record.is_ended:
            self._wanted = wanted
        self._woken.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._task = None

    async def _save_stopped(self, record: ReplayRecord) -> None:
        """Save the record of the stopped job. If that fails, nothing has happened: a running job goes on."""
        try:
            await self._save(record)
        except Refused:
            if self.record.state == RUNNING and not self._shared.why_not(self.record):
                self._wanted = RUNNING
                self.start()
            raise

    def _check_under_way(self) -> None:
        if self.record.is_ended:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"the job {self.record.name!r} has ended: it is {self.record.state}",
            )

    def _check_permitted(self) -> None:
        why = self._shared.why_not(self.record)
        if why:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"the job {self.record.name!r} stays as it is: {why}; start a job of your own",
            )

    async def check_requester(self) -> None:
        """Permissions changed: pause, durably, if the requester may no longer do what the job does."""
        why = self._shared.why_not(self.record) if self.record.state == RUNNING else ""
        if not why:
            return
        self._wanted = PAUSED
        with suppress(Refused):
            await self.pause(why)

    # --- progress -------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """How fast the job advanced in the last seconds."""
        if self._task is None or self._task.done() or len(self._samples) < 2:
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
            ended = self._ended(FAILED, "an internal error; the gateway's log says why")
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
        """Wait until ``_wake`` is called, at most for ``seconds``; the caller then looks at its condition again."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _too_costly(self, row: Row) -> None:
        """The selector took too long for this message, which is not taken. Called for the first such message."""
        self._runtime.log.warning(
            "selection_too_costly", **{log_keys.REPLAY: self.record.name, log_keys.FIRST: row[ID]}
        )
        self._unknown_from = row[ID]

    @property
    def _unknown_said(self) -> str:
        unknown = self._unknown_from
        return (
            (f"; from message {unknown} on the selector would have taken too long for some")
            if unknown
            else ""
        )

    def _say(self, hindrance: str) -> None:
        """Show in the record, in memory only, what the job waits for."""
        if self.record.outcome != hindrance[:500]:
            self.record = replace(self.record, outcome=hindrance[:500])
            self._broker.replay_records.put(self.record)

    async def _wait_for(self, hindrance: str) -> None:
        """Show what hinders the job, and wait before the next try, longer each time."""
        self._say(hindrance)
        await self._wait(self._hindrance_seconds)
        self._hindrance_seconds = min(2 * self._hindrance_seconds, LONGEST_WAIT_SECONDS)

    def _further(self, read: int, sent: int, size_bytes: int, position: int | None = None) -> ReplayRecord:
        """The record after so much more was read and sent."""
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
        Commit the record with what was published in this turn of the loop; returns why that failed, or None.

        Args:
            effects: What else belongs to the commit, in addition to the publications.
        """

        def then(error: WriteFailed | None) -> None:
            if error is None:
                # Before the task goes on: the record counts even if the task was cancelled meanwhile.
                self.record = record
                self._broker.replay_records.put(record)
                self._hindrance_seconds = FIRST_WAIT_SECONDS
                self._note_progress()
            self._written(error)

        return await self._committer.tried([*effects, SaveReplayRecord(record)], then)

    @abstractmethod
    def _written(self, error: WriteFailed | None) -> None:
        """The batch in progress is durable, or its commit failed."""


def selector_of(text: str, too_costly: Callable[[Row], None] | None = None) -> Callable[[Row], bool] | None:
    """
    A selector as a function; None if it is empty and takes everything. It takes no message that cannot be decoded.

    Args:
        too_costly: See ``compile_filters``.

    Raises:
        Refused: INVALID_FIELD, the selector is invalid; the text says where.
    """
    return compile_filters(Filters(selector=text), too_costly) if text else None


class Choosing:
    """
    Applies a job's selector to pages of messages, in turns with other selectors.

    Args:
        takes: The selector; None takes everything.
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
    The topic that an address publishes to; a queue that it names is created if that is allowed.

    Raises:
        Refused: INVALID_FIELD, NOT_ALLOWED, NOT_FOUND: nothing can be sent there, or there is no such queue.
    """
    check_no_host(address)
    return topic_at(address, endpoints, publishing)


def topic_at(address: str, endpoints: Endpoints, publishing: Publishing) -> str:
    """
    The same for an address that may name a host.

    Raises:
        Refused: The address names neither a queue nor a topic, or the queue does not exist.
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
    Check that an address names no host: only the configuration says which hosts are published to.

    Raises:
        Refused: INVALID_FIELD.
    """
    if _HOST.match(address.lstrip()):
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"a job publishes to an address of its own Message VPN, such as queue://orders; {address[:80]!r} "
            "names another host, which only the configuration can name (replay_target)",
        )


def check_leads_somewhere(topic: str, endpoints: Endpoints) -> None:
    """
    Check that the queue of a topic exists, if the topic is that of a queue: without the queue, messages would be in the
    log alone.

    Raises:
        Refused: NOT_FOUND.
    """
    queue = queue_of_topic(topic)
    if queue is not None and endpoints.by_name.get(queue) is None:
        raise Refused(ErrorCode.NOT_FOUND, f"there is no queue {queue!r}")
