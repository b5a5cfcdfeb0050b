"""
Copies of a Message VPN's schema (``store.copies``): its mark as a copy, and its tables for copies to and from other
engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from time import monotonic, sleep
from typing import Any, Final

import psycopg

from gateway.core.model import CONTENT, HELD, ID, Row
from store.checksum import is_sound
from store.copies import MESSAGE, LogRow, StoredMessage, StoreTables
from store.errors import DamagedMessage, StoreError, StoreHeld
from store.postgresql import schema
from store.postgresql.check import check_vpn
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import Database, quoted_schema
from store.postgresql.packed import copied
from store.postgresql.partitions import attached_spans, make, missing_spans, partition_size
from store.postgresql.schema import migrate
from store.postgresql.takeover import WRITER, active_gateway, try_lock

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Content that is read in one step; one message is always let through."""

WAITING: Final = b"""
    select exists (select 1 from pg_stat_activity
        where datname = current_database() and starts_with(application_name, 'rewind ')
            and substr(application_name, 16) = substr(%s, 16))
"""
"""Whether a gateway has a session that waits for the lock, and would end this one. The session's name is like this
one's, except for the eight digits that identify a gateway."""

SESSION_ENDS_SECONDS: Final = 2.0
"""How long a server may show a session whose client has gone."""

LOOK_SECONDS: Final = 0.05

LOG: Final = LogRow._fields


class PostgresTables(StoreTables):
    """An open schema. It holds the store's lock as long as its connection lasts."""

    failures = (psycopg.Error,)

    def __init__(self, database: Database, vpn: str, *, is_target: bool = False) -> None:
        """
        Args:
            is_target: The schema is created if there is none.

        Raises:
            StoreHeld: A gateway has the store, or another copy.
            StoreError: There is no store; it cannot be opened, or was written by a later version.
        """
        self._database = database
        self._vpn = vpn
        self.place = database.place_of(vpn)
        with ExitStack() as opened:
            try:
                self._connection = opened.enter_context(closing(database.connect(vpn, "copy")))
                self._epoch = self._held(is_target=is_target)
                self._spans = attached_spans(self._connection)
            except (psycopg.Error, OSError) as error:
                raise StoreError(
                    "cannot open", self.place, error, "Check the url, the password and the database"
                ) from error
            opened.pop_all()
        super().__init__(self.place, PostgresShortTables(self._connection))

    def _is_waited_for(self) -> bool:
        """Whether a gateway has a session to take over the store. A session that has ended is shown for a moment."""
        name = self._database.session_name(self._vpn, WRITER)
        until = monotonic() + SESSION_ENDS_SECONDS
        while True:
            ((waiting,),) = self._connection.execute(WAITING, (name,)).fetchall()
            if not waiting or monotonic() > until:
                return bool(waiting)
            sleep(LOOK_SECONDS)

    def _held(self, *, is_target: bool) -> int | None:
        """Lock the store and raise its epoch, so that no earlier gateway can commit. Returns the epoch; None if new."""
        connection = self._connection
        if not try_lock(connection, self._vpn):
            raise StoreHeld("cannot copy", self.place, active_gateway(connection), "Stop that gateway")
        if self._is_waited_for():
            raise StoreError(
                "cannot copy", self.place, "a gateway waits to take it over", "Stop that gateway"
            )
        if is_target:
            connection.execute(f"create schema if not exists {quoted_schema(self._vpn)}".encode())
        ((is_there,),) = connection.execute(b"select to_regclass('log') is not null").fetchall()
        if not (is_there or is_target):
            raise StoreError(
                "cannot copy", self.place, "there is no such store", "Name the Message VPN with --vpn"
            )
        migrate(connection, self.place)
        rows = connection.execute(b"update log set epoch = epoch + 1 returning epoch").fetchall()
        return int(rows[0][0]) if rows else None

    def log(self) -> LogRow | None:
        rows = self._short.ask(f"select {', '.join(LOG)} from log")
        return LogRow(*rows[0]) if rows else None

    def _write_log(self, log: LogRow) -> None:
        changes = ", ".join(f"{name} = %s" for name in LOG)
        if not self._connection.execute(f"update log set {changes}".encode(), log).rowcount:
            self._short.add("log", ", ".join(LOG), [log])

    @contextmanager
    def _writing(self, *, is_durable: bool) -> Iterator[None]:
        with self._connection.transaction():
            if is_durable:
                self._check_epoch()
            else:
                self._connection.execute(b"set local synchronous_commit = off")
            yield

    def replace(self, log: LogRow, tables: Mapping[str, Iterable[tuple[Any, ...]]]) -> None:
        super().replace(log, tables)
        # Spans that begin later get numbers above these.
        self._connection.execute(
            b"select setval(pg_get_serial_sequence('indexed', 'number'), "
            b"coalesce((select max(number) from indexed), 0) + 1, false)"
        )
        # The server has no statistics yet of what was copied in one go, and would make wrong plans.
        for name in (*self._short.message_tables, "property_value", *tables):
            self._connection.execute(f"analyze {name}".encode())

    def _check_epoch(self) -> None:
        """In a transaction: raises if another gateway has taken over the store since it was opened."""
        rows = self._connection.execute(b"select epoch from log for update").fetchall()
        if self._epoch is not None and rows != [(self._epoch,)]:
            raise StoreError(
                "cannot copy",
                self.place,
                "a gateway has taken it over",
                "Stop that gateway, and run the command again",
            )

    def messages(self, first: int, stop: int) -> Iterator[StoredMessage]:
        lengths = self._short.ask(
            f"select id, length(content) from {self._short.messages} where id >= ? and id < ? order by id",
            first,
            stop,
        )
        size = 0
        for message_id, length in lengths:
            size += length
            if size >= PAGE_BYTES:
                yield from self._page(first, message_id + 1)
                first, size = message_id + 1, 0
        yield from self._page(first, stop)

    def _page(self, first: int, stop: int) -> list[StoredMessage]:
        found = self._short.ask(
            f"select {', '.join(MESSAGE)} from {self._short.messages} where id >= ? and id < ? order by id",
            first,
            stop,
        )
        rows: list[StoredMessage] = []
        for row in found:
            message_id, time, topic, bare, route, _, content, checksum = row
            if not is_sound(message_id, time, topic, bare, route, content, checksum):
                raise DamagedMessage(message_id)
            rows.append(row)
        return rows

    def add_messages(self, rows: Sequence[StoredMessage]) -> None:
        plain: list[Row] = [row[:7] for row in rows]
        logged = [row for row in plain if row[HELD] is None]
        held = [row for row in plain if row[HELD] is not None]
        if logged:
            begin = self._spans[0].first if self._spans else logged[0][ID]
            size = partition_size(logged[-1][ID] - begin)
            for span in missing_spans(self._spans, logged[0][ID], logged[-1][ID], size):
                make(self._connection, span)
                self._spans = attached_spans(self._connection)
        largest = max(len(row[CONTENT]) for row in plain)
        with self._writing(is_durable=False):
            for table, columns, part in (
                ("message", schema.MESSAGE_COLUMNS, logged),
                ("held_message", schema.HELD_COLUMNS, held),
            ):
                if part:
                    statement = f"copy {table} ({columns}) from stdin (format binary)"
                    with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                        copy.write(copied(part, largest))

    def check(self) -> list[str]:
        return check_vpn(self._database, self._vpn)

    def close(self) -> None:
        self._connection.close()
