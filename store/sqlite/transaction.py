"""
Effects turned into rows: one transaction's worth, in few large statements (``store.sqlite.statements`` says why).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple, assert_never

import apsw

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
)
from gateway.core.model import CONTENT, ID, TIME_MS, TOPIC, Row
from store.checksum import HEAD_BITS, HEAD_MODULUS, content_sum, content_sums, head_of, topic_sum
from store.cursors import SHORTEST_RUN
from store.property_index import IndexedSpan, IndexEntry, index_entries
from store.sqlite.cursors import CursorMoves, Garbage
from store.sqlite.log_row import EMPTY, MOST_UNSAVED, LogTail
from store.sqlite.statements import add_route, chunks
from store.sqlite.trimming import erase, trim

FEW: Final = 8
"""Messages that are one statement, whatever their number: each has a prepared statement of its own."""

NOTHING_KNOWN: Final[frozenset[int]] = frozenset()


@cache
def insert_messages(count: int) -> str:
    """So many messages; its values are ``message_values``."""

    def row(k: int) -> str:
        id_, time, topic, bare, route, held, content = (f"?{7 * k + place}" for place in range(1, 8))
        head = f"({id_}+{time}+{bare}+{route}+?{8 * count + k + 1})%{HEAD_MODULUS}"
        checksum = f"(?{7 * count + k + 1}<<{HEAD_BITS})+{head}"
        return f"({id_},{time},{topic},{bare},{route},{held},{checksum},{content})"

    return "insert into message values " + ",".join(map(row, range(count)))


def message_values(rows: Sequence[Row], largest_bytes: int) -> list[int | str | bytes | None]:
    """
    All rows one after the other, then the sums of their contents, then those of their topics.

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
    A few messages as one statement, which is a transaction of its own: without a begin, a commit, and all that is
    collected in between. Whoever publishes one message at a time waits for it each time.
    """

    statement: str
    """What is to be executed."""
    values: Sequence[int | str | bytes | None]
    tail: LogTail
    """What is not in the log's row once it is."""
    has_held: bool
    """Some of them are not held by the log."""


def few_messages(effects: Sequence[Effect], tail: LogTail, routes: Collection[int]) -> FewMessages | None:
    """
    Effects as one statement.

    Args:
        effects: A handful.
        tail: What is not in the log's row so far.
        routes: Numbers of those that are known to be in the file.

    Returns:
        None where they are more than ``FEW``, or something else is to be written with them: whatever is no message, a
        route, or the log's row.
    """
    messages, _, _, logged_bytes, largest_bytes = tail
    rows: Sequence[Row] = ()
    has_held = False
    for effect in effects:
        if not isinstance(effect, Publication):
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
    Consecutive messages that differ in nothing but their content: a quarter of the values to bind.

    Values: what the first row has before its checksum, the head of that (``checksum.head_of``), the contents, and then
    their sums.
    """
    return "insert into message values " + ",".join(
        f"(?1+{k},?2,?3,?4,?5,?6,(?{8 + count + k}<<{HEAD_BITS})+?7+{k},?{8 + k})" for k in range(count)
    )


@cache
def _insert_entries(count: int) -> str:
    return "insert into property_value values " + ",".join(["(?,?,?,?)"] * count)


class Transaction:
    """Collects the effects of one commit, and applies them on ``connection`` inside an open transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        tail: LogTail,
        garbage: Sequence[Garbage] = (),
        routes: Collection[int] = NOTHING_KNOWN,
        indexed: Sequence[IndexedSpan] = (),
        has_held: bool = True,
    ) -> None:
        """
        Args:
            tail: What was published before, and is not in the log's row.
            garbage: Cursors that were dropped and are still to be worked off.
            routes: Numbers of those that are known to be in the file.
            indexed: Spans of the index that go on; nothing is made of messages where there is none.
            has_held: There may be messages that the log does not hold.
        """
        self._connection = connection
        self._execute = connection.execute
        self._indexed = indexed
        self._entries: list[IndexEntry] = []
        self._mixed: list[Row] = []
        self._kind: tuple[int, str, int, int, int | None] | None = None
        self._alike: list[bytes] = []
        self._alike_from = 0
        self._moves = CursorMoves(connection)
        self._known_routes = routes
        self._garbage = list(garbage)
        self._dropped = {found.cursor for found in garbage}
        self._uncounted, self._last_id, self._last_time, self._logged_bytes, _ = tail
        self._writes_log_row = False
        """It is changed anyhow."""
        self.new_garbage: list[Garbage] = []
        """Cursors that were dropped."""
        self.new_routes: set[int] = set()
        """Routes that are in the file from now on."""
        self.largest_bytes = tail.largest_bytes
        """Of the contents written, and of those in the tail."""
        self.tail = tail
        """What is not in the log's row when this is committed."""
        self.has_held = has_held
        """Rows were written, or may exist, that the log does not hold."""

    def apply(self, effects: Iterable[Effect]) -> None:
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

    def finish(self) -> None:
        """Write what was collected; the caller commits."""
        self._write_messages()
        self._moves.write(has_held=self.has_held)
        # In the order of the table: neighbours go on the same page.
        for entries in chunks(sorted(self._entries)):
            self._execute(_insert_entries(len(entries)), list(chain.from_iterable(entries)))
        self.tail = LogTail(
            self._uncounted, self._last_id, self._last_time, self._logged_bytes, self.largest_bytes
        )
        if self._uncounted and (
            self._writes_log_row or self._moves.has_deleted or self._uncounted >= MOST_UNSAVED
        ):
            self.tail.save(self._connection)
            self.tail = EMPTY

    # --- messages -------------------------------------------------------------------------------------------------

    def _publish(self, publication: Publication) -> None:
        for route in publication.routes:
            if route.number not in self._known_routes and route.number not in self.new_routes:
                add_route(self._connection, route)
                self.new_routes.add(route.number)
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
            # Many publishers of a message each are as good as one of many: what follows in kind is one run.
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

    def _write_messages(self) -> None:
        self._end_alike()
        self._insert_mixed()

    def _end_alike(self) -> None:
        """Write the run of alike messages, or put it among the mixed ones where it is short."""
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
            # Rising ids fill pages to the brim, so what came before goes first.
            self._insert_mixed()
            for piece in chunks(contents):
                head = head_of(position, time, topic, bare, route)
                sums = content_sums(piece, self.largest_bytes)
                self._execute(
                    _insert_alike(len(piece)), [position, time, topic, bare, route, held, head, *piece, *sums]
                )
                position += len(piece)
        self._alike = []
        self._kind = None

    def _insert_mixed(self) -> None:
        for piece in chunks(self._mixed):
            self._execute(insert_messages(len(piece)), message_values(piece, self.largest_bytes))
        self._mixed = []

    # --- everything else ------------------------------------------------------------------------------------------

    def _define(self, effect: Effect) -> None:
        execute = self._execute
        match effect:
            case (
                OpenCursor() | DropCursor() | AddReferences() | CountAttempts() | TrimLog() | EraseMessages()
            ):
                # They look at cursors, at messages, or at what is held: what came before them first.
                self._write_messages()
                self._moves.write(has_held=self.has_held)
                self._change_cursors(effect)
            case CountedUpTo(message_id):
                self._writes_log_row = True
                execute("update log set counted_id = max(counted_id, ?)", (message_id,))
            case SaveArchived(last_id):
                # Changed for a moment: SQLite writes no page that is as it was, and with what is so already it is
                # tried whether the store can be written (``Committer.try_store``).
                self._writes_log_row = True
                execute("update log set archived_id = -1 - archived_id")
                execute("update log set archived_id = max(-1 - archived_id, ?)", (last_id,))
            case SaveReplay(endpoint, replay):
                execute("update endpoint set replay = ? where number = ?", (replay, endpoint))
            case SaveEndpoint(number, cursor, name, kind, settings, replay):
                execute(
                    "insert into endpoint (number, cursor, name, kind, settings, replay) values (?, ?, ?, ?, ?, ?) "
                    "on conflict (number) do update set cursor = excluded.cursor, name = excluded.name, "
                    "kind = excluded.kind, settings = excluded.settings, replay = excluded.replay",
                    (number, cursor, name, kind, settings, replay),
                )
                self._use_number(max(number, cursor))
            case DeleteEndpoint(number):
                execute("delete from endpoint where number = ?", (number,))
                execute("delete from subscription where endpoint = ?", (number,))
            case SaveSubscription(endpoint, pattern):
                execute("insert or ignore into subscription values (?, ?)", (endpoint, pattern))
            case DeleteSubscription(endpoint, pattern):
                execute("delete from subscription where endpoint = ? and pattern = ?", (endpoint, pattern))
            case SavePoint(point):
                execute(
                    "insert or replace into point values (?, ?, ?, ?)",
                    (point.name, point.position, point.time_ms, point.made_ms),
                )
                # Were an id below it given out again, its message would be missed by a replay from the point.
                self._give_out(point.position - 1)
            case DeletePoint(name):
                execute("delete from point where name = ?", (name,))
            case SaveReplayRecord(record):
                execute(
                    "insert into replay_record (number, name, state, record) values (?, ?, ?, ?) on conflict (number) "
                    "do update set name = excluded.name, state = excluded.state, record = excluded.record",
                    (record.number, record.name, record.state, record.to_json()),
                )
            case DropReplayRecords(numbers):
                for number in numbers:
                    execute("delete from replay_record where number = ?", (number,))
            case Publication() | MoveCursor():  # pragma: no cover - apply() has taken them
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _change_cursors(
        self, effect: OpenCursor | DropCursor | AddReferences | CountAttempts | TrimLog | EraseMessages
    ) -> None:
        execute = self._execute
        match effect:
            case OpenCursor(number, parts, floor, given_out):
                for part in parts:
                    execute(
                        "insert into cursor (number, part, floor, counted_id) values (?, ?, ?, ?)",
                        (number, part, floor, floor),
                    )
                self._use_number(number)
                self._give_out(max(floor, given_out))
            case DropCursor():
                self._drop_cursor(effect)
            case AddReferences(cursor, ids):
                for piece in chunks(ids):
                    values = ",".join(f"(?1,?{2 + k})" for k in range(len(piece)))
                    execute(f"insert or ignore into reference values {values}", (cursor, *piece))
            case CountAttempts(cursor, attempts):
                for message, count in attempts:
                    # The message may be settled meanwhile, and gone, and so may the cursor.
                    execute(
                        "insert or replace into attempt select ?1, ?2, ?3 where "
                        "exists (select 1 from message where id = ?2) "
                        "and exists (select 1 from cursor where number = ?1)",
                        (cursor, message, count),
                    )
            case TrimLog():
                self._writes_log_row = True
                for found in self._garbage:
                    found.leave_span(self._connection, effect.first, effect.stop, has_held=self.has_held)
                self.has_held = trim(self._connection, effect) or self.has_held
            case EraseMessages():
                self._writes_log_row = True
                erase(self._connection, effect)
                self.largest_bytes = max(self.largest_bytes, *[len(row[CONTENT]) for row in effect.rows])

    def _drop_cursor(self, effect: DropCursor) -> None:
        number = effect.number
        if effect.endpoint:
            self._execute(
                "insert or ignore into garbage (cursor, endpoint, up_to) values (?, ?, ?)",
                (number, effect.endpoint, effect.up_to),
            )
            found = Garbage(number, effect.endpoint, effect.up_to)
            self._garbage.append(found)
            self._dropped.add(number)
            self.new_garbage.append(found)
            return
        for table, column in (
            ("cursor", "number"), ("cursor_range", "number"), ("attempt", "cursor"), ("reference", "cursor")
        ):  # fmt: skip
            self._execute(f"delete from {table} where {column} = ?", (number,))

    def _use_number(self, number: int) -> None:
        self._writes_log_row = True
        self._execute("update log set next_number = max(next_number, ?)", (number + 1,))

    def _give_out(self, message_id: int) -> None:
        """Ids up to this one are given out: none is used again."""
        self._writes_log_row = True
        self._execute("update log set last_id = max(last_id, ?)", (message_id,))
