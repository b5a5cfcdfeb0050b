"""
What Spark calls: the data source ``rewind``, its batch reader, its partitions, its schema.

Spark makes the source in one Python process, plans in another and reads in a third, with pickling between them. So
everything kept on these objects is plain values; connections live inside one call.

A DataFrame is a fixed range of ids of each log. The range is fixed in ``schema()``, which Spark calls once per
``load()``, or in ``reader()`` if the user gave a schema and Spark does not ask for ours. Spark 4 has no column pruning
for Python sources, so a user who wants few columns names them with ``.schema("offset bigint, body binary")``; only
those are then decoded. They may be any columns, in any order; every column is nullable.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_bridge.errors import Refused, SchemaError
from spark_bridge.options import Options, parse
from spark_bridge.places.from_options import log_places
from spark_bridge.stream import LogStream, read_share, settle, shares
from spark_bridge.writer import LogStreamWriter, LogWriter
from store.archive.columns import COLUMNS, Columns
from store.archive.errors import DataLoss, LogError
from store.archive.source import IdRange

# `timestamp` is what spark.sql.timestampType makes of it.
_TYPES = COLUMNS | {"enqueuedTime": "timestamp_ltz"}
DDL = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
HEADERS = "systemProperties"
"""The column that the option includeHeaders may leave out."""
DDL_WITHOUT_HEADERS = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items() if name != HEADERS)
_BY_LOWER = {name.lower(): name for name in COLUMNS}


def chosen(schema: StructType) -> tuple[tuple[str, str], ...]:
    """
    The columns a schema asks for, as pairs of our name and the name the user gave it (case may differ).

    Raises:
        SchemaError: A name is unknown, a type is wrong, or a column is NOT NULL.
    """
    problems: list[str] = []
    columns: list[tuple[str, str]] = []
    for field in schema.fields:
        name = _BY_LOWER.get(field.name.lower())
        kind = field.dataType.simpleString()
        if name is None:
            close = difflib.get_close_matches(field.name, COLUMNS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COLUMNS)}."
            problems.append(f"The log has no column {field.name}; {hint}")
        elif kind != COLUMNS[name]:
            problems.append(f"Column {name} is {COLUMNS[name]}, not {kind}; cast it after loading.")
        elif not field.nullable or not getattr(field.dataType, "valueContainsNull", True):
            problems.append(f"Column {name} can be null; write it without NOT NULL.")
        else:
            columns.append((name, field.name))
    if not schema.fields:
        problems.append("The schema names no column.")
    if problems:
        raise SchemaError(" ".join(problems))
    return tuple(columns)


class RewindSource(DataSource):
    """``spark.read.format("rewind")`` and ``spark.readStream``; the options are in ``spark_bridge.options``."""

    _pinned: tuple[IdRange, ...] | LogError | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rewind"

    def schema(self) -> str:
        """Every column of the log; also checks the options and fixes what "latest" means."""
        settle()
        options = parse(self.options)
        try:
            self._pinned = _plan(options)
        except (DataLoss, Refused) as error:
            # A stream with a checkpoint does not start there, and only Spark knows whether there is one. So the error
            # is raised in ``reader``.
            self._pinned = error
        return DDL if options.headers else DDL_WITHOUT_HEADERS

    def reader(self, schema: StructType) -> LogReader:
        """A reader of the fixed ranges with the columns of ``schema``."""
        settle()
        columns = chosen(schema)
        options = parse(self.options, "batch")
        if isinstance(self._pinned, LogError):
            raise self._pinned
        return LogReader(options, columns, self._pinned or _plan(options))

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        """Publishes rows: ``df.write.format("rewind")``."""
        return LogWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        """The same for a stream: ``df.writeStream.format("rewind")``."""
        given = {name: value for name, value in self.options.items() if name.lower() not in SPARKS_OWN}
        return LogStreamWriter(LogWriter(given, schema, overwrite))

    def streamReader(self, schema: StructType) -> LogStream:
        """A stream from ``startingOffsets`` (default: latest), or from where its checkpoint says."""
        return LogStream(parse(self.options, "stream"), chosen(schema))


SPARKS_OWN = {"checkpointlocation"}
"""Options of a stream that are for Spark itself, which passes them on all the same."""


class LogReader(DataSourceReader):
    """
    A batch read of one id range of each log, split among workers.

    It takes no filters from Spark, though Spark can offer them: pyspark 4.3 keeps the plan a filter made with the
    DataFrame, and gives a later query without a filter the rows of that plan. ``startingOffsets``,
    ``endingOffsets``, the timestamps and ``subscribe`` narrow what is read.
    """

    def __init__(self, options: Options, columns: Columns, ids: tuple[IdRange, ...]) -> None:
        self._options = options
        self._columns = columns
        self._ids = ids

    def partitions(self) -> list[InputPartition]:
        """Adjoining id ranges; one empty range for an empty log (without any, Spark still calls ``read``)."""
        return [*shares(self._options.partitions, self._ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See ``read_share``."""
        return read_share(self._options, self._columns, partition)


def _plan(options: Options) -> tuple[IdRange, ...]:
    asked = zip(log_places(options), options.selections, strict=True)
    return tuple(place.plan(selection) for place, selection in asked)
