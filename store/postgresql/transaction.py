"""
Effects turned into PostgreSQL's statements: those of one transaction, made before anything is sent.

The new values of the log's row are collected, and go into the statement that begins every transaction
(``schema.FENCE``). A few messages are an INSERT, which is sent in one pipeline with everything else; many messages are
a COPY.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.core import effects
from gateway.core.model import CONTENT, HELD, ID, TIME_MS, Row
from store.cursors import DroppedCursor
from store.last_values import keep_values
from store.postgresql import schema
from store.postgresql.cursors import DROP_RELEASED, CursorMoves, PostgresShortTables, kept
from store.postgresql.database import Connection, Copy, Statement, Step, stored_text
from store.postgresql.packed import checksums, copied
from store.postgresql.trimming import erased, leaves_held, trimmed
from store.property_index import index_entries
from store.transaction import Before, LooksAtMessages, StoreTransaction

FEW: Final = 32
"""Most messages of an INSERT: a COPY is quicker for more, although it takes round trips of its own."""

_MESSAGES: Final = (
    "unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s::text[], %s::bytea[])"
)
_FENCED: Final = (
    f"with fence as ({schema.FENCE} returning one) insert into message ({schema.MESSAGE_COLUMNS})"
)

INSERT_MESSAGE: Final = f"insert into message ({schema.MESSAGE_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s)"
"""For one message, without arrays: it takes half of the time."""

INSERT_MESSAGES: Final = f"insert into message ({schema.MESSAGE_COLUMNS}) select * from {_MESSAGES}"

FENCED: Final = {
    INSERT_MESSAGE: f"{_FENCED} select %s, %s, %s, %s, %s, %s, %s from fence",
    INSERT_MESSAGES: f"{_FENCED} select made.* from fence, {_MESSAGES} as made",
}
"""The same in one statement with the fence, which is executed first because the rows come from it."""

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

_ENTRIES: Final = "unnest(%s::bigint[], %s::bigint[]) as entry (due, message)"

INSERT_DELAYED: Final = (
    "insert into delayed (cursor, due, message, size_bytes, retry) "
    "select * from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
)

INSERT_IDS: Final = (
    "insert into dedup (endpoint, first, time, ids) "
    "select * from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[])"
)

RELEASE_DELAYED: Final = (
    f"with gone as (delete from delayed using {_ENTRIES} where delayed.cursor = %s and delayed.due = entry.due "
    "and delayed.message = entry.message returning delayed.cursor, delayed.message) "
    "insert into reference (cursor, message) select cursor, message from gone on conflict do nothing"
)

CANCEL_DELAYED: Final = (
    f"delete from delayed using {_ENTRIES} where delayed.cursor = %s and delayed.due = entry.due "
    "and delayed.message = entry.message"
)

FORGET_ATTEMPTS: Final = "delete from attempt where cursor = %s and message = any(%s::bigint[])"

LET_GO_OF: Final = "update held_message set held = held - 1 where id = any(%s::bigint[])"

COUNT_ATTEMPTS: Final = """
    insert into attempt (cursor, message, count)
    select %s, failed.message, failed.count from unnest(%s::bigint[], %s::bigint[]) as failed (message, count)
    where exists (select 1 from cursor where number = %s) and (
        exists (select 1 from message where id = failed.message and id between %s and %s
            and id >= (select first_id from log))
        or exists (select 1 from held_message where id = failed.message))
    on conflict (cursor, message) do update set count = excluded.count
"""
"""Meanwhile the messages may be settled and deleted, and the cursor may be dropped."""


ROW: Final = (
    "last_id", "last_time", "size_bytes", "largest_bytes", "next_number", "archived_id", "counted_id"
)  # fmt: skip
"""The columns of the log's row that a transaction sets: the last values of ``schema.FENCE``."""


class Transaction(StoreTransaction):
    """Collects the effects of one commit as statements."""

    def __init__(self, before: Before) -> None:
        super().__init__(before)
        self._steps: list[Step] = []
        self._logged: list[Row] = []
        self._held: list[Row] = []
        self._moves: CursorMoves = CursorMoves()
        self._row = dict.fromkeys(ROW, 0)
        self.first_id = 0
        """The first id of the logged messages; 0 if there is none."""
        self.last_id = 0
        """The last id of the logged messages; 0 if there is none."""
        self.largest_bytes = 0
        """The size of the largest content written."""
        self.erased_ids: set[int] = set()
        """Ids of the messages that were erased."""
        self.trimmed_to = 0
        """The log begins here at the earliest; 0 if it was not trimmed."""

    def finish(self) -> list[Step]:
        """All statements that were collected, in order. The caller adds the fence and the commit."""
        self._flush()
        if self._entries:
            segments, numbers, values, messages = map(list, zip(*sorted(self._entries), strict=True))
            texts = [stored_text(value) for value in values]
            self._steps.append(Statement(INSERT_ENTRIES, (segments, numbers, texts, messages)))
            self._entries = []
        return self._steps

    def log_row(self) -> list[int]:
        """The new values of the log's row: the last values of ``schema.FENCE``."""
        return list({**self._row, "largest_bytes": self.largest_bytes}.values())

    def _execute(self, sql: str, *values: Any) -> None:
        self._steps.append(Statement(sql.replace("?", "%s"), kept(values)))

    # --- messages -------------------------------------------------------------------------------------------------

    def _publish(self, publication: effects.Publication) -> None:
        self._add_routes(publication.routes)
        self._add_delayed(publication)
        self._add_ids(publication)
        rows = publication.rows
        last = rows[-1]
        self._raise_to("last_id", last[ID])
        self._row["last_time"] = last[TIME_MS]
        if publication.logged:
            self._logged += rows
            self._row["size_bytes"] += publication.logged_bytes
            self.first_id = self.first_id or rows[0][ID]
            self.last_id = last[ID]
            if self._indexed:
                self._entries += index_entries(rows, self._indexed)
        else:
            self._held += rows
            self.has_held = True

    def _flush(self) -> None:
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
                values = [value for (value,) in _columns(rows, self.largest_bytes)]
                self._steps.append(Statement(INSERT_MESSAGE, values))
            else:
                self._steps.append(Statement(insert, _columns(rows, self.largest_bytes)))
        self._logged, self._held = [], []
        if self._delayed:
            self._steps.append(Statement(INSERT_DELAYED, list(map(list, zip(*self._delayed, strict=True)))))
            self._delayed = []
        if self._ids:
            self._steps.append(Statement(INSERT_IDS, list(map(list, zip(*self._ids, strict=True)))))
            self._ids = []
            self._delete_left_ids()
        self._steps += self._moves.written(has_held=self.has_held)

    # --- everything else ------------------------------------------------------------------------------------------

    def _change_messages(self, effect: LooksAtMessages) -> None:
        match effect:
            case effects.AddReferences(cursor, ids):
                sql = (
                    "insert into reference (cursor, message) "
                    "select %s, message from unnest(%s::bigint[]) as message on conflict do nothing"
                )
                self._steps.append(Statement(sql, (cursor, list(ids))))
            case effects.ReleaseDelayed(cursor, entries):
                self._steps.append(Statement(RELEASE_DELAYED, (*_entries(entries), cursor)))
            case effects.CancelDelayed(cursor, entries):
                self._steps.append(Statement(CANCEL_DELAYED, (*_entries(entries), cursor)))
                ids = [message for _, message in entries]
                self._steps.append(Statement(FORGET_ATTEMPTS, (cursor, ids)))
                if self.has_held:
                    self._steps.append(Statement(LET_GO_OF, (ids,)))
                    self._steps.append(Statement(DROP_RELEASED, (ids,)))
            case effects.CountAttempts(cursor, attempts):
                counts = dict(attempts)
                if counts:
                    span = (min(counts), max(counts))
                    values = (cursor, list(counts), list(counts.values()), cursor, *span)
                    self._steps.append(Statement(COUNT_ATTEMPTS, values, is_repeated=False))
            case effects.TrimLog():
                has_held = self.has_held
                for found in self._garbage:
                    self._steps.append(_span_left(found, effect, has_held=has_held))
                self._steps.append(trimmed(effect))
                if not isinstance(effect, effects.TrimTopics):
                    self.trimmed_to = max(self.trimmed_to, effect.stop)
                self.has_held = has_held or leaves_held(effect)
            case effects.KeepValues():
                self._steps.append(_kept(effect, has_held=self.has_held))
            case effects.EraseMessages():
                self._steps.append(erased(effect))
                self.largest_bytes = max(self.largest_bytes, *[len(row[CONTENT]) for row in effect.rows])
                self.erased_ids.update(row[ID] for row in effect.rows)

    def _raise_to(self, name: str, value: int) -> None:
        self._row[name] = max(self._row[name], value)


def _entries(entries: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [due for due, _ in entries], [message for _, message in entries]


def fenced(values: Sequence[int | None], steps: Sequence[Step]) -> list[Step]:
    """
    A transaction's steps, with the fence in front.

    Args:
        values: The values of ``schema.FENCE``.
    """
    if steps and isinstance(steps[0], Statement):
        sql = FENCED.get(steps[0].sql)
        if sql is not None:
            return [Statement(sql, [*values, *steps[0].values]), *steps[1:]]
    return [Statement(schema.FENCE, values), *steps]


def _columns(rows: Sequence[Row], largest_bytes: int) -> list[list[Any]]:
    """The values of ``INSERT_MESSAGES`` or ``INSERT_HELD``."""
    ids, times, topics, bares, routes, helds, contents = map(list, zip(*rows, strict=True))
    texts = [stored_text(topic) for topic in topics]
    held = [] if rows[0][HELD] is None else [helds]
    return [ids, times, checksums(rows, largest_bytes), routes, bares, *held, texts, contents]


def _kept(effect: effects.KeepValues, *, has_held: bool) -> Step:
    def keep(connection: Connection) -> None:
        tables = PostgresShortTables(connection)
        removed = keep_values(tables, effect)
        if has_held and removed:
            tables.let_go(f"id in ({','.join(map(str, removed))})")

    return keep


def _span_left(found: DroppedCursor, effect: effects.TrimLog, *, has_held: bool) -> Step:
    def leave(connection: Connection) -> None:
        found.leave_span(PostgresShortTables(connection), effect.first, effect.stop, has_held=has_held)

    return leave
