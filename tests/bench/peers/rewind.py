"""Rewind as it is in this checkout, with its own settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.bench.server_process import ROOT, ServerProcess, gateway

from .broker import Replay


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
    def started(self, folder: Path) -> Iterator[ServerProcess]:
        """Run it."""
        with gateway(folder / "data") as server:
            yield server
