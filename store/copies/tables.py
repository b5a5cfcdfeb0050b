"""
A store as its tables: what an engine gives, and takes, when a store is copied row by row (``store.copies.copying``).

Messages and index entries are many: they are compared and copied by spans of ids. All other tables are small beside
them, and are copied whole at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from store.checksum import HEAD, HEAD_MODULUS
from store.copies.log_row import LogRow
from store.copies.mark import CopyMark
from store.property_index import SEGMENT_BITS

StoredMessage: TypeAlias = tuple[int, int, str, int, int, int | None, bytes, int]
"""A ``Row`` with its checksum: id, time, topic, bare, route, held, content, checksum."""

MESSAGE: Final = ("id", "time", "topic", "bare", "route", "held", "content", "checksum")
"""What a ``StoredMessage`` has."""

IndexEntry: TypeAlias = tuple[int, int, str, int]
"""segment, number of the indexed span, value, message."""

ENTRY: Final = ("segment", "number", "value", "message")
"""What an ``IndexEntry`` has."""

IN_SEGMENT: Final = (1 << SEGMENT_BITS) - 1
"""The bits of an id that say where in its segment it is."""


class Table(NamedTuple):
    """A small table; ``key`` orders its rows."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    texts: frozenset[str]
    """Columns that hold a text of somebody's, in which every character may be."""
    arrays: frozenset[str]
    """Columns that hold a tuple of numbers, whatever an engine makes of it."""


def _table(name: str, columns: str, *, key: str, texts: str = "", arrays: str = "") -> Table:
    return Table(
        name,
        tuple(columns.split()),
        tuple(key.split()),
        frozenset(texts.split()),
        frozenset(arrays.split()),
    )


SMALL: Final = (
    _table("route", "number priority endpoints", key="number", arrays="endpoints"),
    _table(
        "endpoint",
        "number cursor name kind settings replay",
        key="number",
        texts="name",
    ),
    _table("subscription", "endpoint pattern", key="endpoint pattern", texts="pattern"),
    _table("cursor", "number part floor counted_id messages size_bytes", key="number part"),
    _table("cursor_range", "number part first last", key="number part first"),
    _table("attempt", "cursor message count", key="cursor message"),
    _table("reference", "cursor message", key="cursor message"),
    _table("garbage", "cursor endpoint up_to", key="cursor"),
    _table("point", "name position time made", key="name", texts="name"),
    _table("replay_record", "number name state record", key="number", texts="name"),
    _table("retention", "rule below whole_time", key="rule", texts="rule"),
    _table("indexed", "number property first_id end_id", key="number", texts="property"),
)


CHECKSUM: Final = f"(checksum - (checksum & {HEAD}) + (checksum & {HEAD}) % {HEAD_MODULUS})"
"""SQL for a checksum as every writer would have it: there are two ways to write some of them (``store.checksum``)."""


class Digest(NamedTuple):
    """What the rows of a span come to: rows that are not the same have another, but by a rare accident."""

    rows: int = 0
    total: int = 0
    """Of checksums; or of the places of messages in a segment."""
    rest: int = 0
    """Of the counts of endpoints that alone hold a message, each and one; or of what an entry has beside."""


class CopiedMessages(Protocol):
    """Messages, by ids from ``first`` on, below ``stop``."""

    def digest(self, first: int, stop: int) -> Digest: ...

    def last_below(self, stop: int) -> int:
        """The highest id of a message below one; 0 where there is none."""

    def next_from(self, first: int) -> int | None:
        """The lowest id of a message from one on."""

    def rows(self, first: int, stop: int) -> Iterator[StoredMessage]:
        """
        In the order of their ids, each as it was written.

        Raises:
            DamagedMessage: One is not.
        """

    def add(self, rows: Sequence[StoredMessage]) -> None:
        """Messages with rising ids that are not there, in one transaction."""

    def remove(self, first: int, stop: int) -> None:
        """All of a span."""


class CopiedEntries(Protocol):
    """Entries of the index, by segments."""

    def segments(self) -> list[int]:
        """Those that have any, rising."""

    def digest(self, segment: int) -> Digest: ...

    def rows(self, segment: int) -> Iterator[IndexEntry]: ...

    def replace(self, segment: int, entries: Iterable[IndexEntry]) -> None:
        """Have these in a segment, and no others."""


class StoreTables(Protocol):
    """An opened store that no gateway uses meanwhile; a target is made if there is none."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What its engine raises when it cannot read or write."""

    @property
    def place(self) -> str:
        """Where it is, for a person, without what is secret; the same at every run."""

    @property
    def messages(self) -> CopiedMessages: ...

    @property
    def entries(self) -> CopiedEntries: ...

    def mark(self) -> CopyMark | None: ...

    def write_mark(self, mark: CopyMark | None, log: LogRow | None = None) -> None:
        """Durably, and together with the log's row if one is given."""

    def log(self) -> LogRow | None:
        """With what was published since its row was written; None in a store that was just made."""

    def rows(self, table: Table) -> Iterator[tuple[Any, ...]]:
        """In the order of its key."""

    def replace(self, log: LogRow, tables: Sequence[tuple[Table, Iterable[tuple[Any, ...]]]]) -> None:
        """Have these rows in the small tables, and no others: all of it or nothing."""

    def check(self) -> list[str]:
        """What of the promises of ``rewind store check`` it breaks."""

    def close(self) -> None: ...
