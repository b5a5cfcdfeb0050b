"""Opening a store, and copies between SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from store.checksum import HEAD, HEAD_MODULUS, head_of
from store.copies import MarkState, renew
from store.errors import StoreError, StoreHeld, StoreTooNew
from store.ports import StoreOptions
from store.postgresql import takeover
from store.postgresql.database import NAME_BYTES, Connection, Database, lock_key, schema_name
from store.postgresql.store import PostgresStores
from store.sqlite.copies import SqliteTables
from tests.store.effects import publication
from tests.store.ended import ended_at
from tests.store.filled_file import filled_file, rows_of
from tests.store.places import Place, copied, released
from tests.store.postgresql.vpn import OPTIONS, PostgresVpn, wait_for_standby
from tests.store.vpn_file import MADE_MS, commit, execute, next_id, query, state_of, writing_to
from tests.support.ports import free_port
from tests.support.postgresql import Server

# --- Opening a store: errors say what is wrong and what to do ---------------------------------------------------------


def test_a_later_version_is_refused(vpn: PostgresVpn, asked: Connection) -> None:
    """A store with unknown migrations is refused, and not changed."""
    vpn.write([])
    asked.execute(b"insert into migration (name) values ('m999_more')")
    before = asked.execute(b"select * from log").fetchall()
    with pytest.raises(StoreTooNew, match="m999_more"):
        vpn.stores().open(vpn.name, MADE_MS, OPTIONS)
    assert asked.execute(b"select * from log").fetchall() == before


def test_a_server_that_is_not_there() -> None:
    """The error has the server's address, but not the password."""
    stores = PostgresStores(f"postgresql://u:secret@127.0.0.1:{free_port()}/rewind")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1") as error:
        stores.open("v", MADE_MS, OPTIONS)
    assert "secret" not in str(error.value)


@pytest.fixture
def latin(postgresql: Server) -> Iterator[str]:
    """A database in another encoding."""
    postgresql.execute("create database latin template template0 encoding 'LATIN1' locale 'C'")
    yield "latin"
    postgresql.execute("drop database latin with (force)")


def test_a_database_that_is_not_in_utf8(postgresql: Server, latin: str) -> None:
    """A database in LATIN1 is refused, as it could not store every topic."""
    with pytest.raises(StoreError, match="LATIN1"):
        PostgresStores(postgresql.url(latin)).open("v", MADE_MS, OPTIONS)


def test_the_password_is_read_from_a_file(postgresql: Server, tmp_path: Path) -> None:
    """Each connection reads the file, so the password can be changed; if it cannot be read, opening fails."""
    file = tmp_path / "password"
    file.write_text("secret\n")
    with closing(Database(postgresql.url(), file).connect("v", "test")) as connection:
        assert connection.info.password == "secret"
    with pytest.raises(StoreError, match="password"):
        PostgresStores(postgresql.url(), password_file=tmp_path / "no password").open("v", MADE_MS, OPTIONS)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:p@a,b/rewind", "postgresql://a,b/rewind"),
        ("postgresql://u:p@a:1,b:2/rewind", "postgresql://a:1,b:2/rewind"),
        ("host=a,b port=5 dbname=rewind password=p", "postgresql://a:5,b:5/rewind"),
        ("service=here", "postgresql:///"),
        ("=", "postgresql"),
    ],
)
def test_a_place_is_named_without_its_password(url: str, place: str) -> None:
    """The place has the hosts and the database, in whatever form the connection string was written."""
    assert Database(url).place == place


def test_long_names_have_schemas_of_their_own() -> None:
    """Long names that PostgreSQL would truncate to the same get different schemas and locks."""
    names = ["a" * 56, "a" * 57, "a" * 63 + "b", "a" * 64, "default"]
    schemas = {schema_name(name) for name in names}
    assert len(schemas) == len({lock_key(name) for name in names}) == len(names)
    assert all(len(name.encode()) <= NAME_BYTES for name in schemas)
    assert schema_name("default") == "rewind_default"


def test_removing_what_is_not_there(vpn: PostgresVpn, asked: Connection) -> None:
    """Removing a missing store does nothing; of an existing one no schema is left."""
    stores = vpn.stores()
    stores.remove(vpn.name)
    vpn.write([])
    stores.remove(vpn.name)
    found = asked.execute(b"select to_regnamespace(quote_ident(%s))", (schema_name(vpn.name),)).fetchall()
    assert found == [(None,)]
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        PostgresStores(f"postgresql://127.0.0.1:{free_port()}/x").remove("v")


def test_a_standby_is_not_waited_for_without_end(
    vpn: PostgresVpn, waited_for: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a takeover's commit waits for a synchronous standby, each try fails after a while and says so."""
    monkeypatch.setattr(takeover, "STANDBY_SECONDS", 0.2)
    monkeypatch.setattr(takeover, "LOOK_SECONDS", 0.1)
    stores = vpn.stores()
    vpn.gateway(stores).close()
    wait_for_standby(waited_for, "nobody")
    for _ in range(2):
        with pytest.raises(StoreError, match="synchronous standby, but none answers"):
            vpn.gateway(stores)
    wait_for_standby(waited_for, "")
    vpn.taken_over(stores).close()


# --- Copies between SQLite and PostgreSQL: equal to the source, and only one store goes on with the ids ---------------


@pytest.fixture
def place(postgresql: Server) -> Callable[[], Place]:
    return lambda: Place(postgresql)


def test_checksums_that_two_writers_write_otherwise(
    path: Path, tmp_path: Path, place: Callable[[], Place]
) -> None:
    """SQLite's writer lets some checksums exceed their modulus; a copy there and back has the same messages."""
    head = head_of(1, MADE_MS, "a", 0, 0)
    time_ms = MADE_MS + (HEAD_MODULUS - 10 - head) % HEAD_MODULUS
    with closing(writing_to(path)) as connection:
        commit(connection, [publication(1, [b"x"] * 200, time_ms=time_ms)])
    assert query(path, f"select count(*) from message where (checksum & {HEAD}) >= {HEAD_MODULUS}") != [(0,)]
    there = place()
    assert copied(path, there).messages == 200
    assert copied(there, tmp_path / "back.db").messages == 200
    assert state_of(tmp_path / "back.db") == state_of(path)


def test_a_gateway_keeps_its_store(path: Path, tmp_path: Path, place: Callable[[], Place]) -> None:
    """A store that a gateway holds or waits for is neither copied nor a target."""
    there = place()
    copied(path, there)
    with there.database.connect(there.vpn, "writer") as gateway:
        for source, target in ((there, tmp_path / "b.db"), (path, there)):
            with pytest.raises(StoreError, match="a gateway waits to take it over"):
                copied(source, target)
        gateway.execute("select 1")
    with closing(there.opened()), pytest.raises(StoreHeld):
        there.opened()


def test_a_store_that_was_taken_over_meanwhile_is_not_closed(
    path: Path, tmp_path: Path, place: Callable[[], Place]
) -> None:
    """A gateway that takes over the source of a copy may commit more: source stays open, and copy unfinished."""
    there = place()
    copied(path, there)

    def taken_over(name: str) -> None:
        if name == "compared":
            with there.database.connect(there.vpn, "test") as connection:
                connection.execute("update log set epoch = epoch + 1")

    with pytest.raises(StoreError, match="a gateway has taken it over"):
        copied(there, tmp_path / "b.db", step=taken_over)
    with closing(there.opened()) as tables:
        assert tables.mark() is None
    with closing(SqliteTables(tmp_path / "b.db")) as tables:
        mark = tables.mark()
    assert mark is not None
    assert mark.state is MarkState.UNFINISHED


def test_there_has_to_be_a_store(
    path: Path, tmp_path: Path, place: Callable[[], Place], postgresql: Server
) -> None:
    """A missing source or server is an error that does not show the password."""
    with pytest.raises(StoreError, match="there is no such store"):
        copied(place(), tmp_path / "b.db")
    nowhere = Place(postgresql)
    nowhere.database = Database("postgresql://ann:secret@127.0.0.1:9/none")
    with pytest.raises(StoreError, match=r"cannot open postgresql://127\.0\.0\.1:9/none") as refused:
        copied(path, nowhere)
    assert "secret" not in str(refused.value)


def test_a_lost_connection_is_one_sentence(path: Path, place: Callable[[], Place]) -> None:
    """A copy whose connection is lost fails in one sentence, and the next run completes it."""
    execute(path, "insert into point values ('p', 1, 1, 1)")
    there = place()

    def lost(name: str) -> None:
        if name == "tables":
            with there.database.connect(there.vpn, "test") as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s",
                    (f"% copy {there.vpn}",),
                )

    with pytest.raises(StoreError, match=r"cannot copy .*run the command again"):
        copied(path, there, step=lost)
    copied(path, there)


def test_between_two_databases(path: Path, tmp_path: Path, place: Callable[[], Place]) -> None:
    """A store can be copied between two databases, and a new generation makes the copy another log."""
    filled_file(path)
    first, second = place(), place()
    copied(path, first)
    copied(first, second)
    with closing(second.opened()) as tables:
        before, log = renew(tables, 100)
        assert tables.log() == log
    assert (log.last_id, log.archived_id) == (before.last_id + 100, 0)
    assert log.generation != before.generation
    copied(second, tmp_path / "back.db")
    assert {**rows_of(tmp_path / "back.db"), "log": []} == {**rows_of(path), "log": []}
    assert next_id(tmp_path / "back.db") == log.last_id + 1


def test_what_is_no_store_is_not_opened(path: Path, place: Callable[[], Place], postgresql: Server) -> None:
    """A gateway opens neither an unfinished copy nor a store that was copied elsewhere."""
    options = StoreOptions(100, 1 << 20, 1, 1 << 20, index=("another",))
    filled_file(path)
    there = place()
    assert ended_at("compared", lambda step: copied(path, there, step=step))
    stores = PostgresStores(postgresql.url())
    with pytest.raises(StoreError, match="an unfinished copy of"):
        released(lambda: stores.open(there.vpn, 1, options))
    copied(path, there)
    # This open begins a span of the index, whose number must be free in the copy.
    released(lambda: stores.open(there.vpn, 1, options)).close()
    copied(there, path.with_name("back.db"))
    with pytest.raises(StoreError, match=r"it is closed: its copy .* continues"):
        released(lambda: stores.open(there.vpn, 1, options))
