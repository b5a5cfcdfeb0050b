"""Message VPNs in PostgreSQL for the tests of the port."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Final

import psycopg

from gateway.core.effects import Effect
from gateway.core.model import Row
from store import reading
from store.cursors import dropped_cursors
from store.postgresql import check, reader
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import PREFIX, Connection, Database, Statement, carry_out
from store.postgresql.reader import PostgresReader
from store.postgresql.schema import FENCE, migrate
from store.postgresql.transaction import Transaction
from store.promises import WRONG_PRIORITY, Promise
from store.property_index import IndexedSpan
from store.transaction import Before
from tests.store.port.vpns import model_of
from tests.store.postgresql.vpn import state_of
from tests.store.vpn_file import MADE_MS, bounds
from tests.support.naive_store import NaiveStore, State
from tests.support.postgresql import Server

TABLES: Final = (
    "message", "held_message", "route", "endpoint", "subscription", "cursor", "cursor_range", "attempt", "reference",
    "delayed", "last_value", "dedup", "garbage", "log", "point", "replay_record", "retention", "indexed",
    "property_value",
)  # fmt: skip

_numbers = count(1)


def check_url(url: str, vpn: str) -> list[str]:
    """The broken promises of a closed store in a database."""
    return check.check_vpn(Database(url), vpn)


def state_at(url: str, vpn: str) -> State:
    """The visible state of a store in a database."""
    with Database(url).connect(vpn, "state") as connection:
        return state_of(connection)


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
        """Empty the tables, which is faster than to create new ones, and close the readers."""
        self._close_readers()
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
            server: A standby to read from.
        """
        found = PostgresReader(
            partial(self._connect, server), self._schema, bounds(rows, page_bytes), largest_bytes, self._spans
        )
        self._readers.append(found)
        return found

    def check(self) -> list[str]:
        """See ``StoredVpn``."""
        return check.check_vpn(Database(self._server.url()), self._schema.removeprefix(PREFIX))

    def save(self) -> None:
        """See ``StoredVpn``."""
        self.execute(*(f"create temporary table saved_{table} as table {table}" for table in TABLES))

    def restore(self) -> None:
        """See ``StoredVpn``."""
        self.execute(
            *(f"delete from {table}; insert into {table} select * from saved_{table}" for table in TABLES)
        )

    def count(self, table: str) -> int:
        """See ``StoredVpn``."""
        ((found,),) = self._connection.execute(f"select count(*) from {table}".encode()).fetchall()
        return int(found)

    def reconnect(self) -> None:
        """Connect again after a restart of the server."""
        self._connection.close()
        self._connection = self._connect()

    def execute(self, *statements: str) -> None:
        """See ``StoredVpn``."""
        self._connection.execute("; ".join(statements).encode())

    def close(self) -> None:
        """See ``StoredVpn``."""
        self._close_readers()
        self._connection.execute(f'drop schema "{self._schema}" cascade'.encode())
        self._connection.close()

    def _close_readers(self) -> None:
        while self._readers:
            self._readers.pop().close()
