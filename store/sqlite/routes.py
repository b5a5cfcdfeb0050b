"""
Routes in the file: written with the first message that names them, dropped when none does any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import apsw

from gateway.core.model import RouteDefinition
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


class Routes:
    """
    Which routes the writer knows to be in the file, and a slow look at all of them for those to be dropped.

    A round of looks begins when something was committed since the last one began.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.known = set(numbers)
        """Publishing looks here: what is not in it is written, if it is not there."""
        self._after = 0
        """Numbers up to this one were looked at in this round; 0 between rounds."""
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """There is something to be looked at."""
        return self._is_changed or self._after > 0

    def committed(self, numbers: Iterable[int]) -> None:
        """A transaction was committed that wrote these routes."""
        self.known.update(numbers)
        self._is_changed = True

    def sweep(self, connection: apsw.Connection) -> None:
        """Look at some routes, and drop those that no message names. Nobody else writes meanwhile."""
        if not self._after:
            self._is_changed = False
        rows: list[Any] = connection.execute(UNNAMED, (self._after, SWEEP_ROUTES)).fetchall()
        self._after = rows[-1][0] if len(rows) == SWEEP_ROUTES else 0
        unnamed = [number for number, is_unnamed in rows if is_unnamed]
        if unnamed:
            # Forgotten first: whoever publishes on one again writes it again.
            self.known.difference_update(unnamed)
            connection.execute(f"delete from route where number in ({marks(len(unnamed))})", unnamed)
