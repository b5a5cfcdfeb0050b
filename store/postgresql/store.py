"""
The port's ``Store`` in PostgreSQL: one schema for each Message VPN, in one database; and what a gateway reads from it
at a start.

``store.ports`` defines the port; ``store.postgresql.schema`` describes the schema.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from store import upgrade
from store.copies import LogRow, check_whole, read_mark
from store.cursors import apply_priorities
from store.errors import ReadFailed, StoreError, StoreHeld, WriteFailed
from store.ports import Batch, Durability, OnCommit, StoreOptions
from store.postgresql import takeover
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import (
    Connection,
    Database,
    bounded,
    engine,
    quoted_schema,
    schema_name,
    stored_text,
)
from store.postgresql.partitions import PARTITION_BITS, Partitions, attached_spans
from store.postgresql.reader import PostgresReader
from store.postgresql.schema import MIGRATIONS, applied_migrations, migrate
from store.postgresql.standby import FollowedSchema, StandbyReader
from store.postgresql.trimming import vacuum
from store.postgresql.writer import PostgresWriter
from store.recovery import RecoveredStore, recovered
from store.schema import refuse_later
from store.upgrade import Ahead

LEASE_SECONDS: Final = 5.0

STANDBYS: Final = b"""
    select current_setting('synchronous_commit'),
        exists (select 1 from pg_stat_replication where sync_state in ('sync', 'quorum') and state = 'streaming')
"""

REPLAYED: Final = b"select not pg_is_in_recovery() or pg_last_wal_replay_lsn() >= %s::pg_lsn"

LOOK_SECONDS: Final = 0.05
"""Between two looks at a standby."""


class PostgresStores:
    """The schemas of Message VPNs in one database."""

    def __init__(
        self,
        url: str,
        *,
        password_file: Path | None = None,
        read_url: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        partition_bits: int = PARTITION_BITS,
    ) -> None:
        """
        Args:
            url: libpq's connection string, or URI, of a server that takes writes. It may name several servers.
            password_file: Contains the password and nothing else; read for each connection.
            read_url: Of a standby from which pages of the log are read; None: they are read from the same server.
            lease_seconds: No gateway delivers messages for longer than this after its last commit.
            partition_bits: Ids of a new partition, at least, as a power of two.
        """
        self._lease_seconds = lease_seconds
        self._known: dict[str, takeover.Known] = {}
        """By Message VPN, the newest commit that this gateway knows of, from its own time or from waiting."""
        self._successors: dict[str, takeover.Successor] = {}
        """By Message VPN, what was seen of the gateway that has its store."""
        self._database = Database(url, password_file)
        self._read_database = self._database if read_url is None else Database(read_url, password_file)
        self._partition_bits = partition_bits

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> PostgresStore:
        """See ``store.ports.Stores.open``."""
        place = self._database.place_of(vpn)
        connection: Connection | None = None
        known = self._known.setdefault(vpn, takeover.Known())
        try:
            connection = self._database.connect(vpn, takeover.WRITER)
            with bounded(connection):
                if not takeover.try_lock(connection, vpn):
                    if takeover.waits_for_standby(self._database, vpn):
                        raise TimeoutError(takeover.NO_STANDBY)
                    successor = self._successors.setdefault(
                        vpn, takeover.Successor(vpn, self._lease_seconds, known)
                    )
                    successor.look(connection)
                    raise StoreHeld("cannot open", place, takeover.active_gateway(connection))
            taken = _take_over(self._database, vpn, connection, known, now_ms, options)
            databases = (self._database, self._read_database)
            store = PostgresStore(databases, vpn, taken, options, partition_bits=self._partition_bits)
            connection = None
            self._successors.pop(vpn, None)
            return store
        except TimeoutError as error:
            raise StoreError("cannot open", place, error, "Check that a synchronous standby runs") from error
        except (psycopg.Error, OSError) as error:
            raise StoreError(
                "cannot open", place, error, "Check that the server runs and accepts this user"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def follow(self, vpn: str, options: StoreOptions) -> FollowedSchema:
        """See ``store.following.FollowableStores``."""
        return FollowedSchema(self._read_database, vpn, options)

    def remove(self, vpn: str) -> None:
        """See ``store.ports.Stores.remove``."""
        try:
            with self._database.connect(vpn, "remove") as connection:
                # One by one: each needs locks, and the server's number of locks is limited.
                for span in attached_spans(connection):
                    connection.execute(f"drop table {span.name}".encode())
                connection.execute(f"drop schema if exists {quoted_schema(vpn)} cascade".encode())
        except psycopg.Error as error:
            raise OSError(str(error)) from error


class PostgresStore:
    """One opened schema."""

    def __init__(
        self,
        databases: tuple[Database, Database],
        vpn: str,
        taken: takeover.TakenOver,
        options: StoreOptions,
        *,
        partition_bits: int = PARTITION_BITS,
    ) -> None:
        """
        Args:
            databases: The database to write to, and the database to read the log from.
            taken: The store owns its connection from now on.

        Raises:
            psycopg.Error: The schema cannot be read.
        """
        self._database, self._read_database = database, read_database = databases
        self._vpn = vpn
        self._on_commit: OnCommit | None = None
        self._untold: WriteFailed | None = None
        """The error, if the store was deposed before ``start_writer`` was called."""
        connection = taken.connection
        self.recovered = recover(connection)
        self.place, self.engine = database.place_of(vpn), engine(connection)
        self._partitions = Partitions(database, vpn, attached_spans(connection), bits=partition_bits)
        self._partitions.goes_on(self.recovered.log.next_id, self.recovered.log.first_id)
        read_from = (vpn, options, self.recovered.largest_bytes, self.recovered.indexed)
        connect = partial(database.connect, vpn, "reader")
        if read_database is database:
            self.reader = PostgresReader(connect, *read_from)
        else:
            connect_standby = partial(read_database.connect, vpn, "standby")
            standby = PostgresReader(connect_standby, *read_from, is_standby=True, is_patient=False)
            self.reader = StandbyReader(connect, *read_from, standby)
        # It commits by itself, so that other gateways see that this one is well before ``start_writer`` is called.
        self._writer = PostgresWriter(
            database, vpn, taken, self.recovered, self._partitions, self._told, self.reader.grow_largest
        )

    def start_writer(self, on_commit: OnCommit) -> PostgresWriter:
        """See ``store.ports.Store.start_writer``."""
        assert self._on_commit is None, "a schema has one writer"
        self._on_commit = on_commit
        if self._untold is not None:
            on_commit([], self._untold)
        return self._writer

    def scrub(self, seconds: float) -> bool:
        """See ``store.ports.Store.scrub``."""
        reader = self.reader
        ids, spans = self._partitions.with_erased()
        try:
            if isinstance(reader, StandbyReader):
                reader.is_left_alone = True
                ((place,),) = self._database.ask(self._vpn, "scrub", b"select pg_current_wal_lsn()::text")
                if self._has_replayed(str(place), seconds):
                    reader.is_left_alone = False
            with closing(self._database.connect(self._vpn, "scrub")) as connection:
                vacuum(connection, spans)
        except (psycopg.Error, OSError):
            return False
        self._partitions.erased_ids.difference_update(ids)
        return True

    def _has_replayed(self, place: str, seconds: float) -> bool:
        """Whether the standby for reads has replayed the write-ahead log up to a place."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(psycopg.Error, OSError):
                ((has,),) = self._read_database.ask(self._vpn, "scrub", REPLAYED, (place,))
                if has:
                    return True
            time.sleep(LOOK_SECONDS)
        return False

    def durability(self) -> Durability:
        """See ``store.ports.Store.durability``."""
        try:
            ((synchronous_commit, has_standby),) = self._database.ask(self._vpn, "standbys", STANDBYS)
        except (psycopg.Error, OSError) as error:
            raise ReadFailed(str(error)) from error
        is_waited_for = synchronous_commit in ("on", "remote_apply")
        return Durability.TWO_MACHINES if is_waited_for and has_standby else Durability.ONE_MACHINE

    def close(self) -> None:
        """Commit what was submitted, and end. Blocks until done."""
        self._writer.close()
        self.reader.close()
        self._partitions.close()

    def _told(self, batches: list[Batch], error: WriteFailed | None) -> None:
        if self._on_commit is not None:
            self._on_commit(batches, error)
        else:
            self._untold = error


def _take_over(
    database: Database,
    vpn: str,
    connection: Connection,
    known: takeover.Known,
    now_ms: int,
    options: StoreOptions,
) -> takeover.TakenOver:
    """
    Create the schema if there is none, migrate it if an earlier version wrote it, and take it over.

    Args:
        connection: Holds the lock.
        known: The newest commit that this gateway knows of.

    Raises:
        StoreTooNew: It was written by a later version.
        StoreError: It cannot be used.
        TimeoutError: Its commits wait for a standby that does not answer.
        psycopg.Error: The database failed.
    """
    began = time.monotonic()
    with takeover.standby_awaited(connection, database, vpn):
        _make(connection, database.place_of(vpn), vpn)
        tables = PostgresShortTables(connection)
        check_whole(database.place_of(vpn), read_mark(tables))
        with connection.transaction():
            # The generation is random, so that a recreated log is never taken for the one before.
            connection.execute(
                b"insert into log (generation, last_time, floor_time) values (%s, %s, %s) on conflict do nothing",
                (secrets.randbits(63), now_ms, now_ms),
            )
            epoch, commit_no = takeover.raise_epoch(connection, stored_text(options.advertise), known)
            tables.update_spans(options.index)
            apply_priorities(tables, options.priorities)
        # Earlier commits may not be on a standby yet: nothing of them is reported before they are.
        takeover.barrier(connection, epoch)
    return takeover.TakenOver(connection, epoch, commit_no, known, began)


def _make(connection: Connection, place: str, vpn: str) -> None:
    """Create the schema, or migrate it to this version."""
    ((encoding,),) = connection.execute(b"select current_setting('server_encoding')").fetchall()
    if encoding != "UTF8":
        raise StoreError(
            "cannot open", place, f"its encoding is {encoding}", "Make a database with the encoding UTF8"
        )
    ((is_there,),) = connection.execute(
        b"select to_regnamespace(quote_ident(%s)) is not null", (schema_name(vpn),)
    ).fetchall()
    if not is_there:
        connection.execute(f"create schema {quoted_schema(vpn)}".encode())
    migrate(connection, place)


def look_ahead(database: Database, vpn: str) -> Ahead:
    """
    What the next start would do to a Message VPN in a database, which may be in use; nothing is changed. A start would
    refuse what cannot be read.
    """
    place = database.place_of(vpn)
    try:
        with (
            closing(database.connect(vpn, "look", default_transaction_read_only="on")) as connection,
            connection.transaction(),
        ):
            connection.execute(b"set transaction isolation level repeatable read")
            applied = applied_migrations(connection)
            refuse = partial(refuse_later, place, applied, MIGRATIONS)
            return upgrade.look_ahead(PostgresShortTables(connection), place, applied, MIGRATIONS, refuse)
    except (psycopg.Error, OSError) as error:
        return Ahead(place, refusal=f"it cannot be read: {error}")


def recover(connection: Connection) -> RecoveredStore:
    """
    The state that a crash or a stop left behind in a schema, as one snapshot, see ``store.recovery``.

    Raises:
        psycopg.Error: It cannot be read.
    """
    with connection.transaction():
        connection.execute(b"set transaction isolation level repeatable read, read only")
        tables = PostgresShortTables(connection)
        (row,) = tables.ask(f"select {', '.join(LogRow._fields)} from log")
        return recovered(tables, LogRow(*row))
