"""Makes a Message VPN's file in SQLite, writes it without threads, and reads it into the form of the naive store.

What dropped cursors still hold is left out, as if it were already deleted: no reader can see it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from gateway.core.effects import Effect
from store.cursors import dropped_cursors
from store.ports import StoreOptions
from store.property_index import IndexedSpan
from store.sqlite.check import check
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader, connect_writer, open_file
from store.sqlite.log_row import read_log, read_tail
from store.sqlite.packed import MESSAGE
from store.sqlite.store import recover
from store.sqlite.transaction import Transaction
from store.transaction import Before
from tests.store.effects import applied
from tests.store.state import check_state
from tests.store.state import state_of as state_of_tables
from tests.support.naive_store import NaiveStore, State

COLUMNS = ", ".join(MESSAGE)
"""The columns of a ``Row``."""

MADE_MS = 1_700_000_000_000
"""The time at which the files of these tests were made."""


def bounds(rows: int = 1_000, page_bytes: int = 1 << 22, threads: int = 1) -> StoreOptions:
    """Options with these bounds of a reader's pages."""
    return StoreOptions(page_rows=rows, page_bytes=page_bytes, read_threads=threads, checkpoint_bytes=0)


def empty_model() -> NaiveStore:
    """The naive store that equals a new file."""
    return NaiveStore(MADE_MS)


def state_of(path: Path) -> State:
    """The visible state of a file, without what only dropped cursors still hold."""
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        log = read_log(connection)
        assert log is not None
        return state_of_tables(SqliteShortTables(connection), log)


def check_file(path: Path, model: NaiveStore) -> None:
    """Assert that a file's visible state equals the naive store's, and that it keeps every promise."""
    check_state(state_of(path), model)
    assert check(path) == []


def new_file(path: Path) -> Path:
    """Make an empty file of a Message VPN, not synced: no test here simulates a power failure."""
    open_file(path, MADE_MS, synchronous="OFF").close()
    return path


def writing_to(path: Path) -> apsw.Connection:
    return connect_writer(path, synchronous="OFF")


def commit(
    connection: apsw.Connection,
    effects: Iterable[Effect],
    *,
    indexed: Sequence[IndexedSpan] = (),
    has_held: bool = True,
) -> None:
    """Commit the effects in one transaction."""
    before = Before(dropped_cursors(SqliteShortTables(connection)), indexed=indexed, has_held=has_held)
    transaction = Transaction(connection, read_tail(connection), before)
    connection.execute("begin immediate")
    transaction.apply(effects)
    transaction.finish()
    connection.execute("commit")


Step: TypeAlias = Sequence[Effect] | Callable[[NaiveStore], Sequence[Effect]]
"""The effects of a transaction, or a function that makes them from the naive store at that point."""


def written(path: Path, steps: Iterable[Step]) -> NaiveStore:
    """Commit the steps, and return the naive store that equals the file."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        for step in steps:
            commit(connection, applied(model, step(model) if callable(step) else step))
    return model


def collect_garbage(path: Path, *, pieces: int | None = None) -> bool:
    """Delete what dropped cursors left, in at most ``pieces`` pieces; returns whether nothing is left."""
    with closing(writing_to(path)) as connection:
        tables = SqliteShortTables(connection)
        left = dropped_cursors(tables)
        while left and pieces != 0:
            connection.execute("begin immediate")
            read_tail(connection).save(connection)
            if left[0].work_off(tables, has_held=True):
                left.pop(0)
            connection.execute("commit")
            pieces = None if pieces is None else pieces - 1
    return not left


def execute(path: Path, *statements: str) -> None:
    """Execute SQL as an operator would, or to do damage."""
    with closing(writing_to(path)) as connection:
        for statement in statements:
            connection.execute(statement)


def query(path: Path, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
    """The rows of a query."""
    with closing(connect_reader(path)) as connection:
        return connection.execute(sql, values).fetchall()


def tables(path: Path) -> list[tuple[str, str]]:
    """Every table and index, as SQL."""
    rows = query(path, "select name, sql from sqlite_master where sql is not null order by name")
    return [(name, " ".join(sql.split())) for name, sql in rows]


def copied_files(path: Path, to: Path) -> Path:
    """Copy the files as a kill would leave them now."""
    # The main file first: what a checkpoint moves into it stays in the WAL until the writer goes on.
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{to}{suffix}")
    return to


def generation_of(path: Path) -> int:
    """The generation of the log."""
    ((generation,),) = query(path, "select generation from log")
    return int(generation)


def next_id(path: Path) -> int:
    """The id that a gateway would give out next after a start."""
    return recover(path).log.next_id
