"""
The short tables of a store, and the statements about them that every engine carries out: routes, spans of the property
index, cursors, definitions. What is asked often, and for many values, each engine has statements of its own for.

Statements are in the SQL that all engines speak. What they do not have in common is named by ``ShortTables``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from gateway.core.model import RouteDefinition
from store.property_index import IndexedSpan
from store.schema import RETRY_IN_ORDER


class QueuedMessage(NamedTuple):
    """A message of a route that has the queue."""

    id: int
    route: int
    priority: int | None
    """Of its route."""
    size_bytes: int
    bare: int
    front: bytes
    """What is before its bare message."""


class ShortTables(ABC):
    """The short tables of a store by one connection, inside the caller's transaction."""

    last_id: ClassVar[str]
    """SELECT of ``last_id``, the highest id ever given out. What the log's row alone says holds up to its own
    ``last_id``, and what else is in the row was written together with that."""
    greatest: ClassVar[str]
    """The function that gives the greater of two values."""
    messages: ClassVar[str]
    """What there is for a reader, as one table ``message`` for a FROM; by ids, of which all are looked at."""
    joined: ClassVar[str]
    """The same as a JOIN, of what a condition (``{0}``) finds by an index: ``id``, ``bare`` and ``content``."""
    message_tables: ClassVar[Mapping[str, str]]
    """The tables in which that is, with a condition for what is there."""
    leads_to: ClassVar[str]
    """Condition for a route that has an endpoint (``?``)."""
    held_table: ClassVar[str]
    """The table of messages that the log does not hold."""
    held_ids: ClassVar[str]
    """SELECT of their ids; a condition follows."""
    unnamed_routes: ClassVar[str]
    """SELECT of (number, whether no message names it) of some routes, by number: above which one, how many."""
    swept_routes: ClassVar[int]
    """Routes that one look at them is at: an index lookup each, in each partition where there are some."""
    newest_of_routes: ClassVar[str]
    """SELECT of (number, priority, endpoints, id of the newest message or null); the log begins at ``{first}``."""
    value_bytes: ClassVar[str]
    """How many bytes the ``value`` of an entry of the property index has."""
    with_messages: ClassVar[str]
    """What goes before a query that says ``message`` of all that there is (``name as (…)``), or nothing."""
    named: ClassVar[str]
    """SELECT of (route, endpoint): each endpoint that each route leads to."""
    by_priority: ClassVar[str]
    """Whether an endpoint delivers by priority, of its column ``settings``."""
    replay_cursor: ClassVar[str]
    """The cursor of an endpoint's replay, of its column ``replay``."""
    size_on_disk: ClassVar[str]
    """Sums what messages take of the disk; nothing for none."""
    header_priority: ClassVar[str | None]
    """What a message's header says, of its ``content`` and ``bare``; None where SQL cannot say."""

    @abstractmethod
    def ask(self, sql: str, *values: Any) -> list[Any]:
        """
        Carry out one statement; its rows.

        Args:
            values: For its ``?``. A text may hold any character; a tuple of numbers is kept as the engine keeps one.
        """

    @abstractmethod
    def each(self, sql: str, *values: Any) -> Iterator[Any]:
        """The rows of a query, which may be many, one after the other."""

    @abstractmethod
    def add(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """Put rows into a table, which may be many; values are kept as ``ask`` keeps them."""

    @abstractmethod
    def numbers(self, stored: Any) -> tuple[int, ...]:
        """A tuple of numbers, as it was found in a row."""

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        """
        Put messages on other routes: (route, message id). Checksums are changed by as much, rather than made anew: one
        that was wrong stays so.
        """

    @abstractmethod
    def let_go(self, which: str) -> None:
        """
        One endpoint less needs the held messages for which a condition holds, now and after that: those that nobody
        needs any more go.
        """

    def queued(self, endpoint: int) -> Iterator[QueuedMessage]:
        """What is there of what was put on an endpoint, whether it is done with it or not, by id."""
        rows = self.each(
            "select id, number, priority, length(content), bare, substr(content, 1, bare) "
            f"from (select number, priority from route where {self.leads_to}) as on_it "
            f"{self.joined.format('route = on_it.number and route <> 0')} order by id",
            endpoint,
        )
        return (QueuedMessage(*row) for row in rows)

    def newcomers(self, counted_id: int) -> list[tuple[int, int, int]]:
        """(id, route, bytes of content) of routed messages above an id, by id; no content is read."""
        # The routes' index is of no use for it.
        return self.ask(
            f"select id, route, length(content) from {self.messages} "
            f"where id > {counted_id} and +route <> 0 order by id"
        )

    def referred(self) -> list[tuple[int, int, int, int, bytes, int]]:
        """
        (cursor, message, bytes of content, where the bare message begins, what is before that, failed deliveries) of
        references whose messages are there, by cursor and message.
        """
        return self.ask(
            "select reference.cursor, id, length(content), bare, substr(content, 1, bare), coalesce(count, 0) "
            f"from reference {self.joined.format('id = reference.message')} left join attempt "
            "on attempt.cursor = reference.cursor and attempt.message = reference.message order by 1, 2"
        )

    def retries_in_order(self) -> list[tuple[int, int, int, bytes]]:
        """
        (cursor, message, where the bare message begins, what is before that) of what is to be tried again before what
        is behind it.
        """
        return self.ask(
            "select waiting.cursor, id, bare, substr(content, 1, bare) from (select * from delayed "
            f"where retry <> 0 and retry = {RETRY_IN_ORDER}) as waiting "
            f"{self.joined.format('id = waiting.message')} order by 1, 2"
        )

    def routes(self) -> list[RouteDefinition]:
        """All there are."""
        return [
            RouteDefinition(number, self.numbers(endpoints), priority)
            for number, endpoints, priority in self.ask("select number, endpoints, priority from route")
        ]

    def add_route(self, route: RouteDefinition) -> None:
        """Write a route that is not there."""
        self.ask(INSERT_ROUTE, route.number, route.priority, route.endpoints)

    def indexed_spans(self) -> list[IndexedSpan]:
        """The spans of the property index, by their first ids."""
        return [
            IndexedSpan(*row)
            for row in self.ask(
                "select number, property, first_id, end_id from indexed order by first_id, number"
            )
        ]

    def update_spans(self, names: Sequence[str]) -> None:
        """End the spans of properties not among ``names``, and begin those that are missing."""
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
"""Messages from one id on, below another, that endpoints need by no route and no reference, once for each of these."""
