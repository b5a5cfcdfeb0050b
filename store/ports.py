"""
The port to a Message VPN's store: what the gateway asks of it, whichever engine keeps the data.

``Stores`` opens the ``Store`` of a Message VPN by its name. What a ``Store`` found is in ``Recovered``; its
``Reader`` gives pages, and its ``Writer`` makes batches of effects (``gateway.core.effects``) durable and reports
them. Errors are those of ``store.errors``; what an engine raises stays in its adapter.

Rule: commit, then tell. What ``OnCommit`` is called with is durable, or was rolled back as a whole.
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
    """How a store is opened. An engine leaves aside what it has no use for."""

    page_rows: int
    """Messages of a page, at most."""
    page_bytes: int
    """Content of a page, at most; one message is always let through."""
    read_threads: int
    checkpoint_bytes: int
    """Written bytes after which the write-ahead log is carried over, beside the writer."""
    wal_limit_bytes: int = -1
    """What the write-ahead log's file keeps when it begins anew, after a long read let it grow; -1: all."""
    synchronous: str = "FULL"
    """FULL: a commit survives a power cut. NORMAL and OFF lose the last ones."""
    index: Sequence[str] = ()
    """Properties that messages are indexed by from now on; the index of any other ends here."""
    priorities: Mapping[str, bool] = field(default_factory=dict)
    """Queues by name: whether they deliver by priority from now on. All others stay as they are."""
    advertise: str = ""
    """HOST:PORT that clients of other gateways are sent to while this one has the store; empty: not told."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a gateway needs to know of a store to go on: a few short values, however much is stored."""

    log: LogState
    endpoints: list[StoredEndpoint]
    routes: list[StoredRoute]
    """All that messages may name."""
    replays: dict[int, StoredCursor]
    """Cursors that are no endpoint's own, by number: those of replays, of which ``-messages`` are acknowledged."""
    next_number: int
    """Above every number that an endpoint or a cursor ever had."""
    points: list[Point] = field(default_factory=list)
    records: list[ReplayRecord] = field(default_factory=list)
    """Of replays, by number."""
    retention: list[RetentionMark] = field(default_factory=list)
    """What retention rules have taken out of the log, by their keys; rules that are no more among them."""


class Durability(enum.Enum):
    """What a commit survives. The value is its name outside."""

    DISK = "disk"
    """It is on the disk of this machine: an engine that keeps files here, and knows of no other machine."""
    TWO_MACHINES = "two-machines"
    """A synchronous standby has it, too, before it is told."""
    ONE_MACHINE = "one-machine"
    """It is told of before any standby has it: the loss of one machine loses it."""


class Stores(Protocol):
    """The stores of all Message VPNs of a gateway."""

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> Store:
        """
        Open the store of a Message VPN, made if there is none and migrated if an earlier version made it. Blocks.

        Args:
            vpn: The Message VPN's name.
            now_ms: Milliseconds since the epoch: from when on a log made now is complete.

        Raises:
            StoreHeld: Another gateway has it; this one asks again. What was prepared may be kept for that.
            StoreTooNew: It was written by a later version.
            StoreError: It cannot be opened or read.
        """

    def remove(self, vpn: str) -> None:
        """
        Delete the closed store of a Message VPN; nothing happens where there is none.

        Raises:
            OSError: It cannot be deleted.
        """


class Store(Protocol):
    """The opened store of one Message VPN."""

    @property
    def place(self) -> str:
        """Where it is, as a person is told: a file's path, a database's address."""

    @property
    def engine(self) -> str:
        """What keeps the data, with its version, as a person is told: ``SQLite 3.54.1``."""

    @property
    def recovered(self) -> Recovered:
        """What was found when it was opened."""

    @property
    def reader(self) -> Reader:
        """Pages from it."""

    def start_writer(self, on_commit: OnCommit) -> Writer:
        """
        Begin to write. To be called once.

        Args:
            on_commit: Told of every transaction, in order, from the writer's thread.
        """

    def scrub(self, seconds: float) -> bool:
        """
        Have nothing of what was erased be left in what the engine keeps beside its tables, as its write-ahead log, and
        in what it keeps of rows that changed. Blocks; called from one thread at a time, after the commit.

        Args:
            seconds: For which it waits for those who read what was there before.

        Returns:
            Whether it is done; else somebody reads still, and it is done behind, or by the next call.
        """

    def durability(self) -> Durability:
        """
        What commits survive just now, for whoever asks every few seconds. Blocks, and disturbs neither the writer nor
        the readers; called from one thread at a time.

        Raises:
            ReadFailed: The engine cannot be asked.
        """

    def close(self) -> None:
        """
        Commit what was submitted, and end the writer and the readers. Blocks until done; what an engine that cannot be
        reached, or that is another gateway's by now, does not take within moments is given up, and reported as failed.
        """


# --- writing ------------------------------------------------------------------------------------------------------

SMALL_EFFECTS: Final = 8
SMALL_BYTES: Final = 64 * 1024
SMALL_MOVES: Final = 32
"""Moves of cursors, each of a row, mostly of the same few cursors."""
MANY_SETTLED: Final = 64
"""Messages settled without one that is published: with more, the loop has better to do than to wait for the disk."""

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
"""Effects that come to nothing when they fail: whoever ordered them is told. All others only say what is so already; a
writer whose transaction fails for a reason that may pass (a full disk) puts these first in the next one."""


class Batch(NamedTuple):
    """Effects that belong together."""

    effects: Sequence[Effect]
    size_bytes: int
    """Content in them, to bound a transaction."""
    then: Sequence[Callable[[WriteFailed | None], None]] = ()
    """The submitter's own, to be told what became of it: a store does not call them."""

    @property
    def is_small(self) -> bool:
        """A handful of messages, and what a few consumers have settled in order, and nothing else."""
        effects = self.effects
        if self.then or self.size_bytes > SMALL_BYTES or len(effects) > SMALL_EFFECTS + SMALL_MOVES:
            return False
        moves = 0
        for effect in effects:
            # Whoever publishes one message after the other waits for this each time.
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
        """Messages with which endpoints are done by it."""
        return sum(
            len(effect.done) + effect.archived for effect in self.effects if isinstance(effect, MoveCursor)
        )


OnCommit: TypeAlias = Callable[[list[Batch], WriteFailed | None], None]
"""
Takes the batches of one transaction, and the error when nothing of them was written. A writer that is found ``Deposed``
with nothing at hand gives that and no batches.
"""


class Writer(Protocol):
    """
    Makes effects durable, in the order of their submission, many batches in one transaction (group commit).

    Where the connection to an engine is lost it waits, and reports nothing, until it knows what became of each batch.
    When another gateway has taken the store over, all that is not durable fails with ``Deposed``, now and later.
    """

    @property
    def confirmed_at(self) -> float | None:
        """
        ``time.monotonic`` of the beginning of the newest commit that is known to have succeeded: then nobody else had
        the store. It is never older than some seconds where all is well, as an idle writer commits, too. None where
        nobody else can have the store. To be read from any thread.
        """

    @property
    def commit_seconds(self) -> Histogram:
        """How long commits took, each with its sync."""

    def submit(self, batch: Batch) -> None:
        """Hand over effects; ``on_commit`` tells when they are durable."""

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        """
        Commit a small batch on the caller's thread, which saves two changes of thread.

        Only for a caller to whom everything submitted was reported. ``on_commit`` is not called.

        Args:
            answer: Called as soon as it is durable: what the writer has to note of it can wait.

        Returns:
            Whether it was tried, and the error if it failed. Not tried: commits take long here, or the writer's
            thread is at work; then submit it.
        """


# --- reading ------------------------------------------------------------------------------------------------------


class LogPage(NamedTuple):
    """Logged messages in the order of their ids."""

    rows: list[Row]
    position: int
    """The next id to be read: everything below it was considered."""
    columns: Columns | None = None
    """Of the rows, where they came so."""


class RoutedPage(NamedTuple):
    """Messages of routes in the order of their ids."""

    rows: list[Row]
    position: int
    """The next id to be read: everything below it was considered."""
    columns: Columns | None = None
    """Of the rows, where they came so."""


class SearchPage(NamedTuple):
    """What a bounded piece of the log had for a search."""

    found: int | None
    """The id of the first message that the search takes; None when there is none on this page."""
    position: int
    """The next id to be looked at: below it there is none, except ``found``."""
    unknown: int = 0
    """Messages of which an answer would have taken too long: they are not what is looked for."""


class TopicPage(NamedTuple):
    """Logged messages by their topics alone, the newest first."""

    found: list[tuple[int, str]]
    """(id, topic), ids falling."""
    position: int
    """The id below which to look next: everything from there on was considered."""


class LengthPage(NamedTuple):
    """Logged messages without their contents."""

    found: list[tuple[int, str, int]]
    """(id, topic, bytes of content), ids rising."""
    position: int
    """The next id to be looked at: everything below it was considered."""


class TallyPage(NamedTuple):
    """What a bounded piece of the log has."""

    found: list[tuple[str, int, int]]
    """(topic, messages, bytes of content); a topic may come more than once."""
    position: int
    """The next id to be counted."""


class DiskUse(NamedTuple):
    """What a store takes, and what is left for it."""

    size_bytes: int
    """With all that belongs to it: indexes, write-ahead log, what is not used within."""
    reusable_bytes: int
    """Of that, what trimming has left and new messages take first; 0 where the engine does not say."""
    free_bytes: int | None
    """On the same disk; None where nobody knows: the engine is on another machine."""


class BegunErasure(NamedTuple):
    """Messages of an archive that are about to be erased."""

    name: str
    time_ms: int
    reason: str
    ids: Sequence[int]


class Archive(Protocol):
    """
    A replay log's archive: what the log no longer has, in pages that are bounded as a reader's are.

    All methods block, perhaps for long, except ``submit``, and are called from within what is submitted. They raise
    ``LogTrimmed`` for an id that the archive does not have either, and ``ReadFailed`` when it cannot be read.
    """

    @property
    def place(self) -> str:
        """Where it is, as a person is told; without secrets."""

    @property
    def run(self) -> ArchivedRun | None:
        """What it has, as it was looked at last; None before that."""

    @property
    def problem(self) -> str | None:
        """Why it, or something in it, could not be read, until it can be again; or why it is not read."""

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """Run something that reads on a thread of the archive's own pool."""

    def drain(self) -> None:
        """Wait until all that was submitted before is done; see ``Reader.drain``."""

    def close(self) -> None:
        """Read no more. Does not wait."""

    def look(self) -> ArchivedRun:
        """What it has now."""

    def begin_erasure(self, ids: Collection[int], time_ms: int, reason: str) -> BegunErasure:
        """
        The content of these messages is about to be erased; returns when it is durable that it is. Readers do not go by
        it yet.

        Raises:
            WriteFailed: It cannot be written.
        """

    def end_erasure(self, begun: BegunErasure, *, is_done: bool) -> None:
        """
        It is erased, whether it is archived already or will be: from now on everybody who reads the archive is given
        markers (``amqp_ext.message.annotations``). Or it is not, and all is as it was. Returns when that is durable.

        Raises:
            WriteFailed: It cannot be written; it is begun still.
        """

    def begun_erasures(self) -> Sequence[BegunErasure]:
        """What was begun, and did not end; the oldest first."""

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        """Messages from ``position`` on, below ``end``; see ``Reader.log_page``."""

    def search_page(self, search: Search, position: int, end: int) -> SearchPage:
        """Look for a message from ``position`` on, below ``end``."""

    def tally(self, position: int, end: int) -> TallyPage:
        """Count the messages from ``position`` on, below ``end``."""

    def messages(self, ids: Sequence[int]) -> list[Row]:
        """These messages (rising ids), as many from the first on as a page holds; what is not there is left out."""

    def first_since(self, time_ms: int) -> int | None:
        """The first id that arrived at or after a time; None where all that is archived arrived before."""

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """
        About where times lie in it: for each, the id from which on all arrived then or later; one past its last where
        nothing did. No file is read for it: within a file, ids are taken to have come evenly.
        """

    def time_of(self, message_id: int) -> int | None:
        """When a message arrived, if the archive has it."""

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """Messages below ``before``, down to ``first``, the newest first; see ``Reader.topics_below``."""

    def last_page(self, matches: Callable[[str], bool] | None, before: int) -> tuple[int | None, int]:
        """
        Look backwards for a message whose topic matches.

        Returns:
            The id of the last such one below ``before``, if it was found, and the id below which to look next.
        """


class Reader(LogProbe, Protocol):
    """
    Pages of what is durable, bounded in rows, in bytes and in what they look at, so that no reader stalls another.

    All methods block, except ``submit``, and are called from within what is submitted. They raise ``ReadFailed`` when
    the engine cannot read.
    """

    @property
    def damage(self) -> str | None:
        """Why something could not be read for good, since the start: a page that is not what was written, say."""

    @property
    def standby_damage(self) -> str | None:
        """The same of a standby that is read beside: what it could not give came from the primary."""

    def submit(self, read: Callable[[], T]) -> Future[T]:
        """Run something that reads on a thread of the store's pool."""

    def disk(self) -> DiskUse:
        """What the store takes just now, and what is left for it."""

    def drain(self) -> None:
        """Wait until all that was submitted before is done. Blocks, and others read meanwhile when it is."""

    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """
        Logged messages from ``position`` on, below ``end``.

        Args:
            patterns: Topic patterns (Solace's); what matches none of them is mostly left out, but the caller must
                still match. None at all: every message.
            held: With them all that endpoints alone hold, whatever its topic.

        Raises:
            LogTrimmed: The log begins behind ``position``.
        """

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        """
        Look for a logged message from ``position`` on, below ``end``.

        Args:
            patterns: The topics that the search looks at, as for ``log_page``.
        """

    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> RoutedPage:
        """
        Messages of some routes with ids above ``after`` and below ``end``, whether the log holds them or not.

        Args:
            routes: Numbers, rising. Few of them are merged; with very many, messages are looked at one by one.
            end: One past the last id the caller was told of: the store may know more already.
            limit: Fewer messages than a page holds.
        """

    def messages(self, ids: Sequence[int]) -> list[Row]:
        """These messages (rising ids), as many from the first on as a page holds; what is gone is left out."""

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
        (id, failed deliveries) of the messages from ``first`` to ``last`` that have any with this cursor's endpoint.
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
        What waits by an endpoint's cursor for its time, in the order of times, then of ids.

        Args:
            after: Behind this time, in ms, and id.
            retries_below: Of what a consumer gave back, and of ids below this one; None for all that waits.
            until_ms: Of what is due by then, and at the next time behind it.
        """

    def delayed_message(self, cursor: int, message_id: int) -> DelayedMessage | None:
        """One that waits by an endpoint's cursor for its time; None where it does not."""

    def values_page(self, cursor: int, position: int, end: int, now_ms: int) -> LogPage:
        """
        Values of a last-value queue from ``position`` on, below ``end``, whether the log has them or not.

        Args:
            now_ms: Those that were to go until then, in ms since the epoch, are left out.
        """

    def value_of(self, cursor: int, key: bytes) -> int | None:
        """The message that is the value of a key, by its digest; None where it has none."""

    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """
        Where in the log times lie: for each of them the lowest id, not below the log's first one, from which on all
        that is there arrived then or later. One past the newest message where nothing did. One read, whatever is
        stored: binary searches in one statement, each as deep as the log is long.
        """

    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        """
        Logged messages from ``position`` on, below ``end``, without their contents; where the log begins behind
        ``position``, those that it has.

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
    """Counts by upper bounds, which are inclusive, as Prometheus has them; what lies above all is counted last."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """The sum of all that was added."""

    def add(self, value: float) -> None:
        """Count a number."""
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
