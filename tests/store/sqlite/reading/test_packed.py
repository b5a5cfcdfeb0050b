"""Rows that SQLite packs into one row, and that are unpacked again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.sqlite.packed import BLOB, IN_RUNS, INTEGER, NOTHING, OPTIONAL_INTEGER, RISING, TEXT, fetch

COLUMNS = {
    "id": RISING,
    "number": INTEGER,
    "text": TEXT,
    "maybe": OPTIONAL_INTEGER,
    "empty": NOTHING,
    "content": BLOB,
}

_integers = st.integers(-(1 << 63), (1 << 63) - 1)
_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
# Few different values, so that columns with one value in all rows, or in all but one, come up often.
_rows = st.dictionaries(
    _integers | st.integers(0, 9),
    st.tuples(
        st.sampled_from([0, 7, -1]) | _integers,
        st.sampled_from(["", ",", "a,b"]) | _texts,
        st.none() | st.sampled_from([0, 7]) | _integers,
        st.just(None),
        st.sampled_from([b"", b"\0", b"\0\xff,\0"]) | st.binary(),
    ),
    max_size=20,
).map(lambda rows: [(i, *rest) for i, rest in sorted(rows.items())])


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute(
            "create table t (id integer primary key, number integer, text text, maybe integer, empty, content blob)"
        )
        yield connection


@given(rows=_rows, limit=st.integers(1, 25), descending=st.booleans())
@example(rows=[], limit=1, descending=False)
@example(rows=[(i, 5, "t", None, None, b"") for i in range(3)], limit=9, descending=False)
@example(rows=[(i, 0, "", 0 if i == 2 else None, None, b"\0") for i in (1, 2, 4)], limit=9, descending=False)
def test_packed_or_not_the_rows_are_the_same(
    connection: apsw.Connection, rows: list[tuple[Any, ...]], limit: int, descending: bool
) -> None:
    """Any integers, texts without NUL, nulls and bytes are the same as from ``fetchall``, in the query's order."""
    connection.execute("delete from t")
    connection.executemany("insert into t values (?, ?, ?, ?, ?, ?)", rows)
    columns = COLUMNS | ({"id": INTEGER} if descending else {})
    query = f"from t where id >= ? order by id {'desc' if descending else ''} limit ?"
    values = [-(1 << 63), limit]
    plain = connection.execute(f"select {', '.join(columns)} {query}", values).fetchall()
    assert fetch(connection, columns, query, values) == plain
    assert plain == (rows[::-1] if descending else rows)[:limit]


_runs = st.lists(
    st.tuples(st.sampled_from([1000, 1001, 1002, 7, 99]) | _integers, st.integers(1, 40)), max_size=20
)


@given(runs=_runs, is_rising=st.booleans())
@example(runs=[(10 + n, 1) for n in range(20)], is_rising=True)
@example(runs=[(1000, 30), (1001, 1), (1000, 30)], is_rising=False)
@example(runs=[(1000, 1), (1001, 1), (1000, 1)], is_rising=False)
@example(runs=[(10, 1), (9, 1), (100, 1)], is_rising=False)
def test_runs_are_read_as_any_integers_are(
    connection: apsw.Connection, runs: list[tuple[int, int]], is_rising: bool
) -> None:
    """A column read in runs is right, whether equal values follow each other or come again later."""
    numbers = [value for value, count in (sorted(runs) if is_rising else runs) for _ in range(count)]
    connection.execute("delete from t")
    connection.executemany("insert into t (id, number) values (?, ?)", enumerate(numbers))
    assert fetch(connection, {"number": IN_RUNS}, "from t order by id", []) == [(n,) for n in numbers]


def test_a_text_with_nul_is_an_error_rather_than_rows_mixed_up(connection: apsw.Connection) -> None:
    """If a file has a text with NUL after all, the read fails rather than giving a row its neighbour's topic."""
    connection.execute("insert into t (id, text) values (1, 'a'), (2, 'b' || char(0) || 'c')")
    with pytest.raises(ValueError, match="zip"):
        fetch(connection, {"id": RISING, "text": TEXT}, "from t order by id", [])


def test_a_page_is_one_row(connection: apsw.Connection) -> None:
    """The statement returns a single row for a thousand, which is the purpose of packing."""
    connection.executemany("insert into t (id, text) values (?, 'x')", [(i,) for i in range(1_000)])
    statements: list[Any] = []
    connection.exec_trace = lambda cursor, sql, values: statements.append((sql, values)) is None
    assert len(fetch(connection, {"id": RISING, "text": TEXT}, "from t order by id", [])) == 1_000
    connection.exec_trace = None
    assert [len(connection.execute(*statement).fetchall()) for statement in statements] == [1]
