"""The interface of a broker in the comparison, and the process of a foreign broker during a ``with`` block."""

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
"""Queues for the warm-up, which just-in-time compilers need. Each is consumed once: a broker may not have seen the last
acceptances, and would deliver those messages again to the next consumer."""

QUEUES = (*WARM, "bench", "single")
"""All queues: for the warm-up, for rates, and for one message outstanding."""


class PeerFailed(ServerFailed):
    """A broker is not available, or did not become ready; the text ends with its last output."""


@dataclass(frozen=True, slots=True)
class Running:
    """
    A running broker.

    Attributes:
        address: HOST:PORT of its AMQP 1.0 listener.
        pids: The ids of its present processes.
    """

    address: str
    pids: Callable[[], list[int]]


@dataclass(frozen=True, slots=True)
class Replay:
    """How messages that were consumed can be read again."""

    address: str
    filters: Mapping[str, str]
    """Filters of the source."""


class Broker:
    """One column of the table."""

    name: str
    """The name by which it is chosen on the command line."""
    title: str
    """Name and version; known after ``fetch``."""
    storage: str
    """How messages are kept, and whether they are synced to the disk before they are accepted."""
    is_consumed = True
    """Whether an accepted message is gone."""
    replay: Replay | None = None
    """How ``bench`` is read from its first message on; None if the broker cannot replay."""

    def queue(self, name: str) -> str:
        """The address of one of ``QUEUES``."""
        return name

    def fetch(self, folder: Path) -> None:
        """
        Make it available, in ``folder`` if it has to be downloaded.

        Raises:
            PeerFailed: It is not installed, or cannot be downloaded.
        """
        raise NotImplementedError

    def started(self, folder: Path) -> AbstractContextManager[Running]:
        """
        A new instance with its files in ``folder``, ready and with its queues, until the end of the block.

        Raises:
            PeerFailed: It does not become ready.
        """
        raise NotImplementedError


READY_SECONDS = 180
POLL_SECONDS = 0.2


class BrokerProcess(Process):
    """A broker's process, ready for clients when ``wait`` returns; its descendants count with it."""

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
        Wait until AMQP clients can connect, and a publisher can attach to this address.

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
        Wait until it listens, whatever protocol it speaks.

        Raises:
            PeerFailed: That takes too long, or the broker ends.
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
        """The ids of its processes; the one that was started comes first."""
        return proc.family(self.pid)


def _end(pid: int) -> None:
    """End a process that its parent has left behind, and wait for its end."""
    try:
        while True:
            os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS / 10)
    except ProcessLookupError:
        return
