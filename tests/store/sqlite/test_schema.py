"""Migrations: files of every version before open, files of later versions do not."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlite_utils

from gateway.core.broker import Broker
from gateway.core.log.policy import LogPolicy
from store.errors import StoreTooNew
from store.sqlite.check import check
from store.sqlite.database import connect_writer, open_file
from store.sqlite.recovery import recover
from store.sqlite.schema import PAGE_BYTES, migrations, unknown_migrations
from tests.store import old_files
from tests.store.vpn_file import empty_model, state_of

NAMES = [migration.name for migration in migrations.pending(sqlite_utils.Database(memory=True))]
OLD_FILES = sorted(old_files.FILES.glob("*.db"))


def tables(path: Path) -> list[tuple[str, str]]:
    """Every table and index, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("select name, sql from sqlite_master where sql is not null order by name")
        return [(name, " ".join(sql.split())) for name, sql in rows]


def test_migrations_are_numbered_one_by_one() -> None:
    """m001, m002 …, in the order they are applied, each with a name that says what it is for."""
    assert [name[:5] for name in NAMES] == [f"m{number:03}_" for number in range(1, len(NAMES) + 1)]
    assert all(len(name) > 5 for name in NAMES)


def test_there_is_a_file_of_every_version() -> None:
    """A migration that was added without keeping a file made with it is not tested: see tests/store/old_files.py."""
    assert [path.stem for path in OLD_FILES] == NAMES


@pytest.fixture(params=OLD_FILES, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file as a version of the past left it."""
    path = tmp_path / "old.db"
    shutil.copy(request.param, path)
    return path


def test_a_file_of_an_old_version_opens_with_all_that_is_in_it(old: Path, path: Path) -> None:
    """Afterwards its tables are those of a new file, every promise holds, and nothing of what it held has changed."""
    open_file(old, old_files.MADE_MS + 10**9, synchronous="FULL")
    assert tables(old) == tables(path)
    assert check(old) == []
    model = empty_model()
    for effects in old_files.HISTORY:
        for effect in effects:
            model.apply(effect)
    assert state_of(old) == model.state()
    found = recover(old)
    assert found.log.generation == old_files.GENERATION
    assert sorted(found.garbage) == [2, 3]
    broker = Broker(found.log, LogPolicy(), window=10, create_queues=True)
    broker.restore(found.endpoints, found.next_number)
    assert sorted(broker.endpoints) == ["orders", "reports"]


def test_opening_a_file_again_changes_nothing(old: Path) -> None:
    """Each migration is applied once; the generation and the times stay what they were."""
    open_file(old, 1, synchronous="FULL")
    before = state_of(old), tables(old), recover(old)
    open_file(old, 2, synchronous="FULL")
    assert (state_of(old), tables(old), recover(old)) == before


def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    """The error names the file, what it knows, and what to do; its content stays."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for name in ("m998_bar", "m999_foo"):
            connection.execute(
                "insert into _sqlite_migrations (migration_set, name, applied_at) values ('rewind', ?, '')",
                (name,),
            )
    before = tables(path), state_of(path)
    with pytest.raises(StoreTooNew) as caught:
        open_file(path, 1, synchronous="FULL")
    assert str(caught.value) == (
        f"cannot open {path}: it knows m998_bar, m999_foo. It was written by a later version: use that"
    )
    assert (tables(path), state_of(path)) == before


def test_a_migration_of_somebody_else_is_no_later_version(path: Path) -> None:
    """Only our own set of migrations counts: an operator may keep tables of his own beside ours."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) values ('other', 'm999', '')"
        )
    open_file(path, 1, synchronous="FULL")


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a migration is none: the next start finds what there was before, and can try again."""
    path = tmp_path / "old.db"
    shutil.copy(OLD_FILES[0], path)
    before = tables(path)
    later = type(migrations)(migrations.name)
    later._migrations = [*migrations._migrations]

    @later()
    def m999_fails(db: sqlite_utils.Database) -> None:
        db.execute("create table half (x)")
        raise sqlite3.OperationalError("disk full")

    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError):
        later.apply(sqlite_utils.Database(connection))
    after = tables(path)
    assert "half" not in dict(after)
    open_file(path, 1, synchronous="FULL")
    assert check(path) == []
    assert {name for name, _ in before} <= {name for name, _ in tables(path)}


def test_known_migrations_are_not_unknown(path: Path) -> None:
    """A file of this very version is no later one."""
    with closing(sqlite3.connect(path)) as connection:
        assert unknown_migrations(sqlite_utils.Database(connection)) == []


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
def test_a_writing_connection_is_set_up(path: Path, synchronous: str, level: int) -> None:
    """WAL, synced as asked for, and no checkpoints inside commits."""
    with closing(connect_writer(path, synchronous=synchronous)) as connection:

        def pragma(name: str) -> object:
            return connection.execute(f"pragma {name}").fetchone()[0]

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == level
        assert pragma("wal_autocheckpoint") == 0
        assert pragma("page_size") == PAGE_BYTES
