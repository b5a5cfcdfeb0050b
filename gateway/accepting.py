"""
Connections as they come in on a listening socket, and the line that says which were refused.

One by one, rather than as asyncio's servers take them: each is counted before anything else is done for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import structlog

from gateway import log_keys
from gateway.peer_lines import PeerLines

PAUSE_SECONDS: Final = 0.5
"""How long nobody is accepted when the system has no descriptor left: the next try would fail as well."""

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What the system says when it has nothing left for one more."""

log = structlog.get_logger()


async def accepted_from(listening: socket.socket) -> AsyncIterator[tuple[socket.socket, str, int]]:
    """
    Each connection's socket, and its peer's address and port; until cancelled.

    Args:
        listening: Bound, listening, and not blocking.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, name = await loop.sock_accept(listening)
        except OSError as error:
            if error.errno in EXHAUSTED:
                log.error("accept_failed", **{log_keys.REASON: os.strerror(error.errno)})
                await asyncio.sleep(PAUSE_SECONDS)
            continue  # the peer was gone before it was taken
        yield accepted, str(name[0]), int(name[1])


def tell_refused(lines: PeerLines, address: str, port: int, limit: str) -> None:
    """
    A connection was closed as soon as it was accepted.

    Args:
        lines: How many lines its address may cause.
        limit: The name of the bound that was reached.
    """
    held_back = lines.admit(address, "connection_refused")
    if held_back is not None:
        values: dict[str, Any] = {log_keys.PEER: f"{address}:{port}", log_keys.LIMIT: limit}
        if held_back:
            values[log_keys.HELD_BACK] = held_back
        log.warning("connection_refused", **values)
