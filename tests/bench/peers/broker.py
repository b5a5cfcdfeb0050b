"""What the comparison asks of a broker, and the process of a foreign one until the end of a ``with`` block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from tests.bench.generator.connection import Connection, Refused

WARM = ("warm1", "warm2")
"""Queues to warm up with, for compilers at run time need that. Each is consumed once: that a broker has seen what was
accepted is not told, so that it may send the end of it again to who comes next."""

QUEUES = (*WARM, "bench", "single")
"""All of them: for rates, and for one message outstanding."""


class PeerFailed(Exception):
    """A broker could not be had, or did not become ready; the text ends with what it said last."""


class Running(Protocol):
    """A broker that runs."""

    address: str
    """HOST:PORT of its AMQP 1.0 listener."""

    def resident_bytes(self) -> int:
        """Memory that its processes hold now."""

    def cpu_seconds(self) -> float:
        """Processor time that its processes used so far."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How what was published and consumed is read again."""

    address: str
    options: tuple[str, ...]
    """Of the load generator."""


class Broker(Protocol):
    """One column of the table."""

    name: str
    """By which it is chosen."""

    @property
    def title(self) -> str:
        """Name and version; known once it is at hand."""

    @property
    def storage(self) -> str:
        """How messages are kept, and whether they are synced to the disk before they are accepted."""

    @property
    def is_consumed(self) -> bool:
        """Whether a message is gone when a consumer has accepted it."""

    @property
    def replay(self) -> Replay | None:
        """How ``bench`` is read from its first message on; None where that cannot be."""

    def queue(self, name: str) -> str:
        """The address of one of ``QUEUES``."""

    def fetch(self, folder: Path) -> None:
        """
        Have it at hand, in ``folder`` if it has to be brought.

        Raises:
            PeerFailed: It is not installed, or cannot be brought.
        """

    def started(self, folder: Path) -> AbstractContextManager[Running]:
        """
        A new instance that keeps its files in ``folder``, ready, with its queues; ended with the block.

        Raises:
            PeerFailed: It does not become ready.
        """


READY_SECONDS = 180
STOP_SECONDS = 60
POLL_SECONDS = 0.2
SAID = 2_000
"""Characters of what a broker said last."""


class BrokerProcess:
    """Ready for clients once ``wait`` returns."""

    def __init__(self, command: Sequence[str | Path], port: int, environment: Mapping[str, str] = {}) -> None:
        self._program = str(command[0])
        self.address = f"127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = self.pids()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in processes:
            _end(pid)
        self._log.close()

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
        host, _, port = self.address.rpartition(":")
        self._until(lambda: socket.create_connection((host, int(port))).close())

    def _until(self, tried: Callable[[], None]) -> None:
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                tried()
            except (Refused, OSError) as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise PeerFailed(f"{self._program} is not ready: {error}\n{self.said()}") from None
                time.sleep(POLL_SECONDS)
            else:
                return

    def said(self) -> str:
        """The end of what it printed."""
        self._log.seek(0)
        return self._log.read()[-SAID:]

    def resident_bytes(self) -> int:
        """Memory that its processes hold now (VmRSS); what they share counts more than once."""
        return resident_bytes(self.pids())

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system, over all its processes that there are."""
        return cpu_seconds(self.pids())

    def pids(self) -> list[int]:
        """Its processes that there are, the one that was started first."""
        parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
        tree = [self._process.pid]
        for pid in tree:
            tree += [child for child, parent in parents.items() if parent == pid]
        return tree


def resident_bytes(pids: Sequence[int]) -> int:
    """Memory that these processes hold now (VmRSS); what they share counts more than once."""
    pages = sum(int(_fields(pid, "statm")[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time that these processes used so far, user and system."""
    used = (_fields(pid, "stat") for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in used) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int, name: str) -> list[str]:
    """What proc(5) has of a process, from behind its command's name; zeros when it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 13


def _parent(path: Path) -> int:
    return int(_fields(int(path.name), "stat")[1])


def _end(pid: int) -> None:
    """Have a process that its parent left behind end, and wait until it has."""
    try:
        while True:
            os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS / 10)
    except ProcessLookupError:
        return
