"""
``rewind serve`` in a process of its own, forked from a process that has already imported the gateway's modules.

The import takes longer than the rest of a gateway's start. Tests about the start itself, about loaded modules or about
memory start ``python -m gateway`` instead.
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
"""The process from which gateways are forked: one for each test process. It imports before the first fork."""

_PRELOADED = ["gateway.admin.application", "gateway.app", "gateway.cli.command"]
FORKING.set_forkserver_preload(_PRELOADED)


def preload(module: str) -> None:
    """Have the fork server import one more module. Only for modules that are imported before the first test."""
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
    A gateway process from start to end, with the interface of ``subprocess.Popen``.

    Args:
        arguments: Command-line arguments of ``rewind serve``.
        folder: The working folder.
        log: The file to which the gateway's log is appended.
        environment: The environment variables; by default those of this process.
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
        self.stdout = open(os.dup(output.fileno()))  # noqa: SIM115 - its reader closes it
        output.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def poll(self) -> int | None:
        """The exit status (negative for a signal), or None while the process runs."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """
        Wait for the process to end; returns the exit status.

        Raises:
            subprocess.TimeoutExpired: The process has not ended in time.
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
