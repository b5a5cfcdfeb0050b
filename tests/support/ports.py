"""Ports for servers that stop and later listen on the same port again."""

from __future__ import annotations

import random
import socket
import sys
from typing import Final

TAKEN_BY_ANYBODY: Final = 32_768
"""The kernel assigns ports from here on to connections and to anyone who asks for a free port: one that is free while a
server is stopped may be taken a moment later. Source: Linux, ``ip_local_port_range``."""

FIRST: Final = 20_000

_CLAIMS: Final[list[socket.socket]] = []
"""Sockets that show the tests in other processes that a port is claimed, also while no server listens on it. The kernel
frees the claim when the process ends."""


def free_port() -> int:
    """A port on which nobody listens now, and which the kernel will not assign while this process lives."""
    while True:
        port = random.randrange(FIRST, TAKEN_BY_ANYBODY)
        try:
            if sys.platform == "linux":
                _claim(port)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def _claim(port: int) -> None:
    """
    Claim the port for this process. Source: Linux, unix(7), "Abstract sockets".

    Raises:
        OSError: Another process has claimed it.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0rewind-test-port-{port}")
    except OSError:
        claim.close()
        raise
    _CLAIMS.append(claim)
