"""Three PostgreSQL servers, of which Patroni makes a primary and two standbys, and the etcd that says who is what."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from tests.support.ports import free_port

from .node import DATABASE, USER, Node
from .processes import Workshop, send, wait_until

NODES: Final = 3
START_SECONDS: Final = 240.0
"""A busy machine makes two copies of a database in it."""

NEEDED: Final = {"patroni": "patroni", "etcd": "etcd-server"}
"""Programs, and the Debian packages that have them."""

FOLLOWS: Final = frozenset({"running", "streaming"})
"""States of a standby that has what its primary has: Patroni 3 and 4 have a word each."""


KEEPS_LOCK: Final = (3, 1)
"""
Of Patroni, from which on a primary that stood still and goes on does not take back the leader's lock from its
successor, where it is kept by version 3 of etcd's API (patroni/patroni#2689): two primaries, and what one accepted is
lost. Older ones, such as Debian 12's, are safe by version 2.
"""


def patroni_version() -> tuple[int, int]:
    """Of the Patroni that is installed."""
    told = subprocess.run(["patroni", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def missing() -> list[str]:
    """Debian packages without which there is no cluster."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


class Etcd:
    """One etcd, alone: enough to be killed."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._room = workshop.room("etcd")
        self._process: subprocess.Popen[bytes] | None = None
        self.kind = "etcd3" if patroni_version() >= KEEPS_LOCK else "etcd"
        """What Patroni's configuration calls it: by the version of its API."""
        self.port = free_port()
        self._peer_port = free_port()

    def start(self) -> None:
        """Start it, with what it knew."""
        here, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self._peer_port))
        command = [shutil.which("etcd") or "etcd", "--name", "etcd", "--data-dir", str(self._room / "data")]
        command += ["--listen-client-urls", here, "--advertise-client-urls", here]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"etcd={peer}", "--logger", "zap"]
        if self.kind == "etcd":
            command.append("--enable-v2=true")
        self._process = self._workshop.start(command, self._room)

    def lose(self) -> None:
        """Kill it; ``start`` is the opposite."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def hold(self) -> None:
        """Stop it in its tracks; ``go_on`` is the opposite."""
        if self._process is not None:
            send([self._process.pid], signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it continue."""
        if self._process is not None:
            send([self._process.pid], signal.SIGCONT)


class Cluster:
    """All of it; ended by the workshop."""

    def __init__(self, workshop: Workshop) -> None:
        self.etcd = Etcd(workshop)
        self.nodes = [
            Node(workshop, f"pg{number}", {self.etcd.kind: {"host": f"127.0.0.1:{self.etcd.port}"}})
            for number in range(1, NODES + 1)
        ]

    def start(self) -> float:
        """Start all; returns when there is a primary with a synchronous standby and every node follows. Seconds."""
        self.etcd.start()
        for node in self.nodes:
            node.start()
        return self.wait_until_whole()

    def url(self, ports: Sequence[int] = (), *, is_for: str = "read-write") -> str:
        """
        Where a gateway connects: whichever is the primary.

        Args:
            ports: Of somebody in between.
            is_for: What it does there, as libpq says it; ``prefer-standby`` to read.
        """
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or [node.port for node in self.nodes])
        return f"postgresql://{USER}@{hosts}/{DATABASE}?target_session_attrs={is_for}&connect_timeout=2"

    # --- who is what --------------------------------------------------------------------------------------------

    def _named(self, *roles: str) -> list[Node]:
        for asked in self.nodes:
            members = asked.cluster()
            if members:
                names = {one["name"] for one in members if one["role"] in roles}
                return [node for node in self.nodes if node.name in names]
        return []

    def primary(self) -> Node:
        """The primary; waits for one."""
        wait_until(lambda: self._named("leader", "primary"), "a primary", START_SECONDS)
        return self._named("leader", "primary")[0]

    def synchronous_standby(self) -> Node:
        """The standby that has what was accepted; waits for one."""
        wait_until(lambda: self._named("sync_standby"), "a synchronous standby", START_SECONDS)
        return self._named("sync_standby")[0]

    def is_whole(self) -> bool:
        """
        Whether there is a primary with a synchronous standby, all others follow, and each is there.

        What is known of a node stays in etcd until it is ``ttl`` old. So each is asked itself: a Patroni that has just
        been started answers only once it has heard from etcd. Without it, a primary that loses etcd steps down.
        """
        members = self.nodes[0].cluster()
        roles = sorted(one["role"] for one in members)
        if not (
            len(members) == NODES
            and roles in (["leader", "replica", "sync_standby"], ["primary", "replica", "sync_standby"])
            and all(one["state"] in FOLLOWS for one in members)
            and len({one.get("timeline") for one in members}) == 1
        ):
            return False
        told = [node.state() for node in self.nodes]
        streaming = [
            one for state in told for one in state.get("replication", ()) if one["state"] == "streaming"
        ]
        return all(state.get("state") in FOLLOWS for state in told) and len(streaming) == NODES - 1

    def wait_until_whole(self, seconds: float = START_SECONDS) -> float:
        """Seconds until ``is_whole``."""
        return wait_until(self.is_whole, "a primary with two standbys", seconds)
