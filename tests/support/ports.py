"""Ports for servers that come and go, and are found at the same place again."""

from __future__ import annotations

import random
import socket
from typing import Final

TAKEN_BY_ANYBODY: Final = 32_768
"""From here on the kernel takes one for each connection, and for whoever asks for any: what is free while a server is
away is somebody else's a moment later. Source: Linux, ``ip_local_port_range``."""

FIRST: Final = 20_000


def free_port() -> int:
    """One that nobody listens on just now, and nobody will be given by chance."""
    while True:
        port = random.randrange(FIRST, TAKEN_BY_ANYBODY)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
