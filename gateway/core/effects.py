"""
Effects: the changes that a command makes durable, as values. The store applies them in order, many in one transaction.
Also the values in which the store returns endpoints and routes at a start.

A message is one tuple, a ``Row``: the store, the message cache and consumers get it unchanged, and no other object is
made per message. Commit, then tell: no accept, delivery or detach is sent before the effects of its own command and of
all earlier commands are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from gateway.core.model import Point, ReplayRecord, RouteDefinition, Row, stored_bytes


class Delays(NamedTuple):
    """Delayed messages: each waits on its endpoints until it is due."""

    cursors: Sequence[int]
    """The cursors of the endpoints. Each endpoint gets all of the messages."""
    due_ms: Sequence[int]
    """When each of the messages is to be delivered, in ms since the epoch."""


@dataclass(slots=True)
class DedupIds:
    """The ids that publishers gave to messages. The deduplication windows of endpoints keep them."""

    ids: Sequence[bytes]
    """As ``amqp_ext.message.fields.publisher_ids`` returns them; none is empty."""
    endpoints: Mapping[int, int]
    """By the endpoint's number, the first message of a publication. The endpoint no longer needs the ids of this and of
    earlier publications (0: no more than before)."""
    echoes: list[Any] = field(default_factory=list)
    """Receipts of duplicates that came before the ids were durable."""
    joined: bytes = field(init=False)
    """The concatenated ids, joined while they are still in the processor's cache."""

    def __post_init__(self) -> None:
        self.joined = b"".join(self.ids)


class StoredIds(NamedTuple):
    """Publishers' ids that came together, as the store returns them at a start."""

    came: tuple[int, int]
    """(id of the first message that they came with, its time in ms)."""
    ids: Sequence[bytes]


class Publication:
    """
    Messages of one topic that arrived together: consecutive ids, one time, one set of endpoints.

    Attributes:
        rows: The messages; each row names its route.
        routes: The routes that the rows name: one, or one for each priority among them; none for ``UNROUTED``.
        logged: The replay log takes them, and ``held`` is None in their rows. Else ``held`` is the number of their
            endpoints.
        size_bytes: The size of their contents.
        logged_bytes: Their disk space in the log; 0 where the log does not take them.
        put: What the broker needs to know when they are durable; a store does not look at it.
        delays: The endpoints on which they are delayed; None for messages that are not delayed.
        dedup: Their publishers' ids, where an endpoint has a deduplication window; else None.
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
            sizes: The sizes of the rows' contents, in bytes.
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
    """One part of a cursor moves: it has passed messages, or its count of the endpoint's messages has changed."""

    cursor: int
    """The cursor's number."""
    part: int
    """``WHOLE``, or the priority of the part's messages."""
    floor: int | None = None
    """The cursor has passed everything up to this id; None where the floor has not moved."""
    ranges: Mapping[int, int | None] = field(default_factory=dict)
    """Changed ranges of passed ids above the floor: last id by first id. None for a range that has become part of the
    floor or of another range."""
    counted_id: int | None = None
    """``messages`` and ``size_bytes`` count messages up to this id; None where this bound has not moved."""
    messages: int = 0
    """Change of the number of the endpoint's messages; mostly negative."""
    size_bytes: int = 0
    """Change of the size of their content."""
    done: Sequence[int] = ()
    """Ids that the cursor passes now. The endpoint stops holding those that are held."""
    attempts: Sequence[int] = ()
    """Ids whose failed deliveries the store may forget."""
    references: Sequence[int] = ()
    """Those ids of ``done`` that the endpoint had by a reference."""
    archived: int = 0
    """How many further messages the cursor has passed that only the log's archive has. The store keeps nothing of
    them."""


class SettleInTransaction(MoveCursor):
    """
    A move as part of a transaction: if that fails, the messages are not settled. The move only adds ranges, which may
    touch each other and the floor.
    """

    __slots__ = ()


def settled_firsts(effects: Iterable[Effect], cursor: int, part: int) -> list[int]:
    """The first ids of the ranges that a transaction has written for a part of a cursor."""
    return [
        first
        for effect in effects
        if isinstance(effect, SettleInTransaction) and (effect.cursor, effect.part) == (cursor, part)
        for first in effect.ranges
    ]


@dataclass(frozen=True, slots=True)
class OpenCursor:
    """
    A new cursor: all its parts begin at ``floor``, with zero messages counted. Ids up to the floor count as given out:
    none of them is used again, whatever fails.
    """

    number: int
    parts: Sequence[int]
    floor: int
    given_out: int = 0
    """Ids up to this one also count as given out."""


@dataclass(frozen=True, slots=True)
class DropCursor:
    """
    A cursor is deleted: the endpoint no longer needs the messages that it had by the cursor up to an id. The store does
    the work for each of these messages afterwards, in small commits.
    """

    number: int
    endpoint: int
    """The endpoint that holds the messages; 0 for the cursor of a replay, which holds none."""
    up_to: int


@dataclass(frozen=True, slots=True)
class CountedUpTo:
    """Every cursor has counted its messages at least up to this id: a start need not count from further back."""

    message_id: int


@dataclass(frozen=True, slots=True)
class AddReferences:
    """
    Logged messages that an endpoint has although no route leads to it, or although its cursor has passed them: copies,
    and the messages of a replay that was forced to complete. A reference that exists already stays.
    """

    cursor: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReleaseDelayed:
    """Delayed messages are due: from now on, their endpoint has them by references."""

    cursor: int
    entries: Sequence[tuple[int, int]]
    """(when the message was due in ms, its id)."""


@dataclass(frozen=True, slots=True)
class CancelDelayed:
    """Delayed messages of an endpoint are dropped before they are due."""

    cursor: int
    entries: Sequence[tuple[int, int]]
    """(when the message was due in ms, its id)."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """
    Messages that a consumer returned are delayed on their endpoint. In the same batch the cursor passes them, or their
    references are deleted, while the endpoint still holds them.
    """

    cursor: int
    entries: Sequence[tuple[int, int, int]]
    """(when the message is due again in ms, its id, bytes of content)."""
    in_order: bool
    """No later message is to be delivered before them."""


class DelayedMessage(NamedTuple):
    """A delayed message of an endpoint."""

    due_ms: int
    """When it is to be delivered, in ms since the epoch."""
    id: int
    counted_bytes: int
    """The size of its content as it was counted when it came."""
    size_bytes: int
    """The size of its content."""
    priority: int
    """The priority in its header."""
    attempts: int = 0
    """The number of failed deliveries."""
    is_retry: bool = False
    """Whether a consumer returned it."""


class Value(NamedTuple):
    """The new value of a key of a last-value queue."""

    key: bytes
    """The key's digest."""
    id: int
    """The message that sets or removes the value."""
    size_bytes: int | None
    """The size of the message's content; None where the message removes the key's value."""
    expires_ms: int | None
    """When the value expires, in ms since the epoch; None where it stays."""


@dataclass(slots=True)
class KeepValues:
    """
    The index of a last-value queue follows the log: each key gets its message as its value, unless it has a newer one.
    The queue no longer needs a message that has stopped being a value. The store fills in the results.
    """

    cursor: int
    """The queue's cursor. If it was deleted, the store writes nothing."""
    values: Sequence[Value]
    """One for each key."""
    gone: Sequence[int]
    """Messages that stop being values."""
    first: int
    """The oldest message that this step looked at."""
    position: int
    """From now on, the index covers the messages below this id."""
    now_ms: int
    """Values that expired up to now, in ms since the epoch, are removed; as many as one commit takes."""
    most: int
    """The most keys. Beyond it, the keys are removed that have had no new value for the longest time."""
    most_bytes: int
    """The most bytes of the values' content; 0: no limit."""
    messages: int
    """Keys with a value before this effect."""
    size_bytes: int
    """The content of all values before this effect."""
    more: int = 0
    """Result: change of the number of keys with a value."""
    more_bytes: int = 0
    """Result: change of the content of all values."""
    dropped: int = 0
    """Result: values that were removed because there were too many."""
    next_expiry_ms: int | None = None
    """Result: when the next value expires, in ms since the epoch; None where all stay."""


class HeldRun(NamedTuple):
    """``endpoints`` of a route's endpoints need the route's messages from ``first`` to ``last``."""

    route: int
    first: int
    last: int
    endpoints: int


@dataclass(slots=True)
class TrimLog:
    """
    Logged messages with ids from ``first`` to below ``stop`` leave the log. A message that endpoints still need is held
    by these endpoints from then on. The store fills in the results.
    """

    first: int
    stop: int
    held: Sequence[HeldRun] = ()
    """The messages that endpoints need by routes; each is in one run at most."""
    references: Sequence[tuple[int, int]] = ()
    """(cursor, message) of each reference to a message that is needed, new references included. Each counts as one more
    endpoint."""
    freed_bytes: int = 0
    """Result: the disk space that the log loses."""
    newest_ms: int = 0
    """Result: when the newest of the messages arrived, in ms since the epoch; 0 when there was none."""
    counts_topics: bool = False
    """Whether the store fills in ``freed``."""
    freed: Sequence[tuple[str, int, int]] = ()
    """Result: what left the log, as (topic, messages, bytes of the disk)."""
    has_kept: bool = False
    """Some of the messages may be delayed on endpoints, or be values of last-value queues. Each such endpoint counts as
    one that needs them."""


@dataclass(slots=True)
class TrimTopics(TrimLog):
    """
    Some logged messages with ids from ``first`` to below ``stop`` leave the log by a retention rule, and the others
    stay. The store keeps a mark (``RetentionMark``) that says, after a restart too, what the rule's topics may lack.
    """

    ids: Sequence[int] = ()
    """The ids of the messages that leave, rising. A message that the log does not hold stays as it is."""
    rule: str = ""
    """The rule's key."""


@dataclass(frozen=True, slots=True)
class SaveArchived:
    """The archive has the log up to and including this id. If a higher id was saved before, that one stays."""

    last_id: int


@dataclass(slots=True)
class EraseMessages:
    """
    Replace the content of stored messages by the content of ``rows``, which are otherwise unchanged. A message that is
    not stored any more is skipped. No byte of the old content stays in pages that are in use. The store fills in the
    results.
    """

    rows: Sequence[Row]
    """``held`` is not looked at."""
    freed_bytes: int = 0
    """Result: the disk space that the log loses; negative where it grows."""
    ids: Sequence[int] = ()
    """Result: the messages that were stored."""


@dataclass(frozen=True, slots=True)
class CountAttempts:
    """Deliveries failed: (message, its new delivery-count in the header) for each, kept over a restart."""

    cursor: int
    attempts: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SaveEndpoint:
    """An endpoint was created or changed. ``settings`` is JSON text."""

    number: int
    cursor: int
    """The number of its cursor. The endpoint has those messages of its routes that the cursor has not passed."""
    name: str
    kind: str
    settings: str
    replay: str | None


@dataclass(frozen=True, slots=True)
class DeleteEndpoint:
    """The endpoint and its subscriptions are deleted. A separate effect drops its cursor."""

    number: int


@dataclass(frozen=True, slots=True)
class ForgetIds:
    """Publishers' ids leave an endpoint's deduplication window early."""

    endpoint: int
    kept: Mapping[int, Sequence[bytes]] | None = None
    """The ids that stay of a publication, by its first message. None: the endpoint has no window any more."""


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
    """The state of an endpoint's replay, as JSON text; None when the endpoint never had a replay."""

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
    """The progress of a replay, or how it ended. A job's record is committed with the messages that it published."""

    record: ReplayRecord


@dataclass(frozen=True, slots=True)
class DropReplayRecords:
    """Delete the records of these ended replays."""

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
    """One part of a cursor, as the store returns it at a start."""

    floor: int
    ranges: Sequence[tuple[int, int]]
    """(first, last) of the passed ids above the floor, rising. Ranges that a transaction wrote may touch each other and
    the floor."""
    messages: int
    """The number of the endpoint's messages in this part, at the last count."""
    size_bytes: int
    later_messages: int = 0
    """Messages that came after that count."""
    later_bytes: int = 0


class StoredRoute(NamedTuple):
    """A route, as the store returns it at a start."""

    definition: RouteDefinition
    newest_id: int
    """The newest id of the route's messages; 0 when it has none."""


class StoredReference(NamedTuple):
    """A message that an endpoint has by a reference."""

    message_id: int
    size_bytes: int
    priority: int
    """The priority in the message's header."""
    attempts: int
    """Failed deliveries."""


class StoredDelays(NamedTuple):
    """The delayed messages of an endpoint."""

    messages: int = 0
    size_bytes: int = 0
    next_ms: int | None = None
    """When the first of them is due, in ms since the epoch; None where there is none."""
    retries: int = 0
    """How many of them a consumer returned."""
    in_order: Sequence[tuple[int, int]] = ()
    """(message, priority) of those that must be delivered before all later messages."""


NO_DELAYS: Final = StoredDelays()


class StoredValues(NamedTuple):
    """The values of a last-value queue."""

    messages: int = 0
    size_bytes: int = 0
    next_expiry_ms: int | None = None
    """When the first of them expires, in ms since the epoch; None where all stay."""


NO_VALUES: Final = StoredValues()


@dataclass(slots=True)
class StoredEndpoint:
    """An endpoint, as the store returns it at a start."""

    definition: SaveEndpoint
    parts: dict[int, StoredCursor]
    """Its cursor, by part."""
    references: list[StoredReference] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)
    delays: StoredDelays = NO_DELAYS
    values: StoredValues = NO_VALUES
    dedup: list[StoredIds] = field(default_factory=list)
    """Its deduplication window of publishers' ids, oldest first."""
