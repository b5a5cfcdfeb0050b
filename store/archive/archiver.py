"""
From the log to the archive: files with the ids that are not archived yet, in order, once or continuously.

A file is written under a temporary name, synced, linked to its name, and only then committed to the table. Only after
that, the gateway is told that it may trim so far. A crash between two of these steps leaves a file that no commit
names, which a vacuum removes, or a gateway that was not told, which the next run does. Any number of archivers may work
on one archive: if two commit, the second is refused, and continues after what the first committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from store.archive.errors import ArchiveError, ConnectionFailed, DataLoss, LogError, LogUnavailable
from store.archive.segments import SCHEMA, SegmentWriter, publish_segment, with_envelopes
from store.archive.source import ArchivableLog, IdRange, LogWatch
from store.archive.storage import ArchiveStorage
from store.archive.table import ArchiveTable, CommitConflict, Segment

LOOK_SECONDS = 0.2  # between two looks at the end of the log
RETRY_SECONDS = 2.0  # after the gateway was unavailable


@dataclass(frozen=True, slots=True)
class Limits:
    """
    A segment ends at this many rows, at this many bytes of messages, or (following only) when its oldest message has
    waited for this long.
    """

    rows: int = 100_000
    bytes: int = 128 << 20
    age_seconds: float = 60.0


@dataclass
class Archiver:
    """
    Archives a log to a storage.

    ``told`` is called at the start, and after each segment is durable, with the last archived id and the generation. It
    may raise LogError. ``progress`` gets each new segment and the last id of the log; ``warned`` gets sentences.
    """

    log: ArchivableLog
    storage: ArchiveStorage
    limits: Limits = Limits()
    told: Callable[[int, int], None] | None = None
    progress: Callable[[Segment, int], None] = lambda _segment, _last: None
    warned: Callable[[str], None] = lambda _sentence: None
    skip_lost: bool = False

    def __post_init__(self) -> None:
        self.table = ArchiveTable(self.storage)
        self.stopped = threading.Event()
        """Set by any thread, or a signal's handler, to end after the segment that is being written."""
        self._untold = True
        self._ahead: pa.RecordBatch | None = None

    def run(self, *, follow: bool = False) -> None:
        """
        Archive everything there is, and with ``follow`` what comes, until ``stopped`` is set.

        Raises:
            LogError: It failed; while following, only if another try cannot help.
        """
        watch = self.log.watch()
        try:
            self._run(watch, follow)
        finally:
            watch.close()

    def _run(self, watch: LogWatch, follow: bool) -> None:
        waiting_since: float | None = None
        is_new = has_begun = False
        while not self.stopped.is_set():
            try:
                archived = self.table.refresh().last
                extent = watch.extent()
                self._check(extent, archived)
                if self._untold:
                    self._tell()
                rest = replace(extent, first=self._next(extent))
                count = rest.last - rest.first + 1
                if count > 0 and waiting_since is None:
                    waiting_since = time.monotonic()
                has_begun = True
                is_due = waiting_since is not None and (
                    not follow
                    or count >= self.limits.rows
                    or time.monotonic() - waiting_since >= self.limits.age_seconds
                )
                if is_due:
                    waiting_since = None
                    is_new = self._archive(rest, follow)
                if not follow:
                    if self._untold and self.told is not None:
                        raise ArchiveError("The archive is whole, but the gateway was not told; see above.")
                    return
            except CommitConflict:
                continue
            except LogUnavailable as error:
                if not (follow and has_begun):
                    raise  # a wrong place or user, and not a gateway that restarts
                self.warned(error.sentence)
                watch.close()
                self.stopped.wait(RETRY_SECONDS)
            self.stopped.wait(0 if is_new else LOOK_SECONDS)
            is_new = False

    def _check(self, extent: IdRange, archived: int) -> None:
        """``archived`` was read before the log was: another archiver may be ahead of it."""
        assert extent.generation is not None
        # Before anything of the log is read: an erasure that finds no table has no archiver to stop.
        self.table.create(extent.generation, SCHEMA)
        if archived > extent.last:
            raise DataLoss(
                f"The archive has ids up to {archived}, but the log ends at {extent.last}, as if it was restored from "
                "a backup. Archive it to another place."
            )

    def _next(self, extent: IdRange) -> int:
        """The first id to be archived."""
        state = self.table.state
        first = state.last + 1
        if not state.segments or extent.first <= first:
            return max(first, extent.first)
        if not self.skip_lost:
            raise DataLoss(
                f"The log begins at {extent.first}, but the archive ends at {state.last}: the messages in between were "
                "trimmed before they were archived. Use --skip-lost to continue after the gap; keep_until_archived "
                "prevents another gap."
            )
        return extent.first

    def _archive(self, ids: IdRange, follow: bool) -> bool:
        """
        Write segments until the range is finished or a stop is requested. Returns whether there were any rows.

        While following, a read that breaks off is left to the next look, which tells whether anything is lost.
        """
        try:
            return self._write_all(ids)
        except DataLoss as error:
            if not follow:
                raise
            raise ConnectionFailed(error.sentence) from error

    def _write_all(self, ids: IdRange) -> bool:
        erasures = self.table.state.erasures
        batches = self._batches(ids)
        self._ahead = None
        position, found = ids.first, False
        while position <= ids.last and not self.stopped.is_set():
            segment = self._write(batches, position, ids)
            if segment is None:
                break
            try:
                self.table.append(segment, erasures)
            except CommitConflict:
                self.storage.remove(segment.file)
                raise
            found = True
            self.storage.step(f"committed {segment.file}")
            self._untold = True
            self._tell()
            self.storage.step(f"told {segment.last}")
            self.progress(segment, ids.last)
            position = segment.last + 1
        return found

    def _write(self, batches: Iterator[pa.RecordBatch], first: int, ids: IdRange) -> Segment | None:
        """Publish one file with the next rows, without a commit; None if no rows are left."""
        ahead = self._next_batch(batches)
        if ahead is None:
            return None

        def fill(writer: SegmentWriter) -> int:
            nonlocal ahead
            while ahead is not None:
                room = self.limits.rows - writer.rows
                part, rest = ahead.slice(0, room), ahead.slice(room)
                writer.add(part)
                ahead = rest if rest.num_rows else self._next_batch(batches)
                is_full = writer.rows >= self.limits.rows or writer.bytes >= self.limits.bytes
                if is_full and ahead is not None:
                    return writer.high
            return ids.last

        segment = publish_segment(self.storage, first, fill)
        self._ahead = ahead
        return segment

    def _next_batch(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None else next((batch for batch in batches if batch.num_rows), None)

    def _batches(self, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """A range of the log, with all columns and envelopes."""
        for batch, messages in self.log.with_messages(ids):
            yield with_envelopes(batch, messages)

    def _tell(self) -> None:
        """Tell the gateway what is archived. If it cannot be told, archiving continues and trimming waits."""
        state = self.table.state
        if self.told is None or state.generation is None or not state.segments:
            self._untold = False
            return
        self.table.sync()  # the writer of the last commit may have been killed before its sync
        try:
            self.told(state.last, state.generation)
            self._untold = False
        except LogError as error:
            self.warned(error.sentence)
