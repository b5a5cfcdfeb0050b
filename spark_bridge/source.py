"""What Spark calls: the data source ``rewind``, its batch reader, its partitions.

Spark makes the source in one Python process, plans in another and reads in a third, with pickling between
them. So everything kept on these objects is plain values; connections live inside one call.

A DataFrame is a fixed range of ids of each log: it is pinned in ``schema()``, which Spark calls once per
``load()``, or in ``reader()`` when the user brought a schema and Spark does not ask for ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_bridge import logs
from spark_bridge.errors import BridgeError, DataLoss, Refused
from spark_bridge.log_link import IdRange
from spark_bridge.options import Options, parse
from spark_bridge.pushdown import Wanted
from spark_bridge.schema import DDL, DDL_WITHOUT_HEADERS, chosen
from spark_bridge.stream import LogStream

if TYPE_CHECKING:
    import pyarrow as pa

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass
class LogPartition(InputPartition):
    """One worker's share: a range of one log."""

    ids: IdRange
    place: int = 0


class RewindSource(DataSource):
    """``spark.read.format("rewind")`` and ``spark.readStream``; the options are in ``spark_bridge.options``."""

    _pinned: tuple[IdRange, ...] | BridgeError | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rewind"

    def schema(self) -> str:
        """Every column of the log; also checks the options and pins what "latest" means."""
        options = parse(self.options)
        try:
            self._pinned = _plan(options)
        except (DataLoss, Refused) as error:
            # A stream with a checkpoint does not start there, and only Spark knows of one: the reader tells.
            self._pinned = error
        return DDL if options.headers else DDL_WITHOUT_HEADERS

    def reader(self, schema: StructType) -> LogReader:
        """A reader of the pinned ranges with the columns of ``schema``."""
        columns = chosen(schema)
        options = parse(self.options, "batch")
        if isinstance(self._pinned, BridgeError):
            raise self._pinned
        # Spark refuses every query of a reader that takes filters while its setting for that is off. The worker
        # that asks for filters runs only when it is on.
        kind = FilteredLogReader if _PUSHDOWN_WORKER in sys.argv else LogReader
        return kind(options, columns, self._pinned or _plan(options))

    def streamReader(self, schema: StructType) -> LogStream:
        """A stream from ``startingOffsets`` (default: latest), or from where its checkpoint says."""
        return LogStream(parse(self.options, "stream"), chosen(schema))


class LogReader(DataSourceReader):
    """A batch read of one id range of each log, split among workers."""

    def __init__(
        self, options: Options, columns: tuple[tuple[str, str], ...], ids: tuple[IdRange, ...]
    ) -> None:
        self._options = options
        self._columns = columns
        self._ids = ids
        self._topics: tuple[str, ...] | None = None

    def partitions(self) -> list[InputPartition]:
        """Adjoining id ranges; one empty range for an empty log (without any, Spark still calls ``read``)."""
        return [*shares(self._options, self._ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range as Arrow batches, the same each time. A range cut short raises DataLoss."""
        assert isinstance(partition, LogPartition)
        return logs.read(self._options, self._columns, partition.place, partition.ids, self._topics)


class FilteredLogReader(LogReader):
    """The same where Spark offers its filters: what none of them lets through need not be read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow what is read by the filters. All go back: Spark applies them again."""
        wanted = Wanted()
        for condition in filters:
            wanted = wanted.narrowed(condition)
        self._topics = None if wanted.topics is None else tuple(sorted(wanted.topics))
        self._ids = tuple(self._narrowed(place, ids, wanted) for place, ids in enumerate(self._ids))
        yield from filters

    def _narrowed(self, place: int, ids: IdRange, wanted: Wanted) -> IdRange:
        first, last = ids.first, ids.last
        if wanted.first is not None:
            first = max(first, wanted.first)
        if wanted.last is not None:
            last = min(last, wanted.last)
        if wanted.since is not None and first <= last:
            first = max(first, logs.since(self._options, place, wanted.since))
        if wanted.until is not None and first <= last:
            last = min(last, logs.since(self._options, place, wanted.until + 1) - 1)
        return replace(ids, first=first, last=max(last, first - 1))


def shares(options: Options, ranges: tuple[IdRange, ...]) -> list[LogPartition]:
    """Each log's range, split so that together there are about as many partitions as asked for."""
    each = -(-(options.partitions or _cores()) // len(ranges))
    return [LogPartition(ids, place) for place, whole in enumerate(ranges) for ids in whole.split(each)]


def _plan(options: Options) -> tuple[IdRange, ...]:
    return tuple(logs.plan(options, place) for place in range(len(options.places)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
