"""The archive of a running gateway's log, written piece by piece by a test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from gateway.core.model import CONTENT, ID, TIME_MS, TOPIC, Row
from store.archive import maintenance
from store.archive.segments import SCHEMA, SegmentWriter, publish_segment, with_envelopes
from store.archive.storage import FolderStorage
from store.archive.table import ArchiveTable, Segment
from tests.support.messages import body_of
from tests.support.running import RunningGateway

PATIENCE_SECONDS = 30


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Messages as an archive stores them. Columns that no test here reads are null."""
    columns = {
        "offset": [row[ID] for row in rows],
        "enqueuedTime": [row[TIME_MS] * 1000 for row in rows],
        "topic": [row[TOPIC] for row in rows],
        "body": [body_of(row[CONTENT]) for row in rows],
    }
    fields = [SCHEMA.field(i) for i in range(len(SCHEMA) - 2)]
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type)
        if field.name == "enqueuedTime"
        else pa.array(columns.get(field.name, [None] * len(rows)), field.type)
        for field in fields
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return with_envelopes(batch, [row[CONTENT] for row in rows])


def write_segment(
    storage: FolderStorage, rows: Sequence[Row], first: int, last: int, generation: int, group_rows: int = 3
) -> Segment:
    """Add a segment for the ids ``first`` to ``last``, in row groups of ``group_rows`` messages."""
    table = ArchiveTable(storage)
    state = table.create(generation, SCHEMA)

    def fill(writer: SegmentWriter) -> int:
        for start in range(0, len(rows), group_rows):
            writer.add(batch_of(rows[start : start + group_rows]))
            writer._end_group()
        return last

    segment = publish_segment(storage, first, fill)
    table.append(segment, state.erasures)
    return segment


class LogArchive:
    """Does what ``rewind archive`` does, when a test asks for it. The archive is a folder."""

    def __init__(self, gateway: RunningGateway, folder: Path) -> None:
        self.gateway = gateway
        self.storage = FolderStorage(folder)

    def rows(self, first: int, last: int) -> list[Row]:
        """The log's messages from one id to another."""
        reader = self.gateway.call(lambda gateway: gateway.vpns["default"].reader)
        found: list[Row] = []
        position = first
        while position <= last:
            page = reader.submit(partial(reader.log_page, position, last + 1, ())).result(PATIENCE_SECONDS)
            found += page.rows
            position = page.position
        return found

    @property
    def last(self) -> int:
        """The last id that is archived."""
        return ArchiveTable(self.storage).refresh().last

    def archive(self, last: int | None = None, rows: int = 4) -> int:
        """
        Archive what is not archived yet, up to an id, and tell the gateway.

        Args:
            last: The last id to archive; None for the whole log.
            rows: Messages per file.

        Returns:
            The last id that is archived.
        """
        log = self.gateway.call(lambda gateway: gateway.vpns["default"].broker.log)
        last = log.next_id - 1 if last is None else last
        first = max(self.last + 1, log.first_id)
        found = self.rows(first, last)
        while found:
            piece, found = found[:rows], found[rows:]
            end = piece[-1][ID] if found else last
            write_segment(self.storage, piece, first, end, log.generation)
            first = end + 1
        self.tell()
        return self.last

    def tell(self) -> None:
        """Tell the gateway how far the log is archived."""
        state = ArchiveTable(self.storage).refresh()
        if state.segments:
            assert state.generation is not None
            told = self.gateway.run_coroutine(
                lambda gateway: gateway.vpns["default"].archiving.archived(state.last, state.generation or 0)
            )
            assert told >= state.last

    def trim(self, before: int) -> int:
        """Trim the ids below ``before``; returns the first id of the log afterwards."""
        return self.gateway.run_coroutine(lambda gateway: gateway.vpns["default"].trimmer.trim_before(before))

    def archive_and_trim(self, before: int) -> None:
        """Archive the whole log, and trim the ids below ``before``."""
        self.archive()
        assert self.trim(before) == before

    def compact(self) -> None:
        """Compact all segments into one file."""
        maintenance.compact(self.storage, is_all=True)
