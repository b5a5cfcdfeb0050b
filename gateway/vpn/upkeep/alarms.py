"""
Watches the conditions of alarms: quotas and the clock once a second, failed writes of the store as they happen, what
commits survive every few seconds, and the log's archive once a minute.

No message causes a look. Each alarm is one log line when it is raised and one when it is cleared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from typing import Final

from gateway.config import AlarmThresholds
from gateway.core.alarms import AlarmKind, Alarms
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import KeptTopics
from gateway.core.sizing import LogPlan
from gateway.vpn.runtime import ThreadedService, log_alarm
from gateway.vpn.state import VpnService, VpnState
from gateway.vpn.upkeep.dead_letters import Discarded
from gateway.vpn.upkeep.lag import Lag
from store.errors import ReadFailed
from store.ports import Durability

ASK_SECONDS: Final = 2.0
"""From an answer to the next question: about how late the loss of a standby is noticed."""

LOOK_SECONDS: Final = 1.0
"""From one look to the next: about how late an alarm may be."""

TURN_ENDPOINTS: Final = 500
"""Endpoints looked at in one turn of the loop: well below a millisecond."""

DISCARDED_MS: Final = 3_600_000
"""How long a discarded dead message is an alarm: long enough for somebody to see it."""

_LOOKED_FOR: Final = frozenset(
    {AlarmKind.LOG_USE, AlarmKind.ENDPOINT_USE, AlarmKind.DISCARDED, AlarmKind.LAG, AlarmKind.LAG_TIME}
)
"""Alarms whose subjects come and go, as queues and thresholds do."""


class AlarmWatch(VpnService):
    """
    Args:
        discarded: Dead messages that their queues did not take; old entries are removed here.
        unarchived: Why the log is not archived, although an archiver is to run here.
    """

    def __init__(
        self,
        state: VpnState,
        durability: DurabilityWatch,
        discarded: dict[str, Discarded],
        unarchived: Callable[[], str | None],
        lag: Lag,
    ) -> None:
        super().__init__(state)
        self._lag = lag
        self.thresholds = AlarmThresholds()
        self._durability = durability
        self._lease = state.lease
        self._archive = state.history.archive
        self._discarded = discarded
        self._unarchived = unarchived
        self._clock = state.runtime.clock
        self._log = state.runtime.log
        self._alarms = Alarms(lambda alarm, is_raised: log_alarm(self._log, alarm, is_raised))
        self.active = self._alarms.active
        """The alarms of this Message VPN that hold now, the oldest first."""
        self._looked_for: Set[AlarmKind] = _LOOKED_FOR
        """The kinds of alarms that this look checks."""
        self._left: list[Endpoint] = []
        """Endpoints still to be looked at."""

    def start(self) -> None:
        """Look, again and again."""
        self._after(LOOK_SECONDS, self._look)

    def store_changed(self, problem: str | None) -> None:
        """A write failed, for a reason; or one succeeded after that."""
        text = None if problem is None else f"the store cannot be written: {problem}"
        self._alarms.note(AlarmKind.STORE, "", text, self._now_ms())

    def unconfirmed(self) -> str | None:
        """Why nothing is delivered, and publishers wait: the store does not answer; None when it does."""
        if self._lease is None or self._lease.holds():
            return None
        return (
            "the store confirms no commit: nothing is delivered, and publishers wait; "
            f"the last one that succeeded began {self._lease.age_seconds:.0f} s ago"
        )

    def sized(self, by_hour: LogPlan, by_day: LogPlan) -> None:
        """
        Check the alarms that depend on how fast the log grows.

        Args:
            by_hour: The plan by the rate of the last hour.
            by_day: The plan by the rate of the last day.
        """
        thresholds, now_ms = self.thresholds, self._now_ms()
        disk = "at the rate of the last hour the disk is full in"
        log = "at the rate of the last day the replay log's quota holds"
        note = self._alarms.note_time
        note(AlarmKind.DISK_TIME, by_hour.disk_full_in_ms, thresholds.disk_hours_left, disk, now_ms)
        note(AlarmKind.LOG_TIME, by_day.lasts_ms, thresholds.log_hours_kept, log, now_ms)

    def check(self) -> None:
        """Look at everything now."""
        self._look_at_all()
        self._check(len(self._left))
        self._alarms.clear_unsaid(self._looked_for)

    def _look(self) -> None:
        if self._committer.problem is not None:
            self._committer.try_store()
        self._look_at_all()
        self._turn()

    def _turn(self) -> None:
        self._check(TURN_ENDPOINTS)
        if self._left:
            self._timer = self._loop.call_soon(self._turn)
        else:
            self._alarms.clear_unsaid(self._looked_for)
            self.start()

    def _look_at_all(self) -> None:
        retention, percents = self._broker.retention, self.thresholds.log_percent
        for kind, problem in self._problems():
            self._alarms.note(kind, "", problem, self._now_ms())
        self._note_discarded()
        self._note_use(AlarmKind.LOG_USE, "", self._broker.trimming.usage, percents)
        self._looked_for = _LOOKED_FOR | ({AlarmKind.RETENTION_USE} if retention.is_counted else set())
        for kept in retention.rules if retention.is_counted else ():
            if kept.rule.quota_bytes:
                use = kept.size_bytes / kept.rule.quota_bytes
                self._note_use(AlarmKind.RETENTION_USE, _topics(kept), use, percents)
        self._left = list(self._broker.endpoints.values())

    def _problems(self) -> Iterator[tuple[AlarmKind, str | None]]:
        """The alarms without a subject, each with the problem if there is one."""
        damage, standby_damage, archive = self._reader.damage, self._reader.standby_damage, self._archive
        if damage is not None:
            yield AlarmKind.DAMAGE, f"the store cannot be read: {damage}"
        elif standby_damage is not None:
            where = "a standby of the store cannot be read, and the primary is read instead"
            yield AlarmKind.DAMAGE, f"{where}: {standby_damage}"
        yield AlarmKind.UNCONFIRMED, self.unconfirmed()
        yield AlarmKind.ONE_MACHINE, self._durability.problem()
        if archive is not None:
            unread, unwritten = archive.problem, self._unarchived()
            said = f"is not read: {unread}" if unread else unwritten and f"is not written: {unwritten}"
            yield AlarmKind.ARCHIVE, said and f"the log's archive {archive.place} {said}"
        yield AlarmKind.CLOCK, self._clock.problem()

    def _note_use(self, kind: AlarmKind, subject: str, use: float, percents: Sequence[int]) -> None:
        hysteresis = self.thresholds.hysteresis_percent
        self._alarms.note_use(kind, subject, use, percents, hysteresis, self._now_ms())

    def _note_discarded(self) -> None:
        now_ms, discarded = self._now_ms(), self._discarded
        for queue, found in list(discarded.items()):
            if now_ms - found.time_ms >= DISCARDED_MS:
                del discarded[queue]
                continue
            text = f"dead messages are discarded, because {queue!r} does not accept them: {found.reason}"
            self._alarms.note(AlarmKind.DISCARDED, queue, text, now_ms)

    def _check(self, count: int) -> None:
        turn, self._left = self._left[:count], self._left[count:]
        for endpoint in turn:
            if endpoint.settings.has_quota:
                percents = self.thresholds.queue_percent
                self._note_use(AlarmKind.ENDPOINT_USE, endpoint.name, quota_use(endpoint), percents)
            if (self.thresholds.lag_messages or self.thresholds.lag_seconds) and self._can_lag(endpoint):
                self._note_lag(endpoint)

    def _can_lag(self, endpoint: Endpoint) -> bool:
        """Whether consumers should keep up: no replay is under way, and it is no dead message queue."""
        return not (
            (endpoint.replay is not None and endpoint.replay.is_under_way)
            or endpoint.name in self._broker.dead_message_queues
        )

    def _note_lag(self, endpoint: Endpoint) -> None:
        thresholds, note, name = self.thresholds, self._alarms.note_lag, endpoint.name
        hysteresis, now_ms, count = thresholds.hysteresis_percent, self._now_ms(), endpoint.depth
        text = f"consumers of {name!r} are {count:,} messages behind"
        note(AlarmKind.LAG, name, count, thresholds.lag_messages, hysteresis, text, now_ms)
        lag_ms = self._lag.lag_ms(endpoint)
        seconds = None if lag_ms is None else lag_ms / 1_000
        text = f"the oldest message on {name!r} is {int(seconds or 0):,} s old"
        note(AlarmKind.LAG_TIME, name, seconds, thresholds.lag_seconds, hysteresis, text, now_ms)


def quota_use(endpoint: Endpoint) -> float:
    """How much of its quota an endpoint uses, of that in bytes or of that in messages, whichever is more; 1 is all."""
    settings = endpoint.settings
    of_bytes = endpoint.size_bytes / settings.quota_bytes if settings.quota_bytes else 0.0
    delayed = endpoint.backlog.delayed
    of_messages = (
        (endpoint.depth + delayed.messages) / settings.quota_messages if settings.quota_messages else 0.0
    )
    return max(of_bytes, of_messages)


def _topics(kept: KeptTopics) -> str:
    """A rule of retention as the subject of an alarm."""
    return ", ".join(kept.rule.topics)


class DurabilityWatch(ThreadedService):
    """
    Watches what commits survive, and refuses messages while that is too little, if the settings ask for that. The store
    is asked every few seconds; the engine may take long to answer.

    Args:
        first: What the store said when it was opened; None if it could not.
    """

    def __init__(self, state: VpnState, first: Durability | None) -> None:
        super().__init__(state.runtime, f"durability {state.name}")
        self.found = first
        """What commits survive, as far as it is known; None while the engine does not say."""
        self._ask = state.store.durability
        self._settings = state.settings

    def start(self) -> None:
        """Ask again and again, if the engine's answer can change."""
        if self.found is not Durability.DISK:
            super().start()

    def problem(self) -> str | None:
        """What an administrator should know; None if nothing is wrong."""
        if self.found is not Durability.ONE_MACHINE:
            return None
        refused = ", and messages are refused" if self._settings.requires_standby else ""
        return f"no synchronous standby answers: accepted messages are on one machine only{refused}"

    def refusal(self) -> Refused | None:
        """Why no message is taken now; None if messages are taken. Asked once a batch."""
        if self.found is not Durability.ONE_MACHINE or not self._settings.requires_standby:
            return None
        return Refused(
            ErrorCode.ONE_MACHINE,
            "no synchronous standby answers, so the message would be on one machine only (require_standby); try again",
        )

    def _run(self) -> None:
        while not self._has_ended.wait(ASK_SECONDS):
            found: Durability | None = None
            with suppress(ReadFailed):
                found = self._ask()
            self._tell(self._told, found)

    def _told(self, found: Durability | None) -> None:
        self.found = found


class ArchiveWatch(VpnService):
    """
    Looks at what the log's archive has, regularly and when an archiver has reported more, so that nobody who asks where
    the history begins needs to wait for that.
    """

    def __init__(self, state: VpnState) -> None:
        super().__init__(state)
        self.is_due = asyncio.Event()
        """Set when an archiver has reported more."""

    def start(self) -> None:
        """Look now, and again and again, if there is an archive."""
        if self._history.archive is not None:
            self._begin(self._watch)

    async def _watch(self) -> None:
        while True:
            self.is_due.clear()
            with suppress(ReadFailed):  # ``Archive.problem`` says so, and that is an alarm.
                await self._history.look(anew=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._runtime.tuning.archive_look_seconds):
                    await self.is_due.wait()
