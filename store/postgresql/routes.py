"""
Routes in the database: written with the first message that names them, dropped when none does any more.
"""

from __future__ import annotations

from typing import Final

from store.postgresql.statements import Connection, Statement
from store.route_sweep import RouteSweep

SWEEP_ROUTES: Final = 16
"""Routes that one sweep looks at: an index lookup in each partition, for one that is named nowhere."""

UNNAMED: Final = b"""
    select number, not exists (select 1 from held_message where route = number and route <> 0)
        and not exists (select 1 from message where message.route = number and message.route <> 0
            and message.id >= (select first_id from log))
    from (select number from route where number > %s order by number limit %s) as looked_at order by number
"""


class Routes(RouteSweep):
    """The routes that are stored."""

    def look(self, connection: Connection) -> list[int]:
        """Look at some routes: those that no message names, to be deleted. Nobody writes meanwhile."""
        found = connection.execute(UNNAMED, (self.begin_look(), SWEEP_ROUTES)).fetchall()
        return self.looked_at(found, SWEEP_ROUTES)


def drop_routes(numbers: list[int]) -> Statement:
    """Delete routes."""
    return Statement("delete from route where number = any(%s::bigint[])", (numbers,))
