"""
What a gateway's file has at a moment, while the gateway goes on: by the same copy of SQLite, as another one in the same
process would take its locks away.
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
    """How many messages lie on endpoints by their routes, on each counted once."""
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)) as connection:
        ((count,),) = connection.execute(LYING)
        return int(count)
