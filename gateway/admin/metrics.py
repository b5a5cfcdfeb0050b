"""
``/metrics``, in Prometheus' text format.

Names follow Prometheus' convention: ``rewind_``, what is counted, its unit, and ``_total`` on a counter. Only the lag
of the event loop is measured for it; all other numbers exist anyway. A scrape reads some endpoints in each turn of the
loop, and is sent in pieces: with 10,000 queues it is 3 MB.

The series of endpoints are written directly as text. With 10,000 queues they are 50,000 numbers. As sample objects of
the library, which are created, walked by the garbage collector and written one by one, they cost ten times as much and
held up the loop.

Source: Prometheus, "Exposition formats": the lines of one metric form a group, under one ``HELP`` and one ``TYPE``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from math import inf, nan
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.admin.operations import LazyRoute, LazyRouter
from gateway.admin.rights import GATEWAY_SEEN
from gateway.admin.semp.resources import Resources, resources_of
from gateway.core.alarms import Alarm, AlarmKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.replay.states import ReplayState
from gateway.logging.lines import COUNTS
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.runtime import REFUSALS
from store.ports import Durability, Histogram

EVERY_SECONDS: Final = 0.1
"""Between two measurements: ten a second have no measurable cost."""

BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class LoopLag:
    """Measures how late the loop is, from the first scrape on: a gateway without scrapes does not wake up for it."""

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0

    def watch(self) -> None:
        """Begin to measure, unless that was done before."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._wait(self._loop)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + EVERY_SECONDS
        loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds.add(max(loop.time() - self._due, 0.0))
        self._wait(loop)


PIECE: Final = 500
"""Lines of one piece of the answer."""

_FAMILIES: Final = (
    ("rewind_endpoint_messages", "gauge", "Messages on an endpoint; of a last-value queue, its keys."),
    ("rewind_endpoint_bytes", "gauge", "Content of the messages on an endpoint."),
    (
        "rewind_endpoint_unsettled_messages",
        "gauge",
        "Messages that an endpoint's consumers have not settled.",
    ),
    ("rewind_endpoint_flows", "gauge", "Consumers bound to an endpoint."),
    ("rewind_endpoint_demand_messages", "gauge", "Messages for which an endpoint's consumers have credit."),
    (
        "rewind_endpoint_delayed_messages",
        "gauge",
        "Delayed messages of an endpoint, in addition to those on it.",
    ),
    (
        "rewind_endpoint_oldest_unsettled_seconds",
        "gauge",
        "Age of an endpoint's oldest unsettled delivery; 0 if there is none.",
    ),
    (
        "rewind_endpoint_lag_seconds",
        "gauge",
        "Age of an endpoint's oldest message, as of some seconds ago; NaN before the first look.",
    ),
    ("rewind_endpoint_settled_messages_total", "counter", "Messages that have left an endpoint for good."),
    # Only of endpoints that were replayed.
    ("rewind_replay_remaining_ids", "gauge", "Ids that a replay still has to read."),
    ("rewind_replay_starts_total", "counter", "Replays started."),
    ("rewind_replay_successes_total", "counter", "Replays completed."),
    ("rewind_replay_failures_total", "counter", "Replays failed or cancelled."),
    ("rewind_replayed_messages_total", "counter", "Replayed messages sent to consumers."),
)


class EndpointSeries:
    """The lines of one scrape about endpoints: add endpoints in any order, then read ``text``."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[] for _ in _FAMILIES]

    def add(self, vpn: str, endpoint: Endpoint, next_id: int, now_ms: int, lag_ms: int | None) -> None:
        """Add the present numbers of an endpoint of Message VPN ``vpn``; ``next_id`` is the next id of its log."""
        labels = f'{{vpn="{vpn}",endpoint="{_escaped(endpoint.name)}"}}'
        unsettled = demand = 0
        for flow in (*endpoint.flows, *endpoint.suspended):
            unsettled += len(flow.unsettled)
            demand += flow.demand
        values: list[float] = [endpoint.depth, endpoint.size_bytes, unsettled, len(endpoint.flows), demand]
        oldest = endpoint.oldest_delivery
        values += (
            endpoint.backlog.delayed.messages,
            0 if oldest is None else (now_ms - oldest[2]) / 1_000,
            nan if lag_ms is None else lag_ms / 1_000,
            endpoint.settled,
        )
        replay = endpoint.replay
        if replay is not None:
            record = replay.totals
            values.append(replay.progress(next_id, 0).remaining)
            values += (record.started, record.succeeded, record.failed, record.transmitted)
        # An endpoint that was never replayed has values for the first families alone.
        for lines, value in zip(self._lines, values, strict=False):
            lines.append(f"{labels} {value}\n")

    def text(self) -> Iterator[str]:
        """All lines, in pieces of some ten kilobytes; metrics that no endpoint has are left out."""
        for (name, kind, text), lines in zip(_FAMILIES, self._lines, strict=True):
            if lines:
                yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            for first in range(0, len(lines), PIECE):
                yield name + name.join(lines[first : first + PIECE])


def _escaped(label: str) -> str:
    if "\\" in label or '"' in label or "\n" in label:
        return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return label


TURN: Final = 50
"""Endpoints looked at in one turn of the loop: under a millisecond."""

_ACTIVE: Final = "1 if this gateway is active for the Message VPN, 0 if it waits to take over."


class _Families:
    """The other numbers of one scrape, with their labels, as a collector of the library."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a number that goes up and down."""
        self._family(GaugeMetricFamily, name, text, labels).add_metric([*labels.values()], value)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a number that only rises; its name ends in ``_total`` by itself."""
        self._family(CounterMetricFamily, name, text, labels).add_metric([*labels.values()], value)

    def histogram(self, name: str, text: str, seen: Histogram, **labels: str) -> None:
        """Add a histogram."""
        family = self._family(HistogramMetricFamily, name, text, labels)
        family.add_metric([*labels.values()], seen.cumulative(), seen.total)

    def _family(self, kind: Callable[..., Metric], name: str, text: str, labels: Iterable[str]) -> Any:
        family = self._found.get(name)
        if family is None:
            family = self._found[name] = kind(name, text, labels=[*labels])
        return family

    def collect(self) -> Iterable[Metric]:
        return [*self._found.values()]


def metrics_routes() -> list[LazyRoute]:
    """``/metrics``."""
    router = LazyRouter(tags=["metrics"])
    lag = LoopLag()
    process = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=process)

    @router.operation("GET", "/metrics", GATEWAY_SEEN, response_class=Response)
    async def metrics(request: Request) -> Response:
        """Numbers for Prometheus."""
        lag.watch()
        families = _Families()
        families.histogram("rewind_loop_lag_seconds", "How late the event loop was.", lag.seconds)
        for condition, count in REFUSALS.items():
            families.counter("rewind_refusals", "Refusals by AMQP condition.", count, condition=condition)
        families.counter(
            "rewind_log_lines_dropped",
            "Log lines that were dropped because they could not be written in time.",
            COUNTS.dropped,
        )
        families.counter(
            "rewind_log_lines_held_back",
            "Log lines held back because one connection, or one address, caused too many.",
            COUNTS.held_back,
        )
        resources = resources_of(request)
        _add_peers(families, resources)
        series = EndpointSeries()
        for name in list(resources.gateway.vpns):
            if name not in resources.gateway.vpns:
                continue  # deleted meanwhile
            administration = resources.administration(name)
            broker = administration.vpn.broker
            _add_vpn(families, administration.vpn, len(resources.clients(name)))
            oldest_ms, _ = await administration.log_age()
            if oldest_ms is not None:
                families.gauge(
                    "rewind_log_oldest_message_timestamp_seconds",
                    "Arrival of the log's oldest message, in seconds since the epoch.",
                    oldest_ms / 1_000,
                    vpn=name,
                )
            states = dict.fromkeys(ReplayState, 0)
            for number, endpoint in enumerate(list(broker.endpoints.values())):
                if number % TURN == TURN - 1:
                    await asyncio.sleep(0)
                states[endpoint.replay.state if endpoint.replay is not None else ReplayState.NONE] += 1
                vpn = administration.vpn
                series.add(name, endpoint, broker.log.next_id, vpn.clock.now_ms(), vpn.lag.lag_ms(endpoint))
            for state, count in states.items():
                families.gauge(
                    "rewind_replays", "Endpoints by state of replay.", count, vpn=name, state=state.value
                )

        def render() -> bytes:
            registry = CollectorRegistry()
            registry.register(families)
            return generate_latest(registry) + generate_latest(process)

        # On a thread, because it reads files of /proc.
        rendered = await asyncio.get_running_loop().run_in_executor(None, render)

        async def pieces() -> AsyncIterator[bytes]:
            yield rendered
            for text in series.text():
                await asyncio.sleep(0)
                yield text.encode()

        return StreamingResponse(pieces(), media_type=CONTENT_TYPE_LATEST)

    return router.routes


def _add_peers(families: _Families, resources: Resources) -> None:
    ledger = resources.gateway.ledger
    for name, waiting in resources.waiting.items():
        families.gauge("rewind_vpn_active", _ACTIVE, 0, vpn=name)
        _add_alarms(families, name, waiting.alarms.active())
    for kind, size_bytes in ledger.held.items():
        families.gauge(
            "rewind_held_bytes", "Bytes that the gateway holds in memory for clients.", size_bytes, kind=kind
        )
    families.gauge(
        "rewind_held_limit_bytes", "Limit of rewind_held_bytes (limits.memory_mb).", ledger.limit_bytes
    )
    families.gauge(
        "rewind_wire_loops_info",
        "How the code that runs for every message on the wire is built: native, or python and why; always 1.",
        1,
        loops=resources.gateway.wire_loops,
    )
    for limit, count in resources.gateway.refused_connections.items():
        families.counter(
            "rewind_refused_connections", "Connections refused, by the limit.", count, limit=limit
        )
    for outcome, count in resources.gateway.span_counts.items():
        families.counter(
            "rewind_telemetry_spans",
            "Spans by outcome: exported, dropped for want of room, failed at the collector.",
            count,
            outcome=outcome,
        )
    families.counter(
        "rewind_relieved_connections",
        "Connections closed because they held the most memory while publishers waited for room.",
        ledger.closed_connections,
    )


def _add_vpn(families: _Families, vpn: MessageVpn, clients: int) -> None:
    name, broker, counters, reads = vpn.name, vpn.broker, vpn.counters, vpn.history.archive_reads
    for metric, text, value in (
        ("rewind_published_messages", "Messages made durable.", counters.published_messages),
        ("rewind_published_bytes", "Content of messages made durable.", counters.published_bytes),
        ("rewind_logged_messages", "Messages written to the replay log.", counters.logged_messages),
        (
            "rewind_logged_bytes",
            "Disk space of messages written to the replay log, estimated.",
            counters.logged_bytes,
        ),
        ("rewind_settled_messages", "Messages that consumers have settled.", counters.settled_messages),
        (
            "rewind_direct_dropped_messages",
            "Direct messages that nobody took.",
            counters.direct_dropped_messages,
        ),
        (
            "rewind_duplicate_messages",
            "Messages accepted but not stored again, because an endpoint remembers their ids.",
            counters.duplicate_messages,
        ),
        (
            "rewind_dead_discarded_messages",
            "Dead messages that their dead message queue did not take.",
            counters.dead_discarded_messages,
        ),
        ("rewind_commits", "Transactions of the store.", counters.commits),
        (
            "rewind_commit_batches",
            "Batches committed, one for each turn of the event loop.",
            counters.batches,
        ),
        ("rewind_commit_failures", "Transactions that failed.", counters.failed_commits),
        ("rewind_trimmed_ids", "Ids trimmed from the beginning of the replay log.", broker.log.first_id - 1),
        (
            "rewind_archive_read_messages",
            "Messages read from the log's archive, for readers and replays.",
            reads.messages,
        ),
        (
            "rewind_archive_read_failures",
            "Reads of the archive, or of one of its files, that failed.",
            reads.failures,
        ),
    ):
        families.counter(metric, text, value, vpn=name)
    for metric, text, seen in (
        ("rewind_commit_seconds", "How long commits took, including the sync.", vpn.committer.commit_seconds),
        ("rewind_commit_messages", "Messages published in one transaction.", counters.commit_messages),
        (
            "rewind_archive_read_seconds",
            "How long it took to read a page of the log's archive.",
            reads.seconds,
        ),
    ):
        families.histogram(metric, text, seen, vpn=name)
    for metric, text, value in (
        ("rewind_vpn_active", _ACTIVE, 1),
        ("rewind_store_up", "1 unless the last write failed.", int(vpn.committer.problem is None)),
        (
            "rewind_store_on_two_machines",
            "1 if a synchronous standby has all accepted messages; 0 if none has, with a file, or if that is unknown.",
            int(vpn.durability.found is Durability.TWO_MACHINES),
        ),
        (
            "rewind_store_confirmed_age_seconds",
            "Time since the start of the newest successful commit; 0 if no other gateway can take the store over.",
            0 if vpn.lease is None else int(vpn.lease.age_seconds),
        ),
        ("rewind_pending_bytes", "Content received but not durable yet.", vpn.committer.pending_bytes),
        (
            "rewind_connections",
            "Clients: open AMQP connections, and requests that read or publish over HTTP.",
            clients,
        ),
        (
            "rewind_dedup_ids",
            "Ids of messages that endpoints remember, to detect duplicates.",
            sum(map(len, broker.dedup.windows.values())),
        ),
        ("rewind_endpoints", "Queues, streams and topic endpoints.", len(broker.endpoints)),
        ("rewind_log_bytes", "Disk space of the replay log, estimated.", broker.log.size_bytes),
        (
            "rewind_log_quota_bytes",
            "Quota of the replay log; 0 is no limit.",
            broker.policy.quota_bytes,
        ),
        ("rewind_log_first_id", "The lowest id that the log may have.", broker.log.first_id),
        ("rewind_log_last_id", "The newest id of the log.", broker.log.next_id - 1),
        ("rewind_log_readers", "Log and stream readers.", len(vpn.readers.log_feeds)),
    ):
        families.gauge(metric, text, value, vpn=name)
    _add_sizing(families, vpn)
    _add_alarms(families, name, vpn.alarms.active())
    families.gauge(
        "rewind_store_info",
        "The storage engine, with its version; always 1.",
        1,
        vpn=name,
        engine=vpn.engine,
    )


def _add_alarms(families: _Families, vpn: str, active: Sequence[Alarm]) -> None:
    counts = Counter(alarm.kind for alarm in active)
    for kind in AlarmKind:
        families.gauge("rewind_alarms", "Active alarms, by name.", counts[kind], vpn=vpn, alarm=kind.value)


def _add_sizing(families: _Families, vpn: MessageVpn) -> None:
    disk, (rate, plan) = vpn.sizing.disk, vpn.sizing.plan()
    # In a comparison, NaN (not known) is always false, and infinity (never) is more than any bound.
    never = nan if rate is None else inf
    free_bytes = None if disk is None else disk.free_bytes
    for metric, text, value in (
        (
            "rewind_store_bytes",
            "Disk space that the store uses; NaN if unknown.",
            nan if disk is None else disk.size_bytes,
        ),
        (
            "rewind_store_disk_free_bytes",
            "Free space on the store's disk; NaN if unknown.",
            nan if free_bytes is None else free_bytes,
        ),
        (
            "rewind_log_quota_lasts_seconds",
            "Time that the log's quota holds at the rate of the last week; +Inf without a quota, NaN if the rate "
            "is unknown.",
            never if plan.lasts_ms is None else plan.lasts_ms / 1_000,
        ),
        (
            "rewind_store_disk_full_seconds",
            "Time until the disk is full at the rate of the last week; +Inf if it never will be, NaN if unknown.",
            (nan if free_bytes is None else never)
            if plan.disk_full_in_ms is None
            else plan.disk_full_in_ms / 1_000,
        ),
    ):
        families.gauge(metric, text, value, vpn=vpn.name)
