"""
Reads a running gateway's file, with the gateway's own copy of SQLite: a second copy in the same process would release
the first one's locks.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

LYING = """
    select count(*) from message join route on route.number = message.route, json_each(route.endpoints) as member
    join endpoint on endpoint.number = member.value join cursor on cursor.number = endpoint.cursor
    where cursor.part in (-1, route.priority) and message.id > cursor.floor and not exists (
        select 1 from cursor_range as done where done.number = cursor.number and done.part = cursor.part
        and message.id between done.first and done.last
    )
"""


def lying(path: Path) -> int:
    """How many messages are on endpoints by their routes; a message counts once for each endpoint."""
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)) as connection:
        ((count,),) = connection.execute(LYING)
        return int(count)
