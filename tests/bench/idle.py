"""Many connections that are open and say nothing."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .connection import Connection

SPARE_FILES = 200


def allow_files(count: int) -> None:
    """Let this process, and so the servers it starts, have ``count`` sockets; OSError where it must not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(f"{count} sockets need {wanted} open files; this machine allows {hard} (ulimit -Hn)")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def open_connections(server: str, count: int) -> Iterator[None]:
    """Hold ``count`` connections, each open and with a session begun, while the block runs."""
    host, _, port = server.rpartition(":")
    with ExitStack() as sockets:
        for index in range(count):
            connection = Connection.connect(host, int(port), f"idle-{index}")
            sockets.enter_context(connection.sock)
            connection.release_buffer()
        yield
