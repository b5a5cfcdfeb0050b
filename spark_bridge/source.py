"""What Spark calls: the data source ``rewind``, its batch reader, its partitions.

Spark makes the source in one Python process, plans in another and reads in a third, with pickling between
them. So everything kept on these objects is plain values; connections live inside one call.

A DataFrame is a fixed range of ids: it is pinned in ``schema()``, which Spark calls once per ``load()``, or
in ``reader()`` when the user brought a schema and Spark does not ask for ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from amqp_ext.topics import TopicFilter, TopicPattern
from spark_bridge.errors import ConnectionFailed, DataLoss
from spark_bridge.log_link import IdRange, LogLink, address, filtered_here, survey
from spark_bridge.options import Options, parse
from spark_bridge.rows import Rows
from spark_bridge.schema import DDL, chosen
from spark_bridge.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class LogPartition(InputPartition):
    """One worker's share of the log."""

    ids: IdRange


class RewindSource(DataSource):
    """``spark.read.format("rewind")``; the options are in ``spark_bridge.options``."""

    _pinned: IdRange | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rewind"

    def schema(self) -> str:
        """Every column of the log; also checks the options and pins what "latest" means."""
        self._pinned = survey(parse(self.options))
        return DDL

    def reader(self, schema: StructType) -> LogReader:
        """A reader of the pinned range with the columns of ``schema``."""
        columns = chosen(schema)
        options = parse(self.options)
        return LogReader(options, columns, self._pinned or survey(options))


class LogReader(DataSourceReader):
    """A batch read of one id range, split among workers."""

    def __init__(self, options: Options, columns: tuple[tuple[str, str], ...], ids: IdRange) -> None:
        self._options = options
        self._columns = columns
        self._ids = ids

    def partitions(self) -> list[InputPartition]:
        """Adjoining id ranges; one empty range for an empty log (without any, Spark still calls ``read``)."""
        return [LogPartition(ids) for ids in self._ids.split(self._options.partitions or _cores())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range as Arrow batches, the same each time. A range cut short raises DataLoss.

        A consumer that is slower than the broker's patience (its idle time-out) loses the connection between two
        batches; the rest is then read over a new one, as long as each brings the read forward.
        """
        assert isinstance(partition, LogPartition)
        rest, patterns = partition.ids, self._options.patterns
        rows = Rows(self._columns, _topics(patterns) if filtered_here(patterns) else None)
        while rest.first <= rest.last:
            with Wire(self._options.broker) as wire:
                link = LogLink(wire, address(patterns), rest)
                try:
                    for page in link.pages():
                        batch, offsets = rows.batch(page)
                        link.check(offsets)
                        if batch.num_rows:
                            yield batch
                    return
                except ConnectionFailed as error:
                    if link.rest == rest:
                        raise DataLoss(
                            f"Offsets {rest.first} to {rest.last} could not be read. {error.sentence}"
                        ) from error
                    rest = link.rest


def _topics(patterns: tuple[str, ...]) -> TopicFilter:
    return TopicFilter([TopicPattern.parse(pattern) for pattern in patterns], implicit_all=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
