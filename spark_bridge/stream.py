"""
The log as a Spark stream: its position, how far a micro-batch goes, what a checkpoint holds.

An offset, as checkpoints hold it, names each log by its url (or file), with the next id to be read and the generation
of the log: ``{"amqp://b:5672": {"offset": 17, "generation": 5}}``. ``TAKEN_BELOW`` is added if it is not empty.

Invariant: a micro-batch between two offsets has the same rows whenever it is read, or fails. Ids are seen in
order (the gateway has one writer), so nothing appears later below an offset that was passed.

Batches and streams divide their ranges of ids among Spark's workers in the same way (``shares``). Spark's daemon forks
a worker for each kind of work, keeps it for the next query, and collects garbage in it after each task. The collector
then looks at every object of every module, which takes 15 ms with the modules that are imported here, four times a
query. So ``settle`` exempts from collection what a worker has imported.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_bridge.errors import OptionError
from spark_bridge.options import Options
from spark_bridge.places.from_options import log_place, log_places
from store.archive.columns import Columns
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange, LogWatch

PARTITION_IDS = 50_000
"""Ids that are worth a partition of their own: reading them takes as long as one more task of Spark, about 0.1 s."""


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


def read_share(options: Options, columns: Columns, share: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one range as Arrow batches, the same each time. A range cut short raises DataLoss."""
    assert isinstance(share, LogPartition)
    settle()
    return log_place(options, share.place).read(options.selections[share.place], columns, share.ids)


def _worthwhile(ids: IdRange) -> int:
    return max(1, -(-(ids.last - ids.first + 1) // PARTITION_IDS))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


DAEMON = "pyspark.daemon"


@cache
def settle() -> None:
    """
    Exempt all objects that exist now from garbage collection; only the first call does, and only in a worker of Spark's
    daemon.

    Call it where a task begins, when everything is imported. Objects that are made later are collected as usual.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == DAEMON:
        gc.freeze()


Offset: TypeAlias = "dict[str, Any]"
Offsets: TypeAlias = "dict[str, Offset]"

TAKEN_BELOW = "takenBelow"
"""Key of an offset: ``IdRange.taken_below`` for the ids above the offset, as it was when the query began. The query
lacks the messages that rules of retention took out since then. The key is absent if there is nothing to say, as at a
log's end."""


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one log or several. Spark keeps one such object per query, and sends copies to read."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._places = log_places(options)
        self._names = [place.name for place in self._places]
        self._watches: list[LogWatch] = []
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the connections: a copy reads over its own."""
        return self.__dict__ | {"_watches": []}

    def initialOffset(self) -> Offsets:
        """Where a query without a checkpoint starts."""
        asked = zip(self._places, self._options.selections, strict=True)
        plans = [place.plan(selection) for place, selection in asked]
        return {
            name: _known(_offset(plan, plan.first), plan.taken_below)
            for name, plan in zip(self._names, plans, strict=True)
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, over all logs together."""
        limit = self._options.per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """How far the next micro-batch goes: to the end, or as far as the limit lets it."""
        end = self._target or self._latest()
        start = self._continued(start, end)
        far = self._limited(start, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end
        return {name: _known(offset, start[name].get(TAKEN_BELOW, ())) for name, offset in far.items()}

    def _limited(self, start: Offsets, end: Offsets, left: int) -> Offsets:
        result: Offsets = {}
        widths: dict[str, int] = {name: end[name]["offset"] - start[name]["offset"] for name in self._names}
        # The shortest first: the others may use what one log does not use of its share.
        for done, name in enumerate(sorted(self._names, key=lambda name: widths[name])):
            taken = min(widths[name], left // (len(self._names) - done))
            left -= taken
            result[name] = start[name] | {"offset": start[name]["offset"] + taken}
        if result == start and result != end:
            widest = max(self._names, key=lambda name: widths[name])  # the limit is below the number of logs
            result[widest] = start[widest] | {"offset": start[widest]["offset"] + 1}
        return result

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the logs end now: this query ends there."""
        self._target = self._latest()

    def reportLatestOffset(self) -> Offsets:
        """Where the logs end now, for the query's progress: the distance from its end offset is the backlog."""
        return self._latest()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Adjoining id ranges of each log."""
        start = self._continued(start, end)
        ranges = [_range(start[name], end[name]) for name in self._names]
        parts = shares(self._options.partitions, ranges)
        return [part for part in parts if part.ids.first <= part.ids.last]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See ``read_share``."""
        return read_share(self._options, self._columns, partition)

    def commit(self, end: Offsets) -> None:
        """Do nothing: reading does not change the log."""

    def stop(self) -> None:
        """Close the connections."""
        for watch in self._watches:
            watch.close()
        self._watches = []

    def _latest(self) -> Offsets:
        if not self._watches:
            asked = zip(self._places, self._options.selections, strict=True)
            self._watches = [place.watch(selection) for place, selection in asked]
        extents = [watch.extent() for watch in self._watches]
        return {
            name: _offset(extent, extent.last + 1) for name, extent in zip(self._names, extents, strict=True)
        }

    def _continued(self, start: Offsets, end: Offsets) -> Offsets:
        """A query's offset, checked against the present logs: same urls, same generations, nothing lost."""
        if sorted(start) != sorted(self._names):
            raise OptionError(
                f"The checkpoint is for {', '.join(sorted(start))}, but the options name "
                f"{', '.join(self._names)}. Use the same, or another checkpoint."
            )
        return {name: self._reached(name, start[name], end[name]) for name in self._names}

    def _reached(self, name: str, start: Offset, end: Offset) -> Offset:
        """Where to go on in one log: at the start, if the log is still the same."""
        if start["generation"] == end["generation"] and start["offset"] <= end["offset"]:
            return start
        made_anew = start["generation"] != end["generation"]
        if not made_anew and self._places[self._names.index(name)].may_be_behind():
            raise ConnectionFailed(
                f"The standby of the log at {name} ends at {end['offset'] - 1}, and the query is at offset "
                f"{start['offset']}: the standby is behind, or has an older copy. Start again once it has "
                "caught up, or read from the primary."
            )
        if self._options.selections[0].fail_on_data_loss:
            what = "was recreated" if made_anew else f"ends at {end['offset'] - 1} now, as if it was restored"
            raise DataLoss(
                f"The log at {name} {what}: the query is at offset {start['offset']} of generation "
                f"{start['generation']}. Set failOnDataLoss to false to continue with the present log."
            )
        return end | {"offset": 1} if made_anew else end


def _offset(ids: IdRange, offset: int) -> Offset:
    """A place in the log that has these ids."""
    return {"offset": offset, "generation": ids.generation or 0}


def _range(start: Offset, end: Offset) -> IdRange:
    known = tuple(start.get(TAKEN_BELOW, ()))
    return IdRange(start["offset"], end["offset"] - 1, end["generation"], known)


def _known(offset: Offset, taken_below: Sequence[int]) -> Offset:
    """The offset, with what rules of retention are known to have taken out above it."""
    above = [below for below in taken_below if below > offset["offset"]]
    place = {key: offset[key] for key in ("offset", "generation")}
    return place | {TAKEN_BELOW: above} if above else place
