"""How ranges of ids are shared among Spark's workers, for batches and for streams."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from store.archive.id_range import IdRange

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
