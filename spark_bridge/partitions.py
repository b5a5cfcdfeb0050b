"""
How ranges of ids are shared among Spark's workers, for batches and for streams.

Spark's daemon forks a worker for each kind of work, keeps it for the next query, and collects garbage in it after each
task: every object of every module is looked at, 15 ms with those that are imported here, four times a query. So a
worker is told that what it has imported is no garbage (``settle``).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pyspark.sql.datasource import InputPartition

from store.archive.source import IdRange

PARTITION_IDS = 50_000
"""Ids that are worth a partition of their own: they take about as long as Spark takes for one task more, 0.1 s."""


@dataclass
class LogPartition(InputPartition):
    """One worker's share: a range of one log."""

    ids: IdRange
    place: int = 0


def shares(count: int | None, ranges: Sequence[IdRange]) -> list[LogPartition]:
    """
    Each log's range, split so that together there are about ``count`` partitions, or as many as there are cores;
    without a count, a range of few ids is not split.
    """
    each = -(-(count or _cores()) // len(ranges))
    return [
        LogPartition(ids, place)
        for place, whole in enumerate(ranges)
        for ids in whole.split(each if count else min(each, _worthwhile(whole)))
    ]


def _worthwhile(ids: IdRange) -> int:
    return max(1, -(-(ids.last - ids.first + 1) // PARTITION_IDS))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


DAEMON = "pyspark.daemon"


@cache
def settle() -> None:
    """
    Have the collector leave alone what there is now; the first call does so, and only in a worker of Spark's daemon.

    Call it where a task begins, when all is imported. What is made later is collected as ever.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == DAEMON:
        gc.freeze()
