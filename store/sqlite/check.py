"""
Whether a file is what its writer promises: a look at everything, for tests and for an operator in doubt.

Every promise is one query that gives the rows which break it; ``PROMISES`` is the list of them. The file is only read,
and may be in use: all queries see one state of it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from store.checksum import NOT_AS_WRITTEN
from store.property_index import SEGMENT_BITS
from store.queue_priorities import by_priority, header_priority
from store.sqlite import schema
from store.sqlite.database import applied_migrations, connect_reader
from store.sqlite.packed import CHECKED, sound_row

MOST_EXAMPLES: Final = 5
"""Rows named for each broken promise; the rest is counted."""


class Promise(NamedTuple):
    """``broken`` is what to say of a row of ``query``, with its columns in place of ``{}``."""

    broken: str
    query: str


OWNER: Final = """
    owner (cursor, endpoint, up_to) as (
        select cursor, number, 9223372036854775807 from endpoint union all select cursor, endpoint, up_to from garbage)
"""
"""Cursors by which messages are needed."""

LYING: Final = f"""
    {OWNER}, lying (cursor, part, message, size_bytes, held) as (
        select cursor.number, cursor.part, message.id, length(content), held
        from owner join route join json_each(endpoints) as named on named.value = owner.endpoint
        join cursor on cursor.number = owner.cursor and cursor.part in (-1, route.priority)
        join message on message.route = route.number and message.route <> 0
            and message.id > floor and message.id <= up_to
        where coalesce((select last from cursor_range where cursor_range.number = cursor.number
            and cursor_range.part = cursor.part and first <= message.id order by first desc limit 1), 0) < message.id)
"""
"""What each part of a cursor is not done with."""

PARTS: Final = """
    expected (endpoint, name, cursor, part) as (
        select endpoint.number, name, cursor, parts.value from endpoint join json_each(
            case when by_priority(settings) then '[0,1,2,3,4,5,6,7,8,9]' else '[-1]' end) as parts)
"""

END: Final = f"({schema.LAST_ID})"
"""The highest id ever given out. What the log's row alone says holds up to its own ``last_id``, and what else is in
the row was written together with that."""

USED: Final = """
    select cursor from endpoint union select cursor from garbage
    union select json_extract(replay, '$.cursor') from endpoint where replay is not null
"""
"""Numbers of cursors: those of endpoints, of their replays, and those that are being worked off."""

PROMISES: Final = (
    Promise("the log has {} rows instead of one", "select count(*) from log having count(*) <> 1"),
    # --- messages
    Promise(
        "message {} arrived at {} ms, before message {} at {} ms: times must never fall along ids",
        "select id, time, earlier_id, earlier from (select id, time, lag(id) over by_id as earlier_id, "
        "lag(time) over by_id as earlier from message window by_id as (order by id)) where time < earlier",
    ),
    Promise(
        "message {} arrived at {} ms, after the log's last time {} ms, which holds up to {}",
        "select id, time, last_time, last_id from (select id, time from message, log where id <= last_id "
        "order by id desc limit 1), log where time > last_time",
    ),
    Promise(
        "message {} begins at byte {} of {}",
        "select id, bare, length(content) from message where bare not between 0 and length(content)",
    ),
    Promise(
        "message {} is in the log, which begins at {}",
        "select id, first_id from message, log where id < first_id and held is null",
    ),
    Promise(
        "message {} is held by {} endpoints on record, and {} need it",
        f"with {LYING}, needed (id, count) as (select message, count(*) from "
        "(select message from lying where held is not null union all select message from reference) group by message) "
        "select message.id, held, coalesce(count, 0) from message left join needed using (id) "
        "where held is not null and (held <> coalesce(count, 0) or held < 1)",
    ),
    Promise(
        "message {} is on route {}, which does not exist",
        "select id, route from message where route <> 0 and route not in (select number from route)",
    ),
    Promise(
        "message {} is on route {} of priority {}, and its header says {}",
        "select id, route, priority, header_priority(content, bare) from route join message "
        "on message.route = route.number and message.route <> 0 "
        "where priority is not null and priority <> header_priority(content, bare)",
    ),
    # --- cursors
    Promise(
        "endpoint {} ({}) has a cursor {} without part {}",
        f"with {PARTS} select endpoint, name, cursor, part from expected "
        "where not exists (select 1 from cursor where number = expected.cursor and part = expected.part)",
    ),
    Promise(
        "endpoint {} ({}) has a cursor {} with a part {}, which it does not deliver by",
        f"with {PARTS} select endpoint.number, name, cursor.number, part "
        "from endpoint join cursor on cursor.number = endpoint.cursor "
        "where (cursor.number, part) not in (select cursor, part from expected)",
    ),
    Promise(
        "message {} lies on endpoint {} ({}), which delivers by priority, and its route has none",
        "select message.id, endpoint.number, name from endpoint join route join json_each(endpoints) as named "
        "on named.value = endpoint.number join message on message.route = route.number and message.route <> 0 "
        "where priority is null and by_priority(settings) and exists (select 1 from cursor "
        "where cursor.number = endpoint.cursor and message.id > floor and coalesce((select last from cursor_range "
        "where cursor_range.number = cursor.number and cursor_range.part = cursor.part and first <= message.id "
        "order by first desc limit 1), 0) < message.id)",
    ),
    Promise(
        "part {1} of cursor {0} has {2} messages with {3} bytes on record, and {4} with {5} lie there up to {6}",
        f"with {LYING} select cursor.number, cursor.part, messages, cursor.size_bytes, count(message) as there, "
        "coalesce(sum(lying.size_bytes), 0) as there_bytes, max(cursor.counted_id, log.counted_id) as up_to "
        "from endpoint join cursor on cursor.number = endpoint.cursor join log left join lying "
        "on lying.cursor = cursor.number and lying.part = cursor.part "
        "and message <= max(cursor.counted_id, log.counted_id) group by cursor.number, cursor.part "
        "having messages <> there or cursor.size_bytes <> there_bytes",
    ),
    Promise(
        "part {1} of cursor {0} is done with everything up to {2}, and the log's last id is {3}",
        f"select number, part, floor, last_id from cursor, {END} where floor > last_id",
    ),
    Promise(
        "part {1} of cursor {0} is counted up to {2}, and the log's last id is {3}",
        f"select number, part, cursor.counted_id, last_id from cursor, {END} where cursor.counted_id > last_id",
    ),
    Promise(
        "part {1} of cursor {0} has a range from {2} to {3}, and the log's last id is {4}",
        f"select number, part, first, last, last_id from cursor_range, {END} where first > last or last > last_id",
    ),
    Promise(
        "part {1} of cursor {0} has a range from {2}, and the one before it goes to {3}",
        "select number, part, first, before from (select number, part, first, lag(last) over "
        "(partition by number, part order by first) as before from cursor_range) where first <= before",
    ),
    Promise(
        "part {1} of cursor {0} has a range from {2}, below its floor {3}",
        "select number, part, first, floor from cursor_range join cursor using (number, part) "
        "where first <= floor and number not in (select cursor from garbage)",
    ),
    Promise(
        "{2} ranges are of part {1} of cursor {0}, which does not exist",
        "select number, part, count(*) from cursor_range where (number, part) not in "
        "(select number, part from cursor) group by number, part",
    ),
    Promise(
        "cursor {} is neither an endpoint's nor a replay's, nor is it worked off",
        f"select distinct number from cursor where number not in ({USED})",
    ),
    Promise(
        "cursor {} is worked off, and is endpoint {}'s ({})",
        "select cursor, number, name from endpoint where cursor in (select cursor from garbage)",
    ),
    Promise(
        "cursor {} refers to message {}, which does not exist",
        "select cursor, message from reference where message not in (select id from message)",
    ),
    Promise(
        "{} references are of cursor {}, which does not exist",
        "select count(*), cursor from reference where cursor not in (select number from cursor) group by cursor",
    ),
    Promise(
        "cursor {} counts failed deliveries of message {}, which does not exist",
        "select attempt.cursor, message from attempt join endpoint on endpoint.cursor = attempt.cursor "
        "where message not in (select id from message)",
    ),
    Promise(
        "{} attempts are of cursor {}, which does not exist",
        "select count(*), cursor from attempt where cursor not in (select number from cursor) group by cursor",
    ),
    Promise(
        "message {} was delivered {} times by cursor {}",
        "select message, count, cursor from attempt where count < 0",
    ),
    # --- endpoints
    Promise(
        "number {} is in use, and the next one to be given out is {}",
        "select used.number, next_number from (select number from endpoint union select number from cursor) as used, "
        "log where used.number >= next_number",
    ),
    Promise(
        "number {} is subscribed to {}, and is no endpoint",
        "select endpoint, pattern from subscription where endpoint not in (select number from endpoint)",
    ),
    # --- the log
    Promise(
        "the log has {} bytes on record up to {}, and holds {}",
        "select size_bytes, last_id, there from log, (select coalesce("
        f"{schema.SIZE_ON_DISK}, 0) as there from message, log where held is null and id <= last_id) "
        "where size_bytes <> there",
    ),
    Promise(
        "the largest content has {} bytes, above the largest on record of {}",
        "select largest, largest_bytes from log, "
        "(select max(length(content)) as largest from message, log where id <= last_id) "
        "where largest > largest_bytes",
    ),
    Promise(
        "the log begins at {}, behind its end: its last id is {}",
        "select first_id, last_id from log where first_id > last_id + 1",
    ),
    Promise(
        "every cursor counts up to {}, behind the log's end: its last id is {}",
        "select counted_id, last_id from log where counted_id > last_id",
    ),
    Promise(
        "the log is archived up to {}, behind its end: its last id is {}",
        "select archived_id, last_id from log where archived_id > last_id",
    ),
    Promise(
        "point {} stands at {}, behind the log's last id {}: messages could slip in before it",
        "select name, position, last_id from point, log where position > last_id + 1",
    ),
    # --- the index
    Promise(
        "{} rows of the index are of number {}, which indexes no property",
        "select count(*), number from property_value where number not in (select number from indexed) group by number",
    ),
    Promise(
        "message {} is filed in segment {} of the index instead of {}",
        f"select message, segment, message >> {SEGMENT_BITS} from property_value "
        f"where segment <> message >> {SEGMENT_BITS}",
    ),
)


def check(path: Path) -> list[str]:
    """
    What is wrong with a file, a sentence each; nothing when all is well. Reads all of it: some seconds a gigabyte.
    """
    if not path.is_file():
        return [f"there is no file {path}"]
    try:
        with closing(connect_reader(path)) as connection:
            connection.create_scalar_function("header_priority", header_priority, 2, deterministic=True)
            connection.create_scalar_function("by_priority", by_priority, 1, deterministic=True)
            connection.create_scalar_function("is_as_written", _is_as_written, 8, deterministic=True)
            connection.execute("begin")
            return _check(connection)
    except apsw.Error as error:
        return [f"it cannot be read: {error}"]


def _check(connection: apsw.Connection) -> list[str]:
    found = [
        f"SQLite: {finding}"
        for (finding,) in connection.execute(f"pragma integrity_check({MOST_EXAMPLES})")
        if finding != "ok"
    ]
    if found:
        return found
    applied = applied_migrations(connection)
    if schema.NEVER_RELEASED.intersection(applied):
        return ["it was written by a version that was never released"]
    unknown = schema.unknown_migrations(applied)
    if unknown:
        return [f"it knows {', '.join(unknown)}: it was written by a later version"]
    missing = [name for name in schema.KNOWN if name not in applied]
    if missing:
        return [
            f"it lacks {', '.join(missing)}: it is no file of a gateway, or a gateway has to open it once"
        ]
    damaged = [
        message_id
        for (message_id,) in connection.execute(
            f"select id from message where not is_as_written({CHECKED}) order by id"
        )
    ]
    found = [f"message {message_id} {NOT_AS_WRITTEN}" for message_id in damaged[:MOST_EXAMPLES]]
    found += _more(len(damaged))
    for broken, query in PROMISES:
        try:
            rows = connection.execute(query).fetchall()
        except Exception:
            if damaged:  # What reads into messages fails on what is none any more.
                continue
            raise
        found += [broken.format(*row) for row in rows[:MOST_EXAMPLES]]
        found += _more(len(rows))
    return found


def _more(count: int) -> list[str]:
    return [f"… and {count - MOST_EXAMPLES} more like that"] if count > MOST_EXAMPLES else []


def _is_as_written(*checked: Any) -> bool:
    """SQL's ``is_as_written`` of what a row has, its topic as bytes."""
    return sound_row(checked) is not None
