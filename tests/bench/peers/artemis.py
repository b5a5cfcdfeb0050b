"""Apache ActiveMQ Artemis, its journal synced."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

from tests.support.ports import free_port

from .broker import QUEUES, PeerFailed, Replay
from .broker_process import BrokerProcess
from .maven_central import unpacked

VERSION = "2.44.0"
ARTIFACT = f"org.apache.activemq:apache-artemis:{VERSION}:tar.gz:bin"


class Artemis:
    """An instance as ``artemis create`` makes it, but with one acceptor; its journal is synced at every message."""

    name = "artemis"
    title = f"Artemis {VERSION}"
    is_consumed = True
    replay: Replay | None = None

    def __init__(self) -> None:
        self._home = Path()
        self._journal = "aio" if find_library("aio") else "nio"

    @property
    def storage(self) -> str:
        """The kind of journal depends on whether libaio is installed."""
        return f"yes ({'libaio' if self._journal == 'aio' else 'NIO'} journal)"

    def queue(self, name: str) -> str:
        """An address of the same name, anycast."""
        return name

    def fetch(self, folder: Path) -> None:
        """Bring it from Maven Central."""
        self._home = unpacked(ARTIFACT, folder / self.name)

    @contextmanager
    def started(self, folder: Path) -> Iterator[BrokerProcess]:
        """Make an instance, which measures the disk for its journal's settings, and run it."""
        port, instance = free_port(), folder / "instance"
        options = ["--user", "bench", "--password", "bench", "--allow-anonymous", "--silent", "--no-web"]
        options += [f"--no-{protocol}-acceptor" for protocol in ("amqp", "stomp", "mqtt", "hornetq")]
        options += ["--host", "127.0.0.1", "--default-port", str(port), "--queues", ",".join(QUEUES)]
        create = [self._home / "bin" / "artemis", "create", instance, f"--{self._journal}", *options]
        done = subprocess.run([str(part) for part in create], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerFailed(f"Artemis could not make an instance: {done.stdout}{done.stderr}")
        with BrokerProcess([instance / "bin" / "artemis", "run"], port) as process:
            process.wait(self.queue(QUEUES[-1]))
            yield process
