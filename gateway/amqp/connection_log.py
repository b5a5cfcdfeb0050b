"""
The log lines of one connection: each names the connection, and what is known about its peer.

Lines that a peer can cause again and again are limited in rate, each kind by itself, for one connection and for all
connections of an address. Lines that are held back are counted: the next line of the kind says how many there were, and
the connection's last line says how many no line has reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from gateway.core.errors import Refused
from gateway.logging import log_keys
from gateway.logging.lines import COUNTS, LineRate, cut

log = structlog.get_logger()


def address_of_peer(socket: asyncio.BaseTransport | None) -> str:
    """The address of a socket's peer, HOST:PORT; empty where that is not known."""
    found = socket.get_extra_info("peername") if socket is not None else None
    return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else str(found or "")


class ConnectionLog:
    """
    The log of one connection.

    Args:
        number: The connection's.
        admits: Asks whether the peer's address may have one more line of a kind, of which so many were left out before;
            returns what ``LineRate.admit`` does.
    """

    def __init__(
        self, number: int, admits: Callable[[str, int], int | None] = lambda kind, held_back: held_back
    ) -> None:
        self._admitted_by_address = admits
        self._log = log.bind(**{log_keys.CONNECTION: number})
        self._rate = LineRate(time.monotonic)

    def bind(self, **values: Any) -> None:
        """Add these values to every line from now on."""
        self._log = self._log.bind(**{key: cut(value) for key, value in values.items()})

    def info(self, event: str, **values: Any) -> None:
        """One line about something that happened."""
        if self._admits(event, values):
            self._log.info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        """One line about something that should not have been asked for, or should not have come."""
        if self._admits(event, values):
            self._log.warning(event, **values)

    def refused(self, refused: Refused) -> None:
        """The connection is refused, or closed with an error."""
        keys = {log_keys.CONDITION: refused.code.condition, log_keys.REASON: refused.text}
        self.warning("connection_refused", **keys)

    def exception(self, event: str) -> None:
        """One line about an internal error, with its traceback."""
        values: dict[str, Any] = {}
        if self._admits(event, values):
            self._log.exception(event, **values)

    def last(self, event: str, **values: Any) -> None:
        """The last line about this connection."""
        held_back = self._admitted_by_address(event, self._rate.held_back)
        if held_back is None:
            return
        if held_back:
            values[log_keys.HELD_BACK] = held_back
        self._log.info(event, **values)

    def _admits(self, event: str, values: dict[str, Any]) -> bool:
        held_back = self._rate.admit(event)
        if held_back is None:
            COUNTS.held_back += 1
            return False
        held_back = self._admitted_by_address(event, held_back)
        if held_back is None:
            return False
        if held_back:
            values[log_keys.HELD_BACK] = held_back
        return True
