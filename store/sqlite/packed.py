"""
Rows in one row: SQLite packs a page's columns into one value each, and they are taken apart here.

APSW drops the interpreter's lock at every step of a statement and has to win it back, as ``sqlite3`` does. Beside a
thread that is busy in Python, and the event loop often is, a page of a thousand rows then waits a thousand times.
Packed, a page is one step. Measured with such a thread, pages of 1,000, on two busy cores: 280-byte messages 111,000 to
125,000 rows/s, row by row 500 to 5,000; 4 KiB 34,000 to 39,000 and 200 to 700. Without one it is a third slower than
row by row.

Invariant: ``fetch`` gives exactly what ``fetchall`` would, whatever bytes a blob holds; a text must not hold NUL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any, Final, NamedTuple, TypeAlias

import apsw

Packed: TypeAlias = "Iterator[str | bytes]"


class Kind(NamedTuple):
    """What is in a column, and so how it travels."""

    pack: str
    """Aggregates, each with a leading comma; ``{}`` is the column."""
    unpack: Callable[[Packed, int], Iterable[Any]]
    """Takes its aggregates off the packed row and makes that many values of them."""


def fetch(
    connection: apsw.Connection, columns: Mapping[str, Kind], query: str, values: Sequence[int | str]
) -> list[Any]:
    """
    All rows of ``select <columns> <query>``, as tuples.

    Args:
        columns: What to select, and what each one is; none is null unless its kind says so.
        query: From ``from`` on. Its order is kept.
    """
    # A statement that was read to its end is done: one that was not would hold on to its snapshot.
    ((count, *aggregates),) = connection.execute(_packing(columns, query), values)
    if not count:
        return []
    packed = iter(aggregates)
    return list(zip(*[kind.unpack(packed, count) for kind in columns.values()], strict=True))


def _packing(columns: Mapping[str, Kind], query: str) -> str:
    aggregates = "".join(kind.pack.format(name) for name, kind in columns.items())
    # SQLite keeps the order of a subquery for group_concat, and never merges an ordered one into an aggregate.
    return f"select count(*){aggregates} from (select {', '.join(columns)} {query})"


# --- the kinds ----------------------------------------------------------------------------------------------------


def _integers(packed: Packed, count: int) -> list[int]:
    text = next(packed)
    assert isinstance(text, str)
    first, _, _ = text.partition(",")
    # Times, offsets and lengths are often the same all along.
    if text == ",".join([first] * count):
        return [int(first)] * count
    return list(map(int, text.split(",")))


def _rising(packed: Packed, count: int) -> Sequence[int]:
    text = next(packed)
    assert isinstance(text, str)
    first, last = int(text.partition(",")[0]), int(text.rpartition(",")[2])
    if last - first == count - 1:
        return range(first, last + 1)
    return list(map(int, text.split(",")))


def _optional_integers(packed: Packed, count: int) -> Iterable[int | None]:
    text = next(packed)
    assert isinstance(text, str)
    if len(text) == count - 1:
        return repeat(None, count)
    return [int(part) if part else None for part in text.split(",")]


def _texts(packed: Packed, count: int) -> list[str]:
    text = next(packed)
    assert isinstance(text, str)
    first, _, _ = text.partition("\0")
    if text == "\0".join([first] * count):
        return [first] * count
    return text.split("\0")


def _blobs(packed: Packed, count: int) -> list[bytes]:
    lengths = _integers(packed, count)
    blob = next(packed)
    assert isinstance(blob, bytes)
    return [blob[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


def _nothing(_packed: Packed, count: int) -> Iterable[None]:
    return repeat(None, count)


INTEGER: Final = Kind(", group_concat({})", _integers)
RISING: Final = Kind(", group_concat({})", _rising)
"""Integers, each above the one before: consecutive ones need not be read one by one."""
OPTIONAL_INTEGER: Final = Kind(", group_concat(ifnull({}, ''))", _optional_integers)
"""Integers or nulls."""
TEXT: Final = Kind(", group_concat({}, x'00')", _texts)
BLOB: Final = Kind(", group_concat(length({0})), cast(group_concat({0}, '') as blob)", _blobs)
NOTHING: Final = Kind("", _nothing)
"""Null in every row."""

MESSAGE: Final[Mapping[str, Kind]] = {
    "id": RISING,
    "time": INTEGER,
    "topic": TEXT,
    "bare": INTEGER,
    "route": INTEGER,
    "held": OPTIONAL_INTEGER,
    "content": BLOB,
}
"""The columns of a ``Row``."""

LOGGED: Final[Mapping[str, Kind]] = {**MESSAGE, "held": NOTHING}
"""The same where the query asks for logged messages alone: nothing holds them."""

COLUMNS: Final = ", ".join(MESSAGE)
