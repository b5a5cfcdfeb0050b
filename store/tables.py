"""
The short tables of a store, and the statements on them that are the same in every engine: routes, spans of the property
index, cursors, definitions. For what is asked often, and for many values, each engine has its own statements.

The statements use the SQL that all engines share. ``ShortTables`` names what differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from gateway.core.model import RouteDefinition
from store.property_index import IndexedSpan
from store.schema import RETRY_IN_ORDER


class QueuedMessage(NamedTuple):
    """A message on a route that leads to the queue."""

    id: int
    route: int
    priority: int | None
    """The route's."""
    size_bytes: int
    bare: int
    front: bytes
    """The content before the bare message."""


class ShortTables(ABC):
    """The short tables of a store through one connection, inside the caller's transaction."""

    last_id: ClassVar[str]
    """SELECT of ``last_id``, the highest id ever given out. The log's row may be older: it covers the ids up to its own
    ``last_id``, in all its columns."""
    greatest: ClassVar[str]
    """The function that gives the greater of two values."""
    messages: ClassVar[str]
    """FROM clause: every message that a reader can see, as one table ``message``. For statements that scan all ids."""
    joined: ClassVar[str]
    """JOIN clause: the same for a condition (``{0}``) that an index serves; gives ``id``, ``bare`` and ``content``."""
    message_tables: ClassVar[Mapping[str, str]]
    """The tables of the messages, each with the condition for rows that a reader can see."""
    leads_to: ClassVar[str]
    """Condition for a route that leads to an endpoint (``?``)."""
    held_table: ClassVar[str]
    """The table of held messages."""
    held_ids: ClassVar[str]
    """SELECT of the ids of held messages; a condition follows."""
    unnamed_routes: ClassVar[str]
    """SELECT of (number, whether no message names it) of routes, by number. Values: above which number, how many."""
    swept_routes: ClassVar[int]
    """Routes checked in one step. Each takes an index look-up, in each partition if there are partitions."""
    newest_of_routes: ClassVar[str]
    """SELECT of (number, priority, endpoints, id of the newest message or null); the log begins at ``{first}``."""
    value_bytes: ClassVar[str]
    """The length in bytes of ``value`` in an entry of the property index."""
    with_messages: ClassVar[str]
    """Precedes a query in which ``message`` is every message that a reader can see (``name as (…)``); may be empty."""
    named: ClassVar[str]
    """SELECT of (route, endpoint) for every endpoint of every route."""
    by_priority: ClassVar[str]
    """Whether an endpoint delivers by priority, by its column ``settings``."""
    replay_cursor: ClassVar[str]
    """The number of the cursor of an endpoint's replay, by its column ``replay``."""
    size_on_disk: ClassVar[str]
    """Sum of the disk space that messages take; null or 0 for no messages."""
    header_priority: ClassVar[str | None]
    """The priority of a message's header, by ``content`` and ``bare``; None if SQL cannot tell."""

    @abstractmethod
    def ask(self, sql: str, *values: Any) -> list[Any]:
        """
        Execute one statement. Returns its rows.

        Args:
            values: For its ``?``. A text may hold any character; a tuple of numbers is stored in the engine's own form.
        """

    @abstractmethod
    def each(self, sql: str, *values: Any) -> Iterator[Any]:
        """The rows of a query, one after the other; for queries with many rows."""

    @abstractmethod
    def add(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows into a table; for many rows. Values are stored as by ``ask``."""

    @abstractmethod
    def numbers(self, stored: Any) -> tuple[int, ...]:
        """The tuple of numbers in a stored column."""

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        """
        Put messages on other routes: (route, message id). Each checksum is adjusted by the difference and not computed
        again: a wrong checksum stays wrong.
        """

    @abstractmethod
    def let_go(self, which: str) -> None:
        """
        Release the held messages that fulfil a condition, before and after the release: one endpoint less needs them,
        and those that no endpoint needs any more are deleted.
        """

    def queued(self, endpoint: int) -> Iterator[QueuedMessage]:
        """The stored messages on the routes of an endpoint, settled or not, in the order of ids."""
        rows = self.each(
            "select id, number, priority, length(content), bare, substr(content, 1, bare) "
            f"from (select number, priority from route where {self.leads_to}) as on_it "
            f"{self.joined.format('route = on_it.number and route <> 0')} order by id",
            endpoint,
        )
        return (QueuedMessage(*row) for row in rows)

    def newcomers(self, counted_id: int) -> list[tuple[int, int, int]]:
        """(id, route, bytes of content) of messages on routes, by id, above ``counted_id``; reads no content."""
        # The plus sign keeps SQLite from using the routes' index, which does not help here.
        return self.ask(
            f"select id, route, length(content) from {self.messages} "
            f"where id > {counted_id} and +route <> 0 order by id"
        )

    def referred(self) -> list[tuple[int, int, int, int, bytes, int]]:
        """
        (cursor, message, bytes of content, offset of the bare message, content before that, failed deliveries) of
        references whose messages exist, by cursor and message.
        """
        return self.ask(
            "select reference.cursor, id, length(content), bare, substr(content, 1, bare), coalesce(count, 0) "
            f"from reference {self.joined.format('id = reference.message')} left join attempt "
            "on attempt.cursor = reference.cursor and attempt.message = reference.message order by 1, 2"
        )

    def retries_in_order(self) -> list[tuple[int, int, int, bytes]]:
        """
        (cursor, message, offset of the bare message, content before that) of messages that a consumer gave back and
        that are to be delivered before later messages.
        """
        return self.ask(
            "select waiting.cursor, id, bare, substr(content, 1, bare) from (select * from delayed "
            f"where retry <> 0 and retry = {RETRY_IN_ORDER}) as waiting "
            f"{self.joined.format('id = waiting.message')} order by 1, 2"
        )

    def routes(self) -> list[RouteDefinition]:
        """All routes."""
        return [
            RouteDefinition(number, self.numbers(endpoints), priority)
            for number, endpoints, priority in self.ask("select number, endpoints, priority from route")
        ]

    def add_route(self, route: RouteDefinition) -> None:
        """Write a route, unless it is there."""
        self.ask(INSERT_ROUTE, route.number, route.priority, route.endpoints)

    def indexed_spans(self) -> list[IndexedSpan]:
        """The spans of the property index, in the order of their first ids."""
        return [
            IndexedSpan(*row)
            for row in self.ask(
                "select number, property, first_id, end_id from indexed order by first_id, number"
            )
        ]

    def update_spans(self, names: Sequence[str]) -> None:
        """End the spans of properties that are not among ``names``, and begin spans for those that have none."""
        ((last_id,),) = self.ask(self.last_id)
        going_on = {span.name: span.number for span in self.indexed_spans() if span.end_id is None}
        for name, number in going_on.items():
            if name not in names:
                self.ask("update indexed set end_id = ? where number = ?", last_id + 1, number)
        for name in names:
            if name not in going_on:
                self.ask("insert into indexed (property, first_id) values (?, ?)", name, last_id + 1)


INSERT_ROUTE: Final = (
    "insert into route (number, priority, endpoints) values (?, ?, ?) on conflict do nothing"
)

KEPT: Final = """
    select message from delayed where message >= ? and message < ?
    union all select message from endpoint join last_value on last_value.cursor = endpoint.cursor
    where endpoint.kind = 'last-value' and message >= ? and message < ?
"""
"""Messages from one id on, below another, that endpoints need as delayed messages or values: once for each endpoint."""
