"""
A Message VPN's schema as a hot standby has it, for a gateway that waits (``store.following``).

The log's row is asked for, as a standby takes no ``LISTEN``. No index of properties is used: it may end with a commit
of the active gateway's, of which nobody here is told in time; searches look at the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import psycopg

from gateway.core.effects import SaveEndpoint, StoredCursor, StoredEndpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.log import RetentionMark
from gateway.core.model import WHOLE, LogState, Point
from store.errors import ReadFailed, StoreError
from store.following import ToldDefinitions, ToldLog
from store.ports import MAX_ID, StoreOptions
from store.postgresql import schema
from store.postgresql.database import Database, bounded, engine, schema_name
from store.postgresql.reading.reader import PostgresReader
from store.postgresql.statements import Connection
from store.postgresql.text import read_text

PURPOSE: Final = "standby reads"

LOG: Final = b"""
    select generation, first_id, least(told_id, last_id), last_time, floor_time, size_bytes, archived_id, commit_no,
        array(select rule from retention order by rule), array(select below from retention order by rule),
        array(select whole_time from retention order by rule)
    from log
"""

STREAMS: Final = b"""
    select number, cursor, name, kind, settings, array(
        select pattern from subscription where endpoint = number order by pattern
    ) from endpoint where kind = %s order by number
"""

POINTS: Final = b"select name, position, time, made from point order by name"


class FollowedSchema:
    """One schema on a standby."""

    def __init__(self, database: Database, vpn: str, options: StoreOptions) -> None:
        """
        Raises:
            StoreError: It is not there, or cannot be read.
        """
        self._database = database
        self._vpn = vpn
        self._connection: Connection | None = None
        try:
            self._engine = engine(self._connected())
            applied = [name for (name,) in self._rows(b"select name from migration")]
        except ReadFailed as error:
            self._disconnect()
            raise StoreError(
                "cannot read", self.place, error, "See that the standby runs and lets this user in"
            ) from error
        if sorted(applied) != sorted(schema.KNOWN):
            self._disconnect()
            raise StoreError(
                "cannot read",
                self.place,
                "it is of another version",
                "Run the same version of rewind on all gateways",
            )
        self.reader = PostgresReader(
            partial(database.connect, vpn, PURPOSE),
            vpn,
            threads=options.read_threads,
            page_rows=options.page_rows,
            page_bytes=options.page_bytes,
            largest_bytes=MAX_ID,
            is_standby=True,
        )
        self.reader.known_marks = ()

    @property
    def place(self) -> str:
        """The standby's address, and the schema."""
        return f"{self._database.place}, schema {schema_name(self._vpn)}"

    @property
    def engine(self) -> str:
        """PostgreSQL and the server's version."""
        return self._engine

    def look(self) -> ToldLog:
        """See ``store.following.Followed``."""
        found = self._rows(LOG)
        if not found:
            raise ReadFailed("there is no log yet")
        ((generation, first, told, time, floor, size, archived, commit_no, *marks),) = found
        log = LogState(
            generation=generation,
            # What was told of may all be trimmed, and more.
            first_id=min(first, told + 1),
            next_id=told + 1,
            last_time_ms=time,
            floor_ms=floor,
            size_bytes=size,
            archived_id=archived,
        )
        return ToldLog(log, commit_no, [RetentionMark(*mark) for mark in zip(*marks, strict=True)])

    def told_taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """See ``store.following.Followed``."""
        self.reader.known_marks = marks

    def definitions(self) -> ToldDefinitions:
        """See ``store.following.Followed``."""
        streams = [
            StoredEndpoint(
                SaveEndpoint(number, cursor, read_text(name), kind, settings, None),
                {WHOLE: StoredCursor(0, [], 0, 0)},
                subscriptions=[read_text(pattern) for pattern in patterns],
            )
            for number, cursor, name, kind, settings, patterns in self._rows(
                STREAMS, EndpointKind.STREAM.value
            )
        ]
        points = [
            Point(read_text(name), position, time, made) for name, position, time, made in self._rows(POINTS)
        ]
        return ToldDefinitions(streams, points)

    def close(self) -> None:
        """See ``store.following.Followed``."""
        self.reader.close()
        self._disconnect()

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                self._connection = self._database.connect(
                    self._vpn, PURPOSE, default_transaction_read_only="on"
                )
            except (psycopg.Error, OSError) as error:
                raise ReadFailed(str(error)) from error
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _rows(self, sql: bytes, *values: Any) -> list[Any]:
        connection = self._connected()
        try:
            with bounded(connection):
                return connection.execute(sql, values).fetchall()
        except psycopg.Error as error:
            # The next look connects again: to another standby, perhaps.
            self._disconnect()
            raise ReadFailed(str(error)) from error
