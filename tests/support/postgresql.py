"""
PostgreSQL for tests: a server in a folder of its own, reached by a socket in it and by a free port of this machine.

Processes end with the test's own, however that ends, and their folder with them. PostgreSQL refuses to be run by root:
then it is ``nobody``'s. User and database are ``postgres``, and no password is asked for.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.support import proc
from tests.support.ports import free_port
from tests.support.waiting import wait_until

OLDEST: Final = 15
"""The oldest version that is supported."""

MISSING: Final = (
    f"there is no PostgreSQL server here, {OLDEST} or newer. `./run test` installs it where it is run by root; "
    "on Debian type: apt-get install postgresql"
)

FOLDERS: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
"""Where packages put what is not on the path."""

START_SECONDS: Final = 60.0
"""How long a start may take on a busy machine."""

STANDBY: Final = "standby"
"""The name by which the standby is known to its primary."""

USER: Final = "postgres"

QUICK: Final = ("fsync=off", "full_page_writes=off")
"""What a test wants that pulls no plug."""

SETTINGS: Final = (
    "shared_buffers=16MB",
    "max_connections=100",
    "wal_level=replica",
    "max_wal_senders=4",
    "max_prepared_transactions=0",
    "log_min_messages=fatal",
    "timezone=UTC",
)

WATCHED: Final = """
exec 3<&0
"$@" & server=$!
{
    # Nothing more comes, and no word was said before: whoever had the server was killed.
    read -r word || {
        kill -QUIT $server
        while kill -0 $server; do sleep 0.1; done
        rm -rf "$FOLDER"
    }
} <&3 2>/dev/null &
wait $server
"""
"""Runs a server until it ends, or whoever holds the other end of the standard input is gone: then all is put away."""


class NoServer(Exception):
    """None is installed."""


def programs() -> Path:
    """
    The folder of ``initdb`` and ``postgres``, the newest version that there is.

    Raises:
        NoServer: With what to do about it.
    """
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += [folder for pattern in FOLDERS for folder in Path("/").glob(pattern[1:])]
    found = {_version(folder): folder for folder in folders}
    newest = max(found, default=0)
    if newest < OLDEST:
        raise NoServer(MISSING)
    return found[newest]


def version() -> int:
    """
    The first number of the version of ``programs``.

    Raises:
        NoServer: As it does.
    """
    return _version(programs())


def _version(folder: Path) -> int:
    """The first number of its version; 0 where there is no server."""
    if not ((folder / "initdb").is_file() and (folder / "postgres").is_file()):
        return 0
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    number = re.search(r"\d+", told.stdout)
    return int(number[0]) if number else 0


def eventually(happened: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Wait for a condition."""
    wait_until(happened, what, seconds)


class Server:
    """One PostgreSQL server: a primary, or the standby of one."""

    def __init__(self, folder: Path, data: Path, settings: Sequence[str]) -> None:
        """
        Args:
            folder: All of its kind is in there, and goes with it.
            data: Its files.
        """
        self._folder = folder
        self._settings = settings
        self._watcher: subprocess.Popen[bytes] | None = None
        self._standbys: list[Server] = []
        self._databases = 0
        self.data = data
        self.port = 0
        """The same at each start."""

    # --- where it is ------------------------------------------------------------------------------------------

    @property
    def sockets(self) -> str:
        """The folder of its socket."""
        return str(self._folder)

    @property
    def socket(self) -> str:
        """The path of its socket."""
        return f"{self.sockets}/.s.PGSQL.{self.port}"

    def url(self, database: str = "postgres", **more: str) -> str:
        """Where clients connect, by the socket; more of the URL's parameters may be said."""
        parameters = {"host": self.sockets, "port": str(self.port), **more}
        return f"postgresql://{USER}@/{database}?" + "&".join(
            f"{name}={quote(value, safe='')}" for name, value in parameters.items()
        )

    def tcp_url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The same by its port, or by that of somebody in between."""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/{database}"

    # --- its life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and wait until it can be asked."""
        self.port = self.port or free_port()
        # What a killed server left says "ready", and names a process whose number another one may have by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        arguments = [f"port={self.port}", f"unix_socket_directories={self.sockets}", *self._settings]
        command = ["sh", "-c", WATCHED, "sh", str(programs() / "postgres"), "-D", str(self.data)]
        with (self._folder / f"{self.data.name}.log").open("ab") as log:
            self._watcher = subprocess.Popen(
                [*command, *(word for setting in arguments for word in ("-c", setting))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "FOLDER": str(self._folder), "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C is for the tests
                **_as_owner(),
                cwd=self._folder,
            )
        eventually(self._is_ready, "the server's start")

    def stop(self) -> None:
        """End it in good order, its clients thrown out; nothing happens where it does not run."""
        self._end(signal.SIGINT)

    def close(self) -> None:
        """End it and its standby, however they are."""
        for found in (*self._standbys, self):
            found.go_on()
            found._end(signal.SIGQUIT)

    def crash(self) -> None:
        """Kill it, all of its processes at once."""
        found = self._signal(signal.SIGKILL)
        eventually(lambda: not any(map(proc.is_alive, found)), "the end of the killed processes")
        self._end(signal.SIGKILL)

    def hold(self) -> None:
        """Stop all of its processes in their tracks, as a machine that has gone away; ``go_on`` is the opposite."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have held processes continue."""
        self._signal(signal.SIGCONT)

    def pids(self) -> list[int]:
        """Its processes, the first one of which started the others."""
        postmaster = self._postmaster()
        return [] if postmaster is None else proc.family(postmaster)

    def _signal(self, number: signal.Signals) -> list[int]:
        found = self.pids()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    def _postmaster(self) -> int | None:
        try:
            first, *_ = (self.data / "postmaster.pid").read_text().splitlines()
        except (OSError, ValueError):
            return None
        return int(first) if proc.is_alive(int(first)) else None

    def _is_ready(self) -> bool:
        assert self._watcher is not None
        log = self._folder / f"{self.data.name}.log"
        assert self._watcher.poll() is None, f"it did not start: {log.read_text(errors='replace')[-2_000:]}"
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready" and self._postmaster() is not None

    def _end(self, number: signal.Signals) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        assert watcher.stdin is not None
        with suppress(BrokenPipeError):
            watcher.stdin.write(b"end\n")
            watcher.stdin.close()

        def has_ended() -> bool:
            postmaster = self._postmaster()
            if postmaster is not None:  # one that is about to start does not say so yet
                with suppress(ProcessLookupError):
                    os.kill(postmaster, number)
            return watcher.poll() is not None

        eventually(has_ended, "the server's end")

    # --- what is asked of it ----------------------------------------------------------------------------------

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """One statement by itself, and its rows."""
        import psycopg  # noqa: PLC0415 - comes with an extra: for those who have a server to be asked

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The name of an empty one."""
        self._databases += 1
        name = f"test_{self._databases}"
        # Of a server that syncs nothing it is quicker to copy files than to write what is in them to the WAL.
        self.execute(f"create database {name} strategy file_copy")
        return name

    def standby(self, *, synchronous: bool = False) -> Server:
        """
        A standby, running and connected; there is one at most.

        Args:
            synchronous: From now on a commit of this server's is told when the standby has it, too.
        """
        data = self._folder / STANDBY
        source = f"host={self.sockets} port={self.port} user={USER} application_name={STANDBY}"
        _run(self._folder, "pg_basebackup", "-D", str(data), "-d", source, "-R", "-c", "fast", "--no-sync")
        standby = Server(self._folder, data, self._settings)
        self._standbys.append(standby)
        standby.start()
        state = "state = 'streaming'"
        if synchronous:
            self.execute(f"alter system set synchronous_standby_names = '{STANDBY}'")
            self.execute("select pg_reload_conf()")
            state += " and sync_state = 'sync'"
        found = f"select 1 from pg_stat_replication where application_name = '{STANDBY}' and {state}"
        eventually(lambda: self.execute(found), "replication")
        return standby

    def promote(self) -> None:
        """Make a primary of a standby."""
        self.execute("select pg_promote()")
        eventually(lambda: self.execute("select not pg_is_in_recovery()") == [(True,)], "the promotion")


@contextmanager
def server(*settings: str, quick: bool = True) -> Iterator[Server]:
    """
    A primary, running, and put away at the end with all that came of it.

    Args:
        settings: More of its settings, as ``name=value``.
        quick: Nothing is synced to the disk.
    """
    # Short: a socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="rewind-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    data = folder / "data"
    found = Server(folder, data, [*SETTINGS, *(QUICK if quick else ()), *settings])
    try:
        if _OWNER is not None:
            shutil.chown(folder, _OWNER.pw_uid, _OWNER.pw_gid)
        _run(folder, "initdb", "-D", str(data), "-U", USER, "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        found.start()
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


# --- processes ----------------------------------------------------------------------------------------------------

_OWNER: Final = pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _as_owner() -> dict[str, Any]:
    if _OWNER is None:
        return {}
    return {"user": _OWNER.pw_uid, "group": _OWNER.pw_gid, "extra_groups": []}


def _run(folder: Path, program: str, *arguments: str) -> None:
    done = subprocess.run(
        [programs() / program, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
        **_as_owner(),
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")
