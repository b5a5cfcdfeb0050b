"""
Queues that deliver by priority, as the configuration says: their references have the priority beside them.

Invariant: an endpoint whose settings say ``priorities`` has one on each of its references, what the message's header
says; all other references have none. So a queue that changes is brought in line before anybody reads the file: in one
transaction, its settings with its references.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Final

from amqp_ext.message.priority import DEFAULT, priority_of
from gateway.core.endpoint.settings import EndpointSettings

RANK: Final = """
    update reference set priority =
        (select header_priority(substr(content, 1, bare), bare) from message where message.id = reference.message)
    where endpoint = ?
"""
UNRANK: Final = "update reference set priority = null where endpoint = ?"


def apply_priorities(connection: sqlite3.Connection, queues: Mapping[str, bool]) -> None:
    """
    Bring stored endpoints to what is declared, inside the caller's transaction. One that changes takes some seconds for
    each million messages on it.

    Args:
        queues: Whether each one delivers by priority; the others stay as they are.
    """
    define_functions(connection)
    for number, name, text in connection.execute("select number, name, settings from endpoint").fetchall():
        if name not in queues:
            continue
        settings = EndpointSettings.from_json(text)
        if settings.priorities == queues[name]:
            continue
        settings.priorities = queues[name]
        connection.execute(RANK if settings.priorities else UNRANK, (number,))
        connection.execute("update endpoint set settings = ? where number = ?", (settings.to_json(), number))


def define_functions(connection: sqlite3.Connection) -> None:
    """What SQL here asks of messages and settings."""
    connection.create_function("header_priority", 2, _header_priority, deterministic=True)
    connection.create_function("by_priority", 1, _by_priority, deterministic=True)


def _header_priority(content: bytes, bare: int) -> int:
    return priority_of(content) if bare else DEFAULT


def _by_priority(settings: str) -> bool:
    return bool(json.loads(settings).get("priorities"))
