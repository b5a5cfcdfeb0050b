"""
Brokers in Java, from Maven Central: Apache ActiveMQ Artemis with a synced journal, and Apache Qpid Broker-J on Berkeley
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

from tests.bench.peers.broker import QUEUES, Broker, BrokerProcess, PeerFailed, Running
from tests.support.ports import free_port

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


def unpacked(artifact: str, folder: Path) -> Path:
    """
    Download an archive and unpack it in ``folder``.

    Args:
        artifact: ``group:artifact:version:type:classifier``.

    Returns:
        The single top-level folder of the archive.

    Raises:
        PeerFailed: Java or Maven is missing, or the archive cannot be downloaded.
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


class JavaBroker(Broker):
    """The common part: a broker from Maven Central."""

    artifact: str
    home = Path()
    """The folder of its programs, set by ``fetch``."""

    def fetch(self, folder: Path) -> None:
        """Download it."""
        self.home = unpacked(self.artifact, folder / self.name)


class Artemis(JavaBroker):
    """An instance as ``artemis create`` makes it, but with one acceptor; its journal is synced at every message."""

    name = "artemis"
    title = "Artemis 2.44.0"
    artifact = "org.apache.activemq:apache-artemis:2.44.0:tar.gz:bin"

    def __init__(self) -> None:
        """The kind of journal depends on whether libaio is installed."""
        self._journal = "aio" if find_library("aio") else "nio"
        self.storage = f"yes ({'libaio' if self._journal == 'aio' else 'NIO'} journal)"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Create an instance, which measures the disk for its journal's settings, and run it."""
        port, instance = free_port(), folder / "instance"
        options = ["--user", "bench", "--password", "bench", "--allow-anonymous", "--silent", "--no-web"]
        options += [f"--no-{protocol}-acceptor" for protocol in ("amqp", "stomp", "mqtt", "hornetq")]
        options += ["--host", "127.0.0.1", "--default-port", str(port), "--queues", ",".join(QUEUES)]
        create = [self.home / "bin" / "artemis", "create", instance, f"--{self._journal}", *options]
        done = subprocess.run([str(part) for part in create], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerFailed(f"Artemis could not make an instance: {done.stdout}{done.stderr}")
        with BrokerProcess([instance / "bin" / "artemis", "run"], port) as process:
            process.wait(self.queue(QUEUES[-1]))
            yield Running(process.address, process.pids)


BROKER_J_VERSION = "9.2.1"


class BrokerJ(JavaBroker):
    """One virtual host, one port for AMQP 1.0, no management; memory as in its start script."""

    name = "broker-j"
    title = f"Qpid Broker-J {BROKER_J_VERSION}"
    artifact = f"org.apache.qpid:apache-qpid-broker-j:{BROKER_J_VERSION}:tar.gz:bin"
    storage = "yes (Berkeley DB)"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Run it with its own configuration."""
        port, config = free_port(), folder / "initial.json"
        config.write_text(json.dumps(_configuration(port)))
        program = self.home / BROKER_J_VERSION / "bin" / "qpid-server"
        with BrokerProcess([program, "-icp", config], port, {"QPID_WORK": str(folder)}) as process:
            process.wait(self.queue(QUEUES[-1]))
            yield Running(process.address, process.pids)


def _configuration(port: int) -> dict[str, object]:
    virtual_host = {"type": "BDB", "queues": [{"name": name, "type": "standard"} for name in QUEUES]}
    node = {
        "name": "default",
        "type": "JSON",
        "defaultVirtualHostNode": "true",
        "virtualHostInitialConfiguration": json.dumps(virtual_host),
    }
    listener = {
        "name": "AMQP",
        "port": str(port),
        "bindingAddress": "127.0.0.1",
        "protocols": ["AMQP_1_0"],
        "authenticationProvider": "anonymous",
        "virtualhostaliases": [{"name": "defaultAlias", "type": "defaultAlias"}],
    }
    return {
        "name": "bench",
        "modelVersion": "8.0",
        "authenticationproviders": [{"name": "anonymous", "type": "Anonymous"}],
        "ports": [listener],
        "virtualhostnodes": [node],
    }
