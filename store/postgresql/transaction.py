"""
Effects turned into statements: one transaction's worth, made before anything of it is sent. Routes and the spans of the
property index are written beside messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, assert_never

from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    CountedUpTo,
    DeleteEndpoint,
    DeletePoint,
    DeleteSubscription,
    DropCursor,
    DropReplayRecords,
    Effect,
    EraseMessages,
    MoveCursor,
    OpenCursor,
    Publication,
    SaveArchived,
    SaveEndpoint,
    SavePoint,
    SaveReplay,
    SaveReplayRecord,
    SaveSubscription,
    TrimLog,
    TrimTopics,
)
from gateway.core.model import CONTENT, HELD, ID, TIME_MS, RouteDefinition, Row
from store.garbage import RouteSweep
from store.postgresql import schema
from store.postgresql.copy_rows import checksums, copied
from store.postgresql.cursors import CursorMoves, Garbage
from store.postgresql.database import read_text, stored_text
from store.postgresql.statements import Connection, Copy, Statement, Step
from store.postgresql.trimming import erased, leaves_held, trimmed
from store.property_index import IndexedSpan, IndexEntry, index_entries

FEW: Final = 32
"""Messages that are an INSERT: more are quicker as a COPY, though that takes round trips of its own."""

NOTHING_KNOWN: Final[frozenset[int]] = frozenset()

_MESSAGES: Final = (
    "unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s::text[], %s::bytea[])"
)
_FENCED: Final = (
    f"with fence as ({schema.FENCE} returning one) insert into message ({schema.MESSAGE_COLUMNS})"
)

INSERT_MESSAGE: Final = f"insert into message ({schema.MESSAGE_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s)"
"""One, without arrays: it takes half of the time."""

INSERT_MESSAGES: Final = f"insert into message ({schema.MESSAGE_COLUMNS}) select * from {_MESSAGES}"

FENCED: Final = {
    INSERT_MESSAGE: f"{_FENCED} select %s, %s, %s, %s, %s, %s, %s from fence",
    INSERT_MESSAGES: f"{_FENCED} select made.* from fence, {_MESSAGES} as made",
}
"""The same as one statement with what every transaction begins with, which is carried out first: rows come from it."""

INSERT_HELD: Final = (
    f"insert into held_message ({schema.HELD_COLUMNS}) select * from unnest(%s::bigint[], %s::bigint[], "
    "%s::bigint[], %s::bigint[], %s::integer[], %s::integer[], %s::text[], %s::bytea[])"
)

COPY_MESSAGES: Final = f"copy message ({schema.MESSAGE_COLUMNS}) from stdin (format binary)"
COPY_HELD: Final = f"copy held_message ({schema.HELD_COLUMNS}) from stdin (format binary)"

INSERT_ENTRIES: Final = (
    "insert into property_value (segment, number, value, message) "
    "select * from unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bigint[])"
)

COUNT_ATTEMPTS: Final = """
    insert into attempt (cursor, message, count)
    select %s, failed.message, failed.count from unnest(%s::bigint[], %s::bigint[]) as failed (message, count)
    where exists (select 1 from cursor where number = %s) and (
        exists (select 1 from message where id = failed.message and id between %s and %s
            and id >= (select first_id from log))
        or exists (select 1 from held_message where id = failed.message))
    on conflict (cursor, message) do update set count = excluded.count
"""
"""The messages may be settled meanwhile, and gone, and so may the cursor."""


def add_route(route: RouteDefinition) -> Statement:
    """Write a route that may not be there."""
    return Statement(
        "insert into route (number, priority, endpoints) values (%s, %s, %s) on conflict do nothing",
        (route.number, route.priority, list(route.endpoints)),
    )


class Transaction:
    """Collects the effects of one commit."""

    def __init__(
        self,
        *,
        garbage: Sequence[Garbage] = (),
        routes: Collection[int] = NOTHING_KNOWN,
        indexed: Sequence[IndexedSpan] = (),
        has_held: bool = True,
    ) -> None:
        """
        Args:
            garbage: Cursors that were dropped and are still to be worked off.
            routes: Numbers of those that are known to be stored.
            indexed: Spans of the index that go on; nothing is made of messages where there is none.
            has_held: There may be messages that the log does not hold.
        """
        self._indexed = indexed
        self._steps: list[Step] = []
        self._entries: list[IndexEntry] = []
        self._logged: list[Row] = []
        self._held: list[Row] = []
        self._moves = CursorMoves()
        self._known_routes = routes
        self._garbage = list(garbage)
        self._dropped = {found.cursor for found in garbage}
        self._last_id = self._last_time = self._size_bytes = 0
        self._next_number = self._archived_id = self._counted_id = 0
        self.first_id = 0
        """Of the logged messages; 0 where there is none."""
        self.last_id = 0
        """Of those, too."""
        self.new_garbage: list[Garbage] = []
        """Cursors that were dropped."""
        self.new_routes: set[int] = set()
        """Routes that are stored from now on."""
        self.largest_bytes = 0
        """Of the contents written."""
        self.erased_ids: set[int] = set()
        """Of messages whose content is no more."""
        self.trimmed_to = 0
        """The log begins here at the earliest; 0 where it was not trimmed."""
        self.has_held = has_held
        """Rows were written, or may exist, that the log does not hold."""

    def apply(self, effects: Iterable[Effect]) -> None:
        """
        Raises:
            UnicodeEncodeError: A text is no text.
        """
        for effect in effects:
            # The two of the hot path first.
            if isinstance(effect, Publication):
                self._publish(effect)
            elif isinstance(effect, MoveCursor):
                # What a dropped cursor leaves is worked off by what it was when it was dropped.
                if effect.cursor not in self._dropped:
                    self._moves.add(effect)
            else:
                self._define(effect)

    def finish(self) -> list[Step]:
        """All that was collected, in order; what comes first and last is the caller's."""
        self._write_messages()
        self._steps += self._moves.written(has_held=self.has_held)
        if self._entries:
            segments, numbers, values, messages = zip(*sorted(self._entries), strict=True)
            texts = [stored_text(value) for value in values]
            self._execute(INSERT_ENTRIES, list(segments), list(numbers), texts, list(messages))
            self._entries = []
        return self._steps

    def log_row(self) -> tuple[int, int, int, int, int, int, int]:
        """The last values of ``schema.FENCE``."""
        return (
            self._last_id,
            self._last_time,
            self._size_bytes,
            self.largest_bytes,
            self._next_number,
            self._archived_id,
            self._counted_id,
        )

    def _execute(self, sql: str, *values: Any) -> None:
        self._steps.append(Statement(sql, values))

    # --- messages -------------------------------------------------------------------------------------------------

    def _publish(self, publication: Publication) -> None:
        for route in publication.routes:
            if route.number not in self._known_routes and route.number not in self.new_routes:
                self._steps.append(add_route(route))
                self.new_routes.add(route.number)
        rows = publication.rows
        last = rows[-1]
        self._last_id = max(self._last_id, last[ID])
        self._last_time = last[TIME_MS]
        if publication.logged:
            self._logged += rows
            self._size_bytes += publication.logged_bytes
            self.first_id = self.first_id or rows[0][ID]
            self.last_id = last[ID]
            if self._indexed:
                self._entries += index_entries(rows, self._indexed)
        else:
            self._held += rows
            self.has_held = True

    def _write_messages(self) -> None:
        for rows, copy, insert in (
            (self._logged, COPY_MESSAGES, INSERT_MESSAGES),
            (self._held, COPY_HELD, INSERT_HELD),
        ):
            if not rows:
                continue
            self.largest_bytes = max(self.largest_bytes, *[len(row[CONTENT]) for row in rows])
            if len(rows) > FEW:
                self._steps.append(Copy(copy, copied(rows, self.largest_bytes)))
            elif len(rows) == 1 and copy is COPY_MESSAGES:
                self._execute(INSERT_MESSAGE, *[value for (value,) in _columns(rows, self.largest_bytes)])
            else:
                self._execute(insert, *_columns(rows, self.largest_bytes))
        self._logged, self._held = [], []

    # --- everything else ------------------------------------------------------------------------------------------

    def _define(self, effect: Effect) -> None:
        execute = self._execute
        match effect:
            case (
                OpenCursor() | DropCursor() | AddReferences() | CountAttempts() | TrimLog() | EraseMessages()
            ):
                # They look at cursors, at messages, or at what is held: what came before them first.
                self._write_messages()
                self._steps += self._moves.written(has_held=self.has_held)
                self._change_cursors(effect)
            case CountedUpTo(message_id):
                self._counted_id = max(self._counted_id, message_id)
            case SaveArchived(last_id):
                self._archived_id = max(self._archived_id, last_id)
            case SaveReplay(endpoint, replay):
                execute("update endpoint set replay = %s where number = %s", replay, endpoint)
            case SaveEndpoint(number, cursor, name, kind, settings, replay):
                execute(
                    "insert into endpoint (number, cursor, name, kind, settings, replay) "
                    "values (%s, %s, %s, %s, %s, %s) "
                    "on conflict (number) do update set cursor = excluded.cursor, name = excluded.name, "
                    "kind = excluded.kind, settings = excluded.settings, replay = excluded.replay",
                    number, cursor, stored_text(name), kind, settings, replay,
                )  # fmt: skip
                self._use_number(max(number, cursor))
            case DeleteEndpoint(number):
                execute("delete from endpoint where number = %s", number)
                execute("delete from subscription where endpoint = %s", number)
            case SaveSubscription(endpoint, pattern):
                execute(
                    "insert into subscription (endpoint, pattern) values (%s, %s) on conflict do nothing",
                    endpoint, stored_text(pattern),
                )  # fmt: skip
            case DeleteSubscription(endpoint, pattern):
                execute(
                    "delete from subscription where endpoint = %s and pattern = %s",
                    endpoint, stored_text(pattern),
                )  # fmt: skip
            case SavePoint(point):
                execute(
                    "insert into point (name, position, time, made) values (%s, %s, %s, %s) on conflict (name) "
                    "do update set position = excluded.position, time = excluded.time, made = excluded.made",
                    stored_text(point.name), point.position, point.time_ms, point.made_ms,
                )  # fmt: skip
                # Were an id below it given out again, its message would be missed by a replay from the point.
                self._last_id = max(self._last_id, point.position - 1)
            case DeletePoint(name):
                execute("delete from point where name = %s", stored_text(name))
            case SaveReplayRecord(record):
                execute(
                    "insert into replay_record (number, name, state, record) values (%s, %s, %s, %s) "
                    "on conflict (number) do update set name = excluded.name, state = excluded.state, "
                    "record = excluded.record",
                    record.number, stored_text(record.name), record.state, record.to_json(),
                )  # fmt: skip
            case DropReplayRecords(numbers):
                execute("delete from replay_record where number = any(%s::bigint[])", list(numbers))
            case Publication() | MoveCursor():  # pragma: no cover - apply() has taken them
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _change_cursors(
        self, effect: OpenCursor | DropCursor | AddReferences | CountAttempts | TrimLog | EraseMessages
    ) -> None:
        match effect:
            case OpenCursor(number, parts, floor, given_out):
                self._execute(
                    "insert into cursor (number, part, floor, counted_id) "
                    "select %s, part, %s, %s from unnest(%s::bigint[]) as part",
                    number, floor, floor, list(parts),
                )  # fmt: skip
                self._use_number(number)
                self._last_id = max(self._last_id, floor, given_out)
            case DropCursor():
                self._drop_cursor(effect)
            case AddReferences(cursor, ids):
                self._execute(
                    "insert into reference (cursor, message) "
                    "select %s, message from unnest(%s::bigint[]) as message on conflict do nothing",
                    cursor, list(ids),
                )  # fmt: skip
            case CountAttempts(cursor, attempts):
                counts = dict(attempts)
                if counts:
                    ids = (min(counts), max(counts))
                    values = (cursor, list(counts), list(counts.values()), cursor, *ids)
                    self._steps.append(Statement(COUNT_ATTEMPTS, values, is_repeated=False))
            case TrimLog():
                has_held = self.has_held
                for found in self._garbage:
                    self._steps.append(_span_left(found, effect, has_held=has_held))
                self._steps.append(trimmed(effect))
                if not isinstance(effect, TrimTopics):
                    self.trimmed_to = max(self.trimmed_to, effect.stop)
                self.has_held = has_held or leaves_held(effect)
            case EraseMessages():
                self._steps.append(erased(effect))
                self.largest_bytes = max(self.largest_bytes, *[len(row[CONTENT]) for row in effect.rows])
                self.erased_ids.update(row[ID] for row in effect.rows)

    def _drop_cursor(self, effect: DropCursor) -> None:
        number = effect.number
        if effect.endpoint:
            self._execute(
                "insert into garbage (cursor, endpoint, up_to) values (%s, %s, %s) on conflict do nothing",
                number, effect.endpoint, effect.up_to,
            )  # fmt: skip
            found = Garbage(number, effect.endpoint, effect.up_to)
            self._garbage.append(found)
            self._dropped.add(number)
            self.new_garbage.append(found)
            return
        for table, column in (
            ("cursor", "number"), ("cursor_range", "number"), ("attempt", "cursor"), ("reference", "cursor")
        ):  # fmt: skip
            self._execute(f"delete from {table} where {column} = %s", number)

    def _use_number(self, number: int) -> None:
        self._next_number = max(self._next_number, number + 1)


def fenced(values: Sequence[int | None], steps: Sequence[Step]) -> list[Step]:
    """
    A transaction's steps with what it begins with.

    Args:
        values: Of ``schema.FENCE``.
    """
    if steps and isinstance(steps[0], Statement):
        sql = FENCED.get(steps[0].sql)
        if sql is not None:
            return [Statement(sql, [*values, *steps[0].values]), *steps[1:]]
    return [Statement(schema.FENCE, values), *steps]


def _columns(rows: Sequence[Row], largest_bytes: int) -> list[list[Any]]:
    """The values of ``INSERT_MESSAGES``, or of ``INSERT_HELD``."""
    ids, times, topics, bares, routes, helds, contents = map(list, zip(*rows, strict=True))
    texts = [stored_text(topic) for topic in topics]
    held = [] if rows[0][HELD] is None else [helds]
    return [ids, times, checksums(rows, largest_bytes), routes, bares, *held, texts, contents]


def _span_left(found: Garbage, effect: TrimLog, *, has_held: bool) -> Step:
    def leave(connection: Connection) -> None:
        found.leave_span(connection, effect.first, effect.stop, has_held=has_held)

    return leave


SWEEP_ROUTES: Final = 16
"""Routes that one sweep looks at: an index lookup in each partition, for one that is named nowhere."""

UNNAMED: Final = b"""
    select number, not exists (select 1 from held_message where route = number and route <> 0)
        and not exists (select 1 from message where message.route = number and message.route <> 0
            and message.id >= (select first_id from log))
    from (select number from route where number > %s order by number limit %s) as looked_at order by number
"""


class Routes(RouteSweep):
    """The routes that are stored."""

    def look(self, connection: Connection) -> list[int]:
        """Look at some routes: those that no message names, to be deleted. Nobody writes meanwhile."""
        found = connection.execute(UNNAMED, (self.begin_look(), SWEEP_ROUTES)).fetchall()
        return self.looked_at(found, SWEEP_ROUTES)


def drop_routes(numbers: list[int]) -> Statement:
    """Delete routes."""
    return Statement("delete from route where number = any(%s::bigint[])", (numbers,))


def indexed_spans(connection: Connection) -> list[IndexedSpan]:
    """All there are, by their first ids."""
    rows = connection.execute(
        b"select number, property, first_id, end_id from indexed order by first_id, number"
    ).fetchall()
    return [IndexedSpan(number, read_text(name), first_id, end_id) for number, name, first_id, end_id in rows]


def update_spans(connection: Connection, names: Sequence[str]) -> None:
    """End the spans of properties not among ``names``, and begin those that are missing; in a transaction."""
    ((next_id,),) = connection.execute(b"select last_id + 1 from log").fetchall()
    going_on = {span.name: span.number for span in indexed_spans(connection) if span.end_id is None}
    for name, number in going_on.items():
        if name not in names:
            connection.execute(b"update indexed set end_id = %s where number = %s", (next_id, number))
    for name in names:
        if name not in going_on:
            connection.execute(
                b"insert into indexed (property, first_id) values (%s, %s)", (stored_text(name), next_id)
            )
