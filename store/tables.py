"""
The short tables of a store, and the statements about them that every engine carries out: routes, spans of the property
index, cursors, definitions. What is asked often, and for many values, each engine has statements of its own for.

Statements are in the SQL that all engines speak. What they do not have in common is named by ``ShortTables``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from gateway.core.model import RouteDefinition
from store.property_index import IndexedSpan


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
    """SELECT of ``last_id``, the highest id ever given out."""
    routes_of: ClassVar[str]
    """SELECT of the numbers of routes that have an endpoint, and whose priority is a part of a cursor, or any (-1):
    endpoint, part, part."""
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
    newcomers: ClassVar[str]
    """SELECT of (id, route, bytes of content) of routed messages above ``{counted}``, by id."""
    referred: ClassVar[str]
    """SELECT of (cursor, message, bytes of content, where the bare message begins, what is before that, failed
    deliveries) of references whose messages are there, by cursor and message."""

    @abstractmethod
    def ask(self, sql: str, *values: Any) -> list[Any]:
        """
        Carry out one statement; its rows.

        Args:
            values: For its ``?``. A text may hold any character; a tuple of numbers is kept as the engine keeps one.
        """

    @abstractmethod
    def numbers(self, stored: Any) -> tuple[int, ...]:
        """A tuple of numbers, as it was found in a row."""

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def queued(self, endpoint: int) -> Iterable[QueuedMessage]:
        """What is there of what was put on an endpoint, whether it is done with it or not, by id."""

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
