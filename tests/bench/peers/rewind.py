"""Rewind from this checkout with its default settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.bench.peers.broker import Broker, PeerFailed, Replay, Running
from tests.bench.processes import FROM_BEGINNING, ROOT, gateway
from tests.support import postgresql


class Rewind(Broker):
    """A gateway without a configuration file."""

    name = "rewind"
    title = f"Rewind {version('rewind-gateway')}"
    storage = "yes (SQLite)"
    replay = Replay("log://#queue/bench", FROM_BEGINNING)

    def queue(self, name: str) -> str:
        """The address of a queue, which is made on first use."""
        return f"queue://{name}"

    def fetch(self, folder: Path) -> None:
        """Always available; the title names the commit if that is known."""
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            self.title = f"{Rewind.title} ({asked.stdout.strip()})"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Run it."""
        with gateway(folder / "data") as server:
            yield Running(server.address, lambda: [server.pid])


class RewindOnPostgreSql(Rewind):
    """A gateway whose Message VPN is in PostgreSQL with a synchronous standby, all on this machine."""

    name = "rewind-postgresql"
    storage = "yes, on both servers"

    def fetch(self, folder: Path) -> None:
        """PostgreSQL must be installed; the title names its version."""
        try:
            number = postgresql.version()
        except postgresql.NoServer as error:
            raise PeerFailed(str(error)) from None
        super().fetch(folder)
        self.title += f", PostgreSQL {number} and a synchronous standby"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Run both servers, then the gateway."""
        with postgresql.server(quick=False) as primary:
            standby = primary.standby(synchronous=True)
            with gateway(folder / "data", f'[vpn.default.store]\nurl = "{primary.url()}"\n') as server:
                yield Running(server.address, lambda: [server.pid, *primary.pids(), *standby.pids()])
