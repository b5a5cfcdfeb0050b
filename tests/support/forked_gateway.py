"""
``rewind serve`` in a process of its own that comes out of one which has imported what a gateway is made of.

To import it takes a gateway longer than the rest of its start. What a test says of a start itself, of what is loaded
or of memory, it says of ``python -m gateway``.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from gateway.cli import main as rewind

FORKING = multiprocessing.get_context("forkserver")
"""The process that others come out of: one of each process of tests, with what it imports before the first."""

_PRELOADED = ["gateway.admin.application", "gateway.app", "gateway.cli.command"]
FORKING.set_forkserver_preload(_PRELOADED)


def preload(module: str) -> None:
    """Have that process import a module, too. For modules that are imported before the first test."""
    _PRELOADED.append(module)
    FORKING.set_forkserver_preload(_PRELOADED)


def _run(
    arguments: Sequence[str], folder: Path, environment: dict[str, str], log: Path, output: Connection
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    with log.open("a") as file:
        os.dup2(file.fileno(), 2)
    rewind(["serve", *arguments], prog_name="rewind")


class ForkedGateway:
    """
    A gateway, from its start to its end; used like a ``subprocess.Popen``.

    Args:
        arguments: Of ``rewind serve``.
        folder: Where it works.
        log: The file that its log is appended to.
        environment: What it finds in its own; without it, what this process has.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        log: Path,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        output, its_output = FORKING.Pipe(duplex=False)
        self._process = FORKING.Process(
            target=_run, args=(list(arguments), folder, dict(environment), log, its_output), daemon=True
        )
        with its_output:
            self._process.start()
        self.stdout = open(os.dup(output.fileno()))  # noqa: SIM115 - closed by whoever reads it
        output.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def poll(self) -> int | None:
        """Its exit status, less than zero for a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """
        Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time.
        """
        self._process.join(seconds)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired("rewind serve", seconds or 0)
        return status

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
