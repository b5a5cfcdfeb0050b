"""Processes of a measurement: the server under test, and the load generator with what it reported."""

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
from typing import Any
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


CLIENT = "tests.bench.generator.client"
RESULT_SECONDS = 600


class LoadFailed(Exception):
    """A message was refused, or something other than what was published was received."""


class Load:
    """One generator at work. ``result`` waits for its end, ``attached`` for its link."""

    def __init__(self, *arguments: str | float, module: str = CLIENT) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._err = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *self._arguments],
            stdout=subprocess.PIPE,
            stderr=self._err,
            cwd=ROOT,
            text=True,
        )

    def attached(self) -> Load:
        """Wait until the link is attached."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.result()
        return self

    def is_over(self, seconds: float) -> bool:
        """Whether it has ended, or ends within this time. Only for one that says no more than a line or two."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> dict[str, Any]:
        """Ask a receiver that goes on forever for its result so far."""
        self._process.terminate()
        return self.result()

    def result(self) -> dict[str, Any]:
        """What the generator measured; LoadFailed where it failed, or messages were lost or out of order."""
        late = ""
        try:
            self._process.wait(RESULT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            late = f"\nno result after {RESULT_SECONDS} s"
        # Not by `communicate`: what came with the line that `attached` read would be left out.
        assert self._process.stdout is not None
        with self._process.stdout, self._err:
            out = self._process.stdout.read()
            self._err.seek(0)
            err = self._err.read() + late
        self._process.wait()
        if self._process.returncode != 0:
            raise LoadFailed(f"{' '.join(self._arguments)}: {err.strip()}")
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        if not result.get("in_order", True):
            raise LoadFailed(f"{' '.join(self._arguments)}: messages were lost, repeated or out of order")
        return result


def send(server: str, address: str, count: int, *, outstanding: int = 1000) -> dict[str, Any]:
    """Publish ``count`` messages, each to be accepted, at most ``outstanding`` at a time."""
    return Load("send", server, address, "--count", count, "--outstanding", outstanding).result()


def recv(server: str, address: str, count: int, *options: str) -> dict[str, Any]:
    """Receive and accept ``count`` messages with 1,000 credit."""
    return Load("recv", server, address, "--count", count, *options).result()
