"""
Effects turned into rows: one transaction's worth, in few large statements.

Every step of a statement drops and takes the interpreter's lock, so a thousand small statements beside a busy loop
wait a thousand times; a multi-row insert waits once. Row counts are powers of two, so that a handful of prepared
statements serves every batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Final, TypeVar, assert_never

from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    DeleteEndpoint,
    DeletePoint,
    DeleteSubscription,
    DropReplayed,
    Effect,
    Publication,
    RemoveReferences,
    RenumberEndpoint,
    SaveArchived,
    SaveEndpoint,
    SavePoint,
    SaveReplay,
    SaveSubscription,
    TrimLog,
)
from gateway.core.model import Row
from store.sqlite.property_index import SEGMENT_BITS, IndexedSpan, IndexEntry, index_entries

T = TypeVar("T")

LARGEST_INSERT: Final = 256
"""Rows of one insert: beyond this a statement gains nothing (measured from 50 to 1,000)."""

SHORTEST_RUN: Final = 8
"""Consecutive ids from which on a range statement is cheaper than naming each."""

INSERT_PUBLISHED: Final = (
    "insert into reference (endpoint, message) select ?1, id from message where id between ?2 and ?3"
)
"""References to messages of this very transaction: their pages are at hand, and reading the ids off them takes
three fifths of the time that counting them takes."""

INSERT_RUN: Final = (
    "insert into reference (endpoint, message) "
    "with recursive run (id) as (values (?2) union all select id + 1 from run where id < ?3) select ?1, id from run"
)
"""References to older messages: counted, so that their pages need not be read."""

RANKED_PUBLISHED: Final = (
    "insert into reference (endpoint, message, priority) "
    "select ?1, id, ?2 from message where id between ?3 and ?4"
)

RANKED_RUN: Final = (
    "insert into reference (endpoint, message, priority) with recursive run (id) as "
    "(values (?3) union all select id + 1 from run where id < ?4) select ?1, id, ?2 from run"
)
"""The same two for endpoints that deliver by priority."""


@cache
def _insert_messages(count: int) -> str:
    return "insert into message values " + ",".join(["(?,?,?,?,?,?)"] * count)


@cache
def _insert_alike(count: int) -> str:
    """Consecutive messages that differ in nothing but their content: a sixth of the values to bind."""
    return "insert into message values " + ",".join(f"(?1+{k},?2,?3,?4,?5,?{6 + k})" for k in range(count))


@cache
def _insert_references(count: int) -> str:
    return "insert into reference (endpoint, message) values " + ",".join(["(?,?)"] * count)


@cache
def _insert_ranked(count: int) -> str:
    values = ",".join(f"(?1,?{3 + k},?2)" for k in range(count))
    return f"insert into reference (endpoint, message, priority) values {values}"


@cache
def _insert_entries(count: int) -> str:
    return "insert into property_value values " + ",".join(["(?,?,?,?)"] * count)


@cache
def _delete_references(count: int) -> str:
    return f"delete from reference where endpoint = ? and message in ({','.join('?' * count)})"


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into pieces whose lengths are powers of two, at most LARGEST_INSERT."""
    start, left, size = 0, len(items), LARGEST_INSERT
    while left:
        while size > left:
            size >>= 1
        yield items[start : start + size]
        start += size
        left -= size


def runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Rising ids as (first, last) of consecutive ones."""
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


def _rank(
    ranked: dict[tuple[int, int], list[int]], endpoint: int, ids: Iterable[int], priorities: Iterable[int]
) -> None:
    """Sort an endpoint's messages by priority."""
    for i, priority in zip(ids, priorities, strict=True):
        ranked.setdefault((endpoint, priority), []).append(i)


class Transaction:
    """Collects the effects of one commit, and applies them on ``connection`` inside an open transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_garbage: Callable[[int], None],
        indexed: Sequence[IndexedSpan] = (),
    ) -> None:
        """
        Args:
            indexed: Spans of the index that go on; nothing is made of messages where there is none.
        """
        self._execute = connection.execute
        self._on_garbage = on_garbage
        self._indexed = indexed
        self._entries: list[IndexEntry] = []
        self._mixed: list[Row] = []
        self._kind: tuple[int, str, int, int | None] | None = None
        self._alike: list[bytes] = []
        self._alike_from = 0
        self._runs: dict[int, list[list[int]]] = {}
        self._ranked: dict[tuple[int, int], list[int]] = {}
        """(endpoint, priority) -> ids to be referred to."""
        self._depths: dict[int, list[int]] = {}
        self._last_id = 0
        self._last_time = 0
        self._logged_bytes = 0
        self.largest_bytes = 0
        """Of the contents written."""
        self.has_held = False
        """Rows were written, or may exist, that the log does not hold."""

    def apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            # The two of the hot path first.
            if isinstance(effect, Publication):
                self._publish(effect)
            elif isinstance(effect, RemoveReferences):
                self._remove(effect.endpoint, effect.ids, effect.size_bytes)
            else:
                self._define(effect)

    def finish(self) -> None:
        """Write what was collected; the caller commits."""
        self._end_alike()
        self._insert_mixed()
        for endpoint, found in self._runs.items():
            self._refer(endpoint, found, INSERT_PUBLISHED)
        self._refer_ranked(self._ranked, RANKED_PUBLISHED)
        # In the order of the table: neighbours go on the same page.
        for entries in chunks(sorted(self._entries)):
            self._execute(_insert_entries(len(entries)), list(chain.from_iterable(entries)))
        for endpoint, (count, size) in self._depths.items():
            self._execute(
                "update endpoint set depth = depth + ?, size_bytes = size_bytes + ? where number = ?",
                (count, size, endpoint),
            )
        if self._last_id:
            self._execute(
                "update log set last_id = ?, last_time = ?, size_bytes = size_bytes + ?,"
                " largest_bytes = max(largest_bytes, ?)",
                (self._last_id, self._last_time, self._logged_bytes, self.largest_bytes),
            )

    def _refer(self, endpoint: int, found: Iterable[Sequence[int]], insert_run: str) -> None:
        """References of an endpoint to runs of messages, given as (first, last)."""
        short: list[tuple[int, int]] = []
        for first, last in found:
            if last - first >= SHORTEST_RUN:
                self._execute(insert_run, (endpoint, first, last))
            else:
                short += [(endpoint, i) for i in range(first, last + 1)]
        for pairs in chunks(short):
            self._execute(_insert_references(len(pairs)), list(chain.from_iterable(pairs)))

    def _refer_ranked(self, ranked: Mapping[tuple[int, int], Iterable[int]], insert_run: str) -> None:
        """The same for endpoints that deliver by priority, given as ids for (endpoint, priority)."""
        for key, ids in ranked.items():
            short: list[int] = []
            for first, last in runs(ids):
                if last - first >= SHORTEST_RUN:
                    self._execute(insert_run, (*key, first, last))
                else:
                    short += range(first, last + 1)
            for piece in chunks(short):
                self._execute(_insert_ranked(len(piece)), [*key, *piece])

    def _count(self, endpoint: int, count: int, size: int) -> None:
        depth = self._depths.get(endpoint)
        if depth is None:
            self._depths[endpoint] = [count, size]
        else:
            depth[0] += count
            depth[1] += size

    def _publish(self, publication: Publication) -> None:
        rows = publication.rows
        count = len(rows)
        first, time, topic, bare, held, _ = rows[0]
        last = first + count - 1
        contents = [content for _, _, _, its_bare, _, content in rows if its_bare == bare]
        if len(contents) == count:
            # Many publishers of a message each are as good as one of many: what follows in kind is one run.
            kind = (time, topic, bare, held)
            if kind != self._kind or first != self._alike_from + len(self._alike):
                self._end_alike()
                self._kind, self._alike_from = kind, first
            self._alike += contents
        else:
            self._end_alike()
            self._mixed += rows
            contents = [content for _, _, _, _, _, content in rows]
        ranked = publication.ranked
        for endpoint in publication.endpoints:
            self._count(endpoint, count, publication.size_bytes)
            if ranked is not None and endpoint in ranked.endpoints:
                _rank(self._ranked, endpoint, range(first, last + 1), ranked.priorities)
                continue
            found = self._runs.setdefault(endpoint, [])
            if found and found[-1][1] == first - 1:
                found[-1][1] = last
            else:
                found.append([first, last])
        self._last_id = last
        self._last_time = time
        if publication.logged:
            self._logged_bytes += publication.size_bytes
            if self._indexed:
                self._entries += index_entries(rows, self._indexed)
        else:
            self.has_held = True
        self.largest_bytes = max(self.largest_bytes, *map(len, contents))

    def _end_alike(self) -> None:
        """Write the run of alike messages, or put it among the mixed ones where it is short."""
        contents = self._alike
        if self._kind is None or not contents:
            return
        time, topic, bare, held = self._kind
        position = self._alike_from
        if len(contents) < SHORTEST_RUN:
            self._mixed += [
                (i, time, topic, bare, held, content) for i, content in enumerate(contents, position)
            ]
        else:
            # Rising ids fill pages to the brim, so what came before goes first.
            self._insert_mixed()
            for piece in chunks(contents):
                self._execute(_insert_alike(len(piece)), [position, time, topic, bare, held, *piece])
                position += len(piece)
        self._alike = []
        self._kind = None

    def _insert_mixed(self) -> None:
        for piece in chunks(self._mixed):
            self._execute(_insert_messages(len(piece)), list(chain.from_iterable(piece)))
        self._mixed = []

    def _remove(self, endpoint: int, ids: Sequence[int], size_bytes: int) -> None:
        scattered: list[int] = []
        for first, last in runs(sorted(ids)):
            if last - first >= SHORTEST_RUN:
                self._execute(
                    "delete from reference where endpoint = ? and message between ? and ?",
                    (endpoint, first, last),
                )
                if self.has_held:
                    self.let_go("id between ? and ?", (first, last))
            else:
                scattered += range(first, last + 1)
        for piece in chunks(scattered):
            self._execute(_delete_references(len(piece)), [endpoint, *piece])
            if self.has_held:
                self.let_go(f"id in ({','.join('?' * len(piece))})", piece)
        self._count(endpoint, -len(ids), -size_bytes)

    def let_go(self, which: str, values: Sequence[int]) -> None:
        """One reference fewer for messages that only references hold; the last takes the message with it."""
        self._execute(f"update message set held = held - 1 where held is not null and {which}", values)
        self._execute(f"delete from message where held <= 0 and {which}", values)

    def _define(self, effect: Effect) -> None:
        execute = self._execute
        match effect:
            case AddReferences(endpoint, ids, size_bytes, replay, priorities):
                if priorities is None:
                    self._refer(endpoint, runs(ids), INSERT_RUN)
                else:
                    ranked: dict[tuple[int, int], list[int]] = {}
                    _rank(ranked, endpoint, ids, priorities)
                    self._refer_ranked(ranked, RANKED_RUN)
                self._count(endpoint, len(ids), size_bytes)
                execute("update endpoint set replay = ? where number = ?", (replay, endpoint))
            case DropReplayed():
                self._drop_replayed(effect)
            case TrimLog():
                self._trim(effect)
            case SaveArchived(last_id):
                # Changed for a moment: SQLite writes no page that is as it was, and with what is so already it is
                # tried whether the store can be written (``Committer.try_store``).
                execute("update log set archived_id = -1 - archived_id")
                execute("update log set archived_id = max(-1 - archived_id, ?)", (last_id,))
            case SaveReplay(endpoint, replay):
                execute("update endpoint set replay = ? where number = ?", (replay, endpoint))
            case CountAttempts(endpoint, attempts):
                for message, count in attempts:
                    execute(
                        "update reference set attempts = ? where endpoint = ? and message = ?",
                        (count, endpoint, message),
                    )
            case SaveEndpoint(number, name, kind, settings, replay):
                execute(
                    "insert into endpoint (number, name, kind, settings, replay) values (?, ?, ?, ?, ?) "
                    "on conflict (number) do update set name = excluded.name, kind = excluded.kind, "
                    "settings = excluded.settings, replay = excluded.replay",
                    (number, name, kind, settings, replay),
                )
                self._use_number(number)
            case RenumberEndpoint(old, new, replay):
                self._forget(old)
                execute(
                    "update endpoint set number = ?, depth = 0, size_bytes = 0, replay = ? where number = ?",
                    (new, replay, old),
                )
                execute("update subscription set endpoint = ? where endpoint = ?", (new, old))
                self._use_number(new)
            case DeleteEndpoint(number):
                self._forget(number)
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
                execute("update log set last_id = max(last_id, ?)", (point.position - 1,))
            case DeletePoint(name):
                execute("delete from point where name = ?", (name,))
            case Publication() | RemoveReferences():  # pragma: no cover - apply() has taken them
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _drop_replayed(self, effect: DropReplayed) -> None:
        """As many as a replay puts ahead of its consumers, some thousands."""
        execute, span = self._execute, (effect.endpoint, effect.below)
        effect.count, effect.size_bytes = execute(
            "select count(*), coalesce(sum(length(content)), 0) from reference join message on id = message "
            "where endpoint = ? and message < ? and held is null",
            span,
        ).fetchone()
        execute(
            "delete from reference where endpoint = ?1 and message < ?2 and message in "
            "(select message from reference join message on id = message "
            "where endpoint = ?1 and message < ?2 and held is null)",
            span,
        )
        self._count(effect.endpoint, -effect.count, -effect.size_bytes)
        execute("update endpoint set replay = ? where number = ?", (effect.replay, effect.endpoint))

    def _trim(self, effect: TrimLog) -> None:
        """Small enough pieces are the caller's care: this visits every message from first to stop."""
        execute = self._execute
        span = (effect.first, effect.stop)
        effect.freed_bytes, effect.newest_ms = execute(
            "select coalesce(sum(length(content)), 0), coalesce(max(time), 0) from message "
            "where id >= ? and id < ? and held is null",
            span,
        ).fetchone()
        # By endpoint: each one's references are a short run of their own, whatever else the table holds. What waits
        # for collection counts, too: it is collected as what it is, a reference that holds its message.
        held = execute(
            "update message set held = holding.count from (select reference.message as id, count(*) as count "
            "from (select number from endpoint union select number from garbage) as owner join reference "
            "on reference.endpoint = owner.number and reference.message >= ? and reference.message < ? group by 1) "
            "as holding where message.id = holding.id and held is null",
            span,
        ).rowcount
        self.has_held = self.has_held or held > 0
        execute("delete from message where id >= ? and id < ? and held is null", span)
        execute("delete from property_value where segment < ?", (effect.stop >> SEGMENT_BITS,))
        execute(
            "update log set first_id = max(first_id, ?), size_bytes = size_bytes - ?, floor_time = max(floor_time, ?)",
            (effect.stop, effect.freed_bytes, effect.newest_ms + 1 if effect.newest_ms else 0),
        )

    def _use_number(self, number: int) -> None:
        self._execute("update log set next_number = max(next_number, ?)", (number + 1,))

    def _forget(self, number: int) -> None:
        self._execute("insert or ignore into garbage values (?)", (number,))
        self._depths.pop(number, None)
        self._on_garbage(number)
