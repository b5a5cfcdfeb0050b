"""
Copies of a part of the log, published to a queue or topic of this Message VPN, or at another gateway.

The end is fixed when the job begins, so a job that copies the log into itself ends. No message is left out: the job
waits while the target takes no more, and it fails if messages that it has not read yet are trimmed.

A copy to another gateway (``RemoteCopyJob``) and the job's record cannot be one commit: the record is saved after the
peer has accepted the message. After a stop in between, the job sends the message again with the same
``x-opt-replay-name`` and ``x-opt-replay-source-id``, by which the peer drops the duplicate.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from amqp_ext.message.annotations import CopyFronts
from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway.config import ReplayTarget
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.core.model import ID, ReplayRecord, Row
from gateway.core.replay.reading import CATCH_UP_MS, Pacer, logged, of_topics, topic_matcher
from gateway.vpn.history import LogSource
from gateway.vpn.jobs.job import RUNNING, Choosing, Job, JobShared, check_leads_somewhere, selector_of
from store.errors import LogTrimmed, ReadFailed, WriteFailed

MOST_PATTERNS = 100
"""Patterns of one copy: each topic of a page is compared with all of them."""

SHORTEST_WAIT: Final = 0.001
"""Seconds: the resolution of the loop's timers."""

WRITING: Final = 2.0
"""Processor time for writing copies, as a multiple of that for making them. The writer's thread spends it, and live
traffic loses it all the same."""

MOST_UNSETTLED: Final = 1_000
"""Messages that are sent to the peer and not settled."""

ROUND_TRIP_MS: Final = 1_000
"""The delay that a paced copy may catch up (``Pacer``): a distant or busy peer takes longer than a local commit."""

LEAVE_SECONDS: Final = 2.0
"""How long a pause waits for the peer's outcomes; a message without one is sent again later."""


@dataclass(eq=False, slots=True)
class Batch:
    """Copies that are ready to be published."""

    rows: list[Row]
    """The messages that are copied."""
    contents: list[bytes]
    bares: list[int]
    position: int
    """When the batch is published, the job has copied everything before this id."""
    looked_at: int
    """The number of log messages that the batch was selected from."""
    seconds: float = 0.0
    """Seconds of the loop that making it took."""
    due: int = 0
    """How many of the first messages the pace allows now."""

    def exchange(self, markers: Mapping[int, Row], fronts: CopyFronts) -> None:
        """Replace messages that were erased since they were read, and their copies, by the markers."""
        if not any(row[ID] in markers for row in self.rows):
            return
        self.rows = with_markers(self.rows, markers)
        self.contents, self.bares = fronts.copies(self.rows)

    def take_out(self, places: Sequence[int], looked_at: int) -> None:
        """Remove the messages at these places (rising), which are published."""
        count = len(places)
        is_first = not places or places[-1] == count - 1
        # The first messages are deleted together: each single deletion would move the rest of the list.
        for place in (slice(count),) if is_first else reversed(places):
            del self.rows[place], self.contents[place], self.bares[place]
        self.looked_at -= looked_at
        self.due = max(self.due - count, 0)
        self.seconds = 0.0


class CopyJob(Job):
    """
    Args:
        topic: The topic to publish to.
        catch_up_ms: See ``Pacer``.

    Raises:
        Refused: INVALID_FIELD, the selector is invalid.
    """

    def __init__(
        self, shared: JobShared, record: ReplayRecord, topic: str, catch_up_ms: float = CATCH_UP_MS
    ) -> None:
        super().__init__(shared, record)
        self._topic = topic
        self._matches = topic_matcher(record.subscriptions)
        self._fronts = CopyFronts(record.name)
        self._choosing = Choosing(selector_of(record.selector, self._too_costly), self._state)
        paced = record.rate is not None or record.speed is not None
        self._pacer = Pacer(record.speed, record.rate, catch_up_ms) if paced else None
        self._source: LogSource | None = None
        self._failed: BaseException | None = None
        self._is_short = False
        """A retention rule removed messages that the job was still to copy."""
        self._activity = 0
        self._due = 0.0
        self._next: asyncio.Task[Batch | None] | None = None
        """Makes the batch that is published after the present one."""
        self._erased: dict[int, Row] = {}
        """Markers of erased messages that may have been read before their erasure."""
        self._on_its_way = 0
        """Copies in the commit under way; they are counted apart from live traffic."""

    def _begin(self) -> None:
        patterns = () if self._matches is None else positive(self.record.subscriptions)
        history, user = self._state.history, self.record.requester
        self._source = LogSource(history, self.record.position, patterns, self._read, user=user)

    def _let_go(self) -> None:
        unwanted, self._next = self._next, None
        if unwanted is not None and not unwanted.cancel() and not unwanted.cancelled():
            unwanted.exception()  # nobody needs it: the same read is repeated later
        if self._source is not None:
            self._source.close()
            self._source = None

    def _read(self, error: BaseException | None) -> None:
        self._failed = error
        self._wake()

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """
        Retention rules are about to remove these messages, (id, topic) with rising ids, from the middle of the log: the
        job fails if it was still to read some of them.
        """
        position, end = self.record.position, self.record.end
        if self._source is not None:
            position = max(position, self._source.position)
        if any(
            position <= message_id < end and (self._matches is None or self._matches(topic))
            for message_id, topic in found
        ):
            self._is_short = True
            self._wake()

    def check_since_stop(self) -> None:
        """Fail if retention rules removed messages before a stop: a paused or killed job could not record that."""
        below = self._broker.retention.taken_from(self.record.subscriptions).below
        if below > max(self.record.without_below, self.record.position):
            self._is_short = True

    def _trimmed(self) -> Refused:
        """The error of a job whose next messages have left the log."""
        broker, record = self._broker, self.record
        nearest = max(broker.history.first_id, broker.retention.taken_from(record.subscriptions).below)
        return Refused(
            ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
            f"the log was trimmed during the copy: it was to continue at id {record.position}, and messages "
            f"have left the log since; another copy can begin at #{nearest}",
        )

    def _said(self) -> str:
        return f"{self.record.sent} copies of {self.record.read} messages read{self._unknown_said}"

    def _seconds_left(self, seconds: float, ids: int, sent: int) -> float | None:
        return (self.record.end - self.record.position) * seconds / ids if ids else None

    async def _step(self) -> bool:
        if self.record.position >= self.record.end:
            return True
        reading, self._next = self._next or self._prepare_next(), None
        batch = await reading
        if batch is None:
            return False
        if batch.position < self.record.end:
            # The next batch is read and made while this one is written.
            self._next = self._prepare_next()
        await self._publish(batch)
        return False

    def _prepare_next(self) -> asyncio.Task[Batch | None]:
        return self._runtime.loop.create_task(self._prepare())

    async def _prepare(self) -> Batch | None:
        """Make the next batch; None once another state is wanted."""
        counters, tuning = self._state.counters, self._runtime.tuning
        activity, self._activity = self._activity, counters.activity
        is_beside_live = activity != self._activity
        found = await self._read_rows(
            tuning.log_turn_rows_beside_live if is_beside_live else tuning.log_turn_rows
        )
        if found is None:
            return None
        rows, position = found
        end = self.record.end
        of_log = logged(rows)
        if of_log and of_log[-1][ID] >= end:
            of_log = [row for row in of_log if row[ID] < end]
        wanted = of_log if self._matches is None else of_topics(of_log, self._matches)
        chosen = await self._choosing.among(wanted)
        started = self._runtime.clock.seconds()
        contents, bares = self._fronts.copies(chosen)
        batch = Batch(chosen, contents, bares, min(position, end), len(of_log))
        batch.seconds = self._runtime.clock.seconds() - started
        return batch

    async def _read_rows(self, limit: int) -> tuple[Sequence[Row], int] | None:
        """Read the next messages and the position after them; None once another state is wanted."""
        while self._wanted == RUNNING:
            source = self._source
            if source is None:
                return None
            error, self._failed = self._failed, None
            if self._is_short:
                raise self._trimmed()
            try:
                if error is not None:
                    raise error
                found = source.read(limit)
            except LogTrimmed:
                raise self._trimmed() from None
            except ReadFailed as failed:
                self._runtime.report("log_read_failed", failed)
                await self._wait_for("the log could not be read; the gateway's log says why")
                continue
            if found is not None:
                return found
            await self._wait()
        return None

    async def _publish(self, batch: Batch) -> None:
        """Publish all copies of a batch, as far as the pace allows and the target takes them."""
        while self._wanted == RUNNING:
            count = await self._let_through(batch)
            if count is not None and await self._publish_some(batch, count):
                return

    async def _publish_some(self, batch: Batch, count: int) -> bool:
        """Publish up to ``count`` copies, and save the position behind them; whether the batch is done."""
        clock = self._runtime.clock
        started = clock.seconds() - batch.seconds
        hindrance = self._put(batch, count)
        if hindrance:
            await self._wait_for(hindrance)
            return False
        taken = self._on_its_way
        is_all = taken == len(batch.rows)
        passed = batch.looked_at if is_all else min(taken, batch.looked_at)
        position = batch.position if is_all else batch.rows[taken][ID]
        after = self._further(passed, taken, sum(map(len, batch.contents[:taken])), position)
        elsewhere = WRITING * (clock.seconds() - started)
        if self._source is not None:
            elsewhere += self._source.spent_reading()
        self._due = self._state.pace.spent(started, taken, elsewhere)
        error = await self._commit(after)
        if error is not None:
            await self._wait_for(f"the store could not write: {error}")
        elif not is_all:
            batch.take_out(range(taken), passed)
        return error is None and is_all

    async def _let_through(self, batch: Batch) -> int | None:
        """How many of a batch's first copies are due now; None after a wait, when the caller asks again."""
        if (wait := self._state.pace.wait(self._due)) >= SHORTEST_WAIT:
            await self._wait(wait)
            return None
        if self._pacer is None or not batch.rows:
            return len(batch.rows)
        now_ms = self._runtime.clock.now_ms()
        if not batch.due:
            batch.due = self._pacer.due(batch.rows, now_ms)
        if not batch.due:
            await self._wait(self._pacer.wait_s(batch.rows[0], now_ms))
            return None
        return batch.due

    def _exchange_erased(self, batch: Batch) -> None:
        markers = self._broker.erasing.markers
        if self._erased or markers:
            batch.exchange({**self._erased, **markers}, self._fronts)

    def _put(self, batch: Batch, count: int) -> str:
        """Publish up to ``count`` copies, as many as the target takes now; returns why it takes none, or empty."""
        self._on_its_way = 0
        if not count:
            return ""
        self._exchange_erased(batch)
        try:
            check_leads_somewhere(self._topic, self._shared.endpoints)
        except Refused as gone:
            return gone.text
        is_all = count == len(batch.rows)
        self._on_its_way, refused = self._shared.publishing.put_what_fits(
            self._topic,
            batch.contents if is_all else batch.contents[:count],
            batch.bares if is_all else batch.bares[:count],
        )
        if self._on_its_way:
            return ""
        return (
            refused.text if refused is not None else (f"no endpoint or log takes messages of {self._topic!r}")
        )

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased: those read already are replaced when they are published."""
        source = self._source
        if source is not None:
            source.erased(markers)
            held = range(self.record.position, source.position)
            self._erased = {i: row for i, row in {**self._erased, **markers}.items() if i in held}

    def _written(self, error: WriteFailed | None) -> None:
        if error is None:
            self._state.counters.copied_messages += self._on_its_way
        self._on_its_way = 0


class RemotePublisher(Protocol):
    """Publishes to one address of a peer."""

    def publish(self, settings: ReplayTarget, contents: Sequence[bytes]) -> list[str]:
        """
        Publish encoded messages, and wait for the outcome of each. Blocks: call it on a thread, one call at a time.

        Connects if there is no connection. If that fails, or the connection is lost, this is the reason of every
        message without an outcome.

        Args:
            settings: Where the peer is, by the present configuration.

        Returns:
            For each message why it was not accepted; empty if it was.
        """

    def close(self) -> None:
        """Close the connection for good; a call that waits returns soon. Any thread may call this."""


OpenRemote: TypeAlias = Callable[[str, str], RemotePublisher]
"""Called with the address at the peer and the name of the replay. Does not connect yet."""


class RemoteCopyJob(CopyJob):
    """
    Raises:
        Refused: INVALID_FIELD, the selector is invalid.
    """

    def __init__(self, shared: JobShared, record: ReplayRecord, open_remote: OpenRemote) -> None:
        super().__init__(shared, record, "", ROUND_TRIP_MS)
        self._open_remote = open_remote
        self._remote: RemotePublisher | None = None

    def _let_go(self) -> None:
        super()._let_go()
        self._close_remote()

    def _close_remote(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    async def _publish_some(self, batch: Batch, count: int) -> bool:
        """The same; the position is that of the first copy that was not accepted."""
        started = self._runtime.clock.seconds() - batch.seconds
        self._exchange_erased(batch)
        contents = batch.contents[: min(count, MOST_UNSETTLED)]
        reasons = await self._send(contents)
        if reasons is None:
            return False
        accepted = [place for place, reason in enumerate(reasons) if not reason]
        is_all = len(accepted) == len(batch.rows)
        looked_at = batch.looked_at if is_all else min(len(accepted), batch.looked_at)
        batch.take_out(accepted, looked_at)
        position = batch.rows[0][ID] if batch.rows else batch.position
        size_bytes = sum(len(contents[place]) for place in accepted)
        after = self._further(looked_at, len(accepted), size_bytes, position)
        self._due = self._state.pace.spent(started, len(accepted), 0.0)
        if after != replace(self.record, outcome=""):
            await self._save_until_done(after)
        if refused := next(filter(None, reasons), ""):
            await self._wait_for(refused)
        return is_all

    async def _save_until_done(self, after: ReplayRecord) -> None:
        """Save the record until that succeeds: the peer keeps what it has accepted."""
        while True:
            error = await self._commit(after)
            if error is None or self._wanted != RUNNING:
                return
            await self._wait_for(f"the store could not write: {error}")

    async def _send(self, contents: list[bytes]) -> list[str] | None:
        """Send; why each was not accepted, or empty. None if another state is wanted and no outcomes come in time."""
        if not contents:
            return []
        settings = self._state.settings.vpn.replay_targets.get(self.record.remote)
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
            except Exception as error:  # a bug of ours must not leave the job waiting
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


def positive(patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that are not exceptions: those that the store is asked for."""
    return tuple(pattern for pattern in patterns if not pattern.startswith("!"))


def checked(patterns: Sequence[str]) -> tuple[str, ...]:
    """
    The patterns of a copy; everything where there are none.

    Raises:
        Refused: INVALID_FIELD, a pattern is invalid, there are too many, or all are exceptions.
    """
    if not patterns:
        return (">",)
    if len(patterns) > MOST_PATTERNS:
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"a copy has at most {MOST_PATTERNS} subscriptions, and {len(patterns)} were given",
        )
    with refusing(TopicSyntaxError):
        for pattern in patterns:
            TopicPattern.parse(pattern)
    if not positive(patterns):
        raise Refused(
            ErrorCode.INVALID_FIELD,
            "the subscriptions are only exceptions, which match nothing; add one without `!`",
        )
    return tuple(patterns)
