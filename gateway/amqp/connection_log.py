"""
Lines of the log about one connection: each says which one, and what is known of its peer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from gateway import log_keys

log = structlog.get_logger()


def address_of_peer(socket: asyncio.BaseTransport | None) -> str:
    """Where the peer of a socket is, HOST:PORT; empty where that is not known."""
    found = socket.get_extra_info("peername") if socket is not None else None
    return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else str(found or "")


class ConnectionLog:
    """
    The log of one connection.

    Args:
        number: The connection's.
    """

    def __init__(self, number: int) -> None:
        self._log = log.bind(**{log_keys.CONNECTION: number})

    def bind(self, **values: Any) -> None:
        """Have every line from now on say this, too."""
        self._log = self._log.bind(**values)

    def info(self, event: str, **values: Any) -> None:
        """One line about something that happened once."""
        self._log.info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        """One line about something that should not have been asked for, or should not have come."""
        self._log.warning(event, **values)

    def exception(self, event: str) -> None:
        """One line about a mistake of ours, with where it was made."""
        self._log.exception(event)
