"""
What the broker of a Message VPN works on, as plain values: a message (``Row``) and the replay log's state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

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
HELD_OF: Final = itemgetter(HELD)
CONTENT_OF: Final = itemgetter(CONTENT)

UNROUTED: Final = 0
"""The route of a message that the log alone has."""

WHOLE: Final = -1
"""The part of an endpoint's cursor that all its messages are in, where it does not deliver by priority."""


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
    """The replay log as the store has it. Its owner at run time is ``gateway.core.broker.Broker``."""

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
    """What all logged messages take of the disk (``gateway.core.log.disk_usage``)."""
    archived_id: int = 0
    """The log is in an archive up to this id, itself included."""

    def follow(self, told: LogState) -> None:
        """Another gateway writes it, and has told of this."""
        self.first_id, self.floor_ms, self.size_bytes = told.first_id, told.floor_ms, told.size_bytes
        self.next_id, self.last_time_ms, self.archived_id = told.next_id, told.last_time_ms, told.archived_id
