"""
Many small files to one for each day (UTC), by the time of their first message; and files without what was erased.

The new file is published first; one entry of the manifest then exchanges it for those it replaces, and they are removed
last. So a reader finds each id once at any moment, a crash leaves only files that no entry names, and the next run
removes those. A job that reads the folder without the manifest sees ids twice while this runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa

from store.archive.errors import ArchiveError
from store.archive.manifest import Manifest, Segment, State, segment_name
from store.archive.segment import SCHEMA, SegmentWriter, batches, footer_checksum
from store.archive.storage import ArchiveStorage, Step, no_step

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
