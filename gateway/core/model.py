"""
The plain values that the broker of a Message VPN works on: a message (``Row``), the state of the replay log, the disk
space of messages, a named point of the log, and the record of a replay.
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

``route`` is the number of the set of endpoints that the message was put on, 0 where there was none. ``held`` is None
while the replay log holds the message; else it is the number of endpoints that still need the message. The store, the
message cache and the consumers get this same tuple."""

ID: Final = 0
TIME_MS: Final = 1
TOPIC: Final = 2
BARE: Final = 3
ROUTE: Final = 4
HELD: Final = 5
CONTENT: Final = 6
"""Positions of the fields in a ``Row``."""

ID_OF: Final = itemgetter(ID)
TOPIC_OF: Final = itemgetter(TOPIC)
BARE_OF: Final = itemgetter(BARE)
HELD_OF: Final = itemgetter(HELD)
CONTENT_OF: Final = itemgetter(CONTENT)

UNROUTED: Final = 0
"""The route of a message that no route put on an endpoint."""

WHOLE: Final = -1
"""The one part of the cursor of an endpoint that does not deliver by priority: it covers all messages."""


def with_content(row: Row, other: Row) -> Row:
    """The message ``row``, with the content of ``other`` in place of its own."""
    return (*row[:BARE], other[BARE], row[ROUTE], row[HELD], other[CONTENT])


def sizes_of(rows: Sequence[Row]) -> list[int]:
    """The sizes of the rows' contents, in bytes."""
    return list(map(len, map(CONTENT_OF, rows)))


class Columns(NamedTuple):
    """
    The ids, sizes and topics of messages that were read together, so that their rows need not be unpacked one by one.
    Rows that another thread has read are not in this processor's cache; with the columns, they are loaded only once,
    when they are sent.
    """

    ids: list[int]
    sizes: list[int]
    """Sizes of the contents, in bytes."""
    topics: Collection[str]
    """All topics of the messages, each once. It may contain further topics."""
    are_logged: bool
    """The log holds all of them: ``held`` is None in every row."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Columns:
        """The columns of rows that came without them."""
        are_logged = list(map(HELD_OF, rows)).count(None) == len(rows)
        return cls(list(map(ID_OF, rows)), sizes_of(rows), set(map(TOPIC_OF, rows)), are_logged)

    def part(self, start: int, stop: int) -> Columns:
        """The columns of the messages from place ``start`` to below ``stop``."""
        return Columns(self.ids[start:stop], self.sizes[start:stop], self.topics, self.are_logged)


@dataclass(frozen=True, slots=True)
class RouteDefinition:
    """A set of endpoints that messages are put on. Each different set has one number, and messages name that number."""

    number: int
    endpoints: tuple[int, ...]
    """The numbers of the endpoints, in rising order."""
    priority: int | None
    """The priority of the route's messages, where one of the endpoints delivers by priority; else None."""


@dataclass(slots=True)
class LogState:
    """
    The state of the replay log in the store. At run time, ``gateway.core.broker.Broker`` owns it.

    Invariant: messages with ids from ``next_id`` to below ``unused_id`` are not committed yet. They already count
    against the quotas of the log and of endpoints.
    """

    generation: int
    first_id: int
    """The oldest id that may be in the log."""
    next_id: int
    """One past the last committed id."""
    last_time_ms: int
    """When the newest message arrived, ms since the epoch; arrival times never go back."""
    floor_ms: int
    """The log lacks no message that arrived from this time on, ms since the epoch."""
    size_bytes: int = 0
    """The disk space of all logged messages: see ``stored_bytes``."""
    archived_id: int = 0
    """The archive has the log up to and including this id."""
    unused_id: int = field(init=False, compare=False)
    """The id of the next message to be published."""

    def __post_init__(self) -> None:
        self.unused_id = self.next_id

    @property
    def newest_id(self) -> int:
        """The last committed id."""
        return self.next_id - 1

    def follow(self, told: LogState) -> None:
        """Take over the state that the gateway that writes the log has reported."""
        self.first_id, self.floor_ms, self.size_bytes = told.first_id, told.floor_ms, told.size_bytes
        self.next_id, self.last_time_ms, self.archived_id = told.next_id, told.last_time_ms, told.archived_id
        self.unused_id = self.next_id


# The disk space of a message. A file of tables consists of pages. A row is either on one page as a whole, or begins on
# one page and continues on overflow pages of its own. So two messages of 2,100 bytes take two pages of 4,096 bytes, and
# the rest of each page stays unused. A message counts with its share of a page that is full of messages of the same
# size. Where sizes are mixed, the sum differs from the growth of the file by some percent.

PAGE_BYTES: Final = 4096
"""The size of a page of the file."""

ROW_BYTES: Final = 32
"""A row's bytes in addition to content and topic: id, time, checksum, other numbers, field lengths, place in the
page."""

ENTRY_BYTES: Final = 12
"""A message's entry in the index of routes. The index's pages are not full; the entry counts with its share of them."""

USABLE_BYTES: Final = PAGE_BYTES - 8
"""The bytes of a page that rows can use (SQLite's file format, "B-tree Pages")."""

WHOLE_BYTES: Final = PAGE_BYTES - 35
"""The longest row that is on one page as a whole (the same, "Cell Payload Overflow Pages", as the next two)."""

LEAST_BYTES: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
"""The least number of bytes that a longer row has on its table page."""

OVERFLOW_BYTES: Final = PAGE_BYTES - 4
"""How many bytes of the rest an overflow page holds."""


def stored_bytes(topic: str, sizes: Sequence[int]) -> int:
    """
    The disk space of messages of one topic: the measure of the log's size and of its quota.

    Args:
        sizes: The sizes of the contents, in bytes; at least one.
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
"""The disk space of short rows, by length. Every published message is counted; the lookup takes a third of the time."""


@dataclass(frozen=True, slots=True)
class Point:
    """
    A named point of the replay log: a place between two messages, named by an administrator. Times are ms since the
    epoch.

    A point does not keep messages in the log. After the log was trimmed past the point, the point is reported as
    trimmed and a replay cannot start at it.
    """

    name: str
    position: int
    """The first id after the point: a replay from the point starts here."""
    time_ms: int
    """When the point was made, or when the message at ``position`` arrived."""
    made_ms: int


class ListedPoint(NamedTuple):
    """A point as an administrator gets it."""

    point: Point
    is_trimmed: bool
    """Some messages after the point are no longer in the log."""


def check_name(of: str, name: str) -> str:
    """
    Return the name if it is valid.

    Args:
        of: What has the name, for the error text: ``a point``.

    Raises:
        Refused: INVALID_FIELD, it is blank, too long, or has characters that are not printable.
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
"""``kind``: dead letters, published again to the endpoints where they died, or elsewhere."""

COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

ENDED: Final = frozenset({COMPLETE, CANCELLED, FAILED})
"""Final states."""


class ReplayRequest(NamedTuple):
    """Who asked for a replay, under which name, from which start."""

    requester: str = ""
    """See ``ReplayRecord``."""
    name: str = ""
    """Empty: the gateway makes a name."""
    start: str = ""


NO_REQUEST: Final = ReplayRequest()
"""The request of a replay in a test."""


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """
    The record of one replay: who asked for it, its task, its progress, and how it ended. After a restart of the
    gateway, an endpoint replay or a job that had not ended goes on from its record.

    Texts are as the requester wrote them. Times are ms since the epoch, ids are the log's.

    A replay onto an endpoint is in the states of ``gateway.core.replay.states``, or ``cancelled``; a job is
    ``running``, ``paused``, ``complete``, ``cancelled`` or ``failed``.
    """

    number: int
    """Rises in the order in which replays began; unique in a Message VPN."""
    name: str
    """Given, or made from the requester and the time; unique among the records that are kept."""
    kind: str
    requester: str
    """An administrator's name, or ``user@container`` of a client."""
    start: str = ""
    until: str = ""
    """Empty where the replay goes on to live messages, or to the end."""
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
    """Messages that the replay has read; of an endpoint replay, ids of the log."""
    sent: int = 0
    """Messages that the replay has put on the endpoint, or published."""
    size_bytes: int = 0
    """Content of the messages in ``sent``. A message that an endpoint replay puts again after a restart counts
    again."""
    started_ms: int = 0
    ended_ms: int = 0
    """0 until the replay ends."""
    outcome: str = ""
    """Why the replay ended, what happened to it, or what a job waits for."""
    end: int = 0
    """A job reads messages with ids below this one."""
    source: str = ""
    """The queue that the dead letters are taken from."""
    limit: int = 0
    """The most dead letters to return; 0 for all."""
    remote: str = ""
    """The label of the peer that ``target`` is an address of; empty for this Message VPN."""
    without_below: int = 0
    """Retention rules had taken messages out below this id when the job began; the job goes on without those
    messages."""

    @property
    def is_ended(self) -> bool:
        """Whether the replay has reached a final state."""
        return self.state in ENDED

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def from_json(cls, text: str) -> ReplayRecord:
        kept = json.loads(text)
        kept["subscriptions"] = tuple(kept["subscriptions"])
        return cls(**kept)


# ``asdict`` copies the values, and takes several times as long.
_FIELDS: Final = tuple(one.name for one in fields(ReplayRecord))
