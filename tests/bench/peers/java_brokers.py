"""
Brokers in Java, from Maven Central: Apache ActiveMQ Artemis, its journal synced, and Apache Qpid Broker-J on Berkeley
DB.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

from tests.bench.peers.broker import QUEUES, BrokerProcess, PeerFailed, Replay
from tests.support.ports import free_port

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


def unpacked(artifact: str, folder: Path) -> Path:
    """
    Bring an archive and unpack it in ``folder``.

    Args:
        artifact: ``group:artifact:version:type:classifier``.

    Returns:
        The one folder that it has at its top.

    Raises:
        PeerFailed: There is no Java or no Maven, or the archive cannot be brought.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerFailed(f"{artifact} needs {program}, which is not installed")
    folder.mkdir()
    command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", COPY]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise PeerFailed(f"{artifact} cannot be brought from Maven Central: {done.stdout.strip()[:500]}")
    (archive,) = folder.iterdir()
    shutil.unpack_archive(archive, folder, filter="data")
    archive.unlink()
    (found,) = folder.iterdir()
    return found


ARTEMIS_VERSION = "2.44.0"
ARTEMIS_ARTIFACT = f"org.apache.activemq:apache-artemis:{ARTEMIS_VERSION}:tar.gz:bin"


class Artemis:
    """An instance as ``artemis create`` makes it, but with one acceptor; its journal is synced at every message."""

    name = "artemis"
    title = f"Artemis {ARTEMIS_VERSION}"
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
        self._home = unpacked(ARTEMIS_ARTIFACT, folder / self.name)

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


BROKER_J_VERSION = "9.2.1"
BROKER_J_ARTIFACT = f"org.apache.qpid:apache-qpid-broker-j:{BROKER_J_VERSION}:tar.gz:bin"


class BrokerJ:
    """One virtual host, one port for AMQP 1.0, no management; memory as its start script has it."""

    name = "broker-j"
    title = f"Qpid Broker-J {BROKER_J_VERSION}"
    storage = "yes (Berkeley DB)"
    is_consumed = True
    replay: Replay | None = None

    def __init__(self) -> None:
        self._home = Path()

    def queue(self, name: str) -> str:
        """Its name."""
        return name

    def fetch(self, folder: Path) -> None:
        """Bring it from Maven Central."""
        self._home = unpacked(BROKER_J_ARTIFACT, folder / self.name) / BROKER_J_VERSION

    @contextmanager
    def started(self, folder: Path) -> Iterator[BrokerProcess]:
        """Run it with a configuration of its own."""
        port, config = free_port(), folder / "initial.json"
        config.write_text(json.dumps(_configuration(port)))
        program = self._home / "bin" / "qpid-server"
        with BrokerProcess([program, "-icp", config], port, {"QPID_WORK": str(folder)}) as process:
            process.wait(self.queue(QUEUES[-1]))
            yield process


def _configuration(port: int) -> dict[str, object]:
    virtual_host = {"type": "BDB", "queues": [{"name": name, "type": "standard"} for name in QUEUES]}
    return {
        "name": "bench",
        "modelVersion": "8.0",
        "authenticationproviders": [{"name": "anonymous", "type": "Anonymous"}],
        "ports": [
            {
                "name": "AMQP",
                "port": str(port),
                "bindingAddress": "127.0.0.1",
                "protocols": ["AMQP_1_0"],
                "authenticationProvider": "anonymous",
                "virtualhostaliases": [{"name": "defaultAlias", "type": "defaultAlias"}],
            }
        ],
        "virtualhostnodes": [
            {
                "name": "default",
                "type": "JSON",
                "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": json.dumps(virtual_host),
            }
        ],
    }
