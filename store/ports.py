"""
The port to a Message VPN's store: what the gateway asks of it, whichever engine keeps the data.

``Stores`` opens the ``Store`` of a Message VPN by its name. ``Recovered`` is what the ``Store`` had when it was
opened. Its ``Reader`` gives pages; its ``Writer`` makes batches of effects (``gateway.core.effects``) durable and
reports them. The port raises the errors of ``store.errors``; an engine's own exceptions stay in its adapter.

Rule: commit, then tell. The batches that ``OnCommit`` gets are durable, or were rolled back as a whole.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.core.effects import (
    CancelDelayed,
    DelayedMessage,
    DeletePoint,
    Effect,
    EraseMessages,
    HoldBack,
    KeepValues,
    MoveCursor,
    Publication,
    ReleaseDelayed,
    SaveArchived,
    SavePoint,
    SaveReplayRecord,
    SettleInTransaction,
    StoredCursor,
    StoredEndpoint,
    StoredRoute,
    TrimLog,
)
from gateway.core.log import ArchivedRun, RetentionMark
from gateway.core.model import Columns, LogState, Point, ReplayRecord, Row
from gateway.core.replay.search import Search
from gateway.core.replay.starts import LogProbe
from store.errors import WriteFailed

T = TypeVar("T")

MAX_ID: Final = (1 << 63) - 1
"""No message has a higher id."""

# --- opening ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is opened. An engine ignores the options that it has no use for."""

    page_rows: int
    """Messages of a page, at most."""
    page_bytes: int
    """Content of a page, at most, in bytes; one message is always let through."""
    read_threads: int
    checkpoint_bytes: int
    """Written bytes after which a checkpoint copies the write-ahead log into the file while the writer goes on."""
    wal_limit_bytes: int = -1
    """Size to which the write-ahead log's file is cut when it restarts after a long read let it grow; -1: not cut."""
    synchronous: str = "FULL"
    """FULL: a commit survives a power cut. NORMAL and OFF may lose the newest commits."""
    index: Sequence[str] = ()
    """Properties by which messages are indexed from now on; indexing by any other property ends here."""
    priorities: Mapping[str, bool] = field(default_factory=dict)
    """By queue name: whether the queue delivers by priority from now on. All other queues stay as they are."""
    advertise: str = ""
    """HOST:PORT to which other gateways refer their clients while this gateway has the store; empty: not published."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a gateway needs to know of a store to continue: short, however much is stored."""

    log: LogState
    endpoints: list[StoredEndpoint]
    routes: list[StoredRoute]
    """All routes that messages may name."""
    replays: dict[int, StoredCursor]
    """The cursors of endpoint replays, by number: ``-messages`` counts the replayed messages that were settled."""
    next_number: int
    """Higher than the number of every endpoint and cursor that ever existed."""
    points: list[Point] = field(default_factory=list)
    records: list[ReplayRecord] = field(default_factory=list)
    """Records of replays, in the order of their numbers."""
    retention: list[RetentionMark] = field(default_factory=list)
    """What retention rules have removed from the log, by the rules' keys; also of rules that do not exist any more."""


class Durability(enum.Enum):
    """What a commit survives. The value is the name that operators see."""

    DISK = "disk"
    """A commit is on this machine's disk. This is for engines that keep files here and know no other machine."""
    TWO_MACHINES = "two-machines"
    """A synchronous standby has a commit before the gateway reports it."""
    ONE_MACHINE = "one-machine"
    """The gateway reports a commit before any standby has it: the loss of one machine can lose the commit."""


class Stores(Protocol):
    """The stores of all Message VPNs of a gateway."""

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> Store:
        """
        Open the store of a Message VPN. Create it if there is none; migrate it if an earlier version wrote it. Blocks.

        Args:
            vpn: The Message VPN's name.
            now_ms: Now, in ms since the epoch. A log that is created now is complete from this time on.

        Raises:
            StoreHeld: Another gateway has it. The caller tries again later; what was prepared may be kept for that.
            StoreTooNew: It was written by a later version.
            StoreError: It cannot be opened or read.
        """

    def remove(self, vpn: str) -> None:
        """
        Delete the closed store of a Message VPN. Does nothing if there is none.

        Raises:
            OSError: It cannot be deleted.
        """


class Store(Protocol):
    """The opened store of one Message VPN."""

    @property
    def place(self) -> str:
        """Where the store is, for people: a file's path, a database's address."""

    @property
    def engine(self) -> str:
        """The engine that keeps the data, with its version, for people: ``SQLite 3.54.1``."""

    @property
    def recovered(self) -> Recovered:
        """What the store had when it was opened."""

    @property
    def reader(self) -> Reader:
        """Reads pages from the store."""

    def start_writer(self, on_commit: OnCommit) -> Writer:
        """
        Start the writer. Call this once.

        Args:
            on_commit: Called for every transaction, in order, on the writer's thread.

        Raises:
            StoreError: It cannot write.
        """

    def scrub(self, seconds: float) -> bool:
        """
        Remove the last traces of erased content: from what the engine keeps outside its tables, such as its write-ahead
        log, and from old versions of changed rows. Blocks. Call it after the commit, from one thread at a time.

        Args:
            seconds: How long to wait for readers that still use the old data.

        Returns:
            Whether it is done. If not, a reader uses the old data; it is done later, by itself or by the next call.
        """

    def durability(self) -> Durability:
        """
        What commits survive at present; cheap enough to be asked every few seconds. Blocks, and disturbs neither the
        writer nor the readers. Call it from one thread at a time.

        Raises:
            ReadFailed: The engine cannot be asked.
        """

    def close(self) -> None:
        """
        Commit what was submitted, and stop the writer and the readers. Blocks until done. If the engine cannot be
        reached, or another gateway has taken it over, batches that are not committed within moments are given up and
        reported as failed.
        """


# --- writing ------------------------------------------------------------------------------------------------------

SMALL_EFFECTS: Final = 8
SMALL_BYTES: Final = 64 * 1024
SMALL_MOVES: Final = 32
"""Cursor moves in a small batch. Each changes one row, and mostly they are of the same few cursors."""
MANY_SETTLED: Final = 64
"""Messages that a small batch without a publication settles: with more, the event loop does not wait for the disk."""

UNDONE_BY_FAILURE: Final = (
    Publication,
    SettleInTransaction,
    TrimLog,
    EraseMessages,
    SaveArchived,
    SavePoint,
    DeletePoint,
    SaveReplayRecord,
    ReleaseDelayed,
    CancelDelayed,
    HoldBack,
    KeepValues,
)
"""Effects that are undone if their transaction fails: their submitter gets the error. All other effects record what
the broker has already done in memory. If a transaction fails for a reason that may pass (a full disk), the writer puts
those first in the next transaction."""


class Batch(NamedTuple):
    """Effects that are committed together."""

    effects: Sequence[Effect]
    size_bytes: int
    """Bytes of content in them, which bound a transaction."""
    then: Sequence[Callable[[WriteFailed | None], None]] = ()
    """The submitter's callbacks for the result. A store does not call them."""

    @property
    def is_small(self) -> bool:
        """Whether it has a handful of messages and the cursor moves of a few consumers, and nothing else."""
        effects = self.effects
        if self.then or self.size_bytes > SMALL_BYTES or len(effects) > SMALL_EFFECTS + SMALL_MOVES:
            return False
        moves = 0
        for effect in effects:
            # A publisher that sends one message after the other waits for this each time.
            if isinstance(effect, Publication):
                if len(effect.rows) > SMALL_EFFECTS:
                    return False
            elif isinstance(effect, MoveCursor):
                if len(effect.ranges) + len(effect.attempts) + len(effect.references) > SMALL_EFFECTS:
                    return False
                moves += 1
            else:
                return False
        if moves == len(effects) and self.settled > MANY_SETTLED:
            return False
        return moves <= SMALL_MOVES and len(effects) - moves <= SMALL_EFFECTS

    @property
    def settled(self) -> int:
        """How many messages endpoints settle with it."""
        return sum(
            len(effect.done) + effect.archived for effect in self.effects if isinstance(effect, MoveCursor)
        )


OnCommit: TypeAlias = Callable[[list[Batch], WriteFailed | None], None]
"""
Takes the batches of one transaction, and the error if nothing of them was written. A writer that finds out that it is
``Deposed`` while it has no batches passes that error with an empty list.
"""


class Writer(Protocol):
    """
    Makes effects durable, in the order of their submission, many batches in one transaction (group commit).

    If the connection to the engine is lost, the writer waits, and reports nothing, until it knows the result of each
    batch. Once another gateway has taken over the store, all batches that are not durable fail with ``Deposed``, now
    and later.
    """

    @property
    def confirmed_at(self) -> float | None:
        """
        ``time.monotonic`` when the newest commit that is known to have succeeded began: no other gateway had the store
        then. In normal operation it is some seconds old at most, because an idle writer commits, too. None if no other
        gateway can have the store. May be read from any thread.
        """

    @property
    def commit_seconds(self) -> Histogram:
        """How long commits took, each with its sync."""

    def submit(self, batch: Batch) -> None:
        """Queue effects; ``on_commit`` is called when they are durable."""

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        """
        Commit a small batch on the caller's thread, which saves two changes of thread.

        Only for a caller whose earlier batches have all been reported. ``on_commit`` is not called.

        Args:
            answer: Called as soon as the batch is durable, before the writer updates its own state.

        Returns:
            Whether the commit was tried, and the error if it failed. It is not tried if commits take long here, or if
            the writer's thread is busy: then submit the batch.
        """


# --- reading ------------------------------------------------------------------------------------------------------


class LogPage(NamedTuple):
    """Messages of the log, or of some routes, in the order of their ids."""

    rows: list[Row]
    position: int
    """The next id to be read: everything below it was considered."""
    columns: Columns | None = None
    """The rows as columns, if they were read as columns."""


class SearchPage(NamedTuple):
    """What a search found in a bounded piece of the log."""

    found: int | None
    """The id of the first match; None if this page has none."""
    position: int
    """The next id to be searched: no message below it matches, except ``found``."""
    unknown: int = 0
    """Messages whose evaluation took too many steps: they count as no match."""


class TopicPage(NamedTuple):
    """Logged messages by their topics alone, the newest first."""

    found: list[tuple[int, str]]
    """(id, topic), in falling order of ids."""
    position: int
    """The id below which to go on: everything from it upwards was considered."""


class LengthPage(NamedTuple):
    """Logged messages without their contents."""

    found: list[tuple[int, str, int]]
    """(id, topic, bytes of content), in rising order of ids."""
    position: int
    """The next id to be read: everything below it was considered."""


class TallyPage(NamedTuple):
    """Counts of the messages in a bounded piece of the log."""

    found: list[tuple[str, int, int]]
    """(topic, messages, bytes of content); a topic may come more than once."""
    position: int
    """The next id to be counted."""


class DiskUse(NamedTuple):
    """The disk space that a store takes, and that is left for it."""

    size_bytes: int
    """Including indexes, the write-ahead log, and unused space within."""
    reusable_bytes: int
    """The part of it that trimming has freed and that new messages use first; 0 if the engine does not know."""
    free_bytes: int | None
    """Free space on the same disk; None if unknown, because the engine is on another machine."""


class BegunErasure(NamedTuple):
    """Messages of an archive that are about to be erased."""

    name: str
    time_ms: int
    reason: str
    ids: Sequence[int]


class Archive(Protocol):
    """
    The archive of a replay log, read in pages that are bounded as a reader's are.

    All methods except ``submit`` block, perhaps for long; call them from within a submitted function. They raise
    ``LogTrimmed`` for an id that the archive does not have either, and ``ReadFailed`` if it cannot be read.
    """

    @property
    def place(self) -> str:
        """Where the archive is, for people; without secrets."""

    @property
    def run(self) -> ArchivedRun | None:
        """What the archive had when it was last looked at; None before that."""

    @property
    def problem(self) -> str | None:
        """Why the archive, or a file of it, cannot be read at present; or why it is not used. None if all is well."""

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """Run a function that reads on a thread of the archive's own pool."""

    def drain(self) -> None:
        """Wait until everything that was submitted earlier is done; see ``Reader.drain``."""

    def close(self) -> None:
        """Stop reading. Does not wait."""

    def look(self) -> ArchivedRun:
        """Find out what the archive has now."""

    def begin_erasure(self, ids: Collection[int], time_ms: int, reason: str) -> BegunErasure:
        """
        Record that the content of these messages is about to be erased. Returns when the record is durable. Readers
        are not affected yet.

        Raises:
            WriteFailed: The record cannot be written.
        """

    def end_erasure(self, begun: BegunErasure, *, is_done: bool) -> None:
        """
        End an erasure. Returns when that is durable.

        Args:
            is_done: The messages are erased, whether they are archived already or will be: from now on every reader of
                the archive gets markers (``amqp_ext.message.annotations``). False: nothing is erased.

        Raises:
            WriteFailed: It cannot be written; the erasure is still begun.
        """

    def begun_erasures(self) -> Sequence[BegunErasure]:
        """Erasures that were begun and have not ended, oldest first."""

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        """Messages from ``position`` on, below ``end``; see ``Reader.log_page``."""

    def search_page(self, search: Search, position: int, end: int) -> SearchPage:
        """Search for a message from ``position`` on, below ``end``; see ``Reader.search_page``."""

    def tally(self, position: int, end: int) -> TallyPage:
        """Count the messages from ``position`` on, below ``end``."""

    def messages(self, ids: Sequence[int]) -> list[Row]:
        """The messages with these rising ids, from the first on as many as a page holds; missing ones are left out."""

    def first_since(self, time_ms: int) -> int | None:
        """The id of the first message that arrived at or after a time; None if all of the archive arrived before."""

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """
        The approximate positions of times: for each time, the id from which on all messages arrived then or later; one
        past the last id if none did. No file is read: the ids of a file are taken to have arrived at an even rate.
        """

    def time_of(self, message_id: int) -> int | None:
        """When a message arrived, if the archive has it."""

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """Messages below ``before``, down to ``first``, the newest first; see ``Reader.topics_below``."""

    def last_page(self, matches: Callable[[str], bool] | None, before: int) -> tuple[int | None, int]:
        """
        Look backwards for a message whose topic matches.

        Returns:
            The id of the last match below ``before`` if one was found, and the id below which to go on.
        """


class Reader(LogProbe, Protocol):
    """
    Pages of durable data. Each is bounded in rows, in bytes and in how much it scans, so that no reader stalls another.

    All methods except ``submit`` block; call them from within a submitted function. They raise ``ReadFailed`` if the
    engine cannot read.
    """

    @property
    def damage(self) -> str | None:
        """The last permanent read error since the start, if any: a message that is not what was written, say."""

    @property
    def standby_damage(self) -> str | None:
        """The same for a standby that serves reads: pages that it could not give came from the primary."""

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """Run a function that reads on a thread of the store's pool."""

    def disk(self) -> DiskUse:
        """The disk space that the store takes now, and that is left for it."""

    def drain(self) -> None:
        """Wait until everything that was submitted earlier is done. Blocks. Later submissions may be running then."""

    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """
        Logged messages from ``position`` on, below ``end``.

        Args:
            patterns: Topic patterns (Solace's). Most messages that match none of them are left out, but the caller
                must match again. Empty: every message.
            held: Give held messages as well, whatever their topics.

        Raises:
            LogTrimmed: The log begins after ``position``.
        """

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        """
        Look for a logged message from ``position`` on, below ``end``.

        Args:
            patterns: The topics that the search looks at, as for ``log_page``.
        """

    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> LogPage:
        """
        Messages of some routes with ids above ``after`` and below ``end``, whether the log holds them or not.

        Args:
            routes: Numbers, in rising order. A few routes are merged by the index; with many, messages are scanned.
            end: One past the last id that the caller was told of: the store may have more already.
            limit: Messages at most, if a page would hold more.
        """

    def messages(self, ids: Sequence[int]) -> list[Row]:
        """The messages with these rising ids, from the first on as many as a page holds; deleted ones are left out."""

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """
        Logged messages with ids below ``before``, down to ``first``, the newest first; contents are not read.

        Args:
            patterns: As for ``log_page``: topics that match none of them are mostly left out.

        Raises:
            LogTrimmed: The log has nothing below ``before`` any more.
        """

    def attempts(self, cursor: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        """
        (id, failed deliveries) of the messages from ``first`` to ``last`` that failed on this cursor's endpoint.
        """

    def delayed_page(
        self,
        cursor: int,
        after: tuple[int, int] = (0, 0),
        limit: int = 256,
        retries_below: int | None = None,
        until_ms: int | None = None,
    ) -> list[DelayedMessage]:
        """
        Delayed messages of an endpoint, by its cursor, in the order of due time, then of id.

        Args:
            after: Begin after this (due time in ms, id).
            retries_below: Only messages that a consumer gave back, with ids below this one. None: all messages.
            until_ms: Only messages that are due by this time, or at the first due time after it.
        """

    def delayed_message(self, cursor: int, message_id: int) -> DelayedMessage | None:
        """One delayed message of an endpoint, by its cursor; None if the message is not delayed there."""

    def values_page(self, cursor: int, position: int, end: int, now_ms: int) -> LogPage:
        """
        Values of a last-value queue from ``position`` on, below ``end``, whether the log has them or not.

        Args:
            now_ms: Values that expire by this time, in ms since the epoch, are left out.
        """

    def value_of(self, cursor: int, key: bytes) -> int | None:
        """The id of the message that is a key's value, by the key's digest; None if the key has no value."""

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """
        The positions of times in the log: for each time the lowest id, not below the log's first one, from which on
        all messages arrived then or later; one past the newest message if none did. One statement, with a binary
        search for each time.
        """

    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """
        Logged messages from ``position`` on, below ``end``, without their contents. If the log begins after
        ``position``, the page begins with the log.

        Args:
            patterns: As for ``log_page``: topics that match none of them are mostly left out.
        """

    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        """
        (topic, messages, bytes of content) of the logged messages from ``position`` on, below ``end``.

        Args:
            patterns: As for ``log_page``: topics that match none of them are mostly left out.
        """


class Histogram:
    """Counts of values by inclusive upper bounds, as in Prometheus. The last count is of values above all bounds."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """The sum of all that was added."""

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """For each bound, as text, how many numbers were at most as large; the last bound is ``+Inf``."""
        found: list[tuple[str, float]] = []
        count = 0
        for bound, more in zip([*map(str, self.bounds), "+Inf"], self._counts.copy(), strict=True):
            count += more
            found.append((bound, count))
        return found
