"""
Reads from a hot standby of PostgreSQL: pages of history for the active gateway, so that they cost the primary nothing,
and a whole Message VPN for a gateway that waits (``store.following``).

The standby serves what reads the log: pages, searches and counts. What changes with each delivery (attempts, backlogs,
the newest message) comes from the primary, because a standby may be behind. Nothing is skipped, and nobody waits for a
standby. If it has not replayed yet what the caller was told of, does not answer, or fails in any other way, the page
comes from the primary. The standby is then not used for a while; if it was behind, only for the ids that it did not
have.

A gateway that waits reads the log's row now and then, because ``LISTEN`` does not work on a standby. It does not use
the index of properties: the active gateway may end an index with a commit, and nothing tells the standby's readers in
time. So searches look at the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from gateway.core.effects import SaveEndpoint, StoredCursor, StoredEndpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.log import RetentionMark
from gateway.core.model import WHOLE, LogState, Point
from gateway.core.replay.search import Search
from store.errors import ReadFailed, StoreError
from store.following import ToldDefinitions, ToldLog
from store.ports import MAX_ID, LogPage, SearchPage, StoreOptions, TopicPage
from store.postgresql import schema
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import Connection, Database, bounded, engine, read_text
from store.postgresql.reader import Behind, PostgresReader
from store.property_index import IndexedSpan
from store.reading import SCAN_IDS

T = TypeVar("T")

REST_SECONDS: Final = 5.0
"""How long a standby that has failed is not used."""

BEHIND_SECONDS: Final = 0.2
"""How long it is not asked again for ids that it did not have."""


class StandbyReader(PostgresReader):
    """A reader of the primary that takes pages of history from a reader of the standby."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        name: str,
        options: StoreOptions,
        largest_bytes: int,
        indexed: Sequence[IndexedSpan],
        standby: PostgresReader,
    ) -> None:
        """
        Args:
            connect: Connects to the primary. The other arguments are as for ``PostgresReader``.
            standby: A reader that is not patient. The threads of this reader read with it.
        """
        super().__init__(connect, name, options, largest_bytes, indexed)
        self._standby = standby
        self.is_left_alone = False
        """The standby is not used: it may still have contents that must not be read any more."""
        self._rests_until = 0.0
        self._lacks: tuple[float, int] = (0.0, MAX_ID)
        """Until when (``time.monotonic``), and from which id on, the standby is not asked."""

    @property
    def standby_damage(self) -> str | None:
        """See ``store.ports.Reader``."""
        return self._standby.damage

    def grow_largest(self, size_bytes: int) -> None:
        """See ``PooledReader``."""
        super().grow_largest(size_bytes)
        self._standby.grow_largest(size_bytes)

    def close(self) -> None:
        """Close the connections."""
        self._standby.connections.closing.set()
        super().close()  # its threads read from both servers
        self._standby.close()

    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """See ``store.ports.Reader``."""
        return self._read(
            lambda reader: PostgresReader.log_page(reader, position, end, patterns, held=held),
            min(end, position + SCAN_IDS),
        )

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        """See ``store.ports.Reader``."""
        return self._read(
            lambda reader: PostgresReader.search_page(reader, search, patterns, position, end), end
        )

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        """See ``store.ports.Reader``."""
        return self._read(lambda reader: PostgresReader.topics_below(reader, before, first, patterns), before)

    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        """See ``store.ports.Reader``."""
        return self._read(lambda reader: PostgresReader.tally(reader, position, end, patterns), end)

    def _read(self, read: Callable[[PostgresReader], T], stop: int) -> T:
        """
        Read from the standby, or else from the primary.

        Args:
            stop: Only ids below this one are read.
        """
        now = time.monotonic()
        until, lacks = self._lacks
        if self.is_left_alone or now < self._rests_until or (now < until and stop > lacks):
            return read(self)
        try:
            return read(self._standby)
        except ReadFailed as error:
            behind = error.__cause__
            if isinstance(behind, Behind):
                self._lacks = (time.monotonic() + BEHIND_SECONDS, behind.told_id + 1)
            else:
                self._rests_until = time.monotonic() + REST_SECONDS
        return read(self)


PURPOSE: Final = "standby reads"

LOG: Final = """
    select generation, first_id, least(told_id, last_id), last_time, floor_time, size_bytes, archived_id, commit_no,
        array(select rule from retention order by rule), array(select below from retention order by rule),
        array(select whole_time from retention order by rule)
    from log
"""

STREAMS: Final = """
    select number, cursor, name, kind, settings, array(
        select pattern from subscription where endpoint = number order by pattern
    ) from endpoint where kind = ? order by number
"""

POINTS: Final = "select name, position, time, made from point order by name"


class FollowedSchema:
    """The schema of a Message VPN on a standby, as ``store.following.Followed``."""

    def __init__(self, database: Database, vpn: str, options: StoreOptions) -> None:
        """
        Raises:
            StoreError: The schema is not there, or cannot be read.
        """
        self._database = database
        self._vpn = vpn
        self.place = database.place_of(vpn)
        self.engine = ""
        self._connection: Connection | None = None
        try:
            applied = [name for (name,) in self._rows("select name from migration")]
        except ReadFailed as error:
            raise StoreError(
                "cannot read", self.place, error, "Check that the standby runs and accepts this user"
            ) from error
        if sorted(applied) != sorted(schema.MIGRATIONS):
            self._disconnect()
            raise StoreError(
                "cannot read",
                self.place,
                "its tables are of another version",
                "Run the same version of rewind on all gateways",
            )
        self.reader = PostgresReader(
            partial(database.connect, vpn, PURPOSE), vpn, options, largest_bytes=MAX_ID, is_standby=True
        )
        self.reader.known_marks = ()

    def look(self) -> ToldLog:
        """See ``store.following.Followed``."""
        found = self._rows(LOG)
        if not found:
            raise ReadFailed("there is no log yet")
        ((generation, first, told, time, floor, size, archived, commit_no, *marks),) = found
        log = LogState(
            generation=generation,
            # What was reported may be trimmed completely, and later messages as well.
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
                SaveEndpoint(number, cursor, name, kind, settings, None),
                {WHOLE: StoredCursor(0, [], 0, 0)},
                subscriptions=[read_text(pattern) for pattern in patterns],
            )
            for number, cursor, name, kind, settings, patterns in self._rows(
                STREAMS, EndpointKind.STREAM.value
            )
        ]
        points = [Point(*row) for row in self._rows(POINTS)]
        return ToldDefinitions(streams, points)

    def close(self) -> None:
        """See ``store.following.Followed``."""
        self.reader.close()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = self._database.connect(
                    self._vpn, PURPOSE, default_transaction_read_only="on"
                )
                self.engine = engine(self._connection)
            with bounded(self._connection):
                return PostgresShortTables(self._connection).ask(sql, *values)
        except (psycopg.Error, OSError) as error:
            # The next look connects again, perhaps to another standby.
            self._disconnect()
            raise ReadFailed(str(error)) from error
