"""
The processes of a run, and a guard that ends them: whatever happens to their starter, none of them stays behind.

After Patroni has died, PostgreSQL's processes are no longer children of the starter, and each has a session of its own.
So they are recognized by their working folder, which is their data folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support import proc

ROOT: Final = Path(__file__).resolve().parents[2]

LOOK_SECONDS: Final = 0.02
"""Pause between two checks of the processes that must end."""

STOP_SECONDS: Final = 15.0

_OWNER: Final = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
"""The user for programs that refuse to run as root."""


class Failed(AssertionError):
    """Something did not reach the expected state, or was not found."""


def working_in(folders: Iterable[Path]) -> list[int]:
    """The processes whose working folder is one of these."""
    wanted = {str(folder) for folder in folders}
    found = []
    for pid in proc.everything():
        with suppress(OSError):
            if str(Path(f"/proc/{pid}/cwd").readlink()) in wanted and proc.is_alive(pid):
                found.append(pid)
    return found


def started_at(pid: int) -> str:
    """The start time of a process in ticks since boot, or an empty text: its id may be reused later."""
    return "".join(proc.stat(pid)[19:20])


def runs(pid: int, began: str) -> bool:
    """Whether the process with this start time still runs."""
    return bool(began) and started_at(pid) == began and proc.is_alive(pid)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_all(pids: Sequence[tuple[int, str]], folders: Sequence[Path]) -> None:
    """Kill these processes, and all that work in these folders, until none is left."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        left = [pid for pid, began in pids if runs(pid, began)]
        left += working_in(folders)
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


class Workshop:
    """
    A temporary folder and the processes that work in it, as a context manager. At its end, even if this process is
    killed, all of them are ended and the folder is removed.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rewind-ha-"))
        self.folder.chmod(0o755)
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "tests.ha.processes", str(self.folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def room(self, name: str) -> Path:
        """Make a folder that belongs to the unprivileged user."""
        room = self.folder / name
        room.mkdir()
        if _OWNER is not None:
            shutil.chown(room, _OWNER.pw_uid, _OWNER.pw_gid)
        return room

    def start(self, command: Sequence[str], room: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process in a room as the unprivileged user; its output goes to a file next to the room."""
        owner: dict[str, Any] = {}
        if _OWNER is not None:
            owner = {"user": _OWNER.pw_uid, "group": _OWNER.pw_gid, "extra_groups": []}
        with room.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=room,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(room), "LC_ALL": "C", **environment},
                start_new_session=True,
                **owner,
            )
        self.watch(process.pid)
        return process

    def watch(self, pid: int) -> None:
        """Have the guard end this process, too."""
        self._tell(f"process {pid} {started_at(pid)}")

    def watch_folder(self, folder: Path) -> None:
        """Have the guard end all processes that work in this folder."""
        self._tell(f"folder {folder} -")

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(line + "\n")
        self._guard.stdin.flush()


def guard(folder: Path) -> None:
    """Read what must be ended, until the writer is gone; then end it, and remove the folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: list[tuple[int, str]] = []
    folders: list[Path] = []
    for line in sys.stdin:
        kind, name, began = line.split()
        if kind == "process":
            pids.append((int(name), began))
        else:
            folders.append(Path(name))
    end_all(pids, folders)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
