"""The rows of the table: which figure, which limit beside it, and what must hold.

To add a row, measure its figure in ``measured`` and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from tests.bench.measured import company, postgresql, rates, spark, weights

from .measured.sizes import Figures, Sizes

Measurement = Callable[[Path, Sizes], Figures]


class Against(Enum):
    """What a requirement holds a figure against."""

    LIMIT = "limit"
    CONTAINER = "container"
    NOTHING = "itself"


@dataclass(frozen=True, slots=True)
class Bound:
    """A requirement: a figure, or its ratio to another of the same round, is at least (at most) ``value``."""

    against: Against
    value: float
    at_most: bool = False

    def holds(self, ratio: float) -> bool:
        """Whether a ratio (or, against nothing, a figure) is good enough."""
        return ratio <= self.value if self.at_most else ratio >= self.value

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return (
            f"{sign} {self.value:,g}"
            if self.against is Against.NOTHING
            else f"{sign} {self.value:g}x {self.against.value}"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``figure``, ``limit`` name figures; ``needs`` are the measurements that bring them."""

    name: str
    title: str
    unit: str
    figure: str
    needs: tuple[Measurement, ...]
    limit: str | None = None
    bounds: tuple[Bound, ...] = ()

    @property
    def beside_container(self) -> bool:
        """Whether the Container-style queue is run for this row."""
        return rates.container in self.needs


CONTAINER = "container_publish"
"""The figure of the Container-style queue that all are compared with: what it takes in."""

RATE = "msg/s"
MEGABYTES = "MB"
_GENERATOR = (rates.generator,)
_QUEUE = (rates.container, rates.sqlite, rates.queue)
_LATENCY = (rates.latency,)
_FANS = (rates.fan_out,)
_WIDE_FAN = (rates.wide_fan,)
_DEEP = (weights.deep,)
_COPYING = (company.copying,)
_PURGING = (company.purging,)
_WORKED = (weights.worked,)
_MIXED = (weights.mixed,)
_SPARK = (spark.spark,)
_POSTGRESQL = (postgresql.postgresql,)
_ENOUGH_LOAD = (Bound(Against.NOTHING, 400_000),)


def _at_most(figure: float) -> tuple[Bound, ...]:
    return (Bound(Against.NOTHING, figure, at_most=True),)


def _of_limit(ratio: float) -> tuple[Bound, ...]:
    return (Bound(Against.LIMIT, ratio),)


def _at_most_of_limit(ratio: float) -> tuple[Bound, ...]:
    return (Bound(Against.LIMIT, ratio, at_most=True),)


def _times_container(value: float) -> Bound:
    return Bound(Against.CONTAINER, value)


ROWS = (
    Row(
        "generator-send",
        "generator to a null peer",
        RATE,
        "generator_send",
        _GENERATOR,
        "loopback",
        _ENOUGH_LOAD,
    ),
    Row(
        "generator-recv",
        "generator from a null peer",
        RATE,
        "generator_recv",
        _GENERATOR,
        "loopback",
        _ENOUGH_LOAD,
    ),
    Row(
        "publish",
        "durable publish, one queue",
        RATE,
        "publish",
        _QUEUE,
        "sqlite_write",
        (_times_container(5), Bound(Against.LIMIT, 0.35)),
    ),
    Row("publish-cpu", "processor time of that", "us/msg", "publish_cpu_us", (rates.queue,)),
    Row("consume", "consume, each accepted", RATE, "consume", _QUEUE, "sqlite_read", (_times_container(5),)),
    Row("consume-cpu", "processor time of that", "us/msg", "consume_cpu_us", (rates.queue,)),
    Row(
        "replay-log", "replay, log reader", RATE, "replay_log", _QUEUE, "sqlite_read", (_times_container(7),)
    ),
    Row(
        "replay-endpoint",
        "replay, rewound queue, to a log reader",
        RATE,
        "replay_endpoint",
        _QUEUE,
        "replay_log",
        _of_limit(0.95),
    ),
    Row(
        "sse-history",
        "history over HTTP, as events",
        RATE,
        "sse_history",
        (rates.history,),
        bounds=(Bound(Against.NOTHING, 50_000),),
    ),
    Row("sse-cpu", "processor time of that", "us/msg", "sse_history_cpu_us", (rates.history,)),
    Row(
        "sse-probe-p99",
        "a probe of health meanwhile, p99",
        "ms",
        "sse_probe_p99",
        (rates.history,),
        bounds=_at_most(20),
    ),
    Row(
        "sync-p50",
        "publish, 1 outstanding, p50",
        "ms",
        "single_p50",
        _LATENCY,
        "sqlite_commit_p50",
        _at_most_of_limit(1.9),
    ),
    Row("sync-p99", "publish, 1 outstanding, p99", "ms", "single_p99", _LATENCY, "sqlite_commit_p99"),
    Row("100-p50", "publish, 100 outstanding, p50", "ms", "100_p50", _LATENCY),
    Row("100-p99", "publish, 100 outstanding, p99", "ms", "100_p99", _LATENCY),
    Row("1000-p50", "publish, 1,000 outstanding, p50", "ms", "1000_p50", _LATENCY),
    Row("1000-p99", "publish, 1,000 outstanding, p99", "ms", "1000_p99", _LATENCY),
    Row("through-p50", "publish to receipt, p50", "ms", "through_p50", _LATENCY, "sqlite_commit_p50"),
    Row("through-p99", "publish to receipt, p99", "ms", "through_p99", _LATENCY, "sqlite_commit_p99"),
    Row("fan-out-1", "publish, one topic to one queue", RATE, "fan_out_1", _FANS),
    Row("fan-out-10", "one topic to ten queues", RATE, "fan_out_10", _FANS, "fan_out_1", _of_limit(0.85)),
    Row(
        "fan-out-100",
        "one topic to 100 durable subscriptions",
        RATE,
        "fan_out_100",
        _FANS,
        "fan_out_1",
        _of_limit(0.6),
    ),
    Row(
        "fan-out-p50",
        "the same, 900 of them, 1 outstanding, p50",
        "ms",
        "wide_fan_p50",
        _WIDE_FAN,
        "narrow_fan_p50",
        _at_most_of_limit(2),
    ),
    Row(
        "many-routes",
        "consume, a queue of 1,000 topics, to one of one",
        RATE,
        "many_routes",
        (rates.many_routes,),
        "one_route",
        _of_limit(0.5),
    ),
    Row(
        "live-beside", "live queue beside a log reader", RATE, "live_beside", (company.beside,), "live_alone"
    ),
    Row("reader-beside", "that log reader", RATE, "reader_beside", (company.beside,)),
    Row(
        "copy",
        "history copied into a queue",
        RATE,
        "copied",
        _COPYING,
        bounds=(Bound(Against.NOTHING, 60_000),),
    ),
    Row("copy-cpu", "processor time of that", "us/msg", "copied_cpu_us", _COPYING),
    Row(
        "publish-copying",
        "publish while history is copied",
        RATE,
        "publish_copying",
        _COPYING,
        "publish_before_copy",
        _of_limit(0.8),
    ),
    Row("copy-beside", "copied meanwhile", RATE, "copied_beside", _COPYING),
    Row(
        "paced-replay",
        "replay at a rate, log reader",
        RATE,
        "paced_replay",
        (company.paced,),
        "pace",
        _of_limit(0.95),
    ),
    Row("paced-copy", "copy at a rate", RATE, "paced_copy", (company.paced,), "pace", _of_limit(0.9)),
    Row(
        "recovery",
        "start with a full store",
        "s",
        "recovery",
        (weights.recovery,),
        "start_empty",
        (Bound(Against.NOTHING, 2, at_most=True),),
    ),
    Row(
        "publish-trimming",
        "publish while the log is trimmed",
        RATE,
        "publish_trimming",
        (company.trimming,),
        "publish_before_trim",
        (Bound(Against.LIMIT, 0.5),),
    ),
    Row("purge", "purge of 1,000,000 messages", "ms", "purge", _PURGING, bounds=_at_most(50)),
    Row(
        "purge-p99",
        "publish, 1 outstanding, p99, meanwhile",
        "ms",
        "p99_purging",
        _PURGING,
        "p99_before_purge",
        _at_most_of_limit(1.5),
    ),
    Row("trim", "trimmed meanwhile", RATE, "trimmed", (company.trimming,)),
    Row(
        "publish-listing",
        "publish while 10,000 queues are listed",
        RATE,
        "publish_listing",
        (company.listing,),
        "publish_before_listing",
        (Bound(Against.LIMIT, 0.5),),
    ),
    Row(
        "listing-p99",
        "publish, 1 outstanding, p99, meanwhile",
        "ms",
        "p99_listing",
        (company.listing,),
        "p99_before_listing",
    ),
    Row(
        "publish-consoles",
        "publish while 5 consoles have live tails",
        RATE,
        "publish_consoles",
        (company.consoles,),
        "publish_before_consoles",
        _of_limit(0.9),
    ),
    Row(
        "consoles-cpu",
        "processor time of that",
        "us/msg",
        "publish_consoles_cpu_us",
        (company.consoles,),
        "publish_before_consoles_cpu_us",
    ),
    Row("listing", "queues listed meanwhile", RATE, "listed", (company.listing,)),
    Row("deep", "consume, 10,000,000 deep", RATE, "deep", _DEEP, "shallow", _of_limit(0.8)),
    Row("deep-start", "start with that queue", "s", "deep_start", _DEEP, bounds=_at_most(1.3)),
    Row("histogram", "histogram of 10,000,000 messages", "ms", "histogram", _DEEP, bounds=_at_most(200)),
    Row("deep-memory", "memory with it", MEGABYTES, "deep_resident", _DEEP, bounds=_at_most(120)),
    Row(
        "readers",
        "publish, 1 outstanding, p50, 8,000 readers",
        "ms",
        "p50_beside_readers",
        (weights.idle_readers,),
        "p50_without_readers",
        _at_most_of_limit(1.2),
    ),
    Row("idle", "memory of an idle connection", "KiB", "idle_kib", (weights.idle,)),
    Row("memory", "memory, idle and empty", MEGABYTES, "memory_empty", _WORKED, bounds=_at_most(70)),
    Row(
        "memory-worked",
        "memory after 1,000,000 in, out, replayed",
        MEGABYTES,
        "memory_worked",
        _WORKED,
        bounds=_at_most(120),
    ),
    Row(
        "memory-endpoints",
        "memory with 900 queues published to",
        MEGABYTES,
        "memory_endpoints",
        (weights.endpoints,),
        bounds=_at_most(150),
    ),
    Row("memory-mixed", "memory after mixed load", MEGABYTES, "memory_mixed", _MIXED, bounds=_at_most(250)),
    Row("memory-mixed-peak", "most memory during it", MEGABYTES, "memory_mixed_peak", _MIXED),
    Row(
        "mixed-rate",
        "published during it",
        RATE,
        "mixed_rate",
        _MIXED,
        bounds=(Bound(Against.NOTHING, 2_850),),
    ),
    Row("mixed-disk", "its files, to the log's quota", MEGABYTES, "log_on_disk", _MIXED, "log_quota"),
    Row(
        "postgresql-publish",
        "durable publish, on two machines, to COPY",
        RATE,
        "postgresql_publish",
        _POSTGRESQL,
        "postgresql_copy",
        _of_limit(0.35),
    ),
    Row(
        "postgresql-cpu",
        "the gateway's processor time of that",
        "us/msg",
        "postgresql_publish_cpu_us",
        _POSTGRESQL,
    ),
    Row(
        "postgresql-single",
        "the same, 1 outstanding, p50, to a commit",
        "ms",
        "postgresql_single_p50",
        _POSTGRESQL,
        "postgresql_commit_p50",
        _at_most_of_limit(2),
    ),
    Row(
        "postgresql-replay",
        "replay from PostgreSQL, to SQLite's",
        RATE,
        "postgresql_replay",
        (rates.queue, *_POSTGRESQL),
        "replay_log",
        _of_limit(0.5),
    ),
)

SPARK_ROWS = (
    Row(
        "spark-path",
        "bodies of the log, Spark, path",
        "s",
        "spark_path_body",
        _SPARK,
        "spark_raw",
        _at_most(1),
    ),
    Row(
        "spark-path-all",
        "all columns of it",
        "s",
        "spark_path_all",
        _SPARK,
        "spark_raw",
        _at_most(1.67),
    ),
    Row(
        "spark-path-range",
        "10,000 ids of it",
        "s",
        "spark_path_range",
        _SPARK,
        "spark_path_floor",
        _at_most(0.5),
    ),
    Row(
        "spark-url",
        "bodies of the log, Spark, url",
        "s",
        "spark_url_body",
        _SPARK,
        "spark_raw",
        _at_most(2.86),
    ),
    Row("spark-url-all", "all columns of it", "s", "spark_url_all", _SPARK, "spark_raw"),
    Row(
        "spark-url-range",
        "10,000 ids of it",
        "s",
        "spark_url_range",
        _SPARK,
        "spark_url_floor",
        _at_most(0.5),
    ),
    Row(
        "spark-live",
        "live queue beside Spark, url",
        RATE,
        "spark_live_beside",
        _SPARK,
        "spark_live_alone",
        (Bound(Against.LIMIT, 0.8),),
    ),
)
"""Rows that need Spark: only run when they are named."""

ONCE = (
    weights.recovery,
    weights.deep,
    weights.idle,
    weights.worked,
    weights.endpoints,
    weights.mixed,
    spark.spark,
)
"""Measurements that are not repeated every round: they take long, and vary little."""

BEFORE = {"publish-cpu": ("before_publish_cpu_us", 0.85), "consume-cpu": ("before_consume_cpu_us", 0.85)}
"""Rows that may be held against another checkout: its figure, and the ratio that must hold."""


def beside_before(row: Row) -> Row:
    """The row as it is where another checkout is measured too."""
    if row.name not in BEFORE:
        return row
    figure, ratio = BEFORE[row.name]
    return replace(
        row, needs=(*row.needs, rates.before), limit=figure, bounds=(*row.bounds, *_at_most_of_limit(ratio))
    )


def chosen(names: list[str]) -> tuple[Row, ...]:
    """The rows whose names begin with one of ``names``; without any, all but Spark's. ValueError lists the rows."""
    rows = (*ROWS, *SPARK_ROWS)
    unknown = [name for name in names if not any(row.name.startswith(name) for row in rows)]
    if unknown:
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(row.name for row in rows)}")
    return tuple(row for row in rows if row.name.startswith(tuple(names))) if names else ROWS
