"""A Message VPN's file in SQLite, for tests: made, written without threads, and read into the form of the naive store.

What a dropped cursor left counts as worked off: nobody can see it any more.
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
"""Those of a ``Row``."""

MADE_MS = 1_700_000_000_000
"""When the files of these tests were made."""


def bounds(rows: int = 1_000, page_bytes: int = 1 << 22, threads: int = 1) -> StoreOptions:
    """Of a reader's pages."""
    return StoreOptions(page_rows=rows, page_bytes=page_bytes, read_threads=threads, checkpoint_bytes=0)


def empty_model() -> NaiveStore:
    """What such a file holds at first."""
    return NaiveStore(MADE_MS)


def state_of(path: Path) -> State:
    """All that can be seen of a file, with what dropped cursors left taken away."""
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        log = read_log(connection)
        assert log is not None
        return state_of_tables(SqliteShortTables(connection), log)


def check_file(path: Path, model: NaiveStore) -> None:
    """All that can be seen of a file is the naive store's, and no promise is broken."""
    check_state(state_of(path), model)
    assert check(path) == []


def new_file(path: Path) -> Path:
    """An empty file of a VPN, not synced: these tests pull no plugs."""
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
    """One transaction."""
    before = Before(dropped_cursors(SqliteShortTables(connection)), indexed=indexed, has_held=has_held)
    transaction = Transaction(connection, read_tail(connection), before)
    connection.execute("begin immediate")
    transaction.apply(effects)
    transaction.finish()
    connection.execute("commit")


Step: TypeAlias = Sequence[Effect] | Callable[[NaiveStore], Sequence[Effect]]
"""A transaction, or what makes it of what is there by then."""


def written(path: Path, steps: Iterable[Step]) -> NaiveStore:
    """The steps, committed; and what the file holds then."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        for step in steps:
            commit(connection, applied(model, step(model) if callable(step) else step))
    return model


def collect_garbage(path: Path, *, pieces: int | None = None) -> bool:
    """Work off what dropped cursors left, in so many pieces at most; whether nothing is left."""
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
    """Statements of an operator, or of something that does damage."""
    with closing(writing_to(path)) as connection:
        for statement in statements:
            connection.execute(statement)


def query(path: Path, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
    """All rows of a query."""
    with closing(connect_reader(path)) as connection:
        return connection.execute(sql, values).fetchall()


def tables(path: Path) -> list[tuple[str, str]]:
    """Every table and index, as SQL."""
    rows = query(path, "select name, sql from sqlite_master where sql is not null order by name")
    return [(name, " ".join(sql.split())) for name, sql in rows]


def copied_files(path: Path, to: Path) -> Path:
    """The files as a kill would leave them now."""
    # The main one first: what a checkpoint moves into it meanwhile stays in the WAL until whoever wrote goes on.
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{to}{suffix}")
    return to


def generation_of(path: Path) -> int:
    """Of the log."""
    ((generation,),) = query(path, "select generation from log")
    return int(generation)


def next_id(path: Path) -> int:
    """The id that a gateway that starts would give out."""
    return recover(path).log.next_id
