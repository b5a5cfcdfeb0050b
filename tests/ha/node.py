"""One PostgreSQL server under Patroni: what a machine of a cluster runs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.http import PLAIN_HTTP
from tests.support.ports import free_port
from tests.support.postgresql import programs

from .processes import Workshop, send, working_in

DATABASE: Final = "postgres"
USER: Final = "postgres"

TTL_SECONDS: Final = 20
"""After which a primary that has gone away silently is replaced; Patroni allows no less."""

ASK_SECONDS: Final = 2.0

CLUSTER: Final[dict[str, Any]] = {
    "ttl": TTL_SECONDS,
    "loop_wait": 1,
    "retry_timeout": 5,
    "maximum_lag_on_failover": 1_048_576,
    # A primary that crashes is replaced at once: it has nothing that the synchronous standby has not.
    "primary_start_timeout": 0,
    "synchronous_mode": True,
    # Without a standby commits wait: "accepted" is never worth one machine only.
    "synchronous_mode_strict": True,
    # While etcd is away the primary goes on, as long as it reaches all others.
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
"""What holds for all nodes of a cluster (Patroni: dynamic configuration). docs/guides/two-machines.md shows it."""


class Node:
    """A member of the cluster; started by ``start``, ended by the workshop."""

    def __init__(self, workshop: Workshop, name: str, etcd: dict[str, dict[str, str]]) -> None:
        """``etcd``: where it is, as Patroni's configuration says it."""
        self._workshop = workshop
        self._room = workshop.room(name)
        self._etcd = etcd
        self._process: subprocess.Popen[bytes] | None = None
        self.name = name
        self.data = self._room / "data"
        self.port = free_port()
        self.api_port = free_port()
        (self._room / "patroni.yml").write_text(json.dumps(self._configuration(), indent=2))
        workshop.watch_folder(self.data)

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

    # --- its life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL, as what the cluster wants it to be."""
        program = shutil.which("patroni") or "patroni"
        self._process = self._workshop.start([program, str(self._room / "patroni.yml")], self._room)

    def crash(self) -> None:
        """Kill PostgreSQL's processes, all at once. Patroni sees it."""
        send(working_in([self.data]), signal.SIGKILL)

    def lose(self) -> None:
        """Kill all of it, as a machine that is switched off; ``start`` is the opposite."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self.crash()

    def hold(self) -> None:
        """Stop all of it in its tracks, as a machine that hangs; ``go_on`` is the opposite."""
        send(self._pids(), signal.SIGSTOP)

    def go_on(self) -> None:
        """Have what was held continue."""
        send(self._pids(), signal.SIGCONT)

    def _pids(self) -> list[int]:
        own = [self._process.pid] if self._process is not None and self._process.poll() is None else []
        # Patroni first: it must not see its server stop.
        return own + working_in([self.data])

    # --- what it is ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What Patroni says of it; nothing where it does not answer."""
        with suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(f"http://127.0.0.1:{self.api_port}/patroni", timeout=ASK_SECONDS, **PLAIN_HTTP)
            return dict(answer.json())
        return {}

    def cluster(self) -> list[dict[str, Any]]:
        """What Patroni says of all members; nothing where it does not answer."""
        with suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(f"http://127.0.0.1:{self.api_port}/cluster", timeout=ASK_SECONDS, **PLAIN_HTTP)
            return list(answer.json().get("members", []))
        return []

    @property
    def log(self) -> Path:
        """What Patroni and PostgreSQL have said."""
        return self._room.with_suffix(".log")
