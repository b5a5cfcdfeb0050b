"""
What a Message VPN runs on: event loop, logger, clock, tuning and counters, the settings in effect, and its services.

All of it is given to whoever needs it. Nothing of a Message VPN fetches any of this from anywhere else, so that a test
builds a whole one with a clock of its own and smaller numbers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.config import Limits, ReplayLog, Vpn
from gateway.core.alarms import Alarm
from gateway.core.endpoint.endpoint import FLOW_QUANTUM
from gateway.core.log import LogPolicy, RetentionRule
from gateway.core.message_cache import CacheBudget
from gateway.core.steady_time import SteadyTime
from gateway.logging import log_keys
from gateway.vpn.tracing import Span
from store.ports import Histogram

T = TypeVar("T")

REFUSALS: Final[Counter[str]] = Counter()
"""Refusals of the process by AMQP condition: of connections, links and deliveries, as they are told to clients."""

_BATCH_BOUNDS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_READ_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
MEGABYTE: Final = 1_048_576
HOUR_MS: Final = 3_600_000
LEASE_SECONDS: Final = 5.0
"""The default of ``lease_seconds``, where a store is given that no settings name."""

_ALIKE: Final = (
    {field.name for field in fields(ReplayLog)} & {field.name for field in fields(LogPolicy)}
) - {"retention"}
"""Settings that the policy has as they are."""


class Clock(Protocol):
    """What tells a Message VPN the time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def problem(self) -> str | None:
        """What is wrong with it, for an administrator; None while it can be relied on."""

    def seconds(self) -> float:
        """A clock that only goes forward, for how long something takes."""

    def processor_seconds(self) -> float:
        """What the calling thread has had of a processor so far."""


class SystemClock:
    """The machine's clocks, as they are: the time may be set, forward and back."""

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def problem(self) -> str | None:
        """Nobody looks."""
        return None

    seconds = staticmethod(time.perf_counter)
    processor_seconds = staticmethod(time.thread_time)


class SteadyClock(SystemClock):
    """
    The machine's clocks, of which the time neither jumps nor goes back.

    Args:
        at_least_ms: The newest time given out before, in ms since the epoch.
        machine: The clocks it goes by.
    """

    def __init__(self, at_least_ms: int, machine: Clock | None = None) -> None:
        self._machine = machine or SystemClock()
        self._time = SteadyTime(at_least_ms)
        self.seconds = self._machine.seconds
        self.processor_seconds = self._machine.processor_seconds

    def now_ms(self) -> int:  # type: ignore[override]
        """Milliseconds since the epoch; never less than before."""
        return self._time.read(self._machine.now_ms(), self._machine.seconds())

    def problem(self) -> str | None:
        """What is wrong with the machine's clock."""
        self.now_ms()
        return self._time.problem()


@dataclass(frozen=True, slots=True)
class Tuning:
    """Each with its unit, its default, and why it is that."""

    flow_quantum: int = FLOW_QUANTUM
    """Messages a consumer is given before the next one's turn: large enough that batches stay batches, small enough
    that two consumers share a burst."""

    endpoint_turn_rows: int = 1_024
    """Messages that an endpoint hands out in one turn of the loop: some milliseconds, then others have their turn."""

    selection_turn_seconds: float = 0.005
    """What the selectors of all of a Message VPN's consumers take of one turn of the loop: about what the other things
    take that are done in one. One evaluation more may begin before it is over, which is as long at most."""

    log_slice_rows: int = 256
    """Messages sent to a log reader before its link is asked again whether it can take more."""

    log_turn_rows: int = 1_024
    """Messages sent to a log reader in one turn of the loop when nobody else wants it."""

    log_turn_rows_beside_live: int = 128
    """The same while there is live traffic, which then waits for a third of a millisecond; see ``HistoryPace``."""

    longest_pause: int = 16
    """The most that a log reader waits beside live traffic, in times of what its turns and pages took. Writing what it
    was sent to the socket comes on top: history is left with about a twelfth of a processor."""

    replay_ahead_without_consumer: int = 1_000
    """Messages that a replay puts on an endpoint that nobody consumes (Solace, "Message Replay": at most 1,000)."""

    replay_ahead_bytes: int = 32 * 1024 * 1024
    """Content that the replays of a Message VPN onto endpoints keep ahead of their consumers, all together: each has
    an equal share of it."""

    dead_letters_under_way: int = 1_000
    """Messages of one endpoint that are on their way to its dead message queue, beyond which no more are taken off: on
    a disk that takes nothing, a backlog of dead messages must not become memory."""

    expiry_sweep_seconds: float = 1.0
    """From the end of a sweep for expired messages to the next: how late a message may be taken off, about."""

    ageing_seconds: float = 60.0
    """From one look for messages that are older than the log keeps to the next: such a look is a binary search."""

    sizing_seconds: float = 60.0
    """From one look at how quickly the log grows, and what the disk has left, to the next."""

    rates_seconds: float = 5.0
    """An interval in which messages are counted for whoever looks at rates: short enough to see a burst in."""

    depths_seconds: float = 60.0
    """From one look at how deep endpoints are to the next."""

    archive_look_seconds: float = 60.0
    """From one look at what the log's archive has to the next, beside those that attaches make: one small read."""

    search_progress_seconds: float = 3.0
    """Between two log lines about one search for a replay's start."""

    pending_bytes: int = 64 * 1024 * 1024
    """Content accepted from sockets and not yet committed past which no more is read from publishers: a slow disk must
    not turn into memory."""


@dataclass(slots=True)
class ArchiveReads:
    """What was read out of a log's archive; added to once a page."""

    messages: int = 0
    """That readers and replays were given."""
    failures: int = 0
    """Reads that the archive, or a file of it, failed. That it has no such id is none."""
    seconds: Histogram = field(default_factory=lambda: Histogram(_READ_BOUNDS))
    """How long a read took, whatever came of it."""


@dataclass(slots=True)
class Counters:
    """Added to once a batch, never once a message."""

    published_messages: int = 0
    """Durable messages, whether they went to the log, to endpoints, or both."""
    published_bytes: int = 0
    copied_messages: int = 0
    """Those of them that a job published: no live traffic."""
    logged_messages: int = 0
    """Of the published ones, what the log took."""
    logged_bytes: int = 0
    """What these take of the disk (``gateway.core.model``)."""
    settled_messages: int = 0
    """Messages that consumers have settled for good."""
    commits: int = 0
    """Reports of the writer, each of one transaction."""
    batches: int = 0
    """Batches of effects in those."""
    failed_commits: int = 0
    direct_dropped_messages: int = 0
    """Direct messages that nobody took, or that there was no room for: nobody was told."""
    duplicate_messages: int = 0
    """Messages that were accepted and not stored, as an endpoint remembers their ids."""
    dead_discarded_messages: int = 0
    """Dead messages that their dead message queue did not take."""
    activity: int = 0
    """Batches published or settled: whether there is live traffic."""
    commit_messages: Histogram = field(default_factory=lambda: Histogram(_BATCH_BOUNDS))
    """Messages published in one transaction: group commit at work."""


@dataclass(slots=True)
class CurrentSettings:
    """Settings in effect; their owner, ``MessageVpn``, puts others in their place while the gateway runs."""

    vpn: Vpn
    limits: Limits

    @property
    def lease_seconds(self) -> float:
        """How long after a commit something is delivered, where another gateway can take the store over."""
        return self.vpn.store.lease_seconds if self.vpn.store is not None else LEASE_SECONDS

    @property
    def requires_standby(self) -> bool:
        """Whether messages are refused while one machine alone would have them."""
        return self.vpn.store is not None and self.vpn.store.require_standby


def log_policy(log: ReplayLog) -> LogPolicy:
    """The policy of a log with these settings."""
    return LogPolicy(
        writes=log.enabled and log.write,
        reads=log.enabled and log.read,
        quota_bytes=log.quota_mb * MEGABYTE,
        filter=_filter(log),
        retention=tuple(
            RetentionRule(rule.topics, rule.max_age_hours, rule.quota_mb * MEGABYTE) for rule in log.retention
        ),
        **{name: getattr(log, name) for name in _ALIKE},
    )


def _filter(log: ReplayLog) -> TopicFilter | None:
    if not (log.topics and log.filtered):
        return None
    return TopicFilter([TopicPattern.parse(text) for text in log.topics], implicit_all=True)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a Message VPN is given by whoever opens it."""

    loop: asyncio.AbstractEventLoop
    log: Any
    """A structlog logger, bound to the Message VPN's name."""
    clock: Clock = field(default_factory=SystemClock)
    tuning: Tuning = field(default_factory=Tuning)
    cache_budget: CacheBudget | None = None
    """Shared with other Message VPNs; None for one of its own."""
    add_span: Callable[[Span], None] | None = None
    """Takes spans of messages, and never blocks; None where nothing is traced."""
    sample_ratio: float = 0.0
    """Of messages that bring no trace context, those that are traced, 0 to 1."""

    def report(self, event: str, error: BaseException) -> None:
        """One line about something that should not happen."""
        self.log.error(event, **{log_keys.REASON: f"{type(error).__name__}: {error}"})


def log_alarm(log: Any, alarm: Alarm, is_raised: bool) -> None:
    """One line about an alarm that was raised, or cleared."""
    keys = {
        log_keys.ALARM: alarm.kind.value,
        log_keys.ENDPOINT: alarm.subject,
        log_keys.THRESHOLD_PERCENT: alarm.threshold_percent,
        log_keys.REASON: alarm.text,
    }
    if is_raised:
        log.warning("alarm_raised", **keys)
    else:
        log.info("alarm_cleared", **keys)


def keep(task: asyncio.Task[T], among: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Hold a task as long as it is under way: one that nobody holds may be collected."""
    among.add(task)
    task.add_done_callback(among.discard)
    return task


class Service:
    """
    Work that a Message VPN does by itself, from its start to its end: a timer and a task, which end with it.

    What its timer is to call, and its task is to do, each kind of service says in ``start``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._timer: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin; once."""

    def close(self) -> None:
        """Do nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        """Have this done in so many seconds."""
        if not self._is_closed:
            self._timer = self._loop.call_later(seconds, work)

    def _every(self, seconds: float, work: Callable[[], object]) -> None:
        """Have this done now, and again and again."""
        self._after(seconds, partial(self._every, seconds, work))
        work()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin the task, unless it is under way."""
        if self._task is None:
            self._task = self._loop.create_task(work())
            self._task.add_done_callback(self._ended)
        return self._task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None


class ThreadedService(Service, ABC):
    """A service that waits for what is elsewhere: on a thread of its own, so that nobody else waits for it."""

    def __init__(self, runtime: Runtime, thread: str) -> None:
        super().__init__(runtime)
        self._thread = thread
        """The thread's name."""
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=self._thread, daemon=True).start()

    def close(self) -> None:
        """Do nothing more. The thread ends when it looks at that."""
        super().close()
        self._has_ended.set()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does, until ``_has_ended``."""

    def _tell(self, call: Callable[..., object], *args: Any) -> bool:
        """Have something called on the loop, from the thread; whether there is still one."""
        with suppress(RuntimeError):  # the loop is closed: the gateway ends
            self._loop.call_soon_threadsafe(call, *args)
            return True
        return False
