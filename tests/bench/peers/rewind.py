"""Rewind as it is in this checkout, with its own settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.bench.peers.broker import PeerFailed, Replay, Running
from tests.bench.processes import ROOT, ServerProcess, gateway
from tests.support import postgresql, proc


class Rewind:
    """A gateway without a configuration."""

    name = "rewind"
    title = f"Rewind {version('rewind-gateway')}"
    storage = "yes (SQLite)"
    is_consumed = True
    replay: Replay | None = Replay("log://#queue/bench", ("--start", "beginning"))

    def queue(self, name: str) -> str:
        """Made on first use."""
        return f"queue://{name}"

    def fetch(self, folder: Path) -> None:
        """It is at hand; its title says which commit it is, if that is known."""
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            self.title = f"{Rewind.title} ({asked.stdout.strip()})"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Run it."""
        with gateway(folder / "data") as server:
            yield server


class WithServers:
    """A gateway and the servers of its database, counted together."""

    def __init__(self, gateway: ServerProcess, servers: Sequence[postgresql.Server]) -> None:
        self.address = gateway.address
        self._gateway = gateway
        self._servers = servers

    def resident_bytes(self) -> int:
        """Of all processes; what those of a server share counts more than once."""
        return proc.resident_bytes(self._pids())

    def cpu_seconds(self) -> float:
        """Of all processes that there are."""
        return proc.cpu_seconds(self._pids())

    def _pids(self) -> list[int]:
        return [self._gateway.pid, *(pid for server in self._servers for pid in server.pids())]


class RewindOnPostgreSql(Rewind):
    """A gateway whose Message VPN is in PostgreSQL with a synchronous standby, all of them on this machine."""

    name = "rewind-postgresql"
    storage = "yes, on both servers"

    def fetch(self, folder: Path) -> None:
        """PostgreSQL has to be installed; the title says which one."""
        try:
            number = postgresql.version()
        except postgresql.NoServer as error:
            raise PeerFailed(str(error)) from None
        super().fetch(folder)
        self.title += f", PostgreSQL {number} and a synchronous standby"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Both servers, and then the gateway."""
        with postgresql.server(quick=False) as primary:
            standby = primary.standby(synchronous=True)
            with gateway(folder / "data", f'[vpn.default.store]\nurl = "{primary.url()}"\n') as server:
                yield WithServers(server, [primary, standby])
