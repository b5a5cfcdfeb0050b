"""A data folder with a large spool and a larger log, written straight into the file: faster than publishing.

The gateway makes the file and the queue; rows are then added as its writer would have added them, depth and
ids included.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .load import send
from .server_process import gateway

QUEUE = "spooled"
SQLITE_MAGIC = b"SQLite format 3\0"

_MESSAGES = """
insert into message (id, time, topic, bare, held, content)
with recursive ids (id) as (select :first union all select id + 1 from ids where id < :last)
select ids.id, sample.time, sample.topic, sample.bare, null, sample.content
from ids, (select time, topic, bare, content from message where id = :sample) as sample
"""

_REFERENCES = """
insert into reference (endpoint, message)
select (select number from endpoint where name like '%spooled'), id from message where id > :after
"""

_DEPTH = """
update endpoint set depth = depth + :added, size_bytes = size_bytes * (depth + :added) / depth
where name like '%spooled'
"""

_LOG = "update log set last_id = :last, size_bytes = size_bytes * :last / :sample"


def fill(data: Path, spooled: int, logged: int) -> None:
    """Make ``data`` hold ``logged`` messages in the log, the newest ``spooled`` on the queue ``spooled`` as well."""
    with gateway(data) as server:
        send(server.address, f"queue://{QUEUE}", 1)
    connection = sqlite3.connect(message_file(data))
    connection.execute("pragma synchronous = off")
    sample = connection.execute("select max(id) from message").fetchone()[0]
    values = {"sample": sample, "first": sample + 1, "last": logged, "after": max(logged - spooled, sample)}
    with connection:
        connection.execute(_MESSAGES, values)
        added = connection.execute(_REFERENCES, values).rowcount
        connection.execute(_DEPTH, {"added": added})
        connection.execute(_LOG, values)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


def message_file(data: Path) -> Path:
    """The SQLite file in a data folder."""
    for path in sorted(data.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
                    return path
    raise FileNotFoundError(f"no file with messages in {data}")
