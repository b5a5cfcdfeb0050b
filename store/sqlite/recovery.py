"""
What a gateway needs to know of a file to go on: read at start, from a few short rows, however large the file is.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core.effects import SaveEndpoint
from gateway.core.log.point import Point
from gateway.core.model import LogState
from gateway.core.recovered import StoredEndpoint
from gateway.core.replay.states import Replay
from store.ports import Recovered
from store.sqlite.database import connect_reader
from store.sqlite.packed import OPTIONAL_INTEGER, RISING, fetch
from store.sqlite.property_index import IndexedSpan, indexed_spans


@dataclass(frozen=True, slots=True)
class RecoveredFile(Recovered):
    """The same with what the file's own reader and writer go on with."""

    garbage: list[int] = field(default_factory=list)
    """Numbers whose references are still to be collected."""
    largest_bytes: int = 0
    """The largest content ever stored, which bounds what a page of rows can weigh."""
    indexed: list[IndexedSpan] = field(default_factory=list)


def recover(path: Path) -> RecoveredFile:
    """
    Read the state a crash or a stop left behind. Nothing is repaired: every transaction leaves a whole state.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    connection = connect_reader(path)
    try:
        return _read(connection)
    finally:
        connection.close()


def _read(connection: sqlite3.Connection) -> RecoveredFile:
    generation, first, last, time, floor, size, largest, next_number, archived = connection.execute(
        "select generation, first_id, last_id, last_time, floor_time, size_bytes, largest_bytes, next_number, "
        "archived_id from log"
    ).fetchone()
    endpoints = {
        number: StoredEndpoint(
            SaveEndpoint(number, name, kind, settings, replay), depth, size_bytes, newest_id
        )
        for number, name, kind, settings, replay, depth, size_bytes, newest_id in connection.execute(
            """
            select number, name, kind, settings, replay, depth, size_bytes,
                coalesce((select max(message) from reference where reference.endpoint = endpoint.number), 0)
            from endpoint order by number
            """
        )
    }
    for found in endpoints.values():
        _find_replayed(connection, found)
    for endpoint, pattern in connection.execute("select endpoint, pattern from subscription"):
        endpoints[endpoint].subscriptions.append(pattern)
    garbage = [number for (number,) in connection.execute("select number from garbage")]
    log = LogState(
        generation=generation,
        first_id=first,
        next_id=last + 1,
        last_time_ms=time,
        floor_ms=floor,
        size_bytes=size,
        archived_id=archived,
    )
    points = [Point(*row) for row in connection.execute("select name, position, time, made from point")]
    return RecoveredFile(
        log, list(endpoints.values()), next_number, points, garbage, largest, indexed_spans(connection)
    )


def _find_replayed(connection: sqlite3.Connection, found: StoredEndpoint) -> None:
    """Tell the references that a replay put on the endpoint from those that it has yet to reach."""
    replay = Replay.from_json(found.definition.replay) if found.definition.replay else None
    if replay is None or replay.boundary is None:
        return
    below = (found.definition.number, replay.boundary)
    found.replayed, newest = connection.execute(
        "select count(*), coalesce(max(message), 0) from reference where endpoint = ? and message < ?", below
    ).fetchone()
    if replay.is_reading:
        found.newest_id = newest
        awaiting = fetch(
            connection,
            {"message": RISING, "priority": OPTIONAL_INTEGER},
            "from reference where endpoint = ? and message >= ? order by message",
            below,
        )
        found.awaiting = [message for message, _ in awaiting]
        found.awaiting_priorities = [priority for _, priority in awaiting if priority is not None]
