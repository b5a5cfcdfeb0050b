"""A server under test as a process: the gateway, the Container-style queue, the null peer.

All three print one JSON ready line on stdout. ``ServerProcess`` waits for it, knows where to connect, and
leaves no process behind.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]

MEGABYTE = 1_000_000
READY_SECONDS = 60
STOP_SECONDS = 30


class ServerFailed(Exception):
    """A server did not become ready, or had to be killed; the text ends with what it said last."""


class ServerProcess:
    """A Python module run as a server until the ``with`` block ends."""

    def __init__(self, module: str, *arguments: str, checkout: Path = ROOT) -> None:
        """``checkout`` is the folder whose code it runs, by the ``.venv`` that is in it if it is not our own."""
        own = checkout / ".venv" / "bin" / "python"
        python = sys.executable if checkout == ROOT or not own.exists() else str(own)
        self._module = module
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=checkout,
            text=True,
        )
        line = self._first_line()
        self.ready_seconds = time.perf_counter() - started
        ready = json.loads(line)
        self.address = urlsplit(ready["amqp"][0]).netloc
        self.admin = str(ready.get("admin", ""))
        """Where it is administered; empty for servers that are not."""
        self.pid = int(ready["pid"])

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            if kind is None:
                raise ServerFailed(
                    f"{self._module} did not stop in {STOP_SECONDS} s\n{self._said()}"
                ) from None
        finally:
            self._close()

    def resident_bytes(self) -> int:
        """Memory the process holds now (VmRSS)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system, over all threads, to the nanosecond."""
        # clock_getcpuclockid(3), which Python does not have: /proc counts in hundredths of a second.
        return time.clock_gettime(~self.pid << 3 | 2)

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            self._process.kill()
            self._process.wait()
            said = self._said()
            self._close()
            raise ServerFailed(f"{self._module} printed no ready line\n{said}")
        return line

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]

    def _close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def gateway(data: Path, *arguments: str, checkout: Path = ROOT) -> ServerProcess:
    """A gateway on free ports that keeps its files in ``data``, which is absolute if ``checkout`` is not our own."""
    options = ["--data", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return ServerProcess("gateway", "serve", *options, *arguments, checkout=checkout)
