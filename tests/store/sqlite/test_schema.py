"""Migrations: files from before the first one here are refused, and so are those of later versions."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlite_utils

from store.errors import StoreError, StoreTooNew
from store.schema import unknown_migrations
from store.sqlite.check import check
from store.sqlite.database import connect_writer, open_file
from store.sqlite.schema import MIGRATIONS, PAGE_BYTES, migrations
from store.sqlite.store import recover
from tests.store.earlier import FILES, earlier_file
from tests.store.effects import publication, queue
from tests.store.vpn_file import MADE_MS, commit, execute, query, state_of, writing_to

NAMES = [migration.name for migration in migrations().pending(sqlite_utils.Database(memory=True))]


def tables(path: Path) -> list[tuple[str, str]]:
    """Every table and index, as SQL."""
    rows = query(path, "select name, sql from sqlite_master where sql is not null order by name")
    return [(name, " ".join(sql.split())) for name, sql in rows]


def test_migrations_are_numbered_one_by_one() -> None:
    """m001, m002 …, in the order they are applied, each with a name that says what it is for."""
    assert [name[:5] for name in NAMES] == [f"m{number:03}_" for number in range(1, len(NAMES) + 1)]
    assert all(len(name) > 5 for name in NAMES)
    assert list(MIGRATIONS) == NAMES


@pytest.mark.parametrize("name", ["m001_messages_references_log", "m002_points_and_indexed_properties",
                                  "m003_priorities", "m004_archived"])  # fmt: skip
def test_a_file_that_no_release_wrote_is_refused(name: str, tmp_path: Path) -> None:
    """With a sentence that says what it is and what to do; the check says it, too, and the file stays as it was."""
    path = tmp_path / "old.db"
    shutil.copy(FILES / f"{name}.db", path)
    before = tables(path), path.read_bytes()
    with pytest.raises(StoreError) as caught:
        open_file(path, 1, synchronous="FULL").close()
    assert str(caught.value) == (
        f"cannot open {path}: it was written by a version that was never released. Move it away to start anew"
    )
    assert (tables(path), path.read_bytes()) == before
    assert check(path) == ["it was written by a version that was never released"]


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_file_of_each_earlier_version_is_migrated(name: str, tmp_path: Path) -> None:
    """What was in it is found as it was; the tables are those of a file made now."""
    path, new = earlier_file(name, tmp_path / "old.db"), tmp_path / "new.db"
    content = "select id, topic, content from message order by id", "select name, position from point"
    before = [query(path, sql) for sql in content]
    assert all(before)
    open_file(path, 1, synchronous="FULL").close()
    open_file(new, 1, synchronous="FULL").close()
    assert check(path) == []
    assert [query(path, sql) for sql in content] == before
    assert tables(path) == tables(new)
    assert recover(path).endpoints


def test_opening_a_file_again_changes_nothing(path: Path) -> None:
    """Each migration is applied once; the generation and the times stay what they were."""
    with closing(writing_to(path)) as connection:
        commit(connection, [*queue(1, "q"), publication(1, [b"x"], endpoints=(1,), time_ms=MADE_MS)])
    before = state_of(path), tables(path), recover(path)
    open_file(path, 2, synchronous="FULL").close()
    assert (state_of(path), tables(path), recover(path)) == before


def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    """The error names the file, what it knows, and what to do; its content stays."""
    for name in ("m998_bar", "m999_foo"):
        execute(
            path,
            f"insert into _sqlite_migrations (migration_set, name, applied_at) values ('rewind', '{name}', '')",
        )
    before = tables(path), state_of(path)
    with pytest.raises(StoreTooNew) as caught:
        open_file(path, 1, synchronous="FULL").close()
    assert str(caught.value) == (
        f"cannot open {path}: it knows m998_bar, m999_foo. It was written by a later version: use that"
    )
    assert (tables(path), state_of(path)) == before


def test_a_migration_of_somebody_else_is_no_later_version(path: Path) -> None:
    """Only our own set of migrations counts: an operator may keep tables of his own beside ours."""
    execute(
        path, "insert into _sqlite_migrations (migration_set, name, applied_at) values ('other', 'm999', '')"
    )
    open_file(path, 1, synchronous="FULL").close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    """Half a migration is none: the next start finds what there was before, and can try again."""
    before = tables(path)
    later = migrations()

    @later()
    def m999_fails(db: sqlite_utils.Database) -> None:
        db.execute("create table half (x)")
        raise sqlite3.OperationalError("disk full")

    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError):
        later.apply(sqlite_utils.Database(connection))
    assert tables(path) == before
    open_file(path, 1, synchronous="FULL").close()
    assert check(path) == []


def test_known_migrations_are_not_unknown() -> None:
    """A file of this very version is no later one."""
    assert unknown_migrations(NAMES, NAMES) == []


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
def test_a_writing_connection_is_set_up(path: Path, synchronous: str, level: int) -> None:
    """WAL, synced as asked for, and no checkpoints inside commits."""
    with closing(connect_writer(path, synchronous=synchronous)) as connection:

        def pragma(name: str) -> object:
            return connection.execute(f"pragma {name}").get

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == level
        assert pragma("wal_autocheckpoint") == 0
        assert pragma("page_size") == PAGE_BYTES
