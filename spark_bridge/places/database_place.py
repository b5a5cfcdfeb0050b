"""A log straight from PostgreSQL: the place of a Message VPN whose store is there, whether its gateway runs or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_bridge.places.addresses import Schema
from spark_bridge.places.log_place import read_live
from spark_bridge.places.log_plan import below, marks_for
from spark_bridge.places.log_tables import LogTables, check_dsn
from spark_bridge.places.selection import WHOLE_LOG, Selection
from spark_bridge.places.stored_log import stored_batches, stored_messages
from store.archive.columns import Columns
from store.archive.id_range import IdRange
from store.postgresql.database import Database


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """The replay log in a Message VPN's schema."""

    schema: Schema

    @property
    def name(self) -> str:
        """Hosts, database and Message VPN: the same whoever reads, by whatever password."""
        check_dsn(self.schema.dsn)
        return f"{Database(self.schema.dsn).place}#{self.schema.vpn}"

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``."""
        with LogTables(self.schema) as tables:
            return _for(tables, tables.settled_extent(), selection)

    def plan(self, selection: Selection) -> IdRange:
        """See ``LogPlace.plan``."""
        with LogTables(self.schema) as tables:
            return tables.plan(selection)

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """See ``LogPlace.read``."""
        return read_live(_Planned(self, ids.last), selection, columns, ids)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See ``LiveLog.batches``."""
        with LogTables(self.schema) as tables:
            yield from stored_batches(tables, selection, columns, ids)

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """See ``store.archive.source.ArchivableLog``: messages as the publisher sent them."""
        with LogTables(self.schema) as tables:
            yield from stored_messages(tables, ids)

    def may_be_behind(self) -> bool:
        """See ``LogPlace.may_be_behind``: a standby may."""
        with LogTables(self.schema) as tables:
            return tables.is_standby

    def watch(self, selection: Selection = WHOLE_LOG) -> DatabaseWatch:
        """See ``LogPlace.watch``."""
        return DatabaseWatch(self.schema)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A log up to an id that somebody has planned to read: a standby is waited for until it has that."""

    place: DatabasePlace
    last: int

    def extent(self, selection: Selection) -> IdRange:
        with LogTables(self.place.schema) as tables:
            return _for(tables, tables.extent(up_to=self.last), selection)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        return self.place.batches(selection, columns, ids)


def _for(tables: LogTables, extent: IdRange, selection: Selection) -> IdRange:
    """With what rules of retention took out of what is read."""
    return replace(extent, taken_below=below(marks_for(tables.taken_out(), selection.patterns)))


class DatabaseWatch:
    """Asking a server again and again, over one connection."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tables: LogTables | None = None

    def extent(self) -> IdRange:
        """
        The ids the log holds.

        Raises:
            ConnectionFailed: No server can be reached, or none that has the log.
        """
        if self._tables is None:
            self._tables = LogTables(self._schema)
            return self._tables.settled_extent()
        return self._tables.extent()

    def close(self) -> None:
        """Let go of the connection; the next question makes another."""
        if self._tables is not None:
            self._tables.close()
        self._tables = None
