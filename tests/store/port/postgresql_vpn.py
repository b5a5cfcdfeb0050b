"""A Message VPN in PostgreSQL for the tests of the port: its tables are filled by SQL, without a writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg

from gateway.core.effects import Effect, Publication
from gateway.core.model import HELD, ID, Row
from store.checksum import HEAD_BITS, content_sum, head_of
from store.errors import StoreHeld
from store.ports import StoreOptions
from store.postgresql.check import check
from store.postgresql.database import Database
from store.postgresql.migrations import migrate
from store.postgresql.reading import reader
from store.postgresql.reading.reader import PostgresReader
from store.postgresql.schema import HELD_COLUMNS, MESSAGE_COLUMNS, schema_name
from store.postgresql.store import PostgresStore, PostgresStores
from store.postgresql.text import stored_text
from tests.store.port.vpns import applied
from tests.support.naive_store import NaiveStore
from tests.support.postgresql import Server, eventually

TABLES: Final = (
    "message", "held_message", "route", "endpoint", "subscription", "cursor", "cursor_range", "attempt", "reference",
    "garbage", "log", "point", "indexed", "property_value",
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
    connection = Database(server.url()).connect(_named(folder, vpn), "check")
    return check(connection, schema_name(_named(folder, vpn)))


def _named(folder: Path, vpn: str) -> str:
    return f"{vpn}-{'-'.join(folder.parts[-2:])}"


class PostgresVpn:
    """A schema of its own. What is written stands in place of what was written before."""

    reader_module = reader

    def __init__(self, server: Server) -> None:
        self._server = server
        self._schema = schema_name(f"port-{next(_numbers)}")
        self._readers: list[PostgresReader] = []
        self._connection = self._connect()
        self._connection.execute(f'create schema "{self._schema}"'.encode())
        migrate(self._connection, self._schema)
        self._connection.execute("create table message_all partition of message default")

    def _connect(self, server: Server | None = None) -> psycopg.Connection[Any]:
        connection = psycopg.connect((server or self._server).url(), autocommit=True)
        connection.execute(f'set search_path = "{self._schema}"'.encode())
        return connection

    def write(self, batches: Iterable[Sequence[Effect]]) -> NaiveStore:
        """See ``StoredVpn``. What was trimmed stays behind in ``message``, as a trimming leaves it there."""
        written = list(batches)
        model = applied(written)
        self.execute(*(f"delete from {table}" for table in TABLES))
        logged = {
            row[ID]: row
            for effects in written
            for effect in effects
            if isinstance(effect, Publication) and effect.logged
            for row in effect.rows
            if row[ID] < model.first_id or model.is_logged(row[ID])
        }
        held = [row for row in model.messages.values() if row[HELD] is not None]
        self._copy("message", MESSAGE_COLUMNS, map(_logged, logged.values()))
        self._copy("held_message", HELD_COLUMNS, map(_held, held))
        self._copy(
            "route",
            "number, priority, endpoints",
            [(route.number, route.priority, list(route.endpoints)) for route in model.routes.values()],
        )
        parts = [(number, key, part) for number, c in model.cursors.items() for key, part in c.parts.items()]
        self._copy(
            "cursor",
            "number, part, floor, counted_id, messages, size_bytes",
            [(n, key, p.floor, p.counted_id, p.messages, p.size_bytes) for n, key, p in parts],
        )
        self._copy(
            "cursor_range",
            "number, part, first, last",
            [(n, key, first, last) for n, key, part in parts for first, last in part.ranges.items()],
        )
        self._copy(
            "attempt",
            "cursor, message, count",
            [(n, i, times) for n, cursor in model.cursors.items() for i, times in cursor.attempts.items()],
        )
        self._copy(
            "reference",
            "cursor, message",
            [(n, i) for n, cursor in model.cursors.items() for i in cursor.references],
        )
        self._connection.execute(
            "insert into log (generation, first_id, last_id, last_time, floor_time, size_bytes, largest_bytes, "
            "next_number, archived_id, counted_id) values (1, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                model.first_id, model.last_id, model.last_time_ms, model.floor_ms, model.size_bytes,
                model.largest_bytes, model.next_number, model.archived_id, model.counted_id,
            ),
        )  # fmt: skip
        return model

    def _copy(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor().copy(f"copy {table} ({columns}) from stdin".encode()) as copy:
            for row in rows:
                copy.write_row(row)

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
            partial(self._connect, server),
            self._schema,
            threads=1,
            page_rows=rows,
            page_bytes=page_bytes,
            largest_bytes=largest_bytes,
            is_standby=server is not None,
        )
        self._readers.append(found)
        return found

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


def _logged(row: Row) -> tuple[Any, ...]:
    message_id, time, topic, bare, route, _, content = row
    checksum = (content_sum(content) << HEAD_BITS) + head_of(message_id, time, topic, bare, route)
    return (message_id, time, checksum, route, bare, stored_text(topic), content)


def _held(row: Row) -> tuple[Any, ...]:
    *head, topic, content = _logged(row)
    return (*head, row[HELD], topic, content)
