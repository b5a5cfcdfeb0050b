"""
Whether a file is what its writer promises: a look at everything, for tests and for an operator in doubt.

Every promise is one query that gives the rows which break it; ``PROMISES`` is the list of them. The file is only read,
and may be in use: all queries see one state of it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import sqlite_utils

from store.sqlite import schema
from store.sqlite.database import connect_reader
from store.sqlite.priorities import define_functions
from store.sqlite.property_index import SEGMENT_BITS

MOST_EXAMPLES: Final = 5
"""Rows named for each broken promise; the rest is counted."""


class Promise(NamedTuple):
    """``broken`` is what to say of a row of ``query``, with its columns in place of ``{}``."""

    broken: str
    query: str


PROMISES: Final = (
    Promise("the log has {} rows instead of one", "select count(*) from log having count(*) <> 1"),
    # --- messages
    Promise(
        "message {} is above the log's last id {}: it could be given out again",
        "select id, last_id from message, log where id > last_id",
    ),
    Promise(
        "message {} arrived at {} ms, before message {} at {} ms: times must never fall along ids",
        "select id, time, earlier_id, earlier from (select id, time, lag(id) over by_id as earlier_id, "
        "lag(time) over by_id as earlier from message window by_id as (order by id)) where time < earlier",
    ),
    Promise(
        "the newest message arrived at {} ms, after the log's last time {} ms",
        "select time, last_time from (select time from message order by id desc limit 1), log where time > last_time",
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
        "message {} counts {} references that hold it, and has {}",
        "with counted (id, count) as (select message, count(*) from reference "
        "where message in (select id from message where held is not null) group by message) "
        "select message.id, held, coalesce(count, 0) from message left join counted using (id) "
        "where held is not null and (held <> coalesce(count, 0) or held < 1)",
    ),
    # --- references
    Promise(
        "endpoint {} refers to message {}, which does not exist",
        "select endpoint, message from reference where not exists (select 1 from message where id = message)",
    ),
    Promise(
        "{} references are of number {}, which is neither an endpoint nor waits for collection",
        "select count(*), endpoint from reference "
        "where endpoint not in (select number from endpoint union select number from garbage) group by endpoint",
    ),
    Promise(
        "message {} on endpoint {} was delivered {} times",
        "select message, endpoint, attempts from reference where attempts < 0",
    ),
    Promise(
        "message {} on endpoint {} ({}) has the priority {} there, and its header says {}",
        "select message.id, endpoint, name, priority, header_priority(content, bare) "
        "from endpoint join reference on number = endpoint join message on message.id = message "
        "where by_priority(settings) and priority is not header_priority(content, bare)",
    ),
    Promise(
        "message {} has a priority, {}, on endpoint {} ({}), which does not deliver by it",
        "select message, priority, endpoint, name from reference join endpoint on number = endpoint "
        "where priority is not null and not by_priority(settings)",
    ),
    # --- endpoints
    Promise(
        "endpoint {} ({}) has a depth of {} with {} bytes on record, and {} messages with {} bytes lie on it",
        "with counted (number, count, size) as (select endpoint, count(*), sum(length(content)) "
        "from reference join message on message.id = reference.message group by endpoint) "
        "select number, name, depth, size_bytes, coalesce(count, 0), coalesce(size, 0) "
        "from endpoint left join counted using (number) "
        "where depth <> coalesce(count, 0) or size_bytes <> coalesce(size, 0)",
    ),
    Promise(
        "number {} is in use, and the next one to be given out is {}",
        "select number, next_number from (select number from endpoint union select number from garbage), log "
        "where number >= next_number",
    ),
    Promise(
        "endpoint {} waits for collection, and is in use",
        "select number from endpoint where number in (select number from garbage)",
    ),
    Promise(
        "number {} is subscribed to {}, and is no endpoint",
        "select endpoint, pattern from subscription where endpoint not in (select number from endpoint)",
    ),
    # --- the log
    Promise(
        "the log has {} bytes on record, and holds {}",
        "select size_bytes, held_bytes from log, "
        "(select coalesce(sum(length(content)), 0) as held_bytes from message where held is null) "
        "where size_bytes <> held_bytes",
    ),
    Promise(
        "the largest content has {} bytes, above the largest on record of {}",
        "select largest, largest_bytes from log, (select max(length(content)) as largest from message) "
        "where largest > largest_bytes",
    ),
    Promise(
        "the log begins at {}, behind its end: its last id is {}",
        "select first_id, last_id from log where first_id > last_id + 1",
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
            define_functions(connection)
            connection.execute("begin")
            return _check(connection)
    except sqlite3.Error as error:
        return [f"it cannot be read: {error}"]


def _check(connection: sqlite3.Connection) -> list[str]:
    found = [
        f"SQLite: {finding}"
        for (finding,) in connection.execute(f"pragma integrity_check({MOST_EXAMPLES})")
        if finding != "ok"
    ]
    if found:
        return found
    db = sqlite_utils.Database(connection)
    unknown = schema.unknown_migrations(db)
    if unknown:
        return [f"it knows {', '.join(unknown)}: it was written by a later version"]
    missing = [migration.name for migration in schema.migrations.pending(db)]
    if missing:
        return [
            f"it lacks {', '.join(missing)}: it is no file of a gateway, or a gateway has to open it once"
        ]
    for broken, query in PROMISES:
        rows = connection.execute(query).fetchall()
        found += [broken.format(*row) for row in rows[:MOST_EXAMPLES]]
        if len(rows) > MOST_EXAMPLES:
            found.append(f"… and {len(rows) - MOST_EXAMPLES} more like that")
    return found
