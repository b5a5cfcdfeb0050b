"""
A page of messages that PostgreSQL packs into one row, a value for each column, and Arrow takes as it is.

One row a message, as COPY sends them, is one call of the driver a message: with rows of 300 bytes this process is busy
for 1.1 us a row before they are taken apart, and with a packed page for 0.3 with all that. The server needs 0.9 us for
packing them where COPY takes it 0.75. ADBC's driver, which takes COPY's rows apart in C++: 0.6 here, 0.7 there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from store.postgresql.database import ESCAPE, read_text

NUMBERS: Final = {"id": 8, "time": 8, "checksum": 8, "route": 8, "bare": 4}
"""Columns that are integers, and the bytes of each."""

TEXTS: Final = {"topic": pa.string(), "content": pa.binary()}
"""The others."""


MARKS: Final = (
    "(select json_agg(json_build_array(rule, below, whole_time) order by rule)::text from retention)"
)
"""What rules of retention have taken out, as JSON; null where that is nothing."""


def query(names: Sequence[str], bound: int | None) -> str:
    """
    SQL that gives a page in one row: the log's generation, its first and its last id, ``MARKS``, whether all messages
    of the span that fit the limit are in it, and whether the server is a standby; then how many they are, and their
    columns.

    Its values: the first id and the last one, the generation, and how many messages at most.

    Args:
        names: The columns; the id is the first.
        bound: Bytes of content, of which a page has more only where its first message does. None: whatever they are.
    """
    rows = (
        f"select {', '.join(names)} from message where id between $1::bigint and $2::bigint and exists "
        "(select 1 from log where first_id <= $1::bigint and generation = $3::bigint) order by id limit $4::bigint"
    )
    fits, filtered = "true", ""
    if bound is not None:
        fits, filtered = "coalesce(bool_and(fits), true)", " filter (where fits)"
        rows = (
            f"select page.*, sum(octet_length(content)) over before <= {bound} or row_number() over before = 1 as fits "
            f"from ({rows}) as page window before as (order by id rows unbounded preceding)"
        )
    packed = [
        f"string_agg({form}, ''){filtered}"
        for name in names
        for form in (
            (f"int{NUMBERS[name]}send({name})",)
            if name in NUMBERS
            else (f"int4send(octet_length({name}))", name)
        )
    ]
    return (
        f"select (select generation from log), (select first_id from log), (select last_id from log), {MARKS}, "
        f"{fits}, pg_is_in_recovery(), count(*){filtered}, {', '.join(packed)} from ({rows}) as page"
    )


def batch(names: Sequence[str], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """
    A page as it came, which has a message at least.

    Args:
        values: What is behind the count of ``query``'s row, in binary.
    """
    rest = (value or b"" for value in values)
    return pa.RecordBatch.from_arrays([_column(name, rest) for name in names], list(names))


def _column(name: str, values: Iterator[bytes]) -> pa.Array:
    value = next(values)
    if name in NUMBERS:
        return pa.array(np.frombuffer(value, f">i{NUMBERS[name]}").astype(np.int64))
    lengths, octets = np.frombuffer(value, ">i4"), next(values)
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    column = pa.Array.from_buffers(
        TEXTS[name], len(lengths), [None, pa.py_buffer(edges), pa.py_buffer(octets)]
    )
    if name == "topic" and ESCAPE.encode() in octets:
        return pa.array(map(read_text, column.to_pylist()), pa.string())
    return column
