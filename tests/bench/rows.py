"""The rows of the table: the figure, the limit that it is compared with, and what must hold.

To add a row, measure a figure of its name in ``measured`` and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.measured import archive, company, postgresql, rates, spark, weights

from .measured.sizes import Figures, Sizes

Measurement = Callable[[Path, Sizes], Figures]


@dataclass(frozen=True, slots=True)
class Row:
    """
    One line of the table, and what must hold in it.

    Attributes:
        name: Its name, which is also its figure's.
        needs: The measurements that give the figure and the limit.
        limit: The figure of the same round that it is compared with.
        least: The least ratio to the limit, or the least figure without a limit; ``most`` alike.
        container: The least ratio to the rate at which a Container-style queue accepts.
    """

    name: str
    title: str
    unit: str
    needs: tuple[Measurement, ...]
    limit: str | None = None
    least: float | None = None
    most: float | None = None
    container: float | None = None

    @property
    def required(self) -> str:
        """What must hold, in words."""
        of = "x limit" if self.limit else ""
        bounds = ((">=", self.container, "x container"), (">=", self.least, of), ("<=", self.most, of))
        return ", ".join(f"{sign} {value:,g}{what}" for sign, value, what in bounds if value is not None)

    def holds(self, compared: float | None, to_container: float | None) -> bool:
        """Whether all requirements hold; none holds for a figure that could not be measured."""
        bounds = ((to_container, self.container, None), (compared, self.least, self.most))
        return all(
            (least is None and most is None)
            or (found is not None and (least is None or found >= least) and (most is None or found <= most))
            for found, least, most in bounds
        )


CONTAINER = "container"
"""The figure that all are compared with: the rate at which the Container-style queue accepts messages."""

RATE = "msg/s"
PROCESSOR = "us/msg"
MEGABYTES = "MB"
_QUEUE = (rates.container, rates.sqlite, rates.queue)
_BY_KEY = (rates.by_key,)
_LATENCY = (rates.latency,)
_FANS = (rates.fan_out,)
_DEEP = (weights.deep,)
_COPYING = (company.copying,)
_LISTING = (company.listing,)
_PACED = (company.paced,)
_PURGING = (company.purging,)
_TRIMMING = (company.trimming,)
_WORKED = (weights.worked,)
_MIXED = (weights.mixed,)
_SPARK = (spark.spark,)
_POSTGRESQL = (postgresql.postgresql,)
_ARCHIVE = (archive.archive,)

ROWS = (
    Row("publish", "durable publish, one queue", RATE, _QUEUE, "sqlite-write", 0.35, container=5),
    Row("publish-cpu", "processor time of that", PROCESSOR, (rates.queue,)),
    Row("publish-dedup", "publish, 1,000,000 ids remembered", RATE, (rates.dedup,), "publish-plain", 0.8),
    Row("delayed", "publish, 1,000,000 to wait for their time", RATE, (rates.delayed,), "undelayed", 0.8),
    Row("delayed-memory", "memory of those", MEGABYTES, (rates.delayed,), most=70),
    Row("due-p99", "how late due ones come, p99, beside a publisher", "ms", (rates.delayed,), most=50),
    Row("delayed-start", "start with 1,000,000 of them", "s", (rates.delayed,), most=2),
    Row("consume", "consume, each accepted", RATE, _QUEUE, "sqlite-read", container=5),
    Row("consume-cpu", "processor time of that", PROCESSOR, (rates.queue,)),
    Row("replay-log", "replay, log reader", RATE, _QUEUE, "sqlite-read", container=7),
    Row("replay-endpoint", "replay, rewound queue, to a log reader", RATE, _QUEUE, "replay-log", 0.95),
    Row("sync-p50", "publish, 1 outstanding, p50", "ms", _LATENCY, "commit-p50", most=1.6),
    Row("sync-p99", "publish, 1 outstanding, p99", "ms", _LATENCY, "commit-p99"),
    Row("100-p50", "publish, 100 outstanding, p50", "ms", _LATENCY),
    Row("100-p99", "publish, 100 outstanding, p99", "ms", _LATENCY),
    Row("1000-p50", "publish, 1,000 outstanding, p50", "ms", _LATENCY),
    Row("1000-p99", "publish, 1,000 outstanding, p99", "ms", _LATENCY),
    Row("through-p50", "publish to receipt, p50", "ms", _LATENCY, "commit-p50"),
    Row("through-p99", "publish to receipt, p99", "ms", _LATENCY, "commit-p99"),
    Row("fan-out-1", "publish, one topic to one queue", RATE, _FANS),
    Row("fan-out-10", "one topic to ten queues", RATE, _FANS, "fan-out-1", 0.85),
    Row("fan-out-100", "one topic to 100 durable subscriptions", RATE, _FANS, "fan-out-1", 0.6),
    Row("fan-out-p50", "the same, 900, 1 outstanding, p50", "ms", (rates.wide_fan,), "narrow-p50", most=2),
    Row("many-routes", "consume, a queue of 1,000 topics", RATE, (rates.many_routes,), "one-route", 0.5),
    Row("ungrouped", "consume, 50 consumers", RATE, _BY_KEY),
    Row("groups", "the same by 100,000 groups", RATE, _BY_KEY, "ungrouped", 0.7),
    Row("partitions", "the same by 200 partitions", RATE, _BY_KEY, "ungrouped", 0.7),
    Row("live-beside", "live queue beside a log reader", RATE, (company.beside,), "live-alone"),
    Row("copy", "history copied into a queue", RATE, _COPYING, least=60_000),
    Row("copy-cpu", "processor time of that", PROCESSOR, _COPYING),
    Row("publish-copying", "publish while history is copied", RATE, _COPYING, "publish-before-copy", 0.8),
    Row("paced-replay", "replay at a rate, log reader", RATE, _PACED, "pace", 0.95),
    Row("paced-copy", "copy at a rate", RATE, _PACED, "pace", 0.9),
    Row("publish-trimming", "publish while the log is trimmed", RATE, _TRIMMING, "publish-before-trim", 0.5),
    Row("trim", "trimmed meanwhile", RATE, _TRIMMING),
    Row("purge", "purge of 1,000,000 messages", "ms", _PURGING, most=50),
    Row("purge-p99", "publish, 1 outstanding, p99, meanwhile", "ms", _PURGING, "p99-before-purge", most=1.5),
    Row("publish-listing", "publish while 10,000 queues are listed", RATE, _LISTING, "before-listing", 0.5),
    Row("listing", "queues listed meanwhile", RATE, _LISTING),
    Row("publish-consoles", "publish beside 5 consoles", RATE, (company.consoles,), "before-consoles", 0.9),
    Row("deep", "consume, 10,000,000 deep", RATE, _DEEP, "shallow", 0.8),
    Row("deep-start", "start with that queue", "s", _DEEP, most=1.3),
    Row("histogram", "histogram of 10,000,000 messages", "ms", _DEEP, most=200),
    Row("deep-memory", "memory with it", MEGABYTES, _DEEP, most=120),
    Row("readers", "sync-p50, 8,000 readers", "ms", (weights.idle_readers,), "without-readers", most=1.2),
    Row("idle", "memory of an idle connection", "KiB", (weights.idle,)),
    Row("memory", "memory, idle and empty", MEGABYTES, _WORKED, most=70),
    Row("memory-worked", "memory after 1,000,000 in, out, replayed", MEGABYTES, _WORKED, most=120),
    Row("memory-endpoints", "memory with 900 queues", MEGABYTES, (weights.endpoints,), most=150),
    Row("memory-mixed", "memory after mixed load", MEGABYTES, _MIXED, most=250),
    Row("memory-mixed-peak", "most memory during it", MEGABYTES, _MIXED),
    Row("mixed-rate", "published during it", RATE, _MIXED, least=2_850),
    Row("postgresql-publish", "durable, on two machines", RATE, _POSTGRESQL, "postgresql-copy", 0.35),
    Row("postgresql-single", "1 outstanding, p50", "ms", _POSTGRESQL, "postgresql-commit-p50", most=2),
    Row("postgresql-replay", "to SQLite's", RATE, (rates.queue, *_POSTGRESQL), "replay-log", 0.5),
)

NAMED_ROWS = (
    Row("spark-path", "bodies of the log, Spark, path", "s", _SPARK, "spark-raw", most=1),
    Row("spark-path-all", "all columns of it", "s", _SPARK, "spark-raw", most=1.67),
    Row("spark-path-range", "10,000 ids of it", "s", _SPARK, "spark-path-floor", most=0.5),
    Row("spark-url", "bodies of the log, Spark, url", "s", _SPARK, "spark-raw", most=2.86),
    Row("spark-url-all", "all columns of it", "s", _SPARK, "spark-raw"),
    Row("spark-url-range", "10,000 ids of it", "s", _SPARK, "spark-url-floor", most=0.5),
    Row("spark-live", "live queue beside Spark, url", RATE, _SPARK, "spark-live-alone", 0.8),
    Row("archive", "the log archived", RATE, _ARCHIVE, least=86_000),
    Row("archive-compact", "100 files of it made large ones", "s", _ARCHIVE, most=60),
    Row("archive-compact-peak", "most memory of that", MEGABYTES, _ARCHIVE, most=400),
    Row("archive-replay", "replay out of it, log reader", RATE, _ARCHIVE, "replay-before-trim"),
    Row(
        "archive-publish", "publish beside an archiver", RATE, (archive.archiving,), "publish-unarchived", 0.9
    ),
)
"""Rows that need Spark or the archive's libraries: they run only when named."""

ONCE = (
    weights.deep,
    weights.idle,
    weights.worked,
    weights.endpoints,
    weights.mixed,
    spark.spark,
    archive.archive,
)
"""Measurements of the first round only: they take long, and vary little."""

BEFORE = ("publish-cpu", "consume-cpu")
"""Rows that can be compared with another checkout."""


def beside_before(row: Row) -> Row:
    """The row for a run in which another checkout is measured, too."""
    if row.name not in BEFORE:
        return row
    return replace(row, needs=(*row.needs, rates.before), limit=f"before-{row.name}", most=0.85)


def chosen(names: list[str]) -> tuple[Row, ...]:
    """The rows whose names begin with one of ``names``; without names, all but ``NAMED_ROWS``. ValueError: unknown."""
    rows = (*ROWS, *NAMED_ROWS)
    unknown = [name for name in names if not any(row.name.startswith(name) for row in rows)]
    if unknown:
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(row.name for row in rows)}")
    return tuple(row for row in rows if row.name.startswith(tuple(names))) if names else ROWS
