"""
Effects turned into rows: those of one transaction, in few large statements (``store.sqlite.statements`` says why).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

import apsw

from gateway.core.effects import (
    AddReferences,
    CancelDelayed,
    CountAttempts,
    Effect,
    EraseMessages,
    KeepValues,
    Publication,
    ReleaseDelayed,
    TrimLog,
)
from gateway.core.model import CONTENT, ID, TIME_MS, TOPIC, Row
from store.checksum import HEAD_BITS, HEAD_MODULUS, content_sum, content_sums, head_of, topic_sum
from store.cursors import SHORTEST_RUN
from store.last_values import keep_values
from store.property_index import index_entries
from store.schema import NO_RETRY
from store.sqlite.cursors import CursorMoves, SqliteShortTables, let_go_of
from store.sqlite.log_row import EMPTY, MOST_UNSAVED, LogTail
from store.sqlite.statements import chunks, row_marks
from store.sqlite.trimming import erase, trim
from store.transaction import Before, LooksAtMessages, StoreTransaction

FEW: Final = 8
"""Messages that are written by one statement; each number of messages has its own prepared statement."""


@cache
def insert_messages(count: int) -> str:
    """The statement that inserts ``count`` messages; its values are ``message_values``."""

    def row(k: int) -> str:
        id_, time, topic, bare, route, held, content = (f"?{7 * k + place}" for place in range(1, 8))
        head = f"({id_}+{time}+{bare}+{route}+?{8 * count + k + 1})%{HEAD_MODULUS}"
        checksum = f"(?{7 * count + k + 1}<<{HEAD_BITS})+{head}"
        return f"({id_},{time},{topic},{bare},{route},{held},{checksum},{content})"

    return "insert into message values " + ",".join(map(row, range(count)))


def message_values(rows: Sequence[Row], largest_bytes: int) -> list[int | str | bytes | None]:
    """
    The values of all rows one after the other, then the Adler-32 of each content, then that of each topic.

    Args:
        largest_bytes: No content is longer.
    """
    if len(rows) == 1:
        row = rows[0]
        return [*row, content_sum(row[CONTENT]), topic_sum(row[TOPIC])]
    sums = content_sums([row[CONTENT] for row in rows], largest_bytes)
    return [*chain.from_iterable(rows), *sums, *[topic_sum(row[TOPIC]) for row in rows]]


class FewMessages(NamedTuple):
    """
    A few messages as one statement that is its own transaction: without begin and commit, and without collecting
    effects in between. A publisher that sends one message at a time waits for this each time.
    """

    statement: str
    """The SQL."""
    values: Sequence[int | str | bytes | None]
    tail: LogTail
    """What is not in the log's row after the statement."""
    has_held: bool
    """The log does not hold some of them."""


def few_messages(effects: Sequence[Effect], tail: LogTail, routes: Collection[int]) -> FewMessages | None:
    """
    Effects as one statement.

    Args:
        effects: A handful.
        tail: What is not in the log's row so far.
        routes: Numbers of routes that are known to be stored.

    Returns:
        None if there are more than ``FEW`` messages, or if anything else has to be written: another effect, a route, or
        the log's row.
    """
    messages, _, _, logged_bytes, largest_bytes = tail
    rows: Sequence[Row] = ()
    has_held = False
    for effect in effects:
        if not isinstance(effect, Publication) or effect.delays is not None or effect.dedup is not None:
            return None
        for route in effect.routes:
            if route.number not in routes:
                return None
        if effect.logged:
            logged_bytes += effect.logged_bytes
        else:
            has_held = True
        rows = [*rows, *effect.rows] if rows else effect.rows
    count = len(rows)
    messages += count
    if not 0 < count <= FEW or messages >= MOST_UNSAVED:
        return None
    for row in rows:
        largest_bytes = max(largest_bytes, len(row[CONTENT]))
    last = rows[-1]
    return FewMessages(
        insert_messages(count),
        message_values(rows, largest_bytes),
        LogTail(messages, last[ID], last[TIME_MS], logged_bytes, largest_bytes),
        has_held,
    )


@cache
def _insert_alike(count: int) -> str:
    """
    The statement that inserts consecutive messages which differ in content alone: a quarter of the values to bind.

    Values: the first row's columns before its checksum, the head of its checksum (``checksum.head_of``), the contents,
    and then the Adler-32 of each content.
    """
    return "insert into message values " + ",".join(
        f"(?1+{k},?2,?3,?4,?5,?6,(?{8 + count + k}<<{HEAD_BITS})+?7+{k},?{8 + k})" for k in range(count)
    )


INSERT_DELAYED_RUNS: Final = (
    "insert into delayed select run.column1, run.column2, id, length(content), run.column3 "
    "from (values {}) as run cross join message where id between run.column4 and run.column5"
)
"""
Delays for messages that are stored already, in runs with one due time each. SQL reads the messages' ids and sizes.

Values, for each run: the cursor, the due time, ``delayed.retry``, the first and the last message.
"""


class Transaction(StoreTransaction):
    """Applies the effects of one commit on ``connection``, inside an open transaction."""

    def __init__(self, connection: apsw.Connection, tail: LogTail, before: Before) -> None:
        """
        Args:
            tail: What was published earlier and is not in the log's row.
        """
        super().__init__(before)
        self._connection = connection
        self._tables = SqliteShortTables(connection)
        self._mixed: list[Row] = []
        self._kind: tuple[int, str, int, int, int | None] | None = None
        self._alike: list[bytes] = []
        self._alike_from = 0
        self._delayed_runs: list[tuple[int, int, int, int, int]] = []
        """(cursor, due time, ``delayed.retry``, first message, last message) of consecutive delayed messages."""
        self._moves: CursorMoves = CursorMoves(connection)
        self._uncounted, self._last_id, self._last_time, self._logged_bytes, _ = tail
        self._writes_log_row = False
        """The log's row is changed by this transaction anyway."""
        self.largest_bytes = tail.largest_bytes
        """The largest content among those written here and those in the tail."""
        self.tail = tail
        """What is not in the log's row once this transaction is committed."""

    def finish(self) -> None:
        """Write what was collected; the caller commits."""
        self._flush()
        # In the order of the table: neighbours go on the same page.
        self._in_steps("insert into property_value values {}", sorted(self._entries))
        self.tail = LogTail(
            self._uncounted, self._last_id, self._last_time, self._logged_bytes, self.largest_bytes
        )
        if self._uncounted and (
            self._writes_log_row or self._moves.has_deleted or self._uncounted >= MOST_UNSAVED
        ):
            self.tail.save(self._connection)
            self.tail = EMPTY

    def _flush(self) -> None:
        self._end_alike()
        self._insert_mixed()
        self._in_steps("insert into delayed values {}", self._delayed)
        self._in_steps(INSERT_DELAYED_RUNS, self._delayed_runs)
        self._delayed, self._delayed_runs = [], []
        if self._ids:
            self._in_steps("insert into dedup values {}", self._ids)
            self._ids = []
            self._delete_left_ids()
        self._moves.write(has_held=self.has_held)

    # --- messages -------------------------------------------------------------------------------------------------

    def _publish(self, publication: Publication) -> None:
        self._add_routes(publication.routes)
        self._add_delayed(publication)
        self._add_ids(publication)
        rows = publication.rows
        count = len(rows)
        first, time, topic, bare, route_number, held, _ = rows[0]
        contents = [
            content
            for _, _, _, its_bare, its_route, _, content in rows
            if its_bare == bare and its_route == route_number
        ]
        last, *_ = rows[-1]
        if len(contents) == count == last - first + 1:
            # Many publishers of one message each are as quick as one publisher of many: alike messages form one run.
            kind = (time, topic, bare, route_number, held)
            if kind != self._kind or first != self._alike_from + len(self._alike):
                self._end_alike()
                self._kind, self._alike_from = kind, first
            self._alike += contents
        else:
            self._end_alike()
            self._mixed += rows
            contents = [content for _, _, _, _, _, _, content in rows]
        self._uncounted += count
        self._last_id = last
        self._last_time = time
        if publication.logged:
            self._logged_bytes += publication.logged_bytes
            if self._indexed:
                self._entries += index_entries(rows, self._indexed)
        else:
            self.has_held = True
        self.largest_bytes = max(self.largest_bytes, *map(len, contents))

    def _add_delayed(self, publication: Publication) -> None:
        if publication.delays is None:
            return
        (cursors, due_ms), first, last = publication.delays, publication.rows[0][ID], publication.rows[-1][ID]
        if len(due_ms) >= SHORTEST_RUN and due_ms.count(due_ms[0]) == last - first + 1:
            self._delayed_runs += [(cursor, due_ms[0], NO_RETRY, first, last) for cursor in cursors]
        else:
            super()._add_delayed(publication)

    def _end_alike(self) -> None:
        """Write the run of alike messages, or move it to the mixed ones if it is short."""
        contents = self._alike
        if self._kind is None or not contents:
            return
        time, topic, bare, route, held = self._kind
        position = self._alike_from
        if len(contents) < SHORTEST_RUN:
            self._mixed += [
                (i, time, topic, bare, route, held, content) for i, content in enumerate(contents, position)
            ]
        else:
            # Rising ids fill pages completely, so earlier messages are written first.
            self._insert_mixed()
            for piece in chunks(contents):
                head = head_of(position, time, topic, bare, route)
                sums = content_sums(piece, self.largest_bytes)
                self._connection.execute(
                    _insert_alike(len(piece)), [position, time, topic, bare, route, held, head, *piece, *sums]
                )
                position += len(piece)
        self._alike = []
        self._kind = None

    def _insert_mixed(self) -> None:
        for piece in chunks(self._mixed):
            self._connection.execute(insert_messages(len(piece)), message_values(piece, self.largest_bytes))
        self._mixed = []

    # --- everything else ------------------------------------------------------------------------------------------

    def _execute(self, sql: str, *values: Any) -> object:
        return self._tables.ask(sql, *values)

    def _change_messages(self, effect: LooksAtMessages) -> None:
        execute = self._connection.execute
        match effect:
            case AddReferences(cursor, ids):
                for piece in chunks(ids):
                    values = ",".join(f"(?1,?{2 + k})" for k in range(len(piece)))
                    execute(f"insert or ignore into reference values {values}", (cursor, *piece))
            case ReleaseDelayed(cursor, entries):
                self._in_steps(
                    "insert or ignore into reference select cursor, message from delayed "
                    "where cursor = ? and (due, message) in (values {})",
                    entries,
                    cursor,
                )
                self._drop_delayed(cursor, entries)
            case CancelDelayed(cursor, entries):
                self._drop_delayed(cursor, entries)
                self._connection.executemany(
                    "delete from attempt where cursor = ? and message = ?",
                    [(cursor, message) for _, message in entries],
                )
                if self.has_held and let_go_of(self._connection, [message for _, message in entries]):
                    self._writes_log_row = True
            case CountAttempts(cursor, attempts):
                for message, count in attempts:
                    # Meanwhile the message may be settled and deleted, and the cursor may be dropped.
                    execute(
                        "insert or replace into attempt select ?1, ?2, ?3 where "
                        "exists (select 1 from message where id = ?2) "
                        "and exists (select 1 from cursor where number = ?1)",
                        (cursor, message, count),
                    )
            case TrimLog():
                self._writes_log_row = True
                for found in self._garbage:
                    found.leave_span(self._tables, effect.first, effect.stop, has_held=self.has_held)
                self.has_held = trim(self._tables, self._connection, effect) or self.has_held
            case KeepValues():
                removed = keep_values(self._tables, effect)
                if self.has_held and let_go_of(self._connection, removed):
                    self._writes_log_row = True
            case EraseMessages():
                self._writes_log_row = True
                erase(self._connection, effect)
                self.largest_bytes = max(self.largest_bytes, *[len(row[CONTENT]) for row in effect.rows])

    def _drop_delayed(self, cursor: int, entries: Sequence[tuple[int, int]]) -> None:
        self._in_steps(
            "delete from delayed where cursor = ? and (due, message) in (values {})", entries, cursor
        )

    def _in_steps(self, sql: str, rows: Sequence[Sequence[Any]], *first: Any) -> None:
        """
        Execute a statement for many rows, in few steps. Each step releases the interpreter's lock for the loop.

        Args:
            sql: With ``{}`` in place of the rows' values.
            first: Values that precede the rows' values.
        """
        for piece in chunks(rows):
            places = row_marks(len(piece), len(piece[0]))
            self._connection.execute(sql.format(places), [*first, *chain.from_iterable(piece)])

    def _raise_to(self, name: str, value: int) -> None:
        self._writes_log_row = True
        before = name
        if name == "archived_id":
            # SQLite does not write a page whose bytes stay the same. But ``Committer.try_store`` finds out whether the
            # store can be written by saving a value that may be stored already. So the value changes twice.
            before = f"-1 - {name}"
            self._connection.execute(f"update log set {name} = {before}")
        self._connection.execute(f"update log set {name} = max({before}, ?)", (value,))
