"""A run of the load generator: its process, and what it reported."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from .server_process import ROOT

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
