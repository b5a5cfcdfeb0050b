"""A gateway as a process of its own: to start, ask, stop and kill.

Invariant: the code that starts one ends it. ``ALL`` keeps every process that was started, and the session fails if one
still runs at its end.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support import proc
from tests.support.administration import Administration
from tests.support.forked_gateway import ForkedGateway
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

READY_SECONDS = 30
STOP_SECONDS = 15
LOG_TAIL_CHARACTERS = 6_000

Address = tuple[str, int]


class GatewayFailed(AssertionError):
    """A gateway did not become ready, or did not end; the text ends with the last lines of its log."""


class GatewayProcess:
    """
    ``rewind serve`` on free ports.

    Args:
        data: Its data folder.
        config: Settings in TOML. They are written next to the data folder.
        listen: Where it accepts clients; empty: as ``config`` says.
        module: Run as ``python -m MODULE serve``: ``gateway``, or a module that replaces it. Without
            it, the gateway is forked from a process that has imported it, and starts in a quarter of the time.
    """

    def __init__(
        self,
        data: Path,
        config: str = "",
        *,
        listen: Sequence[str] = ("127.0.0.1:0",),
        module: str | None = None,
    ) -> None:
        self.data = data
        data.parent.mkdir(parents=True, exist_ok=True)
        file = data.with_name(f"{data.name}.toml")
        file.write_text(config)
        self._log_path = data.with_name(f"{data.name}.{len(ALL)}.log")
        arguments = ["--config", str(file), "--data", str(data), "--admin", "127.0.0.1:0"]
        for where in listen:
            arguments += ["--listen", where]
        self._log_path.write_text("")
        self._process: ForkedGateway | subprocess.Popen[str]
        if module is None:
            self._process = ForkedGateway(arguments, ROOT, self._log_path)
        else:
            with self._log_path.open("a") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, "serve", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=ROOT,
                    text=True,
                )
        ALL.append(self)
        self.ready: dict[str, Any] = self._wait_until_ready()

    def _wait_until_ready(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], READY_SECONDS)
        line = stdout.readline() if readable else ""
        if not line:
            self._process.kill()
            status = self._reap(STOP_SECONDS)
            raise GatewayFailed(f"no ready line; exit status {status}\n{self.log_tail()}")
        return dict(json.loads(line))

    # --- addresses, memory, sockets -----------------------------------------------------------------------------

    @property
    def addresses(self) -> list[Address]:
        """Host and port of every AMQP listener."""
        urls = [urlsplit(url) for url in self.ready["amqp"]]
        return [(url.hostname or "", url.port or 0) for url in urls]

    @property
    def address(self) -> Address:
        return self.addresses[0]

    @property
    def url(self) -> str:
        """The URL of the first AMQP listener."""
        return str(self.ready["amqp"][0])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def resident_bytes(self) -> int:
        """Memory that the process holds now (VmRSS)."""
        return proc.resident_bytes([self.pid])

    def peak_bytes(self) -> int:
        """The most memory that the process has held so far (VmHWM)."""
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found.group(1)) * 1024

    def cpu_seconds(self) -> float:
        """Processor time used so far, over all threads."""
        return proc.cpu_seconds([self.pid])

    def established_sockets(self) -> int:
        """The number of TCP connections to its first listener that the process holds open."""
        port = f":{self.address[1]:04X}"
        held = set()
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                held.add(target[8:-1])
        found = set()  # a set, as the kernel lists a socket twice when others come and go during the read
        for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            # local address, state (0A is LISTEN), inode
            if fields[1].endswith(port) and fields[3] != "0A" and fields[9] in held:
                found.add(fields[9])
        return len(found)

    def ask(self, method: str, tree: str, path: str = "", body: object = None) -> Any:
        """The data of the answer to a request about the Message VPN `default`, which must succeed."""
        with Administration(self.ready["admin"]) as administration:
            return administration.ask(method, f"{tree}/msgVpns/default{path}", body)["data"]

    # --- its log ------------------------------------------------------------------------------------------------

    def log_size(self) -> int:
        """The size of its log so far, in bytes; a later ``log_text`` can start there."""
        return self._log_path.stat().st_size

    def log_text(self, start: int = 0) -> str:
        """Its log from a byte on."""
        with self._log_path.open() as file:
            file.seek(start)
            return file.read()

    def log_tail(self) -> str:
        return self.log_text()[-LOG_TAIL_CHARACTERS:]

    def log_lines(self, event: str | None = None, **values: Any) -> list[dict[str, Any]]:
        """The complete lines of the log so far; with arguments, those of this event and with these values."""
        wanted = values if event is None else {"event": event, **values}
        found = []
        for line in self.log_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                fields = json.loads(line)
                if all(fields.get(key) == value for key, value in wanted.items()):
                    found.append(fields)
        return found

    def wait_for_log(self, event: str, **values: Any) -> dict[str, Any]:
        """The first log line of an event with these values."""

        def found() -> list[dict[str, Any]]:
            return self.log_lines(event, **values)

        wait_until(found, f"a log line {event} with {values}")
        return found()[0]

    def mistakes(self, start: int = 0) -> list[str]:
        """Log lines, from a byte on, about errors of the gateway itself: there must never be any."""
        marks = ("Traceback", "connection_failed", '"level": "error"', '"level": "critical"')
        return [line for line in self.log_text(start).splitlines() if any(mark in line for mark in marks)]

    # --- its end ------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._process.terminate()

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """
        Wait for the process to end; returns the exit status.

        Raises:
            GatewayFailed: It has not ended in time; it is killed.
        """
        try:
            return self._reap(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._reap(STOP_SECONDS)
            raise GatewayFailed(f"the gateway did not end in {seconds} s\n{self.log_tail()}") from None

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: what the gateway has not written is lost."""
        self._process.kill()
        self.wait()

    def _reap(self, seconds: float) -> int:
        status = self._process.wait(seconds)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status


ALL: list[GatewayProcess] = []
"""Every process started in this session."""
