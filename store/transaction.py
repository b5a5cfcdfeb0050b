"""
Effects turned into statements: what the transactions of all engines share.

An engine has its own statements for what comes with every message: publications, cursor moves, trimming. Endpoints,
subscriptions, points, replays and the short rows of cursors are written here, for all engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from gateway.core.effects import (
    AddReferences,
    CancelDelayed,
    CountAttempts,
    CountedUpTo,
    DeleteEndpoint,
    DeletePoint,
    DeleteSubscription,
    DropCursor,
    DropReplayRecords,
    Effect,
    EraseMessages,
    ForgetIds,
    HoldBack,
    KeepValues,
    MoveCursor,
    OpenCursor,
    Publication,
    ReleaseDelayed,
    SaveArchived,
    SaveEndpoint,
    SavePoint,
    SaveReplay,
    SaveReplayRecord,
    SaveSubscription,
    TrimLog,
    TrimTopics,
)
from gateway.core.model import CONTENT, ID, TIME_MS, RouteDefinition
from store.cursors import DroppedCursor, GatheredMoves
from store.property_index import SEGMENT_BITS, IndexedSpan, IndexEntry
from store.schema import NO_RETRY, RETRY, RETRY_IN_ORDER
from store.tables import INSERT_ROUTE, ShortTables

NOTHING_KNOWN: Final[frozenset[int]] = frozenset()

LooksAtMessages: TypeAlias = (
    AddReferences | ReleaseDelayed | CancelDelayed | CountAttempts | TrimLog | EraseMessages | KeepValues
)
"""Effects that read messages or held messages: everything collected before them is written first."""


class Before(NamedTuple):
    """What a writer knows of its store before a transaction."""

    garbage: Collection[DroppedCursor] = ()
    """Dropped cursors that are still to be cleaned up."""
    routes: Collection[int] = NOTHING_KNOWN
    """Numbers of routes that are known to be stored."""
    indexed: Sequence[IndexedSpan] = ()
    """Spans of the property index that still grow; if there are none, messages are not indexed."""
    has_held: bool = True
    """There may be held messages."""


class StoreTransaction(ABC):
    """Collects the effects of one commit."""

    _moves: GatheredMoves

    def __init__(self, before: Before) -> None:
        self._indexed = before.indexed
        self._entries: list[IndexEntry] = []
        self._delayed: list[tuple[int, int, int, int, int]] = []
        """(cursor, due time, message, bytes of content, ``delayed.retry``) of messages that are delayed from now on."""
        self._ids: list[tuple[int, int, int, bytes]] = []
        """Rows of ``dedup``."""
        self._left_ids: dict[int, int] = {}
        """By endpoint, the last publication whose ids have left its deduplication window."""
        self._known_routes = before.routes
        self._garbage = list(before.garbage)
        self._dropped = {found.cursor for found in before.garbage}
        self.new_garbage: list[DroppedCursor] = []
        """Cursors that this transaction dropped."""
        self.new_routes: set[int] = set()
        """Routes that this transaction stored."""
        self.has_held = before.has_held
        """There are, or may be, held messages."""

    def apply(self, effects: Iterable[Effect]) -> None:
        """
        Raises:
            UnicodeEncodeError: A text cannot be encoded.
        """
        for effect in effects:
            # The two effects of the hot path first.
            if isinstance(effect, Publication):
                self._publish(effect)
            elif isinstance(effect, MoveCursor):
                # Dropped cursors are cleaned up in the state in which they were dropped.
                if effect.cursor not in self._dropped:
                    self._moves.add(effect)
            else:
                self._define(effect)

    def _add_routes(self, routes: Iterable[RouteDefinition]) -> None:
        """Write the routes that may not be stored yet."""
        for route in routes:
            if route.number not in self._known_routes and route.number not in self.new_routes:
                self._execute(INSERT_ROUTE, route.number, route.priority, route.endpoints)
                self.new_routes.add(route.number)

    def _add_delayed(self, publication: Publication) -> None:
        """Collect the delays of its messages, if they have any."""
        if publication.delays is not None:
            cursors, due_ms = publication.delays
            self._delayed += [
                (cursor, due, row[ID], len(row[CONTENT]), NO_RETRY)
                for cursor in cursors
                for due, row in zip(due_ms, publication.rows, strict=True)
            ]

    def _add_ids(self, publication: Publication) -> None:
        """Collect its publishers' ids, if an endpoint rejects duplicates."""
        dedup = publication.dedup
        if dedup is not None:
            first = publication.rows[0]
            for endpoint, gone_up_to in dedup.endpoints.items():
                self._ids.append((endpoint, first[ID], first[TIME_MS], dedup.joined))
                if gone_up_to:
                    self._left_ids[endpoint] = gone_up_to

    def _delete_left_ids(self) -> None:
        for endpoint, gone_up_to in self._left_ids.items():
            self._execute("delete from dedup where endpoint = ? and first <= ?", endpoint, gone_up_to)
        self._left_ids = {}

    def _define(self, effect: Effect) -> None:
        execute = self._execute
        if isinstance(effect, LooksAtMessages):
            self._flush()
            if not (isinstance(effect, KeepValues) and effect.cursor in self._dropped):
                self._change_messages(effect)
            return
        match effect:
            case OpenCursor(number, parts, floor, given_out):
                self._flush()
                for part in parts:
                    execute(
                        "insert into cursor (number, part, floor, counted_id) values (?, ?, ?, ?)",
                        number, part, floor, floor,
                    )  # fmt: skip
                self._raise_to("next_number", number + 1)
                self._raise_to("last_id", max(floor, given_out))
            case DropCursor():
                self._flush()
                self._drop_cursor(effect)
            case HoldBack(cursor, held_back, in_order):
                # As with moves: a dropped cursor gets no delayed messages.
                if cursor not in self._dropped:
                    retry = RETRY_IN_ORDER if in_order else RETRY
                    self._delayed += [(cursor, *entry, retry) for entry in held_back]
            case CountedUpTo(message_id):
                self._raise_to("counted_id", message_id)
            case SaveArchived(last_id):
                self._raise_to("archived_id", last_id)
            case SaveReplay(endpoint, replay):
                execute("update endpoint set replay = ? where number = ?", replay, endpoint)
            case SaveEndpoint(number, cursor, name, kind, settings, replay):
                execute(
                    "insert into endpoint (number, cursor, name, kind, settings, replay) values (?, ?, ?, ?, ?, ?) "
                    "on conflict (number) do update set cursor = excluded.cursor, name = excluded.name, "
                    "kind = excluded.kind, settings = excluded.settings, replay = excluded.replay",
                    number, cursor, name, kind, settings, replay,
                )  # fmt: skip
                self._raise_to("next_number", max(number, cursor) + 1)
            case ForgetIds(endpoint, None):
                self._flush()
                execute("delete from dedup where endpoint = ?", endpoint)
            case ForgetIds(endpoint, kept_ids):
                self._flush()
                for first, ids in (kept_ids or {}).items():
                    row = (endpoint, first)
                    if ids:
                        joined = b"".join(ids)
                        execute("update dedup set ids = ? where endpoint = ? and first = ?", joined, *row)
                    else:
                        execute("delete from dedup where endpoint = ? and first = ?", *row)
            case DeleteEndpoint(number):
                self._flush()
                execute("delete from dedup where endpoint = ?", number)
                execute("delete from endpoint where number = ?", number)
                execute("delete from subscription where endpoint = ?", number)
            case SaveSubscription(endpoint, pattern):
                execute(
                    "insert into subscription (endpoint, pattern) values (?, ?) on conflict do nothing",
                    endpoint, pattern,
                )  # fmt: skip
            case DeleteSubscription(endpoint, pattern):
                execute("delete from subscription where endpoint = ? and pattern = ?", endpoint, pattern)
            case SavePoint(point):
                execute(
                    "insert into point (name, position, time, made) values (?, ?, ?, ?) on conflict (name) "
                    "do update set position = excluded.position, time = excluded.time, made = excluded.made",
                    point.name, point.position, point.time_ms, point.made_ms,
                )  # fmt: skip
                # An id below the point must not be given out again: a replay from the point would miss its message.
                self._raise_to("last_id", point.position - 1)
            case DeletePoint(name):
                execute("delete from point where name = ?", name)
            case SaveReplayRecord(record):
                execute(
                    "insert into replay_record (number, name, state, record) values (?, ?, ?, ?) on conflict (number) "
                    "do update set name = excluded.name, state = excluded.state, record = excluded.record",
                    record.number, record.name, record.state, record.to_json(),
                )  # fmt: skip
            case DropReplayRecords(numbers):
                for number in numbers:
                    execute("delete from replay_record where number = ?", number)
            case Publication() | MoveCursor():  # pragma: no cover - apply() has taken them
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _drop_cursor(self, effect: DropCursor) -> None:
        number = effect.number
        if effect.endpoint:
            self._execute(
                "insert into garbage (cursor, endpoint, up_to) values (?, ?, ?) on conflict do nothing",
                number, effect.endpoint, effect.up_to,
            )  # fmt: skip
            found = DroppedCursor(number, effect.endpoint, effect.up_to)
            self._garbage.append(found)
            self._dropped.add(number)
            self.new_garbage.append(found)
            return
        for table, column in (
            ("cursor", "number"), ("cursor_range", "number"), ("attempt", "cursor"), ("reference", "cursor"),
            ("delayed", "cursor"), ("last_value", "cursor"),
        ):  # fmt: skip
            self._execute(f"delete from {table} where {column} = ?", number)

    # --- what an engine implements ----------------------------------------------------------------------------------

    @abstractmethod
    def _publish(self, publication: Publication) -> None:
        """Collect messages."""

    @abstractmethod
    def _flush(self) -> None:
        """Write the collected messages and cursor moves, because the next effect reads them."""

    @abstractmethod
    def _execute(self, sql: str, *values: Any) -> object:
        """One statement, as ``ShortTables.ask`` takes it; its result is ignored."""

    @abstractmethod
    def _change_messages(self, effect: LooksAtMessages) -> None:
        """Apply the effect. Everything before it is written."""

    @abstractmethod
    def _raise_to(self, name: str, value: int) -> None:
        """
        From now on, a column of the log's row is no less than ``value``: ``next_number``, ``last_id`` (ids up to it are
        given out), ``counted_id`` or ``archived_id``.
        """


def note_trimmed(tables: ShortTables, effect: TrimLog) -> None:
    """Update what a trim changes besides messages: the property index, the log's row, and marks of retention rules."""
    ask, greatest = tables.ask, tables.greatest
    whole_ms = effect.newest_ms + 1 if effect.newest_ms else 0
    if isinstance(effect, TrimTopics):
        ask("update log set size_bytes = size_bytes - ?", effect.freed_bytes)
        if effect.newest_ms:
            ask(
                "insert into retention (rule, below, whole_time) values (?, ?, ?) on conflict (rule) do update set "
                f"below = {greatest}(retention.below, excluded.below), "
                f"whole_time = {greatest}(retention.whole_time, excluded.whole_time)",
                effect.rule, effect.stop, whole_ms,
            )  # fmt: skip
        return
    ask("delete from property_value where segment < ?", effect.stop >> SEGMENT_BITS)
    # A mark that the log's beginning has passed is deleted. Its ``whole_time`` raises the log's floor time instead.
    passed = ask("delete from retention where below <= ? returning whole_time", effect.stop)
    ask(
        f"update log set first_id = {greatest}(first_id, ?), size_bytes = size_bytes - ?, "
        f"floor_time = {greatest}(floor_time, ?)",
        effect.stop, effect.freed_bytes, max([whole_ms, *[passed_ms for (passed_ms,) in passed]]),
    )  # fmt: skip
