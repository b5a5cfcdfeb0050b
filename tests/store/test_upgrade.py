"""Upgrades: a look ahead says which migrations a start would apply; released migrations never change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from store.copies import CopyMark, MarkState
from store.postgresql import schema as postgresql_schema
from store.postgresql import store as postgresql_store
from store.postgresql.database import Connection
from store.sqlite import schema as sqlite_schema
from store.sqlite.check import check
from store.sqlite.copies import SqliteTables
from store.sqlite.database import connect_bystander, open_file
from store.sqlite.store import look_ahead, recover
from store.upgrade import rows_gone_through, steps_ahead
from tests.store.earlier import earlier_file
from tests.store.effects import publication, queue
from tests.store.places import Place, copied, released
from tests.store.port.postgresql_vpn import check_url
from tests.store.postgresql.vpn import OPTIONS
from tests.store.vpn_file import MADE_MS, commit, copied_files, execute, new_file, query, tables, writing_to
from tests.support.postgresql import Server

NAMES = list(sqlite_schema.MIGRATIONS)
ENGINES = [sqlite_schema.MIGRATIONS, postgresql_schema.MIGRATIONS]

RELEASED = {
    "m001_routes_cursors_checksums": ("503697046ccf", "d494b1ce7a8e"),
    "m002_replay_records": ("3e7949d3bf43", "0fbe49b1b2a9"),
    "m003_retention": ("1196d15efc9f", "c14520372bd0"),
    "m004_delayed": ("586d92da3b27", "a1876196f0e6"),
    "m005_retries": ("de9f452c6d71", "de9f452c6d71"),
    "m006_last_values": ("1cea685b6aa2", "b7e5b60339ea"),
    "m007_dedup": ("c683f3351bc9", "383d74dcaf42"),
}
"""The first digits of the digests of each migration's statements, for SQLite and for PostgreSQL."""


def digest(statements: Sequence[str]) -> str:
    return sha256("\n".join(" ".join(statement.split()) for statement in statements).encode()).hexdigest()[
        :12
    ]


def test_released_steps_never_change() -> None:
    """A store applies each migration once, so a changed migration would reach new stores only."""
    assert [name[:5] for name in NAMES] == [f"m{number:03}_" for number in range(1, len(NAMES) + 1)]
    assert {name: tuple(digest(steps[name]) for steps in ENGINES) for name in NAMES} == RELEASED


@pytest.mark.parametrize("known", ENGINES, ids=["sqlite", "postgresql"])
def test_the_cost_of_every_step_is_known(known: Mapping[str, Sequence[str]]) -> None:
    """A migration whose cost cannot be estimated fails this test, rather than an operator's look ahead."""
    assert [step.name for step in steps_ahead([], known, lambda _: 1)] == NAMES
    with pytest.raises(ValueError, match="not known what this costs"):
        rows_gone_through("insert into a select * from b", lambda _: 1)
    assert rows_gone_through("update message set a = 1", {"message": 7}.__getitem__) == 7


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_file_of_each_earlier_version_is_migrated(name: str, tmp_path: Path) -> None:
    """
    The look ahead changes neither the file nor its folder, and names the migrations that the start then applies. The
    contents stay as they were, and the tables are those of a new file.
    """
    path = earlier_file(name, tmp_path / "v.db")
    before = path.read_bytes()
    ahead = look_ahead(path)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (before, [path])
    assert (ahead.schema, [step.name for step in ahead.steps]) == (name, NAMES[NAMES.index(name) + 1 :])
    delayed = query(path, "select count(*) from delayed")[0][0] if name == "m004_delayed" else 0
    assert [step.rows for step in ahead.steps if step.name == "m005_retries"] in ([], [delayed])
    assert delayed or name != "m004_delayed"
    assert ahead.refusal is None
    content = "select id, topic, content from message order by id", "select name, position from point"
    contents = [query(path, sql) for sql in content]
    assert all(contents)
    open_file(path, 1, synchronous="FULL").close()
    assert [query(path, sql) for sql in content] == contents
    assert tables(path) == tables(new_file(tmp_path / "new.db"))
    assert check(path) == []
    assert recover(path).endpoints
    after = look_ahead(path)
    assert (after.schema, after.steps) == (NAMES[-1], ())
    assert after.endpoints == ahead.endpoints


def test_a_file_that_is_in_use_is_looked_at_as_it_is(path: Path, tmp_path: Path) -> None:
    """The look ahead sees what is in the WAL, beside a writer and after a crash, and changes no file."""
    folder = tmp_path / "left"
    folder.mkdir()
    with closing(writing_to(path)) as connection:
        commit(connection, [*queue(1, "q"), publication(1, [b"x"], endpoints=(1,), time_ms=MADE_MS)])
        assert [found.name for found in look_ahead(path).endpoints] == ["q"]
        left = copied_files(path, folder / "v.db")
        (folder / "v.db-shm").write_bytes(Path(f"{path}-shm").read_bytes())
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert [found.name for found in look_ahead(left).endpoints] == ["q"]
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    with closing(connect_bystander(left)) as reading, pytest.raises(Exception, match="readonly"):
        reading.execute("delete from endpoint")


def test_what_would_be_refused_is_said(path: Path, tmp_path: Path) -> None:
    """The look ahead says why a start would refuse a file (later version, moved, no database), and knows a backup."""
    nothing = look_ahead(tmp_path / "none.db")
    assert (nothing.schema, nothing.refusal, nothing.steps) == (None, None, ())
    with closing(SqliteTables(path)) as tables:
        tables.write_mark(CopyMark(MarkState.BACKUP, "there"))
        assert look_ahead(path).is_backup
        tables.write_mark(CopyMark(MarkState.MOVED, "there"))
    assert "it is closed: its copy there continues" in (look_ahead(path).refusal or "")
    execute(
        path, "insert into _sqlite_migrations (migration_set, name, applied_at) values ('rewind', 'm999', '')"
    )
    assert "later version" in (look_ahead(path).refusal or "")
    other = tmp_path / "text.db"
    other.write_text("no database" * 1_000)
    assert "cannot be read" in (look_ahead(other).refusal or "")


def take_back(connection: Connection, name: str) -> None:
    """Undo the migrations after ``name``, so that the schema is as an earlier version left it."""
    for later in reversed(NAMES[NAMES.index(name) + 1 :]):
        for statement in reversed(postgresql_schema.MIGRATIONS[later]):
            if made := re.match(r"\s*create table (\w+)", statement):
                connection.execute(f"drop table {made[1]}".encode())
            elif added := re.match(r"\s*alter table (\w+) add column (\w+)", statement):
                connection.execute(f"alter table {added[1]} drop column {added[2]}".encode())
        connection.execute("delete from migration where name = %s", (later,))


@pytest.mark.postgresql
@pytest.mark.parametrize("name", [NAMES[0], "m004_delayed", NAMES[-2]])
def test_a_schema_of_an_earlier_version_is_migrated(name: str, tmp_path: Path, postgresql: Server) -> None:
    """The look ahead changes nothing, and names the migrations that the start then applies; contents stay the same."""
    file, place = earlier_file(name, tmp_path / "v.db"), Place(postgresql)
    contents = query(file, "select id, content from message order by id")
    open_file(file, 1, synchronous="FULL").close()
    copied(file, place)
    with place.database.connect(place.vpn, "test") as connection:
        take_back(connection, name)
        ahead = postgresql_store.look_ahead(place.database, place.vpn)
        assert [step.name for step in ahead.steps] == NAMES[NAMES.index(name) + 1 :]
        assert postgresql_schema.applied_migrations(connection)[-1] == ahead.schema == name
        stores = postgresql_store.PostgresStores(postgresql.url())
        released(lambda: stores.open(place.vpn, MADE_MS, OPTIONS)).close()
        after = postgresql_store.look_ahead(place.database, place.vpn)
        assert (after.steps, after.endpoints) == ((), ahead.endpoints)
        both = b"select id, content from message union all select id, content from held_message order by id"
        assert connection.execute(both).fetchall() == contents
    assert check_url(postgresql.url(), place.vpn) == []
    stores.remove(place.vpn)
    assert postgresql_store.look_ahead(place.database, place.vpn).schema is None
