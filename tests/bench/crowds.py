"""
Clients in large numbers: open connections without traffic, waiting log readers, durable subscriptions whose client is
gone, consumers of one queue.
"""

from __future__ import annotations

import resource
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from amqp_ext.codec import Symbol
from tests.bench.filled import BODY_BYTES
from tests.bench.generator.connection import Connection
from tests.bench.generator.links import Receiver
from tests.bench.processes import LoadFailed
from tests.support.frames import flow_frame

SPARE_FILES = 200
LINKS = 100
"""Log readers on one connection."""
CREDIT = 10


def allow_files(count: int) -> None:
    """Allow this process, and the servers that it starts, ``count`` sockets; OSError if the system refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(f"{count} sockets need {wanted} open files; this machine allows {hard} (ulimit -Hn)")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def open_connections(server: str, count: int) -> Iterator[None]:
    """Hold ``count`` connections, each open and with a session begun, during the block."""
    with ExitStack() as sockets:
        for index in range(count):
            connection = Connection.to(server, f"idle-{index}")
            sockets.enter_context(connection.sock)
            connection.release_buffer()
        yield


@contextmanager
def waiting_readers(server: str, count: int) -> Iterator[None]:
    """Hold ``count`` log readers with credit for a topic that nobody publishes to, during the block."""
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
    """Make ``count`` durable subscriptions to ``address``, and leave them like a client that will reconnect."""
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


def consume(server: str, address: str, consumers: int, count: int, groups: int = 0) -> float:
    """
    Messages a second that several consumers of one queue take and accept together, each with 500 credit.

    Args:
        groups: Message n is in group n modulo this number; 0: in no group.

    Raises:
        LoadFailed: A message was lost or came twice, or a group's messages came out of order.
    """
    allow_files(consumers)
    came: list[int] = []
    with ExitStack() as sockets:
        crew: dict[int, Receiver] = {}
        for index in range(consumers):
            connection = Connection.to(server, f"consumer-{index}")
            sockets.enter_context(connection.sock)
            connection.attach(sender=False, address=address)
            crew[connection.sock.fileno()] = Receiver(connection, BODY_BYTES)
        started, taken = time.perf_counter(), 0
        for receiver in crew.values():
            receiver.grant(500)
        while taken < count:
            for descriptor in select.select(list(crew), [], [], 30)[0]:
                numbers = crew[descriptor].read()
                crew[descriptor].accept(len(numbers), 500)
                came += numbers
                taken += len(numbers)
        rate = taken / (time.perf_counter() - started)
    if sorted(came) != list(range(count)):
        raise LoadFailed(f"not every message of {address} came once")
    newest: dict[int, int] = {}
    for number in came if groups else ():
        if (before := newest.get(number % groups, -1)) > number:
            raise LoadFailed(f"{number} of {address} came behind {before} of its group")
        newest[number % groups] = number
    return rate
