"""
What a Message VPN runs on: event loop, logger, clock, tuning and counters, the settings in effect, and its services.

Each part of a Message VPN is given what it needs of this, and gets none of it from anywhere else. So a test can build a
whole Message VPN with its own clock and smaller numbers.
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
"""``lease_seconds`` of a store that no settings name."""

_ALIKE: Final = (
    {field.name for field in fields(ReplayLog)} & {field.name for field in fields(LogPolicy)}
) - {"retention"}
"""Settings that the policy takes over unchanged."""


class Clock(Protocol):
    """What tells a Message VPN the time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def problem(self) -> str | None:
        """What is wrong with it, for an administrator; None while it can be relied on."""

    def seconds(self) -> float:
        """A clock that only goes forward, for how long something takes."""

    def processor_seconds(self) -> float:
        """Processor time of the calling thread so far."""


class SystemClock:
    """The machine's clocks, as they are: the time may be set, forward and back."""

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def problem(self) -> str | None:
        """None: this clock is not checked."""
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
    """Numbers, each with its unit, its default, and the reason for it."""

    flow_quantum: int = FLOW_QUANTUM
    """Messages a consumer is given before the next one's turn: large enough that batches stay batches, small enough
    that two consumers share a burst."""

    endpoint_turn_rows: int = 1_024
    """Messages that an endpoint hands out in one turn of the loop: it takes some milliseconds, then others go on."""

    selection_turn_seconds: float = 0.005
    """How much of one turn of the loop the selectors of all of a Message VPN's consumers take: about as much as the
    other work of a turn. The last evaluation may run over, by as much again at most."""

    log_slice_rows: int = 256
    """Messages sent to a log reader before its link is asked again whether it can take more."""

    log_turn_rows: int = 1_024
    """Messages sent to a log reader in one turn of the loop when there is no live traffic."""

    log_turn_rows_beside_live: int = 128
    """The same while there is live traffic, which then waits for a third of a millisecond; see ``HistoryPace``."""

    longest_pause: int = 16
    """The longest pause of a log reader during live traffic, as a multiple of the time that its turns and pages took.
    Writing its messages to the socket takes time, too, so history gets about a twelfth of a processor."""

    replay_ahead_without_consumer: int = 1_000
    """Messages that a replay puts on an endpoint without a consumer (Solace, "Message Replay": at most 1,000)."""

    replay_ahead_bytes: int = 32 * 1024 * 1024
    """Content that the replays of a Message VPN onto endpoints keep ahead of their consumers, all together: each has
    an equal share of it."""

    dead_letters_under_way: int = 1_000
    """Messages of one endpoint that may be on their way to its dead message queue at a time: if the disk is full, a
    backlog of dead messages must not fill the memory."""

    expiry_sweep_seconds: float = 1.0
    """From the end of a sweep for expired messages to the next: about how late an expired message is removed."""

    ageing_seconds: float = 60.0
    """From one look for messages that are older than the log keeps to the next: such a look is a binary search."""

    sizing_seconds: float = 60.0
    """From one look at how fast the log grows, and how much room the disk has, to the next."""

    rates_seconds: float = 5.0
    """The interval over which rates are counted: short enough to show a burst."""

    depths_seconds: float = 60.0
    """From one look at how deep endpoints are to the next."""

    archive_look_seconds: float = 60.0
    """From one look at what the log's archive has to the next, in addition to those of attaches: one small read."""

    search_progress_seconds: float = 3.0
    """Between two log lines about one search for a replay's start."""

    pending_bytes: int = 64 * 1024 * 1024
    """Content taken from sockets and not yet committed, beyond which no more is read from publishers: with a slow disk,
    publishers must not fill the memory."""


@dataclass(slots=True)
class ArchiveReads:
    """What was read out of a log's archive; added to once a page."""

    messages: int = 0
    """Messages that readers and replays were given."""
    failures: int = 0
    """Reads that failed, at the archive or a file of it. A missing id is not a failure."""
    seconds: Histogram = field(default_factory=lambda: Histogram(_READ_BOUNDS))
    """How long a read took, successful or not."""


@dataclass(slots=True)
class Counters:
    """Added to once a batch, never once a message."""

    published_messages: int = 0
    """Durable messages, whether they went to the log, to endpoints, or both."""
    published_bytes: int = 0
    copied_messages: int = 0
    """Those of them that a job published, which are not live traffic."""
    logged_messages: int = 0
    """Published messages that the log took."""
    logged_bytes: int = 0
    """The disk space of these (``gateway.core.model``)."""
    settled_messages: int = 0
    """Messages that consumers have settled for good."""
    commits: int = 0
    """Reports of the writer, each of one transaction."""
    batches: int = 0
    """Batches of effects in those."""
    failed_commits: int = 0
    direct_dropped_messages: int = 0
    """Direct messages that nothing took, or that there was no room for; their publishers are not told."""
    duplicate_messages: int = 0
    """Messages that were accepted and not stored, as an endpoint remembers their ids."""
    dead_discarded_messages: int = 0
    """Dead messages that their dead message queue did not take."""
    activity: int = 0
    """Batches published or settled; it rises while there is live traffic."""
    commit_messages: Histogram = field(default_factory=lambda: Histogram(_BATCH_BOUNDS))
    """Messages published in one transaction: group commit at work."""


@dataclass(slots=True)
class CurrentSettings:
    """Settings in effect; their owner, ``MessageVpn``, replaces them while the gateway runs."""

    vpn: Vpn
    limits: Limits

    @property
    def lease_seconds(self) -> float:
        """How long after a commit messages are delivered, if another gateway can take the store over."""
        return self.vpn.store.lease_seconds if self.vpn.store is not None else LEASE_SECONDS

    @property
    def requires_standby(self) -> bool:
        """Whether messages are refused while only one machine would store them."""
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
    """What a Message VPN is given when it is opened."""

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
    """The share of messages without a trace context that is traced, 0 to 1."""

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
    """Keep a reference to a task while it runs: without one, it may be garbage-collected."""
    among.add(task)
    task.add_done_callback(among.discard)
    return task


class Service:
    """
    Work that a Message VPN does by itself, from ``start`` to ``close``: a timer and a task, which ``close`` ends.

    Each kind of service sets its timer and begins its task in ``start``.
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
        """Do this after so many seconds."""
        if not self._is_closed:
            self._timer = self._loop.call_later(seconds, work)

    def _every(self, seconds: float, work: Callable[[], object]) -> None:
        """Do this now, and again each time after so many seconds."""
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
    """A service that waits for something outside the gateway: on a thread of its own, so that nothing else waits."""

    def __init__(self, runtime: Runtime, thread: str) -> None:
        super().__init__(runtime)
        self._thread = thread
        """The thread's name."""
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=self._thread, daemon=True).start()

    def close(self) -> None:
        """Do nothing more. The thread ends when it next looks at ``_has_ended``."""
        super().close()
        self._has_ended.set()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does, until ``_has_ended``."""

    def _tell(self, call: Callable[..., object], *args: Any) -> bool:
        """Call something on the loop, from the thread; whether the loop still runs."""
        with suppress(RuntimeError):  # the loop is closed: the gateway ends
            self._loop.call_soon_threadsafe(call, *args)
            return True
        return False
