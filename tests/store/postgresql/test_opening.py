"""Opening a store: what stands in its way is said, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from store.errors import StoreError, StoreTooNew
from store.postgresql import takeover
from store.postgresql.database import NAME_BYTES, Connection, Database, lock_key, schema_name
from store.postgresql.store import PostgresStores
from tests.store.postgresql.vpn import OPTIONS, PostgresVpn, wait_for_standby
from tests.store.vpn_file import MADE_MS
from tests.support.ports import free_port
from tests.support.postgresql import Server, eventually, server


def test_a_later_version_is_refused(vpn: PostgresVpn, asked: Connection) -> None:
    """Its migrations are not known here; nothing is changed."""
    vpn.write([])
    asked.execute(b"insert into migration (name) values ('m999_more')")
    before = asked.execute(b"select * from log").fetchall()
    with pytest.raises(StoreTooNew, match="m999_more"):
        vpn.stores().open(vpn.name, MADE_MS, OPTIONS)
    assert asked.execute(b"select * from log").fetchall() == before


def test_a_server_that_is_not_there() -> None:
    """Is said so, with its address."""
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
    """Topics could not be stored."""
    with pytest.raises(StoreError, match="LATIN1"):
        PostgresStores(postgresql.url(latin)).open("v", MADE_MS, OPTIONS)


def test_the_password_is_read_from_a_file(postgresql: Server, tmp_path: Path) -> None:
    """At each connection, so that it can be changed; one that cannot be read is an error of opening."""
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
    """Whichever way it was written."""
    assert Database(url).place == place


def test_long_names_have_schemas_of_their_own() -> None:
    """Where PostgreSQL would cut them to the same, and no lock is another's."""
    names = ["a" * 56, "a" * 57, "a" * 63 + "b", "a" * 64, "default"]
    schemas = {schema_name(name) for name in names}
    assert len(schemas) == len({lock_key(name) for name in names}) == len(names)
    assert all(len(name.encode()) <= NAME_BYTES for name in schemas)
    assert schema_name("default") == "rewind_default"


def test_removing_what_is_not_there(vpn: PostgresVpn, asked: Connection) -> None:
    """Nothing happens; and of what is there nothing is left."""
    stores = vpn.stores()
    stores.remove(vpn.name)
    vpn.write([])
    stores.remove(vpn.name)
    found = asked.execute(b"select to_regnamespace(quote_ident(%s))", (schema_name(vpn.name),)).fetchall()
    assert found == [(None,)]
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        PostgresStores(f"postgresql://127.0.0.1:{free_port()}/x").remove("v")


def test_a_standby_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover's commits wait for one: that is said after a while, at each try, until there is one."""
    monkeypatch.setattr(takeover, "STANDBY_SECONDS", 0.2)
    monkeypatch.setattr(takeover, "LOOK_SECONDS", 0.1)
    with server() as primary:
        stores = PostgresStores(primary.url(primary.new_database()))
        stores.open("v", MADE_MS, OPTIONS).close()
        wait_for_standby(primary, "nobody")
        for _ in range(2):
            with pytest.raises(StoreError, match="synchronous standby, and none answers"):
                stores.open("v", MADE_MS, OPTIONS)
        wait_for_standby(primary, "")

        def is_opened() -> bool:
            with suppress(StoreError):
                stores.open("v", MADE_MS, OPTIONS).close()
                return True
            return False

        eventually(is_opened, "the takeover")
