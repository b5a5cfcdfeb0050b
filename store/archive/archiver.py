"""
From the log to the archive: segments of the ids that are not in it yet, in order, once or on and on; and compaction,
which makes of many small files one for each day (UTC), by the time of their first message, and files without what was
erased.

A segment is written beside its name, synced, renamed, and only then named in the manifest; only then is the gateway
told that so much may be trimmed. A crash between any two of these steps leaves a file that no entry names, or a
gateway that knows too little; the next run removes the one and tells the other again.

In a compaction the new file is published first; one entry of the manifest then exchanges it for those it replaces,
and they are removed last. So a reader finds each id once at any moment, a crash leaves only files that no entry
names, and the next run removes those. A job that reads the folder without the manifest sees ids twice while this
runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from store.archive.errors import ArchiveError, ConnectionFailed, DataLoss, LogError, LogUnavailable
from store.archive.manifest import Manifest, Segment, State, segment_name
from store.archive.segments import SCHEMA, SegmentWriter, batches, footer_checksum, with_envelopes
from store.archive.source import ArchivableLog, IdRange, LogWatch
from store.archive.storage import ArchiveStorage, Step, no_step

LOOK_SECONDS = 0.2  # between two looks at the end of the log
RETRY_SECONDS = 2.0  # after the gateway was away


@dataclass(frozen=True, slots=True)
class Limits:
    """
    When a segment ends: at so many rows, at so many bytes of messages, or when its oldest message has waited
    so long (following only).
    """

    rows: int = 100_000
    bytes: int = 128 << 20
    age_seconds: float = 60.0


@dataclass
class Archiver:
    """
    Archives a log to a storage.

    ``told`` is called with the last archived id and the generation after each segment is durable, and at the start;
    it may raise LogError. ``progress`` gets each new segment and the last id of the log; ``warned`` sentences.
    """

    log: ArchivableLog
    storage: ArchiveStorage
    limits: Limits = Limits()
    told: Callable[[int, int], None] | None = None
    progress: Callable[[Segment, int], None] = lambda _segment, _last: None
    warned: Callable[[str], None] = lambda _sentence: None
    step: Step = no_step
    skip_lost: bool = False

    def __post_init__(self) -> None:
        self.manifest = Manifest(self.storage)
        self.stopped = threading.Event()
        """Set by any thread, or a signal's handler, to end after the segment that is being written."""
        self._untold = True
        self._ahead: pa.RecordBatch | None = None

    def run(self, *, follow: bool = False) -> None:
        """
        Archive all there is, and with ``follow`` what comes, until ``stop``.

        Raises:
            LogError: It failed; while following, only for what another try cannot mend.
        """
        with self.storage.lock("archiver"):
            self.manifest.refresh()
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
                extent = watch.extent()
                self._check(extent)
                if not has_begun:
                    self._clear(extent)
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
                    is_new = self._archive(rest, follow)
                    waiting_since = None
                if not follow:
                    if self._untold and self.told is not None:
                        raise ArchiveError("The archive is whole, but the gateway was not told; see above.")
                    return
            except LogUnavailable as error:
                if not (follow and has_begun):
                    raise  # a wrong place or user, rather than a gateway that restarts
                self.warned(error.sentence)
                watch.close()
                self.stopped.wait(RETRY_SECONDS)
            self.stopped.wait(0 if is_new else LOOK_SECONDS)
            is_new = False

    def _check(self, extent: IdRange) -> None:
        state = self.manifest.state
        if state.generation not in {None, extent.generation}:
            raise DataLoss(
                f"The archive is of generation {state.generation} of the log, and this one is {extent.generation}: "
                "the log was made anew since. Archive it to another place."
            )
        if state.last > extent.last:
            raise DataLoss(
                f"The archive has ids up to {state.last}, and the log ends at {extent.last}, as one restored from a "
                "backup would. Archive it to another place."
            )

    def _clear(self, extent: IdRange) -> None:
        """
        Remove what a killed run left behind the end of the archive.

        Raises:
            ArchiveError: A file has ids that the log no longer has: then it is the manifest that is not whole, and the
                file may be the only copy.
        """
        last = self.manifest.state.last
        for name in self.manifest.strays(lambda first: first > last):
            if int(name[:20]) < extent.first:
                raise ArchiveError(
                    f"The manifest of the archive {self.storage.where} does not name {name}, and the log begins at "
                    f"{extent.first}, behind it. Put the manifest back as it was, or archive to another place."
                )
            self.storage.remove(name)

    def _next(self, extent: IdRange) -> int:
        """The first id to be archived."""
        state = self.manifest.state
        first = state.last + 1
        if not state.segments or extent.first <= first:
            return max(first, extent.first)
        if not self.skip_lost:
            raise DataLoss(
                f"The log begins at {extent.first}, and the archive ends at {state.last}: what lies between was "
                "trimmed before it was archived. Say --skip-lost to go on behind the gap; keep_until_archived "
                "prevents another."
            )
        return extent.first

    def _archive(self, ids: IdRange, follow: bool) -> bool:
        """
        Write segments until the range is done or a stop is wanted; whether there were any rows.

        Following, a read that breaks off is one for the next look, which tells whether anything is lost.
        """
        try:
            return self._write_all(ids)
        except DataLoss as error:
            if not follow:
                raise
            raise ConnectionFailed(error.sentence) from error

    def _write_all(self, ids: IdRange) -> bool:
        batches = self._batches(ids)
        self._ahead = None
        position, found = ids.first, False
        while position <= ids.last and not self.stopped.is_set():
            segment = self._write(batches, position, ids)
            if segment is None:
                break
            found = True
            assert ids.generation is not None
            self.manifest.exchange([segment], [], ids.generation)
            self.step(f"named {segment.file}")
            self._untold = True
            self._tell()
            self.step(f"told {segment.last}")
            self.progress(segment, ids.last)
            position = segment.last + 1
        return found

    def _write(self, batches: Iterator[pa.RecordBatch], first: int, ids: IdRange) -> Segment | None:
        """One segment of what comes next, published but not in the manifest; None when no rows are left."""
        ahead = self._next_batch(batches)
        if ahead is None:
            return None
        name = segment_name(first, self.manifest.state.number + 1)
        writers: list[SegmentWriter] = []
        last = ids.last

        def write(stream: Any) -> None:
            nonlocal ahead, last
            writer = SegmentWriter(stream)
            writers.append(writer)
            while ahead is not None:
                room = self.limits.rows - writer.rows
                part, rest = ahead.slice(0, room), ahead.slice(room)
                writer.add(part)
                ahead = rest if rest.num_rows else self._next_batch(batches)
                if ahead is not None and (
                    writer.rows >= self.limits.rows or writer.bytes >= self.limits.bytes
                ):
                    last = part.column("offset")[-1].as_py()
                    break
            writer.close()

        self.storage.publish(name, write)
        self._ahead = ahead
        (writer,) = writers
        return Segment(
            name,
            first,
            last,
            writer.rows,
            writer.bytes,
            writer.first_ms,
            writer.last_ms,
            footer_checksum(self.storage, name),
        )

    def _next_batch(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None else next((batch for batch in batches if batch.num_rows), None)

    def _batches(self, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """All columns and the envelopes of a range of the log."""
        for batch, messages in self.log.with_messages(ids):
            yield with_envelopes(batch, messages)

    def _tell(self) -> None:
        """Tell the gateway what is archived; if it cannot be told, archiving goes on and trimming waits."""
        state = self.manifest.state
        if self.told is None or state.generation is None:
            self._untold = False
            return
        try:
            self.told(state.last, state.generation)
            self._untold = False
        except LogError as error:
            self.warned(error.sentence)


DAY_MS = 86_400_000
MOST_BYTES = (
    1 << 30
)  # of messages in a file: a day of heavy traffic becomes several, so that readers can share it


def compact(
    storage: ArchiveStorage,
    progress: Callable[[Segment, int], None] = lambda _segment, _count: None,
    *,
    is_all: bool = False,
    now_ms: int | None = None,
    step: Step = no_step,
) -> State:
    """
    Compact every day that is over, or with ``is_all`` today, too. Safe beside an archiver on a local folder.

    ``progress`` gets each new file and how many it replaced.

    Raises:
        ArchiveError: The archive cannot be read or written, or is not whole.
    """
    with storage.lock("compactor"):
        manifest = Manifest(storage)
        manifest.refresh()
        _sweep(storage, manifest)
        state = _without_erased(storage, manifest, progress, step)
        today = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) // DAY_MS
        for day, found in groupby(state.segments, lambda segment: segment.first_ms // DAY_MS):
            if day >= today and not is_all:
                continue
            for group in _groups(list(found)):
                _exchange(storage, manifest, group, progress, step)
        manifest.prune()
        return manifest.state


def _without_erased(
    storage: ArchiveStorage, manifest: Manifest, progress: Callable[[Segment, int], None], step: Step
) -> State:
    """Write every file anew that may have the content of an erased message; the lists of these go last."""
    erasures, state = manifest.erasures, manifest.state
    known = {
        name: ids for name, (generation, ids) in erasures.lists().items() if generation == state.generation
    }
    wanted = sorted({i for ids in known.values() for i in ids})
    for old in state.segments:
        if any(old.first <= i <= old.last for i in wanted):
            _exchange(storage, manifest, [old], progress, step)
    state = manifest.state
    for name, ids in known.items():
        if max(ids, default=0) <= state.last:
            erasures.remove(name)
            step(f"removed {name}")
    return state


def _exchange(
    storage: ArchiveStorage,
    manifest: Manifest,
    group: list[Segment],
    progress: Callable[[Segment, int], None],
    step: Step,
) -> None:
    """One new file in the place of some."""
    new = _merged(storage, manifest, group)
    generation = manifest.state.generation
    assert generation is not None
    manifest.exchange([new], [old.file for old in group], generation)
    step(f"exchanged {new.file}")
    for old in group:
        storage.remove(old.file)
        step(f"removed {old.file}")
    progress(new, len(group))


def _sweep(storage: ArchiveStorage, manifest: Manifest) -> None:
    """
    Remove what a killed run left.

    Raises:
        ArchiveError: A file is missing: what looks left over may replace it.
    """
    missing = {segment.file for segment in manifest.state.segments} - set(storage.names())
    if missing:
        raise ArchiveError(f"{min(missing)} of the archive {storage.where} is missing.")
    last = manifest.state.last  # of before the listing: what the archiver is writing lies behind it
    for name in manifest.strays(lambda first: first <= last):
        storage.remove(name)


def _groups(segments: list[Segment]) -> Iterator[list[Segment]]:
    """Neighbours that make one file: two or more, without a gap in their ids, up to the bound of bytes."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and (segment.first != group[-1].last + 1 or size + segment.bytes > MOST_BYTES):
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(segment)
        size += segment.bytes
    if len(group) > 1:
        yield group


def _merged(storage: ArchiveStorage, manifest: Manifest, group: list[Segment]) -> Segment:
    """One published file with the rows of all, counted: what is short is not put in their place."""
    name = segment_name(group[0].first, manifest.refresh().number + 1)
    writers: list[SegmentWriter] = []

    def write(stream: Any) -> None:
        writer = SegmentWriter(stream)
        writers.append(writer)
        for old in group:
            for batch in batches(storage, old, SCHEMA.names, old.first, old.last, manifest.erasures):
                arrays = [array.cast(field.type) for array, field in zip(batch.columns, SCHEMA, strict=True)]
                writer.add(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        writer.close()

    storage.publish(name, write)
    (writer,) = writers
    rows = sum(old.rows for old in group)
    if writer.rows != rows:
        raise ArchiveError(
            f"{group[0].file} and those behind it have {writer.rows} rows, and should have {rows}."
        )
    return Segment(
        name,
        group[0].first,
        group[-1].last,
        rows,
        writer.bytes,
        group[0].first_ms,
        group[-1].last_ms,
        footer_checksum(storage, name),
    )
