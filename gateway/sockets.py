"""
Listening sockets: accepting connections, the log line about refused ones, and the file descriptors that they need.

Connections are accepted one by one, and not by asyncio's servers, so that each is counted before anything else is done
for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import structlog

from gateway.logging import log_keys
from gateway.logging.lines import PeerLines

PAUSE_SECONDS: Final = 0.5
"""How long no connection is accepted after the system had no descriptor left: the next try would fail, too."""

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a system that has no resources left for one more connection."""

log = structlog.get_logger()


async def accepted_from(listening: socket.socket) -> AsyncIterator[tuple[socket.socket, str, int]]:
    """
    Yield each accepted connection's socket, and its peer's address and port, until cancelled.

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
            continue  # the peer was gone before it was accepted
        yield accepted, str(name[0]), int(name[1])


def tell_refused(lines: PeerLines, address: str, port: int, limit: str) -> None:
    """
    Log that a connection was closed as soon as it was accepted.

    Args:
        lines: Limits how many lines an address may cause.
        limit: The name of the bound that was reached.
    """
    held_back = lines.admit(address, "connection_refused")
    if held_back is not None:
        values: dict[str, Any] = {log_keys.PEER: f"{address}:{port}", log_keys.LIMIT: limit}
        if held_back:
            values[log_keys.HELD_BACK] = held_back
        log.warning("connection_refused", **values)


RESERVED: Final = 256
"""Descriptors for everything except client connections: listeners, administrators, and the files of Message VPNs."""


class TooFewDescriptors(Exception):
    """The system gives the process fewer descriptors than its settings need; the message says what to do."""


def provide_descriptors(max_connections: int) -> None:
    """
    Raise the process's own limit on file descriptors, if it is too low for this number of connections.

    Raises:
        TooFewDescriptors: The system does not let the process raise its limit that far.
    """
    needed = max_connections + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewDescriptors(
            f"limits.max_connections = {max_connections} needs {needed} file descriptors, and the system gives this"
            f" process {hard} at most: raise that (systemd: LimitNOFILE={needed}; a shell: ulimit -Hn {needed}), or"
            f" lower limits.max_connections to {max(hard - RESERVED, 1)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
