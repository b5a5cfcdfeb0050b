"""
Clients in large numbers: connections that are open and say nothing, log readers that wait, durable subscriptions that a
client leaves behind.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from amqp_ext.codec import Symbol
from tests.bench.generator.connection import Connection
from tests.support.frames import flow_frame

SPARE_FILES = 200
LINKS = 100
"""Log readers on one connection."""
CREDIT = 10


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
    with ExitStack() as sockets:
        for index in range(count):
            connection = Connection.to(server, f"idle-{index}")
            sockets.enter_context(connection.sock)
            connection.release_buffer()
        yield


@contextmanager
def waiting_readers(server: str, count: int) -> Iterator[None]:
    """Hold ``count`` log readers with credit, all for a topic that nobody publishes to, while the block runs."""
    with ExitStack() as sockets:
        for start in range(0, count, LINKS):
            connection = Connection.to(server, f"readers-{start}")
            sockets.enter_context(connection.sock)
            for handle in range(min(LINKS, count - start)):
                connection.attach(
                    sender=False, address="log://silent", handle=handle, name=f"reader-{handle}"
                )
                connection.sock.sendall(flow_frame(handle, 0, CREDIT))
        yield


def subscribe(server: str, address: str, count: int, prefix: str = "durable") -> None:
    """Make ``count`` durable subscriptions to ``address``, as a client does that comes back for them later."""
    connection = Connection.to(server, "subscriber")
    for handle in range(count):
        connection.attach(
            sender=False,
            address=address,
            handle=handle,
            name=f"{prefix}{handle}",
            expiry=Symbol("never"),
        )
    connection.end_all()
