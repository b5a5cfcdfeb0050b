"""
Cursors of endpoints in a store, for every engine: the moves of one transaction, gathered so that each part of a cursor
is written once; the ten parts of a queue that delivers by priority; and dropped cursors.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from amqp_ext.message.fields import DEFAULT, HIGHEST, LOWEST, priority_of
from gateway.core.effects import MoveCursor
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import WHOLE, RouteDefinition
from store.tables import ShortTables


class PartMoves:
    """The sum of the moves of one part of a cursor."""

    __slots__ = ("attempts", "counted_id", "done", "floor", "messages", "ranges", "references", "size_bytes")

    def __init__(self) -> None:
        self.floor: int | None = None
        self.counted_id: int | None = None
        self.messages = 0
        self.size_bytes = 0
        self.ranges: dict[int, int | None] = {}
        self.done: list[int] = []
        self.attempts: list[int] = []
        self.references: list[int] = []


class GatheredMoves:
    """The moves to be written, by cursor and part. An engine's adapter writes them."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, int], PartMoves] = {}

    def add(self, effect: MoveCursor) -> None:
        """Add a move to the sum of its part."""
        key = (effect.cursor, effect.part)
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = PartMoves()
        if effect.floor is not None:
            moves.floor = effect.floor
        if effect.counted_id is not None:
            moves.counted_id = effect.counted_id
        moves.messages += effect.messages
        moves.size_bytes += effect.size_bytes
        if effect.ranges:
            moves.ranges.update(effect.ranges)
        moves.done += effect.done
        if effect.attempts:
            moves.attempts += effect.attempts
        if effect.references:
            moves.references += effect.references


PRIORITIES: Final = range(LOWEST, HIGHEST + 1)


def apply_priorities(tables: ShortTables, queues: Mapping[str, bool]) -> None:
    """
    Make stored queues deliver by priority, or stop doing so, as declared. In the caller's transaction, before anybody
    reads the store.

    Invariant: the unsettled messages of an endpoint whose settings say ``priorities`` are on routes with the priority
    of the messages' headers, and its cursor has a part for each priority. Every other endpoint's cursor has one part
    for all messages. A queue that changes takes some seconds for each million messages on its routes.

    Args:
        queues: By name, whether the queue delivers by priority. All other queues stay as they are.
    """
    for number, cursor, name, text in tables.ask(
        "select number, cursor, name, settings from endpoint order by number"
    ):
        if name not in queues:
            continue
        settings = EndpointSettings.from_json(text)
        if settings.priorities == queues[name]:
            continue
        settings.priorities = queues[name]
        if settings.priorities:
            _divide(tables, number, cursor)
        else:
            _unite(tables, number, cursor)
        tables.ask("update endpoint set settings = ? where number = ?", settings.to_json(), number)


def _divide(tables: ShortTables, number: int, cursor: int) -> None:
    """Make a part for each priority, each a copy of the whole; put unsettled messages on routes with a priority."""
    whole = _parts(tables, cursor)[WHOLE]
    routes = _Routes(tables)
    counts = {priority: [0, 0] for priority in PRIORITIES}
    moved: list[tuple[int, int]] = []
    for message in tables.queued(number):
        if whole.is_done(message.id):
            continue
        priority = message.priority
        if priority is None:
            priority = priority_of(message.front) if message.bare else DEFAULT
            moved.append((routes.with_priority(message.route, priority), message.id))
        counts[priority][0] += 1
        counts[priority][1] += message.size_bytes
    tables.move_messages(moved)
    _replace_cursor(tables, cursor, dict.fromkeys(PRIORITIES, whole), counts)


def _unite(tables: ShortTables, number: int, cursor: int) -> None:
    """Make one part: each message is settled if its own part had settled it."""
    parts = _parts(tables, cursor)
    whole = Cursor(min(part.floor for part in parts.values()))
    count = [0, 0]
    behind_open = whole.floor + 1
    for message in tables.queued(number):
        if message.id <= whole.floor:
            continue
        # A message on a route without a priority was settled before the queue delivered by priority.
        if message.priority is None or parts[message.priority].is_done(message.id):
            whole.add(behind_open, message.id)
            continue
        count[0] += 1
        count[1] += message.size_bytes
        behind_open = message.id + 1
    _replace_cursor(tables, cursor, {WHOLE: whole}, {WHOLE: count})


def _parts(tables: ShortTables, cursor: int) -> dict[int, Cursor]:
    """The parts of a cursor, each with its ranges in rising order."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for part, first, last in tables.ask(
        "select part, first, last from cursor_range where number = ? order by first", cursor
    ):
        ranges.setdefault(part, []).append((first, last))
    floors = tables.ask("select part, floor from cursor where number = ?", cursor)
    return {part: Cursor(floor, ranges.get(part, ())) for part, floor in floors}


def _replace_cursor(
    tables: ShortTables, cursor: int, parts: Mapping[int, Cursor], counts: Mapping[int, Sequence[int]]
) -> None:
    """Replace a cursor's rows; ``counts`` has (messages, bytes) by part, counted up to the newest message."""
    tables.ask("delete from cursor where number = ?", cursor)
    tables.ask("delete from cursor_range where number = ?", cursor)
    ((last_id,),) = tables.ask(tables.last_id)
    for key, part in parts.items():
        tables.ask(
            "insert into cursor (number, part, floor, counted_id, messages, size_bytes) values (?, ?, ?, ?, ?, ?)",
            cursor,
            key,
            part.floor,
            last_id,
            *counts[key],
        )
        ranges = part.ranges
        for start in range(0, len(ranges), PIECE_ROWS):
            piece = ranges[start : start + PIECE_ROWS]
            rows = ", ".join(f"({cursor}, {key}, {first}, {last})" for first, last in piece)
            tables.ask(f"insert into cursor_range (number, part, first, last) values {rows}")


class _Routes:
    """Finds, or adds, routes that have the endpoints of another route and a priority."""

    def __init__(self, tables: ShortTables) -> None:
        self._tables = tables
        found = tables.routes()
        self._endpoints = {route.number: route.endpoints for route in found}
        self._numbers = {
            (route.endpoints, route.priority): route.number for route in found if route.priority is not None
        }

    def with_priority(self, route: int, priority: int) -> int:
        """The number of the route with this priority and the endpoints of ``route``; added if there is none."""
        endpoints = self._endpoints[route]
        number = self._numbers.get((endpoints, priority))
        if number is None:
            number = max(self._endpoints) + 1
            self._tables.add_route(RouteDefinition(number, endpoints, priority))
            self._endpoints[number] = endpoints
            self._numbers[endpoints, priority] = number
        return number


def header_priority(*values: Any) -> int:
    """The priority of a message's header. Values: the content, or its front; the offset of the bare message."""
    content, bare = values
    return priority_of(content) if bare else DEFAULT


def by_priority(*values: Any) -> bool:
    """Whether an endpoint's settings, as JSON text, say that it delivers by priority."""
    (settings,) = values
    return bool(json.loads(settings).get("priorities"))


SHORTEST_RUN: Final = 8
"""Consecutive ids for which one range statement is cheaper than naming each id."""


def runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """The runs of consecutive ids in rising ids, as (first, last)."""
    found: list[tuple[int, int]] = []
    first = last = -2
    for i in ids:
        if i != last + 1:
            if first >= 0:
                found.append((first, last))
            first = i
        last = i
    if first >= 0:
        found.append((first, last))
    return found


def runs_and_rest(ids: Collection[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Ids in any order, as long runs (first, last) for range statements, and the other ids one by one."""
    long: list[tuple[int, int]] = []
    rest: list[int] = []
    for first, last in runs(sorted(ids)):
        if last - first >= SHORTEST_RUN:
            long.append((first, last))
        else:
            rest += range(first, last + 1)
    return long, rest


PIECE_ROWS: Final = 2_000
"""Rows handled in one transaction: some milliseconds, so that no publisher waits longer for it."""


class DroppedCursor:
    """
    A cursor that was dropped. Its held messages are released, and its rows deleted, in small pieces in the background.

    To release a held message is to lower its ``held`` count by one; at zero the message is deleted. Each piece is a
    transaction. The messages that it has released are then below the cursor's floor, in one of its ranges, or no longer
    its references, so that a crash between two pieces releases nothing twice.

    Trimming does not know of dropped cursors: it holds no messages for them. So before messages leave the log, those
    that the dropped cursor holds are released, and the whole trimmed span becomes a range (``leave_span``).
    """

    def __init__(self, cursor: int, endpoint: int, up_to: int) -> None:
        """
        Args:
            endpoint: The endpoint whose cursor it was.
            up_to: The endpoint needed messages up to this id through this cursor.
        """
        self.cursor = cursor
        self.endpoint = endpoint
        self.up_to = up_to
        self._routes: dict[int, str] = {}
        """By part, the numbers of its routes as SQL. Later routes lead to messages that the cursor was not about."""

    def work_off(self, tables: ShortTables, *, has_held: bool) -> bool:
        """
        Release and delete one piece.

        Args:
            has_held: There may be held messages.

        Returns:
            Whether nothing is left of the cursor.
        """
        if has_held:
            for part, floor in self._parts(tables):
                if floor < self.up_to and not self._let_go_of_piece(tables, part, floor):
                    return False
        if not self._drop_references("reference", tables, has_held=has_held):
            return False
        if not self._drop_delayed(tables, has_held=has_held):
            return False
        if not self._drop_references("last_value", tables, has_held=has_held):
            return False
        for table, column, key in (
            ("attempt", "cursor", "message"),
            ("cursor_range", "number", "part, first"),
        ):
            of_cursor = f"from {table} where {column} = {self.cursor}"
            piece = f"select {key} {of_cursor} limit {PIECE_ROWS}"
            ((count,),) = tables.ask(f"select count(*) from ({piece}) as piece")
            tables.ask(f"delete {of_cursor} and ({key}) in ({piece})")
            if count == PIECE_ROWS:
                return False
        for table, column in (("cursor", "number"), ("garbage", "cursor")):
            tables.ask(f"delete from {table} where {column} = {self.cursor}")
        return True

    def leave_span(self, tables: ShortTables, first: int, stop: int, *, has_held: bool) -> None:
        """Release what it holds from ``first`` on, below ``stop``, before the logged messages there are trimmed."""
        last = min(stop - 1, self.up_to)
        for part, floor in self._parts(tables):
            if last <= max(first - 1, floor):
                continue
            if has_held:
                self._let_go_between(tables, part, max(first - 1, floor), last)
            self._add_range(tables, part, first, last)
        # References and delayed messages may be above ``up_to`` as well.
        for table in ("reference", "delayed", "last_value"):
            self._drop_referred(table, tables, first, stop, has_held=has_held)

    def _let_go_of_piece(self, tables: ShortTables, part: int, floor: int) -> bool:
        """Release some held messages of a part, and raise its floor. Returns whether the part is finished."""
        ((count, last),) = tables.ask(
            f"select count(*), max(id) from ({tables.held_ids} and id > {floor} and id <= {self.up_to} "
            f"order by id limit {PIECE_ROWS}) as piece"
        )
        if count:
            self._let_go_between(tables, part, floor, last)
        is_through: bool = count < PIECE_ROWS
        tables.ask(
            f"update cursor set floor = {self.up_to if is_through else last} "
            f"where number = {self.cursor} and part = {part}"
        )
        return is_through

    def _let_go_between(self, tables: ShortTables, part: int, floor: int, last: int) -> None:
        """Release the held messages of a part above ``floor``, up to ``last``."""
        routes = self._routes.get(part)
        if routes is None:
            of_part = "" if part == WHOLE else f" and priority = {part}"
            found = tables.ask(f"select number from route where {tables.leads_to}{of_part}", self.endpoint)
            routes = self._routes[part] = ", ".join(str(number) for (number,) in found)
        if routes and last > floor:
            tables.let_go(
                f"id > {floor} and id <= {last} and route in ({routes}) and coalesce((select last from cursor_range "
                f"where number = {self.cursor} and part = {part} and first <= {tables.held_table}.id "
                f"order by first desc limit 1), 0) < {tables.held_table}.id"
            )

    def _drop_references(self, table: str, tables: ShortTables, *, has_held: bool) -> bool:
        """Release some messages of a table of references or values. Returns whether those were the last."""
        ((count, last),) = tables.ask(
            f"select count(*), max(message) from (select message from {table} where cursor = {self.cursor} "
            f"order by message limit {PIECE_ROWS}) as piece"
        )
        if count:
            self._drop_referred(table, tables, 0, last + 1, has_held=has_held)
        return bool(count < PIECE_ROWS)

    def _drop_delayed(self, tables: ShortTables, *, has_held: bool) -> bool:
        """Release some delayed messages. Returns whether those were the last."""
        of_cursor = f"from delayed where cursor = {self.cursor}"
        piece = tables.ask(f"select due, message {of_cursor} order by due, message limit {PIECE_ROWS}")
        if piece:
            due, message = piece[-1]
            gone = f"{of_cursor} and (due, message) <= ({due}, {message})"
            if has_held:
                tables.let_go(f"id in (select message {gone})")
            tables.ask(f"delete {gone}")
        return len(piece) < PIECE_ROWS

    def _drop_referred(
        self, table: str, tables: ShortTables, first: int, stop: int, *, has_held: bool
    ) -> None:
        """Release the messages of a table's rows from ``first`` on, below ``stop``, and delete the rows."""
        referred = f"from {table} where cursor = {self.cursor} and message >= {first} and message < {stop}"
        if has_held:
            tables.let_go(f"id in (select message {referred})")
        tables.ask(f"delete {referred}")

    def _parts(self, tables: ShortTables) -> list[Any]:
        """(part, floor) of each part."""
        return tables.ask(f"select part, floor from cursor where number = {self.cursor} order by part")

    def _add_range(self, tables: ShortTables, part: int, first: int, last: int) -> None:
        """Add a range, joined with the ranges that it overlaps or touches."""
        of_part = f"from cursor_range where number = {self.cursor} and part = {part}"
        ((low, high),) = tables.ask(
            f"select min(first), max(last) {of_part} and first <= {last + 1} and last >= {first - 1}"
        )
        if low is not None:
            first, last = min(first, low), max(last, high)
            tables.ask(f"delete {of_part} and first between {first} and {last}")
        tables.ask(
            f"insert into cursor_range (number, part, first, last) values ({self.cursor}, {part}, {first}, {last})"
        )


def dropped_cursors(tables: ShortTables) -> list[DroppedCursor]:
    """The dropped cursors of which a start finds something left."""
    return [
        DroppedCursor(*row)
        for row in tables.ask("select cursor, endpoint, up_to from garbage order by cursor")
    ]
