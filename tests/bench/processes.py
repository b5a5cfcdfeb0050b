"""Processes of a measurement: the server under test, and the load generator with its report."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

from tests.support import proc

ROOT = Path(__file__).resolve().parents[2]

MEGABYTE = 1_000_000
READY_SECONDS = 60
STOP_SECONDS = 60
RESULT_SECONDS = 600
SAID = 2_000
"""The number of characters of a process's last output that an error shows."""


class ServerFailed(Exception):
    """A server did not become ready, or had to be killed; the text ends with its last output."""


class LoadFailed(Exception):
    """A message was refused, or something other than what was published was received."""


class Process:
    """A command that runs until its ``with`` block ends. Its stderr is kept, and shown if it fails."""

    def __init__(
        self,
        command: Sequence[str | Path | float],
        *,
        environment: Mapping[str, str] = {},
        cwd: Path = ROOT,
        keeps_stdout: bool = False,
    ) -> None:
        """``keeps_stdout``: its stdout is kept with its stderr, and not read line by line."""
        self.command = " ".join(map(str, command))
        self._log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._log if keeps_stdout else subprocess.PIPE,
            stderr=self._log,
            env=os.environ | environment,
            cwd=cwd,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            if kind is None:
                raise ServerFailed(
                    f"{self.command} did not stop in {STOP_SECONDS} s\n{self.said()}"
                ) from None
        finally:
            self.close()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Delete the output that was kept."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def said(self) -> str:
        """The last part of its output."""
        self._log.seek(0)
        return self._log.read()[-SAID:]

    def line(self, seconds: float | None = None) -> Any:
        """The next line of JSON on its stdout; None at its end, or if it prints nothing for ``seconds``."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if readable else ""
        return json.loads(line) if line else None


class ServerProcess(Process):
    """A Python module run as a server."""

    def __init__(self, module: str, *arguments: str, checkout: Path = ROOT) -> None:
        """``checkout`` is the folder whose code runs, with its own ``.venv`` if it is not this checkout."""
        own = checkout / ".venv" / "bin" / "python"
        python = sys.executable if checkout == ROOT or not own.exists() else str(own)
        started = time.perf_counter()
        super().__init__([python, "-m", module, *arguments], cwd=checkout)
        ready = self.line(READY_SECONDS)
        self.ready_seconds = time.perf_counter() - started
        if ready is None:
            self.kill()
            said = self.said()
            self.close()
            raise ServerFailed(f"{module} printed no ready line\n{said}")
        self.address = urlsplit(ready["amqp"][0]).netloc
        self.admin = str(ready.get("admin", ""))
        """The URL of its administration; empty for servers without one."""

    def resident_bytes(self) -> int:
        """Memory that the process holds now."""
        return proc.resident_bytes([self.pid])

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system, over all threads, to the nanosecond."""
        # clock_getcpuclockid(3), which Python lacks: /proc counts in hundredths of a second.
        return time.clock_gettime(~self.pid << 3 | 2)


def gateway(data: Path, config: str = "", *, checkout: Path = ROOT) -> ServerProcess:
    """A gateway on free ports with its files in ``data``, which must be absolute if ``checkout`` is another one."""
    file = data.with_suffix(".toml")
    file.write_text(config)
    options = ["--data", str(data), "--config", str(file), "--listen", "127.0.0.1:0"]
    return ServerProcess("gateway", "serve", *options, "--admin", "127.0.0.1:0", checkout=checkout)


class Load(Process):
    """One running generator. ``result`` waits for its end, ``attached`` for its link."""

    def __init__(self, does: str, server: str, address: str, count: int, **more: Any) -> None:
        """``does`` and the rest are the arguments of ``tests.bench.generator.client``."""
        told = {"does": does, "server": server, "address": address, "count": count, **more}
        super().__init__([sys.executable, "-m", "tests.bench.generator.client", json.dumps(told)])

    def attached(self) -> Load:
        """Wait until the link is attached."""
        if self.line() is None:
            self.result()
        return self

    def stop(self) -> dict[str, Any]:
        """Ask a receiver that runs forever for its result so far."""
        self._process.terminate()
        return self.result()

    def result(self) -> dict[str, Any]:
        """The generator's result; LoadFailed if it failed, or messages were lost or out of order."""
        late = ""
        try:
            self._process.wait(RESULT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            late = f"\nno result after {RESULT_SECONDS} s"
        # Not by ``communicate``: it would miss what came together with the line that ``attached`` read.
        assert self._process.stdout is not None
        out, said = self._process.stdout.read(), self.said().strip() + late
        self.close()
        if self._process.returncode != 0:
            raise LoadFailed(f"{self.command}: {said}")
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        if not result.get("in_order", True):
            raise LoadFailed(f"{self.command}: messages were lost, repeated or out of order")
        return result


def send(server: str, address: str, count: int, *, outstanding: int = 1_000, **more: Any) -> dict[str, Any]:
    """Publish ``count`` messages, at most ``outstanding`` unsettled; all must be accepted."""
    return Load("send", server, address, count, outstanding=outstanding, **more).result()


def recv(server: str, address: str, count: int, **more: Any) -> dict[str, Any]:
    """Receive and accept ``count`` messages with 1,000 credit."""
    return Load("receive", server, address, count, **more).result()


FROM_BEGINNING = {"rewind:replay-start": "beginning"}
"""The filters of a log reader that reads from the beginning."""
