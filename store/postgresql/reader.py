"""
Readers of a schema: pages of the log and of routes, and searches, on a small pool of threads with a connection each.

Every read is one short statement, so that it sees one state of the log: what was trimmed is below that state's
``first_id``, even if its rows still exist. A page is bounded in rows, in bytes, and in how much of the log it may scan,
so that no reader stalls another. A search goes the ways that ``store.reading`` names.

If the server cannot be reached, a read waits for it, or for the server that replaces it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import psycopg

from gateway.core.log import RetentionMark, taken_by
from gateway.core.model import ID, Row
from store.errors import DamagedMessage, LogTrimmed, ReadFailed, TakenOut
from store.ports import MAX_ID, DiskUse, LogPage, StoreOptions
from store.postgresql import packed
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import (
    ANSWER_SECONDS,
    PATIENCE_SECONDS,
    RETRY_SECONDS,
    STATEMENT_MS,
    ReadConnection,
    ReadConnections,
    Value,
    number,
    numbered,
    read_text,
)
from store.postgresql.packed import Packed
from store.property_index import IndexedSpan
from store.reading import MOST_BY_ID, MOST_MERGED, SCAN_IDS, PooledReader, named_topics, next_position, reads

T = TypeVar("T")

MERGE_IDS: Final = 1 << 22
"""Ids in which a page looks for messages of its routes: some partitions, each of which has to be planned for."""

LEAST_OF_EACH: Final = 64
"""Messages that are read for each merged route, if a page has so many."""

ROOMY_ROWS: Final = 256
"""A reader with larger pages than this reads many of them."""

TALLY_SECONDS: Final = STATEMENT_MS / 1000 + ANSWER_SECONDS
"""Counting may take long."""

BEHIND_SECONDS: Final = 0.02
"""Between two looks whether a standby has what was asked for."""

NEWEST: Final = "coalesce((select max(id) from message), 0)"

TOLD: Final = "least(told_id, last_id)"
"""The last id that was reported: a standby may show more."""

DAMAGE: Final = frozenset({"XX001", "XX002", "58030"})
"""SQLSTATEs (PostgreSQL, Appendix A): data_corrupted, index_corrupted, io_error."""


class Behind(Exception):
    """
    A standby does not have yet what the caller was told of.

    Attributes:
        told_id: The standby has everything up to this id.
    """

    def __init__(self, told_id: int) -> None:
        super().__init__(f"the standby is behind: it has messages up to {told_id}")
        self.told_id = told_id


class PostgresReader(PooledReader):
    """Pages from the schema of one Message VPN."""

    logged = "id >= (select first_id from log)"
    joined = PostgresShortTables.joined
    has_needle = "position(? in content) > 0"

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        name: str,
        options: StoreOptions,
        largest_bytes: int,
        indexed: Sequence[IndexedSpan] = (),
        *,
        is_standby: bool = False,
        is_patient: bool = True,
    ) -> None:
        """
        Args:
            connect: Makes a connection whose search path is the schema.
            name: The Message VPN's; names the threads.
            largest_bytes: See ``PooledReader``; ``MAX_ID`` if ``grow_largest`` is not called.
            is_standby: The server may not have yet what a caller was told of: pages wait for that.
            is_patient: After an error that may pass, try again for a while.
        """
        super().__init__(name, options, largest_bytes, indexed)
        self.connections = ReadConnections(connect, name)
        self._is_standby = is_standby
        self._newest = TOLD if is_standby else NEWEST
        """SQL, over the log's row, for the last message that a probe may find."""
        if is_standby:
            self._told = f" and id <= (select {TOLD} from log)"
        self._is_patient = is_patient
        self.known_marks: Sequence[RetentionMark] | None = None
        """The marks of retention rules that readers were told of; None if they are told before messages are removed."""

    def close(self) -> None:
        """Close the connections; a read that waits for the server is given up."""
        self.connections.closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.connections.close()

    # --- the connection -----------------------------------------------------------------------------------------

    @property
    def _may_be_behind(self) -> bool:
        """Whether the server may be behind: a primary may have come back as a standby."""
        return self._is_standby or self.connections.mine.is_standby

    def carry_out(self, read: Callable[[], T]) -> T:
        """See ``PooledReader``; after an error that may pass, the read is tried again for a while."""
        deadline = time.monotonic() + (PATIENCE_SECONDS if self._is_patient else 0.0)
        while True:
            try:
                return read()
            except Behind as error:
                self._wait(deadline, BEHIND_SECONDS, error)
            except (psycopg.Error, OSError) as error:
                if self.connections.passes(error):
                    self._wait(deadline, RETRY_SECONDS, error)
                    continue
                reason = str(error)
                if getattr(error, "sqlstate", None) in DAMAGE:
                    self.damage = reason
                raise ReadFailed(reason) from error

    def _wait(self, deadline: float, seconds: float, error: Exception) -> None:
        """
        Wait before a read is tried again.

        Raises:
            ReadFailed: It has taken too long, or the reader is being closed.
        """
        if time.monotonic() >= deadline or self.connections.closing.wait(seconds):
            raise ReadFailed(str(error) or "the standby is behind") from error

    # --- pages --------------------------------------------------------------------------------------------------

    @reads
    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        """
        See ``store.ports.Reader``.

        Raises:
            LogTrimmed: The log begins after ``position``, or lacks more than readers were told (``known_marks``).
        """
        stop = min(end, position + SCAN_IDS)
        condition, values = self._of_topics(patterns)
        condition = numbered(condition, values, 4)
        span = "id >= $1::bigint and id < $2::bigint and $1::bigint >= (select first_id from log)"
        sources = [f"select {packed.LOGGED} from message where {span}{condition}"]
        if held:
            sources.append(f"select {packed.HELD} from held_message where {span}")
        rows, is_whole, found = self._page(_in_order(sources), [position, stop, self._page_rows, *values])
        if found.first_id > position:
            raise LogTrimmed(position, found.first_id)
        self._check_told(found.told_id, stop)
        page = LogPage(rows, next_position(rows, stop, is_whole=is_whole))
        if self.known_marks is not None:
            check_is_whole(self.connections.mine, self.known_marks, position, page.position, patterns)
        return page

    @reads
    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> LogPage:
        """See ``store.ports.Reader``."""
        if not routes:
            return LogPage([], end)
        most = self._page_rows if limit is None else min(limit, self._page_rows)
        is_merged = len(routes) <= MOST_MERGED
        stop = min(end, after + 1 + (MERGE_IDS if is_merged else SCAN_IDS))
        span = "id > $1::bigint and id < $2::bigint"
        logged = f"select {packed.LOGGED} from message where {span} and id >= (select first_id from log)"
        held = f"select {packed.HELD} from held_message where {span}"
        values: list[Value] = [after, stop, most]
        if len(routes) == 1:
            of_route = "and route = $4::bigint and route <> 0"
            values += routes
        elif is_merged:
            of_route = "and route = named.route and route <> 0"
            values.append(routes)
        else:
            of_route = "and route = any($4::bigint[])"
            values.append(routes)
        sources = [f"{source} {of_route}" for source in (logged, held)]
        if len(routes) > 1 and is_merged:
            of_each = min(most, max(most * 2 // len(routes), LEAST_OF_EACH))
            values.append(of_each)
            query = _merge(sources)
        else:
            of_each = most
            query = _in_order(sources)
        rows, is_whole, found = self._page(query, values, most)
        self._check_told(found.told_id, stop)
        # A route whose messages were cut has at least ``of_each`` of them on the page.
        is_whole = is_whole and len(rows) < of_each
        return LogPage(rows, next_position(rows, stop, is_whole=is_whole))

    @reads
    def messages(self, ids: Sequence[int], *, with_held: bool = True) -> list[Row]:
        """See ``store.ports.Reader``. ``with_held``: also give held messages."""
        most = min(self._page_rows, MOST_BY_ID)
        which = "id = any($1::bigint[]) and id <= $2::bigint"
        sources = [f"select {packed.LOGGED} from message where {which} and id >= (select first_id from log)"]
        if with_held:
            sources.append(f"select {packed.HELD} from held_message where {which}")
        for at in range(0, len(ids), most):
            wanted = list(ids[at : at + most])
            rows, _, found = self._page(_in_order(sources), [wanted, wanted[-1], len(wanted)], len(wanted))
            self._check_told(found.told_id, wanted[-1] + 1)
            if rows:
                return rows
        return []

    def _page(
        self, rows: str, values: Sequence[Value], limit: int | None = None
    ) -> tuple[list[Row], bool, Packed]:
        """
        Rows of a query within the page's bounds, whether those are all rows, and the page.

        Args:
            limit: The most rows that the query gives; None: as many as a page holds.
        """
        most = self._page_rows if limit is None else limit
        largest = self.largest_bytes
        if largest * most <= self._page_bytes:
            query = packed.page(rows)
        else:
            query = packed.bounded_page(rows, f"{self._page_bytes}")
        if most > ROOMY_ROWS:
            self.connections.mine.make_room()
        (answer,) = self.connections.mine.ask(query, values)
        page = Packed(answer)
        found = page.rows(largest)
        if found is None:
            sound = self._one_by_one(rows, values, page.count)
            # If there are none, the page was trimmed meanwhile, and looks different now.
            return (sound, False, page) if sound else self._page(rows, values, limit)
        return found, page.is_whole and page.count < most, page

    def _one_by_one(self, rows: str, values: Sequence[Value], count: int) -> list[Row]:
        """
        The rows before a damaged one: they are sound. The next page begins with the damaged row, and fails.
        """
        found: list[Row] = []
        query = f"select {packed.HELD} from ({rows}) as page limit {count}"
        for checked in self.connections.mine.ask(query, values):
            row = packed.sound_row(checked)
            if row is None:
                error = DamagedMessage(number(checked[ID]))
                self.damage = str(error)
                if found:
                    return found
                raise error
            found.append(row)
        return found

    def _check_told(self, told_id: int, stop: int) -> None:
        """
        Check that the server has what the caller was told of: otherwise a page would skip it. It must also be the same
        messages. A server that a failover has left behind may have other messages with these ids, but none up to
        ``told_id``: the commit after them began when they were on every machine that has to have them.

        Raises:
            Behind: A standby does not have it yet.
        """
        if told_id + 1 < stop < MAX_ID and self._may_be_behind:
            raise Behind(told_id)

    def _check_has(self, stop: int) -> None:
        """The same check for reads of several statements: later statements see no less."""
        if self._may_be_behind:
            (told_id,) = self._ids(f"select {TOLD} from log", [])
            self._check_told(told_id, stop)

    # --- probes (gateway.core.replay.starts.LogProbe) -----------------------------------------------------------

    @reads
    def disk(self) -> DiskUse:
        """The size of the schema's tables with their indexes. The server does not tell which disk they are on."""
        (size_bytes,) = self._ids(
            "select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class "
            "where relnamespace = current_schema()::regnamespace and relkind = 'r'",
            [],
        )
        return DiskUse(size_bytes, 0, None)

    @reads
    def positions_since(self, times_ms: Sequence[int]) -> list[int]:
        """See ``store.ports.Reader``."""
        found = self.connections.mine.ask(positions_since(self._newest), [times_ms])
        return [number(position) for (position,) in found]

    # --- the parts of pages -------------------------------------------------------------------------------------

    def _ask(
        self, kinds: Sequence[type], sql: str, values: Sequence[Any], *, is_long: bool = False
    ) -> list[Any]:
        bound = (TALLY_SECONDS,) if is_long else ()
        rows = self.connections.mine.ask(numbered(sql, values), values, *bound)
        columns = zip(kinds, zip(*rows, strict=True), strict=False)
        return list(zip(*[map(READ[kind], column) for kind, column in columns], strict=True))

    def _of_topics(self, patterns: Sequence[str]) -> tuple[str, list[Any]]:
        literals, wildcards = named_topics(patterns, _literal, "%") or ((), ())
        wanted = [(test, texts) for test, texts in (("=", literals), ("like", wildcards)) if texts]
        condition = " or ".join(f"topic {test} any(?)" for test, _ in wanted)
        return f" and ({condition})" if wanted else "", [texts for _, texts in wanted]

    def _logged(self, ids: Sequence[int]) -> list[Row]:
        return self.messages(ids, with_held=False)

    def _indexed_ids(
        self, span: IndexedSpan, texts: Sequence[str], segments: range, ids: range, limit: int
    ) -> list[int]:
        found = self.connections.mine.ask(
            LOOK_UP, [segments[0], segments[-1], span.number, texts, ids.start, ids.stop, limit]
        )
        return [number(message_id) for (message_id,) in found]


def _in_order(sources: Sequence[str]) -> str:
    """The messages of all sources, in the order of their ids, and no more than the statement's third value."""
    if len(sources) == 1:
        return f"{sources[0]} order by id limit $3::bigint"
    each = " union all ".join(f"({source} order by id limit $3::bigint)" for source in sources)
    return f"{each} order by id limit $3::bigint"


def _merge(sources: Sequence[str]) -> str:
    """
    Messages of the routes in the statement's fourth value, in the order of ids: at most the fifth value for each route,
    and the third value in all. If a route has more, ids above its last one here are left to the next page.
    """
    each = " union all ".join(
        f"select {number} as source, found.* from unnest($4::bigint[]) as named (route) "
        f"cross join lateral ({source} order by id limit $5::bigint) as found"
        for number, source in enumerate(sources)
    )
    return (
        f"with found as materialized ({each}) select id, time, checksum, route, bare, held, topic, content from found "
        "where id <= coalesce((select min(last) from (select max(id) as last from found group by source, route "
        f"having count(*) = $5::bigint) as cut), {MAX_ID}) order by id limit $3::bigint"
    )


def _text(value: bytes | None) -> str:
    assert value is not None
    return read_text(value.decode())


READ: Final[Mapping[type, Callable[[Any], Any]]] = {int: number, str: _text, bytes: bytes}
"""Reads a value of a type from its binary format."""

MARKS: Final = """
    select first_id, (select json_agg(json_build_array(rule, below, whole_time))::text from retention) from log
"""


def check_is_whole(
    connection: ReadConnection,
    known: Sequence[RetentionMark],
    position: int,
    stop: int,
    patterns: Sequence[str],
) -> None:
    """
    Check that a page lacks nothing but what its reader knows to be missing. Call this after reading the page.

    Args:
        known: The marks that readers were told of.
        position: The first id of the page.
        stop: One past the last id of the page.
        patterns: The topics that are read; empty for all.

    Raises:
        TakenOut: A rule removed messages that may have been for this page.
        LogTrimmed: The log begins after ``position`` now, and does not know any more what was removed there.
    """
    ((first_id, text),) = connection.ask(MARKS, ())
    if number(first_id) > position:
        raise LogTrimmed(position, number(first_id))
    told = {mark.rule: mark.below for mark in known}
    marks = [RetentionMark(*mark) for mark in json.loads(text or b"[]")]
    new = [mark for mark in marks if told.get(mark.rule, 0) < min(mark.below, stop)]
    below = taken_by(new, patterns).below
    if below > position:
        raise TakenOut(position, below)


LOOK_UP: Final = """
    select found.message from generate_series($1::bigint, $2::bigint) as looked_at (segment) cross join lateral (
        select message from property_value where property_value.segment = looked_at.segment
        and number = $3::bigint and value = any($4::text[]) and message >= $5::bigint and message < $6::bigint
        order by message limit $7::bigint) as found
    order by found.message limit $7::bigint
"""


def _literal(text: str) -> str:
    return "".join(f"\\{c}" if c in "%_\\" else c for c in text)


def positions_since(newest: str) -> str:
    """
    SQL for the positions of the times in ``$1``, in their order (``store.ports.Reader.positions_since``).

    Args:
        newest: SQL, over the log's row, for the last id that may be found.
    """
    return f"""
        with recursive bounds as (
            select first_id, greatest(first_id, {newest} + 1) as next_id from log
        ),
        searched (number, time, low, high) as (
            select wanted.number, wanted.time, first_id, next_id
                from bounds, unnest($1::bigint[]) with ordinality as wanted (time, number)
            union all
            select number, searched.time,
                case when probe.time < searched.time then probe.id + 1 else low end,
                case when probe.time < searched.time then high else (low + high) / 2 end
                from searched left join lateral (
                    select id, time from message
                    where id >= (searched.low + searched.high) / 2 and id < searched.high order by id limit 1
                ) as probe on true
                where low < high
        )
        select low::bigint from searched where low >= high order by number
    """
