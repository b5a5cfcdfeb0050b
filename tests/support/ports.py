"""Ports for servers that come and go, and are found at the same place again."""

from __future__ import annotations

import random
import socket
import sys
from typing import Final

TAKEN_BY_ANYBODY: Final = 32_768
"""From here on the kernel takes one for each connection, and for whoever asks for any: what is free while a server is
away is somebody else's a moment later. Source: Linux, ``ip_local_port_range``."""

FIRST: Final = 20_000

_CLAIMS: Final[list[socket.socket]] = []
"""What shows other processes' tests that a port is ours, also while no server listens there. The kernel frees it with
the process."""


def free_port() -> int:
    """One that nobody listens on just now, and nobody will be given by chance while this process lives."""
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
    Source: Linux, unix(7), "Abstract sockets".

    Raises:
        OSError: Another process has it.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0rewind-test-port-{port}")
    except OSError:
        claim.close()
        raise
    _CLAIMS.append(claim)
