"""
What the broker of a Message VPN works on, as plain values: a message (``Row``), the replay log's state and what
messages take of the disk, a named point of the log, and the record of a replay.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from amqp_ext.replay_start import NAME_CHARACTERS
from gateway.core.errors import ErrorCode, Refused

Row: TypeAlias = "tuple[int, int, str, int, int, int | None, bytes]"
"""A message: (id, time ms, topic, offset of the bare message, route, held, content as received).

``route`` is the number of the set of endpoints that it was put on, 0 where there was none. ``held`` is None while the
replay log holds the message; else how many endpoints that still need it hold it. It is the one tuple a message is: it
goes into the file, into memory and out to consumers as it stands."""

ID: Final = 0
TIME_MS: Final = 1
TOPIC: Final = 2
BARE: Final = 3
ROUTE: Final = 4
HELD: Final = 5
CONTENT: Final = 6
"""Where each is in a ``Row``."""

ID_OF: Final = itemgetter(ID)
TOPIC_OF: Final = itemgetter(TOPIC)
BARE_OF: Final = itemgetter(BARE)
HELD_OF: Final = itemgetter(HELD)
CONTENT_OF: Final = itemgetter(CONTENT)

UNROUTED: Final = 0
"""The route of a message that the log alone has."""

WHOLE: Final = -1
"""The part of an endpoint's cursor that all its messages are in, where it does not deliver by priority."""


def with_content(row: Row, other: Row) -> Row:
    """A message with the content of another in the place of its own."""
    return (*row[:BARE], other[BARE], row[ROUTE], row[HELD], other[CONTENT])


def sizes_of(rows: Sequence[Row]) -> list[int]:
    """Of their contents, in bytes."""
    return list(map(len, map(CONTENT_OF, rows)))


class Columns(NamedTuple):
    """
    What is asked of each of some messages that were read together, so that their rows need not be taken apart one by
    one: rows that were read by another thread are far from the processor, and come near once, when they are sent.
    """

    ids: list[int]
    sizes: list[int]
    """Of their contents, in bytes."""
    topics: Collection[str]
    """Theirs, each once; there may be others among them."""
    are_logged: bool
    """Nothing but the log holds them."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Columns:
        """Those of rows that came as such."""
        are_logged = list(map(HELD_OF, rows)).count(None) == len(rows)
        return cls(list(map(ID_OF, rows)), sizes_of(rows), set(map(TOPIC_OF, rows)), are_logged)

    def part(self, start: int, stop: int) -> Columns:
        """Those of the messages from one place to another."""
        return Columns(self.ids[start:stop], self.sizes[start:stop], self.topics, self.are_logged)


@dataclass(frozen=True, slots=True)
class RouteDefinition:
    """A set of endpoints that messages are put on, interned: messages name it by its number."""

    number: int
    endpoints: tuple[int, ...]
    """Their numbers, rising."""
    priority: int | None
    """Of its messages, where some of the endpoints deliver by priority; else None."""


@dataclass(slots=True)
class LogState:
    """
    The replay log as the store has it. Its owner at run time is ``gateway.core.broker.Broker``.

    Invariant: messages with ids from ``next_id`` below ``unused_id`` are taken and not committed yet; they count
    already against the log's quota and those of endpoints.
    """

    generation: int
    first_id: int
    """The oldest id that may be in the log."""
    next_id: int
    """One past the last committed id."""
    last_time_ms: int
    """When the newest message arrived, ms since the epoch; arrival times never go back."""
    floor_ms: int
    """From this time on nothing is missing, ms since the epoch."""
    size_bytes: int = 0
    """What all logged messages take of the disk: see ``stored_bytes``."""
    archived_id: int = 0
    """The log is in an archive up to this id, itself included."""
    unused_id: int = field(init=False, compare=False)
    """The next id to be given out."""

    def __post_init__(self) -> None:
        self.unused_id = self.next_id

    @property
    def newest_id(self) -> int:
        """The last committed id."""
        return self.next_id - 1

    def follow(self, told: LogState) -> None:
        """Another gateway writes the log, and this is what it has reported."""
        self.first_id, self.floor_ms, self.size_bytes = told.first_id, told.floor_ms, told.size_bytes
        self.next_id, self.last_time_ms, self.archived_id = told.next_id, told.last_time_ms, told.archived_id
        self.unused_id = self.next_id


# What a message takes of the disk. A file of tables is made of pages, and a message is on one of them whole, or begins
# on one and has pages of its own for the rest. So two messages of 2,100 bytes take two pages of 4,096, and what a page
# has left is nobody's. A message counts with the share of a page that it has where all are of its size: where sizes are
# mixed, the sum is within some percent of what the file grows by.

PAGE_BYTES: Final = 4096
"""Of a file."""

ROW_BYTES: Final = 32
"""A row's beside content and topic: id, time, checksum and other numbers, how long each is, its place in the page."""

ENTRY_BYTES: Final = 12
"""Its entry in the index of routes, with that index's share of pages that are not full."""

USABLE_BYTES: Final = PAGE_BYTES - 8
"""Of a page, for rows (SQLite's file format, "B-tree Pages")."""

WHOLE_BYTES: Final = PAGE_BYTES - 35
"""The longest row that is on one page as a whole (the same, "Cell Payload Overflow Pages", as the next two)."""

LEAST_BYTES: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
"""The least of a longer one that is on a page of rows."""

OVERFLOW_BYTES: Final = PAGE_BYTES - 4
"""What a page of its own holds of the rest."""


def stored_bytes(topic: str, sizes: Sequence[int]) -> int:
    """
    What messages of one topic take of the disk: the measure of the log's size and of its quota.

    Args:
        sizes: Of their contents, in bytes; one at least.
    """
    more = len(topic.encode()) + ROW_BYTES
    count, first = len(sizes), sizes[0]
    if sizes.count(first) == count:
        return count * _row_on_disk(first + more)
    try:
        return sum([_SHORT_ROWS[size + more] for size in sizes])
    except IndexError:
        return sum([_row_on_disk(size + more) for size in sizes])


def _row_on_disk(row_bytes: int) -> int:
    if row_bytes <= WHOLE_BYTES:
        return PAGE_BYTES // (USABLE_BYTES // row_bytes) + ENTRY_BYTES
    pages, rest = divmod(row_bytes - LEAST_BYTES, OVERFLOW_BYTES)
    if rest > WHOLE_BYTES - LEAST_BYTES:
        pages, rest = pages + 1, 0
    return pages * PAGE_BYTES + PAGE_BYTES // (USABLE_BYTES // (LEAST_BYTES + rest)) + ENTRY_BYTES


_SHORT_ROWS: Final = [_row_on_disk(max(size, 1)) for size in range(WHOLE_BYTES + 1)]
"""By their lengths: messages are counted as they are published, and looked up in a third of the time."""


@dataclass(frozen=True, slots=True)
class Point:
    """
    A named point of the replay log: a place between two messages that an administrator gave a name. Times are ms since
    the epoch.

    A point keeps no message alive: once the log was trimmed past it, it says so and is no start any more.
    """

    name: str
    position: int
    """The first id behind the point: where a replay from it starts."""
    time_ms: int
    """The moment it stands for: when it was made, or when the message at ``position`` arrived."""
    made_ms: int


class ListedPoint(NamedTuple):
    """A point as it is told to an administrator."""

    point: Point
    is_trimmed: bool
    """Messages behind it are no longer in the log."""


def check_name(of: str, name: str) -> str:
    """
    The name, if something may be called so.

    Args:
        of: What it is a name of, for the error: ``a point``.

    Raises:
        Refused: INVALID_FIELD, it is blank, too long, or has characters that cannot be seen.
    """
    if not name.strip() or not name.isprintable() or len(name) > NAME_CHARACTERS:
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"{of}'s name has 1 to {NAME_CHARACTERS} printable characters, and {name[:40]!r} does not",
        )
    return name


ENDPOINT: Final = "endpoint"
"""``kind``: a replay onto an endpoint."""

COPY: Final = "copy"
"""``kind``: copies of logged messages, published to an address."""

DEAD_RETURN: Final = "dead-return"
"""``kind``: dead messages, published to where they came from."""

COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

ENDED: Final = frozenset({COMPLETE, CANCELLED, FAILED})
"""States from which nothing goes on."""


class ReplayRequest(NamedTuple):
    """A replay as it was asked for."""

    requester: str = ""
    """See ``ReplayRecord``."""
    name: str = ""
    """Empty: one is made."""
    start: str = ""


BY_NOBODY: Final = ReplayRequest()
"""As a test asks for one."""


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """
    The record of one replay: who asked for it, what it was to do, how far it came, and how it ended. By it whoever
    works for a while, onto an endpoint or into another address, goes on after a stop.

    Texts are as they were said. Times are ms since the epoch, ids are the log's.

    A replay onto an endpoint is in the states of ``gateway.core.replay.states``, or ``cancelled``; a job is
    ``running``, ``paused``, ``complete``, ``cancelled`` or ``failed``.
    """

    number: int
    """Rising in the order in which replays began; unique in a Message VPN."""
    name: str
    """Given, or made of who asked and when; unique among those that are kept."""
    kind: str
    requester: str
    """An administrator's name, or ``user@container`` of a client."""
    start: str = ""
    until: str = ""
    """Empty where it is to go on to live, or to the end."""
    subscriptions: tuple[str, ...] = ()
    selector: str = ""
    target: str = ""
    """An endpoint's name, or an address."""
    rate: float | None = None
    """Messages a second, at most."""
    speed: float | None = None
    """Factor of the original pace."""
    state: str = "initializing"
    position: int = 0
    """The next id to be read."""
    read: int = 0
    """Messages that it has looked at; of a replay onto an endpoint, ids of the log."""
    sent: int = 0
    """Messages that it has put on the endpoint, or published."""
    size_bytes: int = 0
    """Content of those. What a replay onto an endpoint has to put once more after a stop counts once more."""
    started_ms: int = 0
    ended_ms: int = 0
    """0 while it goes on."""
    outcome: str = ""
    """Why it ended, what became of it meanwhile, or what a job waits for."""
    end: int = 0
    """A job takes messages with ids below this one."""
    source: str = ""
    """The queue that dead letters are taken from."""
    limit: int = 0
    """Messages that are returned, at most; 0 for all."""
    remote: str = ""
    """The label of the peer that ``target`` is an address of; empty for this Message VPN."""
    without_below: int = 0
    """A job does without what rules of retention had taken out below this id when it began."""

    @property
    def is_ended(self) -> bool:
        """Nothing goes on any more."""
        return self.state in ENDED

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def from_json(cls, text: str) -> ReplayRecord:
        kept = json.loads(text)
        kept["subscriptions"] = tuple(kept["subscriptions"])
        return cls(**kept)


# ``asdict`` copies what is in it, and takes several times as long.
_FIELDS: Final = tuple(one.name for one in fields(ReplayRecord))
