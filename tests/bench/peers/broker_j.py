"""Apache Qpid Broker-J on Berkeley DB, which it syncs at every commit unless told otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

from .broker import QUEUES, Replay
from .broker_process import BrokerProcess
from .maven_central import unpacked

VERSION = "9.2.1"
ARTIFACT = f"org.apache.qpid:apache-qpid-broker-j:{VERSION}:tar.gz:bin"


class BrokerJ:
    """One virtual host, one port for AMQP 1.0, no management; memory as its start script has it."""

    name = "broker-j"
    title = f"Qpid Broker-J {VERSION}"
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
        self._home = unpacked(ARTIFACT, folder / self.name) / VERSION

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
