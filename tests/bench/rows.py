"""The rows of the table: which figure, which limit beside it, and what must hold.

To add a row, measure its figure in ``measurements.py`` and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from . import measurements as measured
from .measurements import Figures, Sizes

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
        return measured.container in self.needs


CONTAINER = "container_publish"
"""The figure of the Container-style queue that all are compared with: what it takes in."""

RATE = "msg/s"
_GENERATOR = (measured.generator,)
_QUEUE = (measured.container, measured.sqlite, measured.queue)
_LATENCY = (measured.latency,)
_SPARK = (measured.spark,)
_ENOUGH_LOAD = (Bound(Against.NOTHING, 400_000),)


def _at_most(seconds: float) -> tuple[Bound, ...]:
    return (Bound(Against.NOTHING, seconds, at_most=True),)


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
    Row("consume", "consume, each accepted", RATE, "consume", _QUEUE, "sqlite_read", (_times_container(5),)),
    Row(
        "replay-log", "replay, log reader", RATE, "replay_log", _QUEUE, "sqlite_read", (_times_container(7),)
    ),
    Row("replay-endpoint", "replay, rewound queue", RATE, "replay_endpoint", _QUEUE, "sqlite_read"),
    Row(
        "sync-p50",
        "publish, 1 outstanding, p50",
        "ms",
        "single_p50",
        _LATENCY,
        "sqlite_commit_p50",
        (Bound(Against.LIMIT, 2.5, at_most=True),),
    ),
    Row("sync-p99", "publish, 1 outstanding, p99", "ms", "single_p99", _LATENCY, "sqlite_commit_p99"),
    Row("100-p50", "publish, 100 outstanding, p50", "ms", "100_p50", _LATENCY),
    Row("100-p99", "publish, 100 outstanding, p99", "ms", "100_p99", _LATENCY),
    Row("1000-p50", "publish, 1,000 outstanding, p50", "ms", "1000_p50", _LATENCY),
    Row("1000-p99", "publish, 1,000 outstanding, p99", "ms", "1000_p99", _LATENCY),
    Row("through-p50", "publish to receipt, p50", "ms", "through_p50", _LATENCY, "sqlite_commit_p50"),
    Row("through-p99", "publish to receipt, p99", "ms", "through_p99", _LATENCY, "sqlite_commit_p99"),
    Row(
        "fan-out", "publish, one topic to ten queues", RATE, "fan_out", (measured.fan_out,), "sqlite_fan_out"
    ),
    Row(
        "live-beside", "live queue beside a log reader", RATE, "live_beside", (measured.beside,), "live_alone"
    ),
    Row("reader-beside", "that log reader", RATE, "reader_beside", (measured.beside,)),
    Row(
        "recovery",
        "start with a full store",
        "s",
        "recovery",
        (measured.recovery,),
        "start_empty",
        (Bound(Against.NOTHING, 2, at_most=True),),
    ),
    Row(
        "publish-trimming",
        "publish while the log is trimmed",
        RATE,
        "publish_trimming",
        (measured.trimming,),
        "publish_before_trim",
        (Bound(Against.LIMIT, 0.5),),
    ),
    Row("trim", "trimmed meanwhile", RATE, "trimmed", (measured.trimming,)),
    Row(
        "publish-listing",
        "publish while 10,000 queues are listed",
        RATE,
        "publish_listing",
        (measured.listing,),
        "publish_before_listing",
        (Bound(Against.LIMIT, 0.5),),
    ),
    Row(
        "listing-p99",
        "publish, 1 outstanding, p99, meanwhile",
        "ms",
        "p99_listing",
        (measured.listing,),
        "p99_before_listing",
    ),
    Row("listing", "queues listed meanwhile", RATE, "listed", (measured.listing,)),
    Row("idle", "memory of an idle connection", "KiB", "idle_kib", (measured.idle,)),
)

SPARK_ROWS = (
    Row(
        "spark-path",
        "bodies of the log, Spark, path",
        "s",
        "spark_path_body",
        _SPARK,
        "spark_raw",
        _at_most(2.5),
    ),
    Row("spark-path-all", "all columns of it", "s", "spark_path_all", _SPARK, "spark_raw"),
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
        "spark-url", "bodies of the log, Spark, url", "s", "spark_url_body", _SPARK, "spark_raw", _at_most(8)
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

ONCE = (measured.recovery, measured.idle, measured.spark)
"""Measurements that are not repeated every round: their set-up takes long, and they vary little."""


def chosen(names: list[str]) -> tuple[Row, ...]:
    """The rows whose names begin with one of ``names``; without any, all but Spark's. ValueError lists the rows."""
    rows = (*ROWS, *SPARK_ROWS)
    unknown = [name for name in names if not any(row.name.startswith(name) for row in rows)]
    if unknown:
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(row.name for row in rows)}")
    return tuple(row for row in rows if row.name.startswith(tuple(names))) if names else ROWS
