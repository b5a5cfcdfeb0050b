"""
Every durable consequence of a command, as values: the store applies them in order, one transaction for many. And what
a start finds in the store of endpoints and routes.

A ``Row`` is the one tuple a message is: it goes into the file, into the tail and out to consumers as it stands, and
nothing else is made per message. Rule on the wall: no accept, delivery or detach leaves before the effects of its
own and all earlier commands are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from gateway.core.model import Point, ReplayRecord, RouteDefinition, Row, stored_bytes


class Delays(NamedTuple):
    """Messages that wait on endpoints for their time, and are not delivered before."""

    cursors: Sequence[int]
    """Those of the endpoints: each has all of the messages."""
    due_ms: Sequence[int]
    """When each of the messages is to be delivered, in ms since the epoch."""


@dataclass(slots=True)
class DedupIds:
    """What publishers called messages, kept in windows of endpoints: a duplicate is told by it."""

    ids: Sequence[bytes]
    """As ``amqp_ext.message.fields.publisher_ids`` has them, none of them empty."""
    endpoints: Mapping[int, int]
    """Numbers of the endpoints. Of the ids each has had with publications that begin with this message or before it,
    nothing is needed any more (0: as before)."""
    echoes: list[Any] = field(default_factory=list)
    """Receipts of duplicates that came before it was durable."""
    joined: bytes = field(init=False)
    """The ids one behind the other, put together while they are still in the processor's cache."""

    def __post_init__(self) -> None:
        self.joined = b"".join(self.ids)


class StoredIds(NamedTuple):
    """Ids that came together, as recovery found them."""

    came: tuple[int, int]
    """(the first message that they came with, when)."""
    ids: Sequence[bytes]


class Publication:
    """
    Messages of one topic that arrived together: consecutive ids, one time, one set of endpoints.

    Attributes:
        rows: Each names its route.
        routes: The routes that the rows name: one, or one for each priority among them; none for ``UNROUTED``.
        logged: The replay log takes them: their rows are held by nothing. Else by as many endpoints as they are put on.
        size_bytes: Of their contents.
        logged_bytes: What they take of the disk as part of the log; 0 where it does not take them.
        put: What the broker wants to know of them when they are durable; not looked at by a store.
        delays: Where they wait for their time; None for messages that are delivered at once.
        dedup: What their publishers called them, where an endpoint wants no message twice; else None.
    """

    __slots__ = (
        "dedup",
        "delays",
        "logged",
        "logged_bytes",
        "put",
        "receipt",
        "routes",
        "rows",
        "size_bytes",
        "topic",
    )

    def __init__(
        self,
        rows: list[Row],
        topic: str,
        routes: Sequence[RouteDefinition],
        logged: bool,
        sizes: Sequence[int],
        receipt: Any,
        put: Any = None,
    ) -> None:
        """
        Args:
            sizes: Of the rows' contents, in bytes.
        """
        self.dedup: DedupIds | None = None
        self.delays: Delays | None = None
        self.rows = rows
        self.topic = topic
        self.routes = routes
        self.logged = logged
        self.logged_bytes = stored_bytes(topic, sizes) if logged else 0
        self.size_bytes = sum(sizes)
        self.receipt = receipt
        self.put = put


@dataclass(slots=True, eq=False)
class MoveCursor:
    """A cursor has passed messages, or counts anew what its endpoint has: one part of it, brought to where it is."""

    cursor: int
    """Its number."""
    part: int
    """``WHOLE``, or the priority of its messages."""
    floor: int | None = None
    """The cursor has passed everything up to this id; None where that is as before."""
    ranges: Mapping[int, int | None] = field(default_factory=dict)
    """Ranges of ids above the floor that it has passed as well: last ids by first ids; None for a range that is in the
    floor, or in another range, since."""
    counted_id: int | None = None
    """``messages`` and ``size_bytes`` speak of messages up to this id; None where that is as before."""
    messages: int = 0
    """To be added to how many messages the endpoint has by it. Mostly negative."""
    size_bytes: int = 0
    """To be added to the content of those."""
    done: Sequence[int] = ()
    """Ids that it passes now: of a message that endpoints alone hold, this one holds no more."""
    attempts: Sequence[int] = ()
    """Ids of which no failed deliveries need be on record any more."""
    references: Sequence[int] = ()
    """Those of ``done`` that it had by a reference."""
    archived: int = 0
    """How many more it has passed that the log's archive alone has: the store has nothing of them."""


class SettleInTransaction(MoveCursor):
    """
    The same as part of a transaction: if that fails, the messages were not settled. It adds ranges alone, which may
    touch each other and the floor.
    """

    __slots__ = ()


def settled_firsts(effects: Iterable[Effect], cursor: int, part: int) -> list[int]:
    """Where the ranges begin that a transaction has written of a part of a cursor."""
    return [
        first
        for effect in effects
        if isinstance(effect, SettleInTransaction) and (effect.cursor, effect.part) == (cursor, part)
        for first in effect.ranges
    ]


@dataclass(frozen=True, slots=True)
class OpenCursor:
    """
    A cursor: all its parts begin at ``floor``, with nothing counted. Ids up to the floor count as given out: none of
    them is used again, whatever fails.
    """

    number: int
    parts: Sequence[int]
    floor: int
    given_out: int = 0
    """Ids up to this one count as given out, too."""


@dataclass(frozen=True, slots=True)
class DropCursor:
    """
    A cursor is no more: what the endpoint needed by it up to an id it needs no longer. What is to be done for each of
    those messages is done behind, in small commits.
    """

    number: int
    endpoint: int
    """Whose messages it was about; 0 for a replay's, which holds none."""
    up_to: int


@dataclass(frozen=True, slots=True)
class CountedUpTo:
    """Every cursor counts what it has up to this id, at least: a start need not look further back."""

    message_id: int


@dataclass(frozen=True, slots=True)
class AddReferences:
    """
    Logged messages that an endpoint has though no route leads to it, or though its cursor has passed them: copies, and
    what a replay that was forced to be complete had put. A reference that is there already stays.
    """

    cursor: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReleaseDelayed:
    """The time of messages has come: the endpoint that they wait on has them by references from now on."""

    cursor: int
    entries: Sequence[tuple[int, int]]
    """(when it was to be delivered, message)."""


@dataclass(frozen=True, slots=True)
class CancelDelayed:
    """Messages that wait on an endpoint for their time are not delivered at all."""

    cursor: int
    entries: Sequence[tuple[int, int]]
    """(when it was to be delivered, message)."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """
    Messages that a consumer gave back wait on their endpoint for their time. Its cursor passes them in the same batch,
    or a reference to them goes, without letting go of them.
    """

    cursor: int
    entries: Sequence[tuple[int, int, int]]
    """(when it is to be delivered again, message, bytes of content)."""
    in_order: bool
    """Nothing behind them is to be delivered before them."""


class DelayedMessage(NamedTuple):
    """A message that waits on an endpoint for its time."""

    due_ms: int
    """When it is to be delivered, in ms since the epoch."""
    id: int
    counted_bytes: int
    """Its content, as it was counted when it came."""
    size_bytes: int
    """Its content."""
    priority: int
    """By its header."""
    attempts: int = 0
    """Failed deliveries."""
    is_retry: bool = False
    """A consumer gave it back."""


class Value(NamedTuple):
    """What has become of a key of a last-value queue."""

    key: bytes
    """Its digest."""
    id: int
    """The message that says so."""
    size_bytes: int | None
    """The message's content; None where it takes the key's value away."""
    expires_ms: int | None
    """When the value goes, in ms since the epoch; None where it stays."""


@dataclass(slots=True)
class KeepValues:
    """
    The index of a last-value queue follows the log: keys have these messages as their values, each unless it has a
    newer one. A value that is one no longer is not needed by the queue any more. The store fills in what it did.
    """

    cursor: int
    """The queue's; where it is no more, nothing is written."""
    values: Sequence[Value]
    """One for each key."""
    gone: Sequence[int]
    """Messages that are to be nobody's value."""
    first: int
    """The oldest message that it looked at."""
    position: int
    """The index is what messages below this id make of it, from now on."""
    now_ms: int
    """Values that were to go until now, in ms since the epoch, go; as many as a commit takes."""
    most: int
    """Keys, at most: beyond, those go that have had no new value for the longest."""
    most_bytes: int
    """The same for the values' content; 0: no limit."""
    messages: int
    """Keys that have a value before it."""
    size_bytes: int
    """The content of their values before it."""
    more: int = 0
    """How many keys more have a value after it."""
    more_bytes: int = 0
    """By how much the content of the values is more then."""
    dropped: int = 0
    """Values that went because there were too many."""
    next_expiry_ms: int | None = None
    """When the next value goes, in ms since the epoch; None where all stay."""


class HeldRun(NamedTuple):
    """Messages of a route from ``first`` to ``last`` are needed by so many of its endpoints."""

    route: int
    first: int
    last: int
    endpoints: int


@dataclass(slots=True)
class TrimLog:
    """
    Logged messages with ids from ``first`` below ``stop`` leave the log; one that endpoints still need is held by
    these alone from then on. The store fills in what it did.
    """

    first: int
    stop: int
    held: Sequence[HeldRun] = ()
    """What is needed by way of routes; a message is in one run at most."""
    references: Sequence[tuple[int, int]] = ()
    """(cursor, message) of what is needed by a reference, new ones among them: each counts as one endpoint more."""
    freed_bytes: int = 0
    """What the log takes less of the disk."""
    newest_ms: int = 0
    """When the newest of them had arrived; 0 when there was none."""
    counts_topics: bool = False
    """Whether the store says in ``freed`` what left the log, topic by topic."""
    freed: Sequence[tuple[str, int, int]] = ()
    """(topic, messages, bytes of the disk) of what left it."""
    has_kept: bool = False
    """Messages among them may wait on endpoints for their time, or be values of last-value queues: each such endpoint
    counts as one that needs them."""


@dataclass(slots=True)
class TrimTopics(TrimLog):
    """
    Some logged messages with ids from ``first`` below ``stop`` leave the log by a retention rule, and the others stay.
    Whoever asks what is missing of the rule's topics is told of it after a restart, too (``RetentionMark``).
    """

    ids: Sequence[int] = ()
    """Of the messages, rising. One that the log does not hold is left as it is."""
    rule: str = ""
    """Key of the rule."""


@dataclass(frozen=True, slots=True)
class SaveArchived:
    """The log is in an archive up to this id, itself included. What was said before of a higher one stays true."""

    last_id: int


@dataclass(slots=True)
class EraseMessages:
    """
    The content of messages is no more: in its place is that of ``rows``, which are as they were but for it. One that is
    not stored any more is passed over. What the content took leaves no bytes behind in pages that are in use. The store
    fills in what it did.
    """

    rows: Sequence[Row]
    """``held`` is not looked at."""
    freed_bytes: int = 0
    """What the log takes less of the disk; negative where it takes more."""
    ids: Sequence[int] = ()
    """Those that were there."""


@dataclass(frozen=True, slots=True)
class CountAttempts:
    """Deliveries that failed: the header's delivery-count of these messages after it, kept over a restart."""

    cursor: int
    attempts: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SaveEndpoint:
    """An endpoint's definition, made or changed. ``settings`` is JSON text."""

    number: int
    cursor: int
    """The number of its cursor: what its routes lead to and the cursor has not passed is on the endpoint."""
    name: str
    kind: str
    settings: str
    replay: str | None


@dataclass(frozen=True, slots=True)
class DeleteEndpoint:
    """The endpoint and its subscriptions are gone. Its cursor is dropped by an effect of its own."""

    number: int


@dataclass(frozen=True, slots=True)
class ForgetIds:
    """Ids of publishers leave an endpoint's window before it is their turn."""

    endpoint: int
    kept: Mapping[int, Sequence[bytes]] | None = None
    """By the first message of a publication, which of the ids that came with it stay; None: there is no window any
    more."""


@dataclass(frozen=True, slots=True)
class SaveSubscription:
    endpoint: int
    pattern: str


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    endpoint: int
    pattern: str


@dataclass(frozen=True, slots=True)
class SaveReplay:
    """How far an endpoint's replay is, as JSON text; None when none was ever asked for."""

    endpoint: int
    replay: str | None


@dataclass(frozen=True, slots=True)
class SavePoint:
    """A named point was made. The ids below it count as given out: none of them is used again, whatever fails."""

    point: Point


@dataclass(frozen=True, slots=True)
class DeletePoint:
    name: str


@dataclass(frozen=True, slots=True)
class SaveReplayRecord:
    """How far a replay is, or how it ended. Committed with what a job published, it stands or falls with that."""

    record: ReplayRecord


@dataclass(frozen=True, slots=True)
class DropReplayRecords:
    """The records of these replays of the past are kept no longer."""

    numbers: Sequence[int]


Effect: TypeAlias = (
    Publication
    | MoveCursor
    | OpenCursor
    | DropCursor
    | CountedUpTo
    | AddReferences
    | ReleaseDelayed
    | CancelDelayed
    | HoldBack
    | TrimLog
    | TrimTopics
    | SaveArchived
    | EraseMessages
    | CountAttempts
    | SaveEndpoint
    | DeleteEndpoint
    | ForgetIds
    | SaveSubscription
    | DeleteSubscription
    | SaveReplay
    | SavePoint
    | DeletePoint
    | SaveReplayRecord
    | DropReplayRecords
    | KeepValues
)


class StoredCursor(NamedTuple):
    """One part of a cursor."""

    floor: int
    ranges: Sequence[tuple[int, int]]
    """(first, last) of the ids above the floor with which its endpoint is done, rising; they may touch each other and
    the floor, as a transaction left them."""
    messages: int
    """What the endpoint has by it, by the last count."""
    size_bytes: int
    later_messages: int = 0
    """What came after that."""
    later_bytes: int = 0


class StoredRoute(NamedTuple):
    """A route that messages may name."""

    definition: RouteDefinition
    newest_id: int
    """Of its messages; 0 when it has none."""


class StoredReference(NamedTuple):
    """A message that an endpoint has by itself."""

    message_id: int
    size_bytes: int
    priority: int
    """The message's own, by its header."""
    attempts: int
    """Failed deliveries."""


class StoredDelays(NamedTuple):
    """What waits on an endpoint for its time."""

    messages: int = 0
    size_bytes: int = 0
    next_ms: int | None = None
    """When the first of them is to be delivered; None where there is none."""
    retries: int = 0
    """How many of them a consumer gave back."""
    in_order: Sequence[tuple[int, int]] = ()
    """(message, priority) of those behind which nothing is to be delivered before them."""


NO_DELAYS: Final = StoredDelays()


class StoredValues(NamedTuple):
    """The values of a last-value queue."""

    messages: int = 0
    size_bytes: int = 0
    next_expiry_ms: int | None = None
    """When the first of them goes, in ms since the epoch; None where all stay."""


NO_VALUES: Final = StoredValues()


@dataclass(slots=True)
class StoredEndpoint:
    """An endpoint as recovery found it."""

    definition: SaveEndpoint
    parts: dict[int, StoredCursor]
    """Its cursor, by part."""
    references: list[StoredReference] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)
    delays: StoredDelays = NO_DELAYS
    values: StoredValues = NO_VALUES
    dedup: list[StoredIds] = field(default_factory=list)
    """Its window of publishers' ids, oldest first."""
