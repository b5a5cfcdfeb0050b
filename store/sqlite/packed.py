"""
Many rows in one row: SQLite packs each column of a page into one value, and this module unpacks it.

APSW, like ``sqlite3``, releases the interpreter's lock at every step of a statement and has to get it back. While
another thread is busy in Python, as the event loop often is, a page of a thousand rows then waits a thousand times.
Packed, a page is one step. Measured with such a thread, pages of 1,000, on two busy cores: 280-byte messages 111,000 to
125,000 rows/s, and 500 to 5,000 row by row; 4 KiB 34,000 to 39,000, and 200 to 700. Without such a thread, packing is a
third slower than row by row.

Invariant: ``fetch`` gives exactly what ``fetchall`` would, whatever bytes a blob holds; a text must not hold NUL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeAlias

import apsw

from gateway.core.model import TOPIC, Columns, Row
from store.checksum import are_sound, is_sound
from store.reading import cut_blob, cut_texts, distinct

SHORT_RUN: Final = 16
"""Length of a run of equal integers below which finding its end takes as long as reading its integers one by one."""

FEW_RUNS: Final = 4
"""This many runs may be shorter before the integers are read one by one after all."""

Packed: TypeAlias = "Iterator[str | bytes]"


class Kind(NamedTuple):
    """What a column contains, and how it is packed and unpacked."""

    pack: str
    """SQL aggregates, each with a leading comma; ``{}`` is the column's name."""
    unpack: Callable[[Packed, int], Iterable[Any]]
    """Takes the column's aggregates from the packed row, and makes a value for each of the rows."""


def fetch(
    connection: apsw.Connection, columns: Mapping[str, Kind], query: str, values: Sequence[int | str]
) -> list[Any]:
    """
    All rows of ``select <columns> <query>``, as tuples.

    Args:
        columns: What to select, by name, and the kind of each. No value is null unless its kind allows it.
        query: From ``from`` on. Its order is kept.
    """
    # Reading the statement to its end closes it: an open statement would keep its snapshot.
    ((count, *aggregates),) = connection.execute(_packing(columns, query), values)
    if not count:
        return []
    packed = iter(aggregates)
    return list(zip(*[kind.unpack(packed, count) for kind in columns.values()], strict=True))


def fetch_sound(
    connection: apsw.Connection,
    columns: Mapping[str, Kind],
    query: str,
    values: Sequence[int | str],
    largest_bytes: int,
) -> tuple[list[Row], Columns | None] | None:
    """
    The same for messages, with their columns, if all are what was written; None if one of them is not.

    The sum of the checksums is compared, which SQLite computes without the interpreter. If a page is not sound, the
    caller reads its rows one by one.

    Args:
        columns: ``MESSAGE``, or ``LOGGED``.
        largest_bytes: No content is longer.
    """
    packing = _packing(columns, query, ", sum(checksum)")
    try:
        ((count, total, *aggregates),) = connection.execute(packing, values)
        if not count:
            return [], None
        packed = iter(aggregates)
        ids, times, topics, bares, routes, helds = [
            kind.unpack(packed, count) for name, kind in columns.items() if name != "content"
        ]
        assert isinstance(topics, list)
        sizes = _integers(packed, count)
        contents = _cut(packed, sizes)
        if not are_sound((ids, times, topics, bares, routes, helds, contents), count, total, largest_bytes):
            return None
    except (AssertionError, TypeError, ValueError):
        # A stored value does not have the type any more that was written.
        return None
    ids = list(ids)  # rows and columns share these objects
    rows = list(zip(ids, times, topics, bares, routes, helds, contents, strict=True))
    return rows, Columns(ids, sizes, distinct(topics), isinstance(helds, repeat))


def _packing(columns: Mapping[str, Kind], query: str, sums: str = "") -> str:
    aggregates = "".join(kind.pack.format(name) for name, kind in columns.items())
    names = ", ".join(columns) + (", checksum" if sums else "")
    # SQLite keeps a subquery's order for group_concat, and never flattens an ordered subquery into an aggregate.
    return f"select count(*){sums}{aggregates} from (select {names} {query})"


def sound_row(checked: Sequence[Any]) -> Row | None:
    """The message of a row with the columns ``CHECKED``; None if it is not what was written."""
    message_id, time, topic, bare, route, held, content, checksum = checked
    try:
        row = (message_id, time, topic.decode(), bare, route, held, content)
        is_as_written = is_sound(message_id, time, row[TOPIC], bare, route, content, checksum)
    except (AttributeError, TypeError, ValueError):
        # A number has become text, or a topic is not text any more.
        return None
    return row if is_as_written else None


# --- the kinds ----------------------------------------------------------------------------------------------------


def _integers(packed: Packed, count: int) -> list[int]:
    text = next(packed)
    assert isinstance(text, str)
    first, _, _ = text.partition(",")
    # Times, offsets and lengths are often the same for the whole page.
    if text == ",".join([first] * count):
        return [int(first)] * count
    return list(map(int, text.split(",")))


def _in_runs(packed: Packed, count: int) -> list[int]:
    text = next(packed)
    assert isinstance(text, str)
    width = text.find(",")
    # If all are as wide as the first, each is found by its index, without reading those before it.
    if width > 0 and len(text) == count * (width + 1) - 1:
        runs: list[tuple[str, int]] = []
        start = 0
        while start < count and len(runs) <= FEW_RUNS + start // SHORT_RUN:
            at = start * (width + 1)
            value = text[at : at + width]
            stop = _run(text, value, start, count)
            runs.append((value, stop - start))
            start = stop
        # Verify what was skipped.
        if start == count and "".join([f"{value}," * length for value, length in runs])[:-1] == text:
            return list(chain.from_iterable([repeat(int(value), length) for value, length in runs]))
    return list(map(int, text.split(",")))


def _run(text: str, value: str, start: int, count: int) -> int:
    """The end of the run of equal values that begins at ``start``: found by halves, if equal values are adjacent."""
    step = len(value) + 1
    low, high = start + 1, count
    while low < high:
        middle = (low + high) // 2
        if text.startswith(value, middle * step):
            low = middle + 1
        else:
            high = middle
    return low


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
    return cut_texts(text, "\0", count)


def _blobs(packed: Packed, count: int) -> list[bytes]:
    return _cut(packed, _integers(packed, count))


def _cut(packed: Packed, lengths: Sequence[int]) -> list[bytes]:
    blob = next(packed)
    assert isinstance(blob, bytes)
    return cut_blob(blob, lengths)


def _nothing(_packed: Packed, count: int) -> Iterable[None]:
    return repeat(None, count)


INTEGER: Final = Kind(", group_concat({})", _integers)
IN_RUNS: Final = Kind(", group_concat({})", _in_runs)
"""Integers of which equal ones are mostly adjacent: arrival times never fall."""
RISING: Final = Kind(", group_concat({})", _rising)
"""Integers, each above the one before: consecutive ones are not read one by one."""
OPTIONAL_INTEGER: Final = Kind(", group_concat(ifnull({}, ''))", _optional_integers)
"""Integers or nulls."""
TEXT: Final = Kind(", group_concat({}, x'00')", _texts)
BLOB: Final = Kind(", group_concat(length({0})), cast(group_concat({0}, '') as blob)", _blobs)
NOTHING: Final = Kind("", _nothing)
"""Null in every row; nothing is selected."""

MESSAGE: Final[Mapping[str, Kind]] = {
    "id": RISING,
    "time": IN_RUNS,
    "topic": TEXT,
    "bare": INTEGER,
    "route": INTEGER,
    "held": OPTIONAL_INTEGER,
    "content": BLOB,
}
"""The columns of a ``Row``."""

LOGGED: Final[Mapping[str, Kind]] = {**MESSAGE, "held": NOTHING}
"""The same for queries that ask for logged messages alone: their ``held`` is null."""

CHECKED: Final = (
    "id, time, iif(typeof(topic) = 'text', cast(topic as blob), null), bare, route, held, content, checksum"
)
"""The columns of a ``Row``, and its checksum, to check one row. The topic is bytes, as it may not be text any more."""
