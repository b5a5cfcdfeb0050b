"""
Three PostgreSQL servers under Patroni, which makes one primary and two standbys of them, and the etcd that it uses.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import httpx

from tests.ha.processes import Workshop, send, working_in
from tests.support.ports import free_port
from tests.support.postgresql import programs
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until

DATABASE: Final = "postgres"
USER: Final = "postgres"

TTL_SECONDS: Final = 20
"""After this time a primary that has gone away silently is replaced; Patroni's minimum."""

ASK_SECONDS: Final = 2.0

CLUSTER: Final[dict[str, Any]] = {
    "ttl": TTL_SECONDS,
    "loop_wait": 1,
    "retry_timeout": 5,
    "maximum_lag_on_failover": 1_048_576,
    # A crashed primary is replaced immediately: the synchronous standby has all that it has.
    "primary_start_timeout": 0,
    "synchronous_mode": True,
    # Without a standby commits wait: an accepted message is never on one machine alone.
    "synchronous_mode_strict": True,
    # While etcd is unavailable the primary goes on, as long as it reaches all other nodes.
    "failsafe_mode": True,
    "postgresql": {
        "use_pg_rewind": True,
        "use_slots": True,
        "parameters": {
            "max_connections": 60,
            "shared_buffers": "32MB",
            "wal_keep_size": "128MB",
            "wal_log_hints": "on",
            "timezone": "UTC",
        },
    },
}
"""The dynamic configuration of all nodes (Patroni). docs/guides/two-machines.md shows it."""


class Part:
    """A program of the cluster, and all processes that work in its data folder; the workshop ends them."""

    def __init__(self, workshop: Workshop, name: str) -> None:
        self._workshop = workshop
        self._room = workshop.room(name)
        self._process: subprocess.Popen[bytes] | None = None
        self.name = name
        self.data = self._room / "data"
        self.port = free_port()
        workshop.watch_folder(self.data)

    def crash(self) -> None:
        """Kill the processes that the program has started, together. The program notices it."""
        send(working_in([self.data]), signal.SIGKILL)

    def lose(self) -> None:
        """Kill all processes, as when a machine is switched off; ``start`` is the opposite."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self.crash()

    def hold(self) -> None:
        """Stop all processes, as when a machine hangs; ``go_on`` is the opposite."""
        send(self._pids(), signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue the held processes."""
        send(self._pids(), signal.SIGCONT)

    def _pids(self) -> list[int]:
        own = [self._process.pid] if self._process is not None and self._process.poll() is None else []
        # The program comes first, so that Patroni does not see its server stop.
        return own + working_in([self.data])


class Node(Part):
    """A member of the cluster: Patroni and its PostgreSQL server."""

    def __init__(self, workshop: Workshop, name: str, etcd: dict[str, dict[str, str]]) -> None:
        """``etcd`` is the section of Patroni's configuration that says where etcd is."""
        super().__init__(workshop, name)
        self._etcd = etcd
        self.api_port = free_port()
        (self._room / "patroni.yml").write_text(json.dumps(self._configuration(), indent=2))

    def _configuration(self) -> dict[str, Any]:
        address = f"127.0.0.1:{self.port}"
        return {
            "scope": "rewind",
            "name": self.name,
            "restapi": {
                "listen": f"127.0.0.1:{self.api_port}",
                "connect_address": f"127.0.0.1:{self.api_port}",
            },
            **self._etcd,
            "bootstrap": {
                "dcs": CLUSTER,
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}, "data-checksums"],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self.data),
                "bin_dir": str(programs()),
                "pgpass": str(self._room / "pgpass"),
                "authentication": {
                    "superuser": {"username": USER},
                    "replication": {"username": "replicator"},
                    "rewind": {"username": USER},
                },
                "parameters": {"unix_socket_directories": str(self._room)},
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL in the role that the cluster gives it."""
        program = shutil.which("patroni") or "patroni"
        self._process = self._workshop.start([program, str(self._room / "patroni.yml")], self._room)

    def ask(self, path: str) -> dict[str, Any]:
        """
        Patroni's answer about its server (``patroni``) or about all members (``cluster``); empty if there is none.
        """
        with suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(
                f"http://127.0.0.1:{self.api_port}/{path}", **PLAIN_HTTP | {"timeout": ASK_SECONDS}
            )
            return dict(answer.json())
        return {}

    def members(self) -> list[dict[str, Any]]:
        """Patroni's description of each member."""
        return list(self.ask("cluster").get("members", []))


NODES: Final = 3
START_SECONDS: Final = 240.0
"""The cluster's start time-out: during the start a busy machine makes two copies of a database."""

NEEDED: Final = {"patroni": "patroni", "etcd": "etcd-server"}
"""Programs, and the Debian packages that contain them."""

FOLLOWS: Final = frozenset({"running", "streaming"})
"""The states of a standby that follows its primary: Patroni 3 and 4 use different words."""


KEEPS_LOCK: Final = (3, 1)
"""The Patroni version from which on a primary that stood still does not take the leader's lock back from its successor,
if the lock is kept through version 3 of etcd's API (patroni/patroni#2689). With an older one, such as Debian 12's,
there are two primaries, and what one of them accepted is lost; those versions are safe with version 2 of the API."""


def patroni_version() -> tuple[int, int]:
    """The version of the installed Patroni."""
    told = subprocess.run(["patroni", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def missing() -> list[str]:
    """Debian packages that are missing and without which no cluster can be started."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


class Etcd(Part):
    """A single etcd, which is enough to be killed."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop, "etcd")
        self.kind = "etcd3" if patroni_version() >= KEEPS_LOCK else "etcd"
        """The name of its section in Patroni's configuration, which depends on the API's version."""
        self._peer_port = free_port()

    def start(self) -> None:
        """Start it with its previous data."""
        here, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self._peer_port))
        command = [shutil.which("etcd") or "etcd", "--name", "etcd", "--data-dir", str(self.data)]
        command += ["--listen-client-urls", here, "--advertise-client-urls", here]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"etcd={peer}", "--logger", "zap"]
        if self.kind == "etcd":
            command.append("--enable-v2=true")
        self._process = self._workshop.start(command, self._room)


class Cluster:
    """The whole cluster; the workshop ends it."""

    def __init__(self, workshop: Workshop) -> None:
        self.etcd = Etcd(workshop)
        self.nodes = [
            Node(workshop, f"pg{number}", {self.etcd.kind: {"host": f"127.0.0.1:{self.etcd.port}"}})
            for number in range(1, NODES + 1)
        ]

    def start(self) -> None:
        """Start everything; returns when there is a primary with a synchronous standby and every node follows."""
        self.etcd.start()
        for node in self.nodes:
            node.start()
        self.wait_until_whole()

    def url(self, ports: Sequence[int] = (), *, is_for: str = "read-write") -> str:
        """
        The URL by which a gateway connects to the present primary.

        Args:
            ports: The ports of proxies in front of the nodes.
            is_for: The purpose in libpq's words (target_session_attrs); ``prefer-standby`` to read.
        """
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or [node.port for node in self.nodes])
        return f"postgresql://{USER}@{hosts}/{DATABASE}?target_session_attrs={is_for}&connect_timeout=2"

    # --- roles --------------------------------------------------------------------------------------------------

    def _named(self, *roles: str) -> list[Node]:
        for asked in self.nodes:
            members = asked.members()
            if members:
                names = {one["name"] for one in members if one["role"] in roles}
                return [node for node in self.nodes if node.name in names]
        return []

    def primary(self) -> Node:
        """The primary; waits until there is one."""
        return wait_until(lambda: self._named("leader", "primary"), "a primary", START_SECONDS)[0]

    def synchronous_standby(self) -> Node:
        """The standby that has every accepted message; waits until there is one."""
        return wait_until(lambda: self._named("sync_standby"), "a synchronous standby", START_SECONDS)[0]

    def is_whole(self) -> bool:
        """
        Whether there is a primary with a synchronous standby, all others follow, and each node answers.

        etcd keeps a node's state until it is ``ttl`` old, so each node is asked itself: a Patroni that was just started
        answers only after it has heard from etcd. Before that, a primary that loses etcd would step down.
        """
        members = self.nodes[0].members()
        roles = sorted(one["role"] for one in members)
        if not (
            len(members) == NODES
            and roles in (["leader", "replica", "sync_standby"], ["primary", "replica", "sync_standby"])
            and all(one["state"] in FOLLOWS for one in members)
            and len({one.get("timeline") for one in members}) == 1
        ):
            return False
        told = [node.ask("patroni") for node in self.nodes]
        streaming = [
            one for state in told for one in state.get("replication", ()) if one["state"] == "streaming"
        ]
        return all(state.get("state") in FOLLOWS for state in told) and len(streaming) == NODES - 1

    def wait_until_whole(self) -> None:
        """Wait for ``is_whole``."""
        wait_until(self.is_whole, "a primary with two standbys", START_SECONDS)
