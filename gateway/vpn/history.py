"""
The history of a Message VPN: the replay log, and before its beginning the log's archive, read as one.

A reader names a position and gets the messages there; ``LogHistory`` decides at each read whether the store or the
archive has them. Invariant: no gap and no duplicate where the two meet, whatever is trimmed, archived or compacted
meanwhile. An id is looked for in the store while the log has it, and in the archive when the log turns out to have
dropped it. If neither has it, the read fails.

The archive has threads of its own, and users take turns at them, a page each: a slow archive does not delay reads of
the store. Without an archive every read is one of the store.

``LogSource`` reads the history in the order of ids: from the message cache if that reaches back far enough, otherwise
in pages, one page ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from gateway.core.broker import Broker
from gateway.core.erasing import with_markers
from gateway.core.message_cache import MessageCache
from gateway.core.model import CONTENT, CONTENT_OF, HELD, ID, Columns, Row
from gateway.core.replay.search import Search
from gateway.core.replay.starts import LogProbe
from gateway.vpn.runtime import ArchiveReads, Runtime, keep
from gateway.vpn.turns import ADMINISTRATION, UserTurns
from store.errors import LogTrimmed, ReadFailed
from store.ports import Archive, LogPage, Reader, SearchPage, TallyPage, TopicPage

T = TypeVar("T")

TimedPage: TypeAlias = "tuple[LogPage, float]"
"""A page, and the processor time that it took, in seconds."""

PAGES_AT_ONCE: Final = 2
"""Reads of the archive at a time: as many as it has threads."""

LOOK_SECONDS: Final = 1.0
"""How long the known extent of the archive is used before the archive is asked again."""


class HeldMessages(NamedTuple):
    """The messages of an endpoint that a replay does not put there."""

    routes: Callable[[], Sequence[int]]
    """Numbers of the routes that lead them to the endpoint."""
    has: Callable[[Row], bool]
    """Whether a message is one of them."""


class LogHistory:
    """
    Args:
        broker: Knows where ids are stored, what is trimmed or about to be, and what retention rules removed; it learns
            from this class what the archive has.
        cache: The newest messages.
        archive: None if the log has none; closed by ``close``.
    """

    def __init__(
        self, broker: Broker, cache: MessageCache, store: Reader, archive: Archive | None, runtime: Runtime
    ) -> None:
        self.left = broker.retention.left
        """Filters rows that were read: those that the log still has, and those that were never logged, remain."""
        self.taken_from = broker.retention.taken_from
        """What retention rules removed from the topics of some subscriptions."""
        self.archive_reads = ArchiveReads()
        """Counts of the reads of the archive since the start."""
        self.cache = cache
        self.runtime = runtime
        self.archive = archive
        """The log's archive, where it has one."""
        self._history = broker.history
        self._trimming = broker.trimming
        self._store = store
        self._turns = UserTurns(PAGES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked: float | None = None
        self._history.has_archive = archive is not None

    @property
    def first_id(self) -> int:
        """The oldest id that may be read."""
        return self._history.first_id

    def _is_stored(self, message_id: int) -> bool:
        """Whether the log itself may still have an id."""
        return message_id >= max(self._history.log.first_id, self._trimming.below)

    async def drained(self) -> None:
        """Wait until all reads that are under way now have given their callers the result."""
        reading = list(self._tasks)
        archive, executor = self.archive, self.runtime.loop.run_in_executor
        await executor(None, self._store.drain)
        if archive is not None:
            await executor(None, archive.drain)
        if reading:
            await asyncio.wait(reading)

    def close(self) -> None:
        """Read no more."""
        for task in list(self._tasks):
            task.cancel()
        if self.archive is not None:
            self.archive.close()

    # --- pages ------------------------------------------------------------------------------------------------

    def page(
        self,
        position: int,
        end: int,
        patterns: Sequence[str],
        user: str = ADMINISTRATION,
        held: HeldMessages | None = None,
    ) -> Future[TimedPage]:
        """
        Messages from ``position`` on, below ``end``; as ``Reader.log_page``.

        Args:
            user: The user whose turn at the archive it takes.
            held: Include what only an endpoint holds: of all topics in the store, of the endpoint's routes before the
                beginning of the log.

        Raises, by the future:
            LogTrimmed: Neither log nor archive has what comes next.
            ReadFailed: It cannot be read.
        """
        archive = self.archive
        stored = partial(self._store.log_page, position, end, patterns, held=held is not None)
        if archive is None:
            return self.timed(stored)
        archived = partial(self._timed, partial(archive.log_page, position, end, patterns))
        return self._begun(partial(self._page, partial(self._timed, stored), archived, position, user, held))

    def timed(self, read: Callable[[], LogPage]) -> Future[TimedPage]:
        """A page that is read on a thread of the store, and how long that took."""
        return self._store.submit(partial(self._timed, read))

    def _timed(self, read: Callable[[], LogPage]) -> TimedPage:
        processor_seconds = self.runtime.clock.processor_seconds
        started = processor_seconds()
        page = read()
        return page, processor_seconds() - started

    async def _page(
        self,
        stored: Callable[[], TimedPage],
        archived: Callable[[], TimedPage],
        position: int,
        user: str,
        held: HeldMessages | None,
    ) -> TimedPage:
        store = self._store
        if self._is_stored(position):
            try:
                return await off_loop(store, stored)
            except LogTrimmed:
                pass  # It was trimmed: the archive has it, or it is lost.
        page, taken = await self._from_archive(position, archived, user)
        self.archive_reads.messages += len(page.rows)
        if held is not None:
            found = await off_loop(store, store.routed_page, held.routes(), position - 1, page.position)
            page = _with_held(page, filter(held.has, found.rows), min(page.position, found.position))
        return page, taken

    async def _from_archive(self, position: int, read: Callable[[], T], user: str = ADMINISTRATION) -> T:
        archive = self.archive
        assert archive is not None
        try:
            async with self._turns.turn(user):
                return await self._read(archive, read)
        except LogTrimmed:
            raise LogTrimmed(position, self._history.log.first_id) from None
        finally:
            self._history.archived = archive.run

    async def _read(self, archive: Archive, read: Callable[[], T]) -> T:
        """One read of the archive; the caller has a turn, and the archive has a thread for each turn."""
        reads, seconds = self.archive_reads, self.runtime.clock.seconds
        started = seconds()
        try:
            return await off_loop(archive, read)
        except ReadFailed:
            reads.failures += 1
            raise
        finally:
            reads.seconds.add(seconds() - started)

    def messages(self, ids: Sequence[int]) -> Future[list[Row]]:
        """These messages (rising ids), as ``Reader.messages``, including those that only the archive has."""
        if self.archive is None:
            return self._store.submit(partial(self._store.messages, ids))
        return self._begun(partial(self._messages, ids, self.archive))

    async def all_messages(self, ids: Sequence[int]) -> list[Row]:
        """The same, however many pages that takes."""
        found: list[Row] = []
        while ids and (page := await asyncio.wrap_future(self.messages(ids))):
            found += page
            ids = [i for i in ids if i > page[-1][ID]]
        return found

    async def _messages(self, ids: Sequence[int], archive: Archive) -> list[Row]:
        rows = await off_loop(self._store, self._store.messages, ids)
        there = {row[ID] for row in rows}
        # The store may have left out messages after the last one, as the page was full.
        last = rows[-1][ID] if rows else ids[-1]
        missing = [i for i in ids if i <= last and not self._is_stored(i) and i not in there]
        if not missing:
            return rows
        try:
            found = await self._from_archive(missing[0], partial(archive.messages, missing))
        except LogTrimmed as trimmed:
            # The feed that has to deliver it tries again.
            raise ReadFailed(
                f"message {missing[0]} is neither in the log nor in the archive: {trimmed}"
            ) from None
        self.archive_reads.messages += len(found)
        if len(found) < len(missing) and found:
            last = min(last, found[-1][ID])
        return sorted((row for row in [*rows, *found] if row[ID] <= last), key=lambda row: row[ID])

    async def search_page(
        self, search: Search, patterns: Sequence[str], position: int, end: int, user: str
    ) -> SearchPage:
        """
        Look for a message from ``position`` on, below ``end``; as ``Reader.search_page``.

        Raises:
            LogTrimmed: Neither log nor archive has what comes next.
            ReadFailed: It cannot be read.
        """
        store, archive = self._store, self.archive
        if archive is None or self._is_stored(position):
            page = await off_loop(store, store.search_page, search, patterns, position, end)
            if archive is None or self._is_stored(position):
                return page
            # Some messages may have been trimmed before they were looked at.
        return await self._from_archive(position, partial(archive.search_page, search, position, end), user)

    async def topics_below(
        self, before: int, first: int, patterns: Sequence[str], user: str = ADMINISTRATION
    ) -> TopicPage:
        """
        Logged messages below ``before``, down to ``first``, the newest first; as ``Reader.topics_below``.

        Raises:
            LogTrimmed: Neither log nor archive has anything below ``before``.
            ReadFailed: It cannot be read.
        """
        store, archive = self._store, self.archive
        if archive is None or self._is_stored(before - 1):
            try:
                return await off_loop(store, store.topics_below, before, first, patterns)
            except LogTrimmed:
                if archive is None:
                    raise
        return await self._from_archive(
            before - 1, partial(archive.topics_below, before, first, patterns), user
        )

    async def tally(self, position: int, end: int, patterns: Sequence[str]) -> TallyPage:
        """
        Count the messages from ``position`` on, below ``end``.

        Args:
            patterns: Topics of interest; others may be counted, too.

        Raises:
            LogTrimmed: Neither log nor archive has what comes next.
            ReadFailed: It cannot be read.
        """
        store, archive = self._store, self.archive
        if archive is None or self._is_stored(position):
            found = await off_loop(store, store.tally, position, end, patterns)
            if archive is None or self._is_stored(position):
                return TallyPage(found, end)
        return await self._from_archive(position, partial(archive.tally, position, end))

    async def archived(self, ids: Sequence[int]) -> set[int]:
        """
        Which of some messages (rising ids) the archive has; none of those before a gap in the archive.

        Raises:
            ReadFailed: It cannot be read.
        """
        archive = self.archive
        found: set[int] = set()
        if archive is None or not ids:
            return found
        await self.look()
        rest = [i for i in ids if self._history.is_archived(i)]
        while rest:
            read = partial(archive.topics_below, rest[-1] + 1, rest[0], ())
            try:
                page = await self._from_archive(rest[-1], read)
            except LogTrimmed:
                break  # The archive was replaced by another one.
            found.update(i for i, _ in page.found)
            rest = [i for i in rest if i < page.position]
        return found.intersection(ids)

    # --- where things are -------------------------------------------------------------------------------------

    async def look(self, user: str = ADMINISTRATION, *, anew: bool = False) -> None:
        """
        Ask the archive which ids it has, unless the known answer is recent and the archive reaches to the log.

        Raises:
            ReadFailed: It cannot be read: until it can, nothing of it is part of the history.
        """
        archive = self.archive
        if archive is None:
            return
        now = self.runtime.clock.seconds()
        is_recent = self._looked is not None and now - self._looked < LOOK_SECONDS
        if is_recent and self._history.joined and not anew:
            return
        try:
            async with self._turns.turn(user):
                self._history.archived = await self._read(archive, archive.look)
        except ReadFailed:
            self._history.archived = None
            raise
        self._looked = now

    async def ask(
        self,
        question: Callable[[LogProbe], T],
        matches: Callable[[str], bool] | None,
        user: str,
        *,
        last: bool,
    ) -> T:
        """
        Answer a question from log and archive together.

        Args:
            matches: The topics of the last message that the question needs; None for all.
            last: Whether it needs the last message.
        """
        archive, store = self.archive, self._store
        assert archive is not None
        found = await self.last_matching(matches, user) if last else None
        probe: LogProbe = HistoryProbe(archive, store, found)
        return await self._from_archive(self._history.first_id, partial(question, probe), user)

    async def last_matching(self, matches: Callable[[str], bool] | None, user: str) -> int | None:
        """
        The last message whose topic matches: in the log, or else in the newest file that has one.

        Raises:
            LogTrimmed, ReadFailed: The archive cannot be read.
        """
        store, history, archive = self._store, self._history, self.archive
        found = await off_loop(store, store.last_matching, matches)
        if archive is None or (found is not None and found >= history.log.first_id):
            return found
        # The store has dropped no id from this one on.
        below = max(history.log.first_id, self._trimming.below)
        if archive.run is None or archive.run.last_id + 1 < below:
            await self.look(user, anew=True)
        run = archive.run
        before, first = min(below, run.last_id + 1) if run is not None else 0, history.first_id
        while before > first:
            looked = partial(archive.last_page, matches, before)
            found, before = await self._from_archive(before, looked, user)
            if found is not None:
                return found
        return None

    async def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """
        The positions of times: for each, the lowest id from which on all messages arrived then or later. Exact in the
        log; in the archive, times are taken to be spread evenly within a file. Raises as ``last_matching``.
        """
        store, archive, first_id = self._store, self.archive, self._history.first_id
        # Time 0 gives the store's own first id: the one known here may be older.
        stored_from, *stored = await off_loop(store, store.positions_since, [0, *times_ms])
        early = [time_ms for time_ms, found in zip(times_ms, stored, strict=True) if found <= stored_from]
        if archive is None or first_id >= stored_from or not early:
            return stored
        archived = await self._from_archive(first_id, partial(archive.positions_since, early))
        return [min(max(found, first_id), stored_from) for found in archived] + stored[len(early) :]

    async def time_of(self, message_id: int, user: str) -> int | None:
        """When a message arrived, if log or archive has it; raises as ``last_matching``."""
        store, archive = self._store, self.archive
        found = await off_loop(store, store.time_of, message_id)
        if found is not None or archive is None or self._is_stored(message_id):
            return found
        return await self._from_archive(message_id, partial(archive.time_of, message_id), user)

    # --- futures that are tasks -------------------------------------------------------------------------------

    def _begun(self, reading: Callable[[], Awaitable[T]]) -> Future[T]:
        """Begin a read of several steps; returns a future like that of a read of the store."""
        done: Future[T] = Future()
        task = keep(self.runtime.loop.create_task(_fulfil(done, reading)), self._tasks)
        # A caller that cancels the future also cancels the wait for a turn.
        done.add_done_callback(lambda future: task.cancel() if future.cancelled() else None)
        return done


def finished(result: T) -> Future[T]:
    """A finished future, for what need not be read."""
    done: Future[T] = Future()
    done.set_result(result)
    return done


async def _fulfil(done: Future[T], reading: Callable[[], Awaitable[T]]) -> None:
    try:
        found = await reading()
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:
        if not done.cancelled():
            done.set_exception(error)
    else:
        if not done.cancelled():
            done.set_result(found)


def _with_held(page: LogPage, held: Iterable[Row], stop: int) -> LogPage:
    """A page of the archive up to ``stop``, in which an endpoint's own messages replace those of the archive."""
    own = {row[ID]: row for row in held if row[ID] < stop}
    rows = [row for row in page.rows if row[ID] < stop and row[ID] not in own]
    return LogPage(sorted([*rows, *own.values()], key=lambda row: row[ID]) if own else rows, stop)


@dataclass(frozen=True, slots=True)
class HistoryProbe:
    """Answers questions to log and archive on a thread of the archive (``LogProbe``)."""

    archive: Archive
    store: Reader
    last: int | None
    """The last message on the requested topics, which was found before."""

    def first_since(self, time_ms: int) -> int | None:
        stored = self.store.submit(partial(self.store.first_since, time_ms)).result()
        # After the store: the archive now has what the store had dropped already.
        self.archive.look()
        found = [stored, self.archive.first_since(time_ms)]
        return min((i for i in found if i is not None), default=None)

    def time_of(self, message_id: int) -> int | None:
        found = self.store.submit(partial(self.store.time_of, message_id)).result()
        return self.archive.time_of(message_id) if found is None else found

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        return self.last


def off_loop(reader: Reader | Archive, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Run something on one of the reader threads of the store or the archive; await the result on the loop."""
    return asyncio.wrap_future(reader.submit(partial(work, *args)))


class LogSource:
    """
    A cursor that never skips: what ``read`` returns covers every id from ``position`` to the position it names.

    Args:
        patterns: Topics of interest; rows of others may be included. Empty: all.
        wake: Called on the loop when a page that ``read`` had to wait for is there, with the error if it could not
            be read.
        user: Who reads.
        held: Include what only an endpoint holds (``LogHistory.page``).
    """

    def __init__(
        self,
        history: LogHistory,
        position: int,
        patterns: Sequence[str],
        wake: Callable[[BaseException | None], None],
        *,
        user: str = ADMINISTRATION,
        held: HeldMessages | None = None,
    ) -> None:
        self._user = user
        self._held = held
        self.log_from = 0
        """It needs nothing that the log itself has below this id."""
        self.position = position
        self._columns: Columns | None = None
        """The columns of the page that ``read`` last returned a part of."""
        self._given = 0, 0
        self._cache = history.cache
        self._history = history
        self._patterns = patterns
        self._wake: Callable[[BaseException | None], None] | None = wake
        self._page: LogPage | None = None
        self._index = 0
        self._page_bytes = 0
        """The size of the contents of the last page that came."""
        self._next: Future[TimedPage] | None = None
        self._read_seconds = 0.0
        self._waits = False

    @property
    def columns(self) -> Columns | None:
        """The columns of what ``read`` last returned; None if it came without. The caller may change them."""
        return None if self._columns is None else self._columns.part(*self._given)

    @property
    def is_at_end(self) -> bool:
        """Every committed message was taken."""
        return self.position >= self._cache.next_id

    def is_behind(self, rows: int) -> bool:
        """Whether the next message is no longer in memory, or more than ``rows`` before the newest."""
        cache = self._cache
        return (
            self._page is not None
            or self.position < max(cache.first_id, self.log_from)
            or cache.next_id - self.position > rows
        )

    def read(self, limit: int) -> tuple[Sequence[Row], int] | None:
        """
        The next rows, at most ``limit``, and the position after them; the position may advance without rows.

        Returns:
            None at the end of the log, and while a page is being read (``wake`` is called then).

        Raises:
            store.errors.LogTrimmed: The next message is no longer in the log.
            store.errors.ReadFailed: It could not be read.
        """
        cache = self._cache
        page = self._page
        self._columns = None
        if page is None:
            if self.position >= cache.first_id and self.position >= self.log_from:
                self._next = None
                rows = cache.since(self.position, limit)
                if not rows:
                    return None
                self.position = rows[-1][ID] + 1
                return self._left(rows), self.position
            page = self._arrived()
            if page is None:
                return None
        return self._from_page(page, limit)

    def skip_to(self, position: int) -> None:
        """Skip the ids below ``position``. Call this only when ``is_at_end``."""
        self.position = max(self.position, position)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased: put the markers into the pages that were read."""
        if self._page is not None:
            self._page = _with_markers(self._page, markers)
        coming = self._next
        if coming is not None and coming.done() and not coming.cancelled() and coming.exception() is None:
            page, taken = coming.result()
            self._next = finished((_with_markers(page, markers), taken))

    @property
    def held_bytes(self) -> int:
        """
        The size of the page that was read and not taken, and of the page ahead, which is assumed to be as large.
        """
        return self._page_bytes * ((self._page is not None) + (self._next is not None))

    def let_go(self) -> None:
        """Drop the pages, as nothing is wanted for a while: what was not taken is read again."""
        if self._waits:
            return  # ``wake`` tells the caller of that page, and it can call this again then.
        if self._next is not None:
            self._next.cancel()
        self._page = self._next = self._columns = None

    def close(self) -> None:
        """End the reading: drop all pages, and call ``wake`` no more."""
        if self._next is not None:
            self._next.cancel()
        self._wake = self._page = self._next = self._columns = None

    def spent_reading(self) -> float:
        """Processor seconds of the pages that arrived since the last call of this."""
        spent, self._read_seconds = self._read_seconds, 0.0
        return spent

    def _from_page(self, page: LogPage, limit: int) -> tuple[Sequence[Row], int]:
        rows = page.rows
        start = self._index
        stop = start + limit
        if stop >= len(rows):
            self._page = None
            self.position = page.position
            part = rows[start:] if start else rows
        else:
            self._index = stop
            self.position = rows[stop][ID]
            part = rows[start:stop]
        left = self._left(part)
        if page.columns is not None and left is part:
            self._columns, self._given = page.columns, (start, stop)
        return left, self.position

    def _left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows that the log still has, and those that an endpoint holds without it."""
        left, held = self._history.left(rows), self._held
        if held is None or len(left) == len(rows):
            return left
        ids = {row[ID] for row in left}
        return [row for row in rows if row[ID] in ids or held.has(row)]

    def _arrived(self) -> LogPage | None:
        """The page at ``position``, if it has been read; asks for it, and for the one after it."""
        if self._next is None:
            self._next = self._ask(self.position)
        if not self._next.done():
            if not self._waits:
                self._waits = True
                loop = self._history.runtime.loop
                self._next.add_done_callback(lambda f: loop.call_soon_threadsafe(self._done, f))
            return None
        arrived, self._next = self._next, None
        try:
            page, taken = arrived.result()
        finally:
            # The error's traceback refers to this frame; without this, the frame would refer to the error.
            del arrived
        self._read_seconds += taken
        self._page, self._index, self._page_bytes = page, 0, _bytes_of(page)
        if page.position < self._cache.first_id:
            self._next = self._ask(page.position)
        return page

    def _ask(self, position: int) -> Future[TimedPage]:
        return self._history.page(position, self._cache.next_id, self._patterns, self._user, self._held)

    def _done(self, future: Future[TimedPage]) -> None:
        self._waits = False
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._next = None
        elif not self._page_bytes:
            self._page_bytes = _bytes_of(future.result()[0])
        if self._wake is not None:
            self._wake(error)


def _bytes_of(page: LogPage) -> int:
    """The size of a page's contents."""
    return sum(map(len, map(CONTENT_OF, page.rows)) if page.columns is None else page.columns.sizes)


class ValuesSource(LogSource):
    """
    The values of a last-value queue, and then the log from ``log_from`` on.

    Args:
        pages: Returns what reads values from an id on, up to ``log_from``.
        value: The first wanted id of a value.
    """

    def __init__(
        self,
        pages: Callable[[int], Callable[[], LogPage]],
        value: int,
        history: LogHistory,
        log_from: int,
        patterns: Sequence[str],
        wake: Callable[[BaseException | None], None],
        *,
        user: str = ADMINISTRATION,
    ) -> None:
        super().__init__(history, min(value, log_from), patterns, wake, user=user)
        self.log_from = log_from
        self._pages = pages
        self._gives_values = True

    def read(self, limit: int) -> tuple[Sequence[Row], int] | None:
        """See ``LogSource``; of the ids below ``log_from``, only those of values are returned."""
        self._gives_values = self.position < self.log_from
        return super().read(limit)

    def _left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """To a reader, a value is like a message of the log, and needs no route; the log need not have it."""
        if self._gives_values:
            return [(*row[:HELD], None, row[CONTENT]) for row in rows]
        return super()._left(rows)

    def _ask(self, position: int) -> Future[TimedPage]:
        if position < self.log_from:
            return self._history.timed(self._pages(position))
        return super()._ask(position)


def _with_markers(page: LogPage, markers: Mapping[int, Row]) -> LogPage:
    return LogPage(with_markers(page.rows, markers), page.position)
