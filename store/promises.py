"""
What a store promises of its tables, for every engine: between any two commits each promise holds.

Every promise is a query that gives the rows which break it. ``store.sqlite.schema`` describes the tables. Where an
engine has other tables, or another SQL, its ``ShortTables`` say so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from store.checksum import NOT_AS_WRITTEN
from store.property_index import SEGMENT_BITS
from store.schema import unknown_migrations
from store.tables import ShortTables

MOST_EXAMPLES: Final = 5
"""Rows named for each broken promise; the others are counted."""

WRONG_PRIORITY: Final = "message {} is on route {} of priority {}, but its header says {}"
"""The text for a message on a route of the wrong priority, for an engine that finds it without SQL."""


class Promise(NamedTuple):
    """``broken`` is the text for a row of ``query``; the row's columns replace the ``{}``."""

    broken: str
    query: str

    def told(self, rows: Sequence[Sequence[Any]]) -> list[str]:
        """The texts for the rows that break it."""
        told = [self.broken.format(*row) for row in rows[:MOST_EXAMPLES]]
        return [*told, f"… and {len(rows) - MOST_EXAMPLES} more like that"] if rows[MOST_EXAMPLES:] else told


DAMAGED: Final = Promise(f"message {{}} {NOT_AS_WRITTEN}", "")
"""The text for the ids of damaged messages. SQL does not find them."""


def version_problem(applied: Collection[str], known: Collection[str], lacking: str) -> list[str]:
    """
    What is wrong with the migrations that were applied to a store; empty if nothing is.

    Args:
        lacking: The text for a store that lacks some of them.
    """
    unknown = unknown_migrations(applied, known)
    if unknown:
        return [f"it has migration {', '.join(unknown)} of a later version"]
    missing = [name for name in known if name not in applied]
    return [f"migration {', '.join(missing)} was not applied: {lacking}"] if missing else []


def promises(tables: type[ShortTables]) -> list[Promise]:
    """All promises."""
    owner = (
        "owner (cursor, endpoint, up_to) as (select cursor, number, 9223372036854775807 from endpoint "
        "union all select cursor, endpoint, up_to from garbage)"
    )
    done_up_to = (
        "coalesce((select last from cursor_range where cursor_range.number = cursor.number "
        "and cursor_range.part = cursor.part and first <= message.id order by first desc limit 1), 0)"
    )
    # For each part of each cursor, the messages that it has not settled.
    lying = f"""
        {owner}, named (route, endpoint) as ({tables.named}),
        lying (cursor, part, message, size_bytes, held) as (
            select cursor.number, cursor.part, message.id, length(content), held
            from owner join named on named.endpoint = owner.endpoint join route on route.number = named.route
            join cursor on cursor.number = owner.cursor and cursor.part in (-1, route.priority)
            join message on message.route = route.number and message.route <> 0
                and message.id > floor and message.id <= up_to
            where {done_up_to} < message.id)
    """
    parts = f"""
        parts (part) as (values (-1), (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)),
        expected (endpoint, name, cursor, part) as (
            select endpoint.number, name, cursor, part from endpoint cross join parts
            where case when {tables.by_priority} then part >= 0 else part = -1 end)
    """
    end = f"({tables.last_id}) as given_out"
    # Numbers of cursors in use: cursors of endpoints, of their replays, and dropped ones.
    used = (
        "select cursor from endpoint union select cursor from garbage "
        f"union select {tables.replay_cursor} from endpoint where replay is not null"
    )
    found = [
        Promise("the log has {} rows instead of one", "select count(*) from log having count(*) <> 1"),
        # --- messages
        Promise(
            "message {} arrived at {} ms, before message {} at {} ms: a higher id must not have an earlier time",
            "select id, time, earlier_id, earlier from (select id, time, lag(id) over by_id as earlier_id, "
            "lag(time) over by_id as earlier from message window by_id as (order by id)) as following "
            "where time < earlier",
        ),
        Promise(
            "message {} arrived at {} ms, but the log's last time is {} ms, up to message {}",
            "select id, time, last_time, last_id from (select id, time from message, log where id <= last_id "
            "order by id desc limit 1) as newest, log where time > last_time",
        ),
        Promise(
            "the bare message of message {} begins at byte {} of {}",
            "select id, bare, length(content) from message where bare not between 0 and length(content)",
        ),
        Promise(
            "message {} is on record as held by {} endpoints, but {} need it",
            f"with {lying}, needed (id, count) as (select message, count(*) from "
            "(select message from lying where held is not null union all select message from reference "
            "union all select message from delayed union all select message from last_value) as each_need "
            "group by message) "
            "select message.id, held, coalesce(count, 0) from message left join needed on needed.id = message.id "
            "where held is not null and (held <> coalesce(count, 0) or held < 1)",
        ),
        Promise(
            "message {} is on route {}, which does not exist",
            "select id, route from message where route <> 0 and route not in (select number from route)",
        ),
        # --- cursors
        Promise(
            "endpoint {} ({}) has cursor {}, which lacks part {}",
            f"with {parts} select endpoint, name, cursor, part from expected "
            "where not exists (select 1 from cursor where number = expected.cursor and part = expected.part)",
        ),
        Promise(
            "endpoint {} ({}) has cursor {} with part {}, which is not one of its priorities",
            f"with {parts} select endpoint.number, name, cursor.number, part "
            "from endpoint join cursor on cursor.number = endpoint.cursor "
            "where (cursor.number, part) not in (select cursor, part from expected)",
        ),
        Promise(
            "message {} is queued on endpoint {} ({}), which delivers by priority, but its route has no priority",
            f"with named (route, endpoint) as ({tables.named}) select message.id, endpoint.number, name "
            "from endpoint join named on named.endpoint = endpoint.number join route on route.number = named.route "
            "join message on message.route = route.number and message.route <> 0 "
            f"where priority is null and {tables.by_priority} and exists (select 1 from cursor "
            f"where cursor.number = endpoint.cursor and message.id > floor and {done_up_to} < message.id)",
        ),
        Promise(
            "part {1} of cursor {0} has {2} messages with {3} bytes on record, but its backlog up to {6} has {4} "
            "messages with {5} bytes",
            f"with {lying} select * from (select cursor.number, cursor.part, messages, "
            "cursor.size_bytes, count(message) as there, coalesce(sum(lying.size_bytes), 0) as there_bytes, "
            f"{tables.greatest}(cursor.counted_id, log.counted_id) as up_to "
            "from endpoint join cursor on cursor.number = endpoint.cursor cross join log left join lying "
            "on lying.cursor = cursor.number and lying.part = cursor.part "
            f"and message <= {tables.greatest}(cursor.counted_id, log.counted_id) "
            "group by cursor.number, cursor.part, messages, cursor.size_bytes, cursor.counted_id, log.counted_id) "
            "as counted where messages <> there or size_bytes <> there_bytes",
        ),
        Promise(
            "part {1} of cursor {0} has settled everything up to {2}, but the log's last id is {3}",
            f"select number, part, floor, last_id from cursor, {end} where floor > last_id",
        ),
        Promise(
            "the backlog of part {1} of cursor {0} is counted up to {2}, but the log's last id is {3}",
            f"select number, part, cursor.counted_id, last_id from cursor, {end} where cursor.counted_id > last_id",
        ),
        Promise(
            "part {1} of cursor {0} has a range from {2} to {3}, but the log's last id is {4}",
            f"select number, part, first, last, last_id from cursor_range, {end} "
            "where first > last or last > last_id",
        ),
        Promise(
            "part {1} of cursor {0} has a range from {2}, but the range before it ends at {3}",
            "select number, part, first, before from (select number, part, first, lag(last) over "
            "(partition by number, part order by first) as before from cursor_range) as following "
            "where first <= before",
        ),
        Promise(
            "part {1} of cursor {0} has a range from {2}, below its floor {3}",
            "select number, part, first, floor from cursor_range join cursor using (number, part) "
            "where first <= floor and number not in (select cursor from garbage)",
        ),
        Promise(
            "{2} ranges belong to part {1} of cursor {0}, which does not exist",
            "select number, part, count(*) from cursor_range where (number, part) not in "
            "(select number, part from cursor) group by number, part",
        ),
        Promise(
            "cursor {} belongs to no endpoint and no replay, and was not dropped",
            f"select distinct number from cursor where number not in ({used})",
        ),
        Promise(
            "cursor {} was dropped, but endpoint {} ({}) still uses it",
            "select cursor, number, name from endpoint where cursor in (select cursor from garbage)",
        ),
        *(
            Promise(
                broken, f"select cursor, message from {table} where message not in (select id from message)"
            )
            for table, broken in (
                ("reference", "cursor {} refers to message {}, which does not exist"),
                ("delayed", "message {1} is delayed on cursor {0}, but does not exist"),
                ("last_value", "message {1} is a value of cursor {0}, but does not exist"),
            )
        ),
        *(
            Promise(
                f"{what} {column} {{}}, which does not exist",
                f"select count(*), {column} from {table} where {column} not in (select number from {column}) "
                f"group by {column}",
            )
            for table, column, what in (
                ("reference", "cursor", "{} references belong to"),
                ("delayed", "cursor", "{} delayed messages belong to"),
                ("last_value", "cursor", "{} values belong to"),
                ("attempt", "cursor", "{} attempts belong to"),
                ("dedup", "endpoint", "{} rows of publishers' ids belong to"),
            )
        ),
        Promise(
            "cursor {} counts failed deliveries of message {}, which does not exist",
            "select attempt.cursor, message from attempt join endpoint on endpoint.cursor = attempt.cursor "
            "where message not in (select id from message)",
        ),
        Promise(
            "message {} was delivered {} times by cursor {}",
            "select message, count, cursor from attempt where count < 0",
        ),
        # --- endpoints
        Promise(
            "number {} is in use, but the next number to be given out is {}",
            "select used.number, next_number from "
            "(select number from endpoint union select number from cursor) as used, "
            "log where used.number >= next_number",
        ),
        Promise(
            "number {} is subscribed to {}, but is not an endpoint",
            "select endpoint, pattern from subscription where endpoint not in (select number from endpoint)",
        ),
        # --- the log
        Promise(
            "the log has {} bytes on record up to {}, but holds {}",
            "select size_bytes, last_id, there from log, "
            f"(select coalesce({tables.size_on_disk}, 0) as there from message, log "
            "where held is null and id <= last_id) as logged where size_bytes <> there",
        ),
        Promise(
            "the largest content has {} bytes, but the largest on record has {}",
            "select largest, largest_bytes from log, "
            "(select max(length(content)) as largest from message, log where id <= last_id) as stored "
            "where largest > largest_bytes",
        ),
        Promise(
            "the log begins at {}, but its last id is {}",
            "select first_id, last_id from log where first_id > last_id + 1",
        ),
        Promise(
            "the backlogs are counted up to {}, but the log's last id is {}",
            "select counted_id, last_id from log where counted_id > last_id",
        ),
        Promise(
            "the log is archived up to {}, but its last id is {}",
            "select archived_id, last_id from log where archived_id > last_id",
        ),
        Promise(
            "point {} is at {}, beyond the log's last id {}: new messages could get ids below it",
            "select name, position, last_id from point, log where position > last_id + 1",
        ),
        # --- the index
        Promise(
            "{} rows of the index have number {}, which indexes no property",
            "select count(*), number from property_value where number not in (select number from indexed) "
            "group by number",
        ),
        Promise(
            "message {} is in segment {} of the index instead of {}",
            f"select message, segment, message >> {SEGMENT_BITS} from property_value "
            f"where segment <> message >> {SEGMENT_BITS}",
        ),
    ]
    if tables.header_priority is not None:
        header = tables.header_priority
        found.append(
            Promise(
                WRONG_PRIORITY,
                f"select id, route, priority, {header} from route join message "
                "on message.route = route.number and message.route <> 0 "
                f"where priority is not null and priority <> {header}",
            )
        )
    # In the order of ids: repairs begin with the lowest ones, and two checks of one store give the same text.
    return [
        promise._replace(query=f"{_behind(tables.with_messages, promise.query)} order by 1")
        for promise in found
    ]


def _behind(tables: str, query: str) -> str:
    """A query with these tables in front."""
    if not tables:
        return query
    return f"with {tables}, {query[5:]}" if query.startswith("with ") else f"with {tables} {query}"
