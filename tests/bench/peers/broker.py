"""What the comparison asks of a broker, and the process of a foreign one until the end of a ``with`` block."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.bench.generator.connection import Connection, Refused
from tests.bench.processes import Process, ServerFailed
from tests.support import proc

WARM = ("warm1", "warm2")
"""Queues to warm up with, for compilers at run time need that. Each is consumed once: that a broker has seen what was
accepted is not told, so that it may send the end of it again to who comes next."""

QUEUES = (*WARM, "bench", "single")
"""All of them: for rates, and for one message outstanding."""


class PeerFailed(ServerFailed):
    """A broker could not be had, or did not become ready; the text ends with what it said last."""


@dataclass(frozen=True, slots=True)
class Running:
    """
    A broker that runs.

    Attributes:
        address: HOST:PORT of its AMQP 1.0 listener.
        pids: All its processes that there are now.
    """

    address: str
    pids: Callable[[], list[int]]


@dataclass(frozen=True, slots=True)
class Replay:
    """How what was published and consumed is read again."""

    address: str
    filters: Mapping[str, str]
    """Of the source."""


class Broker:
    """One column of the table."""

    name: str
    """By which it is chosen."""
    title: str
    """Name and version; known once it is at hand."""
    storage: str
    """How messages are kept, and whether they are synced to the disk before they are accepted."""
    is_consumed = True
    """Whether a message is gone when a consumer has accepted it."""
    replay: Replay | None = None
    """How ``bench`` is read from its first message on; None where that cannot be."""

    def queue(self, name: str) -> str:
        """The address of one of ``QUEUES``."""
        return name

    def fetch(self, folder: Path) -> None:
        """
        Have it at hand, in ``folder`` if it has to be brought.

        Raises:
            PeerFailed: It is not installed, or cannot be brought.
        """
        raise NotImplementedError

    def started(self, folder: Path) -> AbstractContextManager[Running]:
        """
        A new instance that keeps its files in ``folder``, ready, with its queues; ended with the block.

        Raises:
            PeerFailed: It does not become ready.
        """
        raise NotImplementedError


READY_SECONDS = 180
POLL_SECONDS = 0.2


class BrokerProcess(Process):
    """Ready for clients once ``wait`` returns; counted with all processes that it has started."""

    def __init__(self, command: Sequence[str | Path], port: int, environment: Mapping[str, str] = {}) -> None:
        super().__init__(command, environment=environment, keeps_stdout=True)
        self._port = port
        self.address = f"127.0.0.1:{port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = self.pids()
        super().__exit__(kind, error, trace)
        for pid in processes:
            _end(pid)

    def wait(self, address: str | None = None) -> None:
        """
        Until AMQP clients are let in, and a publisher can attach to this address.

        Raises:
            PeerFailed: That takes too long, or the broker ends.
        """

        def attach() -> None:
            connection = Connection.to(self.address, "bench")
            with closing(connection.sock):
                if address is not None:
                    connection.attach(sender=True, address=address)
                connection.end_all()

        self._until(attach)

    def wait_for_port(self) -> None:
        """
        Until it listens, whatever it speaks.

        Raises:
            PeerFailed: That takes too long, or it ends.
        """
        self._until(lambda: socket.create_connection(("127.0.0.1", self._port)).close())

    def _until(self, tried: Callable[[], None]) -> None:
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                tried()
            except (Refused, OSError) as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise PeerFailed(f"{self.command} is not ready: {error}\n{self.said()}") from None
                time.sleep(POLL_SECONDS)
            else:
                return

    def pids(self) -> list[int]:
        """Its processes that there are, the one that was started first."""
        return proc.family(self.pid)


def _end(pid: int) -> None:
    """Have a process that its parent left behind end, and wait until it has."""
    try:
        while True:
            os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS / 10)
    except ProcessLookupError:
        return
