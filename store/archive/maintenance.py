"""
Maintenance of an archive. Compaction turns many small files into one for each day (UTC), by the time of their first
messages. An erasure rewrites files without the erased contents. A vacuum removes files that no commit names any more.
An archive of the old form becomes a table.

New files are durable before one commit replaces the old files by them. So at any moment a reader finds each id exactly
once, whatever process ends in between. A compaction leaves the old files to a vacuum, for readers of an earlier commit.
An erasure itself removes every file that may have the contents: then no commit has them, not even an earlier one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from store.archive.erasures import FOLDER, Erasure, Erasures, blanked
from store.archive.errors import ArchiveError
from store.archive.segments import SCHEMA, SegmentWriter, batches, publish_segment
from store.archive.storage import ArchiveStorage
from store.archive.table import OLD_FORM, ArchiveTable, CommitConflict, Segment, State

DAY_MS: Final = 86_400_000
MOST_BYTES: Final = 256 << 20
"""The largest file: a day of heavy traffic becomes several, so that readers can share it, and erasing takes seconds."""

SMALL_BYTES: Final = MOST_BYTES // 2
"""A file of this size or more is not rewritten to be joined with others."""

OLD_LIST: Final = ".json"

Progress = Callable[[Segment, int], None]


def compact(
    storage: ArchiveStorage,
    progress: Progress = lambda _segment, _count: None,
    *,
    is_all: bool = False,
    now_ms: int | None = None,
) -> State:
    """
    Compact every day that has ended, or with ``is_all`` today, too. Safe while archivers and other compactions run.

    ``progress`` gets each new file, and the number of files that it replaced.

    Raises:
        ArchiveError: The archive cannot be read or written, or is not complete.
    """
    table = ArchiveTable(storage)
    today = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) // DAY_MS
    while True:
        state = table.refresh()
        try:
            for day, found in groupby(state.segments, lambda segment: segment.first_ms // DAY_MS):
                if day < today or is_all:
                    for group in _groups(list(found)):
                        new = _written(storage, group, {})
                        _exchange(storage, table, [new], group, is_erasing=False)
                        storage.step(f"exchanged {new.file}")
                        progress(new, len(group))
            return table.state
        except CommitConflict:
            continue  # an erasure or another compaction was first: look again what is left to do


def erase(storage: ArchiveStorage, erased: Mapping[int, Erasure]) -> None:
    """
    Rewrite every file that has the content of one of these messages. Returns when no file has it any more, and no
    archiver can commit it that read the log before.

    Raises:
        ArchiveError: The archive cannot be read or written, or is not complete.
    """
    table = ArchiveTable(storage)
    while True:
        state = table.refresh()
        if table.is_missing():
            return
        named = {segment.file for segment in state.segments}
        # Files of killed writers, and of earlier commits. A file that appears later is of an archiver, which will be
        # refused, or of a compaction, which will be refused, too, or began after the commit.
        gone = [name for name in storage.names() if name.endswith(".parquet") and name not in named]
        old = [one for one in state.segments if any(one.low <= i <= one.high for i in erased)]
        new = [_written(storage, [one], erased) for one in old]
        storage.step("written anew")
        try:
            _exchange(storage, table, new, old, is_erasing=True)
        except CommitConflict:
            continue
        storage.step("exchanged")
        for name in [*gone, *(one.file for one in old)]:
            storage.remove(name)
        return


def convert(storage: ArchiveStorage) -> State:
    """
    Turn an archive of the old form into a table, in one commit, without rewriting files. Erased content that is still
    in the files is removed then. It may be run again after an interruption.

    Raises:
        ArchiveError: The archive is not complete, or is not of the old form.
    """
    entries = [name for name in storage.names(OLD_FORM) if name.endswith(".json")]
    table = ArchiveTable(storage, is_converting=True)
    state = table.refresh()
    if entries and not state.segments:
        generation, files = _old_files(storage, entries)
        state = table.create(generation, SCHEMA)
        if files:
            state = table.fill([_segment_of(storage, file) for file in files])
    if state.generation is None:
        raise ArchiveError(f"There is no archive at {storage.where}.")
    for name in storage.names(OLD_FORM)[::-1]:
        storage.remove(f"{OLD_FORM}/{name}")
    erased = {
        i: found.erasure
        for found in Erasures(storage).begun(OLD_LIST)
        if found.generation == state.generation
        for i in found.ids
    }
    if erased:
        erase(storage, erased)
    for name in storage.names(FOLDER):
        if name.endswith(OLD_LIST):
            storage.remove(f"{FOLDER}/{name}")
    return ArchiveTable(storage).refresh()


def _exchange(
    storage: ArchiveStorage, table: ArchiveTable, new: list[Segment], old: list[Segment], *, is_erasing: bool
) -> None:
    """Replace files in one commit. If the commit is refused, the new files are removed."""
    try:
        table.exchange(new, old, is_erasing=is_erasing)
    except CommitConflict:
        for one in new:
            storage.remove(one.file)
        raise


def _groups(segments: list[Segment]) -> Iterator[list[Segment]]:
    """Neighbours that become one file: two or more, without a gap in their ids, up to the largest size."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        is_apart = bool(group) and segment.first != group[-1].last + 1
        if group and (is_apart or size + segment.bytes > MOST_BYTES):
            if len(group) > 1:
                yield group
            group, size = [], 0
        if segment.bytes < SMALL_BYTES:
            group.append(segment)
            size += segment.bytes
    if len(group) > 1:
        yield group


def _written(storage: ArchiveStorage, group: list[Segment], erased: Mapping[int, Erasure]) -> Segment:
    """
    Publish one file with the rows of all these files. It is not used if the number of rows is wrong.

    Raises:
        ArchiveError: A file cannot be read, or has other rows than it should have.
    """

    def fill(writer: SegmentWriter) -> int:
        for old in group:
            try:
                for batch in batches(storage, old, SCHEMA.names, old.first, old.last):
                    arrays = [
                        array.cast(field.type) for array, field in zip(batch.columns, SCHEMA, strict=True)
                    ]
                    writer.add(blanked(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), erased))
            except FileNotFoundError:
                raise ArchiveError(f"{old.file} of the archive {storage.where} is missing.") from None
            except (OSError, pa.ArrowException) as error:
                raise ArchiveError(f"{old.file} of the archive {storage.where}: {error}") from error
        return group[-1].last

    new = publish_segment(storage, group[0].first, fill)
    rows = sum(old.rows for old in group)
    if new.rows != rows:
        raise ArchiveError(
            f"{group[0].file} and the files after it have {new.rows} rows, but should have {rows}."
        )
    return new


def _old_files(storage: ArchiveStorage, entries: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """
    The log's generation, and the entry of the old form for each file that belongs to the archive.

    Raises:
        ArchiveError: An entry is missing or damaged.
    """
    files: dict[str, dict[str, Any]] = {}
    try:
        read = [(name, json.loads(storage.read(f"{OLD_FORM}/{name}") or b"{}")) for name in entries]
        whole = [place for place, (_, entry) in enumerate(read) if "segments" in entry]
        start = whole[-1] if whole else 0
        for (name, entry), (_, later) in pairwise([*read[start:], read[-1]]):
            if later["number"] - entry["number"] not in (0, 1):
                raise ArchiveError(f"The entry after {name} of the archive {storage.where} is missing.")
        if not whole and read[0][1]["number"] != 1:
            raise ArchiveError(f"The first entries of the archive {storage.where} are missing.")
        for _, entry in read[start:]:
            if "segments" in entry:
                files = {file["file"]: file for file in entry["segments"]}
                continue
            for name in entry["removed"]:
                files.pop(name)
            files |= {file["file"]: file for file in entry["added"]}
        return int(read[-1][1]["generation"]), sorted(files.values(), key=lambda file: int(file["first"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"An entry of the archive {storage.where} is damaged: {error!r}.") from error


def _segment_of(storage: ArchiveStorage, said: Mapping[str, Any]) -> Segment:
    """A file of the old form, with the ids of its first and last message."""
    with storage.open(said["file"]) as source:
        ids = pq.ParquetFile(source).read(columns=["offset"]).column("offset")
        size = source.size()
    low, high = (ids[0].as_py(), ids[-1].as_py()) if len(ids) else (said["first"], said["last"])
    return Segment(
        said["file"],
        said["first"],
        said["last"],
        low,
        high,
        said["rows"],
        size,
        said["first_ms"],
        said["last_ms"],
    )
