"""
Routes in the file: written with the first message that names them, dropped when none does any more.
"""

from __future__ import annotations

import json
from typing import Any, Final

import apsw

from gateway.core.model import RouteDefinition
from store.route_sweep import RouteSweep
from store.sqlite.statements import marks

SWEEP_ROUTES: Final = 64
"""Routes that one sweep looks at: an index lookup each."""

UNNAMED: Final = """
    select number, not exists (
        select 1 from message where message.route = looked_at.number and message.route <> 0)
    from (select number from route where number > ? order by number limit ?) as looked_at order by number
"""


def add_route(connection: apsw.Connection, route: RouteDefinition) -> None:
    """Write a route that may not be there."""
    connection.execute(
        "insert or ignore into route (number, priority, endpoints) values (?, ?, ?)",
        (route.number, route.priority, json.dumps(route.endpoints)),
    )


class Routes(RouteSweep):
    """The routes in the file."""

    def sweep(self, connection: apsw.Connection) -> None:
        """Look at some routes, and drop those that no message names. Nobody else writes meanwhile."""
        rows: list[Any] = connection.execute(UNNAMED, (self.begin_look(), SWEEP_ROUTES)).fetchall()
        unnamed = self.looked_at(rows, SWEEP_ROUTES)
        if unnamed:
            connection.execute(f"delete from route where number in ({marks(len(unnamed))})", unnamed)
