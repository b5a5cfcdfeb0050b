"""
A replay log's archive as the gateway reads it: pages of messages, as from the store, on a small pool of threads.

Every read looks at one row group of one file at most (``store.archive.segments``), and a page is bounded in messages
and bytes, as the store's pages are. If a file was compacted, the file that replaced it is read. If a file that the
table names is missing, or is not what the table says, the read fails, and the archive has a problem until the file can
be read again: nothing is skipped.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import compress, repeat
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import bare_offsets
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.log import ArchivedRun
from gateway.core.model import UNROUTED, Row
from gateway.core.replay.search import PageWork, Search
from store.archive import segments
from store.archive.columns import matching
from store.archive.erasures import ErasedList, Erasure, Erasures
from store.archive.errors import LogError
from store.archive.maintenance import erase
from store.archive.segments import CANNOT_BE_READ, RowGroup, RowGroups
from store.archive.storage import ArchiveStorage, storage_at
from store.archive.table import ArchiveTable, Segment, State
from store.errors import LogTrimmed, ReadFailed, WriteFailed
from store.ports import BegunErasure, LogPage, SearchPage, TallyPage, TopicPage
from store.reading import drain, first_taken

T = TypeVar("T")

THREADS: Final = 2
"""Concurrent reads: if the archive is far away, one waits while the other decodes."""

PAGE_CANDIDATES: Final = 256
"""Candidates that one page of a search turns into messages."""

SEARCHED: Final = ("offset", "topic", "envelope")
TIMED: Final = ("offset", "enqueuedTime")
NAMED: Final = ("offset", "topic")
MEASURED: Final = ("offset", "topic", "body", "envelope", "bodyAt")


def shown(place: str) -> str:
    """A place for people: a URI without anything but host and path."""
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if "://" in place else place


class ArchivedLog:
    """
    The archive of one log at one place; see ``store.ports.Archive``.

    Args:
        place: A folder, or a URI as pyarrow takes it.
        generation: The log's: an archive of another generation is not read.
        page_rows: Messages of a page, at most.
        page_bytes: Content of a page, at most; one message is always let through.
    """

    def __init__(self, place: str, generation: int, *, page_rows: int, page_bytes: int) -> None:
        self.place = shown(place)
        self.run: ArchivedRun | None = None
        self._where = place
        self._generation = generation
        self._page_rows = page_rows
        self._page_bytes = page_bytes
        self._refreshing = threading.Lock()
        self._storage: ArchiveStorage | None = None
        self._table: ArchiveTable | None = None
        self._state = State()
        """The table's state, as last read."""
        self._groups: RowGroups | None = None
        self._unread: str | None = None
        """Why the table could not be read the last time; None if it could."""
        self._broken: dict[str, str] = {}
        """By file, why it could not be read the last time."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="archive")

    @property
    def problem(self) -> str | None:
        run = self.run
        if self._unread is not None:
            return self._unread
        if self._broken:
            return next(iter(list(self._broken.values())), None)
        if run is not None and run.generation not in (None, self._generation):
            return f"it is of generation {run.generation} of the log, but the log has generation {self._generation}"
        return None

    def submit(self, read: Callable[[], T]) -> Future[T]:
        return self._pool.submit(read)

    def drain(self) -> None:
        drain(self._pool, THREADS)

    def close(self) -> None:
        # Reads from far away are not waited for: they change nothing.
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- what there is ----------------------------------------------------------------------------------------

    def look(self) -> ArchivedRun:
        return _run_of(self._refreshed())

    def _refreshed(self) -> State:
        with self._refreshing:
            try:
                if self._table is None:
                    self._storage = storage_at(self._where)
                    self._groups = RowGroups(self._storage)
                    self._table = ArchiveTable(self._storage)
                state = self._table.refresh()
            except (LogError, *CANNOT_BE_READ) as error:
                self._unread = self._told(error)
                raise ReadFailed(f"the archive: {self._unread}") from error
            self._state = state
            self._unread = None
            files = {segment.file for segment in state.segments}
            for name in list(self._broken):
                if name not in files:
                    self._broken.pop(name, None)
            self.run = _run_of(state)
            return state

    def begin_erasure(self, ids: Collection[int], time_ms: int, reason: str) -> BegunErasure:
        with self._erasures() as erasures:
            return _begun(erasures.begin(ids, Erasure(time_ms, reason), self._generation))

    def end_erasure(self, begun: BegunErasure, *, is_done: bool) -> None:
        with self._erasures() as erasures:
            if is_done and self._state.generation in {None, self._generation}:
                assert self._storage is not None and self._groups is not None
                erase(self._storage, dict.fromkeys(begun.ids, Erasure(begun.time_ms, begun.reason)))
                self._groups.forget()
            erasures.end(begun.name)

    def begun_erasures(self) -> list[BegunErasure]:
        try:
            with self._erasures() as erasures:
                return [_begun(found) for found in erasures.begun() if found.generation == self._generation]
        except WriteFailed as error:
            raise ReadFailed(str(error)) from error

    @contextmanager
    def _erasures(self) -> Iterator[Erasures]:
        """
        Raises:
            WriteFailed: The erasures cannot be read or written.
        """
        self._refreshed()
        assert self._storage is not None
        try:
            yield Erasures(self._storage)
        except (LogError, *CANNOT_BE_READ) as error:
            raise WriteFailed(f"the archive: {self._told(error)}") from error

    def _told(self, error: Exception) -> str:
        text = error.sentence if isinstance(error, LogError) else str(error)
        return text.replace(self._where, self.place)

    def _segment_at(self, message_id: int) -> Segment:
        """
        The file that contains an id.

        Raises:
            LogTrimmed: No file does.
        """
        known = self._state
        found = known.at(message_id)
        if found is None:
            known = self._refreshed()
            found = known.at(message_id)
        if found is None or known.generation != self._generation:
            first = known.first_from(message_id)
            raise LogTrimmed(message_id, first if first is not None else known.last + 1)
        return found

    def _read(self, message_id: int, read: Callable[[Segment, RowGroups], T]) -> T:
        """
        Read the file that contains an id; if it was compacted meanwhile, the file that replaced it.

        Raises:
            LogTrimmed: No file contains the id.
            ReadFailed: The file cannot be read.
        """
        segment = self._segment_at(message_id)
        for _ in range(3):
            assert self._groups is not None
            try:
                with self._noted(segment):
                    return read(segment, self._groups)
            except FileNotFoundError as error:
                renewed = self._refreshed().at(message_id)
                if renewed is None or renewed.file == segment.file:
                    raise self._failed(segment, f"{segment.file} is missing") from error
                segment = renewed
        raise self._failed(segment, f"{segment.file} was compacted again during every attempt")

    def _failed(self, segment: Segment, reason: str) -> ReadFailed:
        self._broken[segment.file] = reason
        return ReadFailed(f"the archive: {reason}")

    @contextmanager
    def _noted(self, segment: Segment) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (LogError, CodecError, *CANNOT_BE_READ) as error:
            reason = self._told(error)
            named = reason if segment.file in reason else f"{segment.file}: {reason}"
            raise self._failed(segment, named) from error
        self._broken.pop(segment.file, None)

    # --- pages ------------------------------------------------------------------------------------------------

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        matches = _matcher(patterns)

        def read(segment: Segment, groups: RowGroups) -> LogPage:
            group = groups.at(segment, position)
            table = groups.table(group)
            places = _places(table, position, end, matches)
            chosen = segments.fitting(table, places, self._page_rows, self._page_bytes)
            rows = _rows(table, chosen) if chosen else []
            if len(chosen) < len(places):
                return LogPage(rows, rows[-1][0] + 1)
            return LogPage(rows, min(end, group.stop))

        return self._read(position, read)

    def search_page(self, search: Search, position: int, end: int) -> SearchPage:
        matches = search.matches or (lambda topic: True)

        def read(segment: Segment, groups: RowGroups) -> SearchPage:
            group = groups.at(segment, position)
            table = groups.table(group, SEARCHED)
            places = _places(table, position, end, matches)
            if search.needles and places:
                # Everything that a search compares comes before the body.
                found = table.column("envelope").to_pylist()
                places = [p for p in places if any(needle in found[p] for needle in search.needles)]
            if not places:
                return SearchPage(None, min(end, group.stop))
            return self._search(search, groups.table(group), group, places, end)

        return self._read(position, read)

    def _search(
        self, search: Search, table: Any, group: RowGroup, places: Sequence[int], end: int
    ) -> SearchPage:
        work = PageWork()
        looked_at = segments.fitting(table, places, PAGE_CANDIDATES, self._page_bytes)
        page = first_taken(_rows(table, looked_at), search, work)
        if page is not None:
            return page
        if len(looked_at) < len(places):
            return SearchPage(None, segments.id_at(table, places[len(looked_at)]), work.unknown)
        return SearchPage(None, min(end, group.stop), work.unknown)

    def tally(self, position: int, end: int) -> TallyPage:
        def read(segment: Segment, groups: RowGroups) -> TallyPage:
            group = groups.at(segment, position)
            table = groups.table(group, MEASURED)
            places = segments.places_between(table, position, end)
            found = segments.tally_of(table.slice(places.start, len(places))) if places else []
            return TallyPage(found, min(end, group.stop))

        return self._read(position, read)

    def messages(self, ids: Sequence[int]) -> list[Row]:
        found: list[Row] = []
        rest = list(ids)
        size_bytes = 0
        while rest and len(found) < self._page_rows:
            rows, passed = self._read(rest[0], self._messages_of(rest))
            if found and size_bytes + sum(len(row[-1]) for row in rows) > self._page_bytes:
                break
            found += rows
            size_bytes += sum(len(row[-1]) for row in rows)
            rest = [i for i in rest if i >= passed]
        return found[: self._page_rows]

    def _messages_of(self, ids: Sequence[int]) -> Callable[[Segment, RowGroups], tuple[list[Row], int]]:
        """Reads the messages with some ids from one row group. Gives them, and the id below which it has looked."""

        def read(segment: Segment, groups: RowGroups) -> tuple[list[Row], int]:
            group = groups.at(segment, ids[0])
            table = groups.table(group)
            places = segments.places_of(table, [i for i in ids if i < group.stop])
            chosen = segments.fitting(table, places, self._page_rows, self._page_bytes)
            rows = _rows(table, chosen) if chosen else []
            return rows, rows[-1][0] + 1 if len(chosen) < len(places) else group.stop

        return read

    # --- probes -----------------------------------------------------------------------------------------------

    def first_since(self, time_ms: int) -> int | None:
        run = self.run
        if run is None or run.generation != self._generation:
            return None
        position = run.first_id

        def read(segment: Segment, groups: RowGroups) -> int | None:
            group = groups.since(segment, time_ms)
            if group is None:
                return None
            table = groups.table(group, TIMED)
            return segments.id_at(table, segments.place_since(table, time_ms))

        while True:
            segment = next(
                (one for one in self._state.segments if one.last >= position and one.last_ms >= time_ms), None
            )
            if segment is None:
                return None
            found = self._read(segment.first, read)
            if found is not None:
                return found
            position = segment.last + 1

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        self._refreshed()
        segments, last = self._state.segments, self._state.last
        ends = [segment.last_ms for segment in segments]
        return [_position_since(segments, ends, time_ms, last) for time_ms in times_ms]

    def time_of(self, message_id: int) -> int | None:
        def read(segment: Segment, groups: RowGroups) -> int | None:
            table = groups.table(groups.at(segment, message_id), TIMED)
            places = segments.places_of(table, [message_id])
            return segments.time_ms_at(table, places[0]) if places else None

        try:
            return self._read(message_id, read)
        except LogTrimmed:
            return None

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        matches = _matcher(patterns)

        def read(segment: Segment, groups: RowGroups) -> TopicPage:
            group = groups.before(segment, before)
            table = groups.table(group, NAMED)
            places = _places(table, max(first, group.first), before, matches)
            return TopicPage(segments.topics_at(table, places[::-1]), max(first, group.first))

        return self._read(before - 1, read)

    def last_page(self, matches: Callable[[str], bool] | None, before: int) -> tuple[int | None, int]:
        wanted = matches or (lambda topic: True)

        def read(segment: Segment, groups: RowGroups) -> tuple[int | None, int]:
            group = groups.before(segment, before)
            table = groups.table(group, NAMED)
            places = _places(table, group.first, before, wanted)
            return (segments.id_at(table, places[-1]), group.first) if places else (None, group.first)

        return self._read(before - 1, read)


def _position_since(segments: Sequence[Segment], ends: Sequence[int], time_ms: int, last: int) -> int:
    """The position of a time, if ids are spread evenly within a file; ``ends`` are the files' last times."""
    at = bisect_left(ends, time_ms)
    if at == len(segments):
        return last + 1
    segment = segments[at]
    length_ms, passed_ms = segment.last_ms - segment.first_ms + 1, time_ms - segment.first_ms
    if passed_ms <= 0:
        return segment.first
    return segment.first + (segment.last - segment.first) * passed_ms // length_ms


def _begun(found: ErasedList) -> BegunErasure:
    return BegunErasure(found.name, *found.erasure, found.ids)


def _run_of(state: State) -> ArchivedRun:
    """The files without a gap up to the end of the archive."""
    segments = state.segments
    if not segments:
        return ArchivedRun(None, 1, 0, 0)
    start = len(segments) - 1
    while start and segments[start - 1].last + 1 == segments[start].first:
        start -= 1
    before = segments[start - 1].last if start else 0
    return ArchivedRun(state.generation, segments[start].first, state.last, segments[start].first_ms, before)


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    if not patterns or ">" in patterns:
        return None
    # Exceptions are left to the caller: what one subscription excludes, another may attract.
    parsed = [pattern for pattern in map(TopicPattern.parse, patterns) if not pattern.is_exception]
    return TopicFilter(parsed).matches if parsed else None


def _places(table: Any, position: int, end: int, matches: Callable[[str], bool] | None) -> Sequence[int]:
    """The rows with ids from ``position`` on, below ``end``, and topics that match."""
    places = segments.places_between(table, position, end)
    if matches is None or not places:
        return places
    topics = table.column("topic").slice(places.start, len(places)).combine_chunks()
    return list(compress(places, matching(topics, matches).to_pylist()))


def _rows(table: Any, places: Sequence[int]) -> list[Row]:
    """Messages as the log had them, except for the routes, which are of no use any more."""
    ids, times_ms, topics, contents = segments.messages_at(table, places)
    offsets = bare_offsets(contents)
    return list(zip(ids, times_ms, topics, offsets, repeat(UNROUTED), repeat(None), contents))
