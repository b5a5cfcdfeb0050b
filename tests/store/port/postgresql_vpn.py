"""Message VPNs in PostgreSQL for the tests of the port."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import psycopg

from gateway.core.effects import Effect
from gateway.core.model import Row
from store import reading
from store.cursors import dropped_cursors
from store.errors import StoreHeld
from store.ports import StoreOptions
from store.postgresql import check, reader
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import PREFIX, Connection, Database, Statement, carry_out
from store.postgresql.reader import PostgresReader
from store.postgresql.schema import FENCE, migrate
from store.postgresql.store import PostgresStore, PostgresStores
from store.postgresql.transaction import Transaction
from store.promises import WRONG_PRIORITY, Promise
from store.property_index import IndexedSpan
from store.transaction import Before
from tests.store.port.vpns import model_of
from tests.store.postgresql.vpn import state_of
from tests.store.vpn_file import MADE_MS, bounds
from tests.support.naive_store import NaiveStore, State
from tests.support.postgresql import Server, eventually

TABLES: Final = (
    "message", "held_message", "route", "endpoint", "subscription", "cursor", "cursor_range", "attempt", "reference",
    "delayed", "last_value", "dedup", "garbage", "log", "point", "replay_record", "retention", "indexed",
    "property_value",
)  # fmt: skip

OPENED_BITS: Final = 8
"""Ids of a partition, as a power of two: a history has several."""

_numbers = count(1)


class NamedStores:
    """Stores of one folder: what is there under a name of their own in the database that all have."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._stores = PostgresStores(server.url(), partition_bits=OPENED_BITS)
        self._folder = folder

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> PostgresStore:
        """See ``store.ports.Stores.open``. A session that has just ended may have its lock for a moment."""
        opened: list[PostgresStore] = []

        def is_opened() -> bool:
            with suppress(StoreHeld):
                opened.append(self._stores.open(_named(self._folder, vpn), now_ms, options))
            return bool(opened)

        eventually(is_opened, "the end of the session before")
        return opened[0]

    def remove(self, vpn: str) -> None:
        """See ``store.ports.Stores.remove``."""
        self._stores.remove(_named(self._folder, vpn))


def check_named(server: Server, folder: Path, vpn: str) -> list[str]:
    """What of the promises the closed store breaks."""
    return check_url(server.url(), _named(folder, vpn))


def check_url(url: str, vpn: str) -> list[str]:
    """The same of any Message VPN of a database."""
    return check.check_vpn(Database(url), vpn)


def state_named(server: Server, folder: Path, vpn: str) -> State:
    """All that can be seen of the closed store."""
    with Database(server.url()).connect(_named(folder, vpn), "state") as connection:
        return state_of(connection)


def _named(folder: Path, vpn: str) -> str:
    return f"{vpn}-{'-'.join(folder.parts[-2:])}"


class PostgresTables:
    """A schema of its own, without a writer."""

    reader_module = reader
    search_module = reading
    promises = (*check.PROMISES, Promise(WRONG_PRIORITY, ""))

    def __init__(self, server: Server) -> None:
        self._server = server
        self._schema = f"{PREFIX}port-{next(_numbers)}"
        self._readers: list[PostgresReader] = []
        self._connection = self._connect()
        self._connection.execute(f'create schema "{self._schema}"'.encode())
        migrate(self._connection, self._schema)
        self._connection.execute("create table message_all partition of message default")
        self._spans: list[IndexedSpan] = []
        self.clear()

    def _connect(self, server: Server | None = None) -> Connection:
        connection = psycopg.connect((server or self._server).url(), autocommit=True)
        connection.execute(f'set search_path = "{self._schema}"'.encode())
        return connection

    def clear(self) -> None:
        """Empty it, which is quicker than to make another."""
        self.execute(*(f"delete from {table}" for table in TABLES))
        self._connection.execute(
            "insert into log (generation, last_time, floor_time) values (1, %s, %s)", (MADE_MS, MADE_MS)
        )
        self._commits = 0
        self._spans = []

    def write(self, batches: Iterable[Sequence[Effect]]) -> NaiveStore:
        """See ``StoredVpn``."""
        written = list(batches)
        for effects in written:
            self.commit(effects)
        return model_of(written)

    def commit(self, effects: Sequence[Effect], index: Sequence[str] | None = None) -> None:
        """See ``StoredVpn``."""
        tables = PostgresShortTables(self._connection)
        if index is not None:
            tables.update_spans(index)
            self._spans = tables.indexed_spans()
        indexed = [span for span in self._spans if span.end_id is None]
        transaction = Transaction(Before(dropped_cursors(tables), indexed=indexed))
        transaction.apply(effects)
        steps = transaction.finish()
        fence = Statement(FENCE, (0, self._commits, self._commits + 1, *transaction.log_row()))
        carry_out(self._connection, [Statement("begin"), fence, *steps, Statement("commit")])
        self._commits += 1

    def stored(self) -> list[Row]:
        """See ``StoredVpn``."""
        columns = "id, time, topic, bare, route, {}, content"
        return self._connection.execute(
            f"select {columns.format('null')} from message where id >= (select first_id from log) "
            f"union all select {columns.format('held')} from held_message order by id".encode()
        ).fetchall()

    def open_reader(
        self,
        *,
        rows: int = 1_000,
        page_bytes: int = 1 << 22,
        largest_bytes: int = 64,
        server: Server | None = None,
    ) -> PostgresReader:
        """
        See ``StoredVpn``.

        Args:
            server: A standby to be read from.
        """
        found = PostgresReader(
            partial(self._connect, server), self._schema, bounds(rows, page_bytes), largest_bytes, self._spans
        )
        self._readers.append(found)
        return found

    def check(self) -> list[str]:
        """See ``StoredVpn``."""
        return check.check_vpn(Database(self._server.url()), self._schema.removeprefix(PREFIX))

    def count(self, table: str) -> int:
        """See ``StoredVpn``."""
        ((found,),) = self._connection.execute(f"select count(*) from {table}".encode()).fetchall()
        return int(found)

    def reconnect(self) -> None:
        """After the server was away."""
        self._connection.close()
        self._connection = self._connect()

    def execute(self, *statements: str) -> None:
        """See ``StoredVpn``."""
        self._connection.execute("; ".join(statements).encode())

    def close(self) -> None:
        """See ``StoredVpn``."""
        for found in self._readers:
            found.close()
        self._connection.execute(f'drop schema "{self._schema}" cascade'.encode())
        self._connection.close()
