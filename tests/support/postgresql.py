"""
PostgreSQL for tests: a server with a folder of its own, reached by a Unix socket in that folder and by a TCP port.

The server ends with the test's process, however that ends, and its folder is removed. PostgreSQL refuses to run as
root: then it runs as ``nobody``. User and database are ``postgres``; no password is required.
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
"""Where packages install the programs that are not in PATH."""

START_SECONDS: Final = 60.0
"""How long a start may take; machines are busy."""

STANDBY: Final = "standby"
"""The name by which the primary knows the standby."""

USER: Final = "postgres"

QUICK: Final = ("fsync=off", "full_page_writes=off")
"""Settings for tests that simulate no power cut."""

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
"""A shell script that runs a server until it ends, or until the process at the other end of its standard input is gone:
then it kills the server and removes the folder."""


class NoServer(Exception):
    """PostgreSQL is not installed."""


def programs() -> Path:
    """
    The folder of ``initdb`` and ``postgres``, of the newest version that is installed.

    Raises:
        NoServer: None is installed; the text says what to do about it.
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
    The major version of ``programs``.

    Raises:
        NoServer: None is installed.
    """
    return _version(programs())


def _version(folder: Path) -> int:
    """The major version of the programs in a folder; 0 if it has no server."""
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
            folder: Holds everything of the server; it is removed with it.
            data: The data directory.
        """
        self._folder = folder
        self._settings = settings
        self._watcher: subprocess.Popen[bytes] | None = None
        self._standbys: list[Server] = []
        self._databases = 0
        self.data = data
        self.port = 0
        """The same at every start."""

    # --- addresses --------------------------------------------------------------------------------------------

    @property
    def sockets(self) -> str:
        """The folder of its socket."""
        return str(self._folder)

    @property
    def socket(self) -> str:
        """The path of its socket."""
        return f"{self.sockets}/.s.PGSQL.{self.port}"

    def url(self, database: str = "postgres", **more: str) -> str:
        """The URL that connects by the socket; ``more`` are additional parameters of the URL."""
        parameters = {"host": self.sockets, "port": str(self.port), **more}
        return f"postgresql://{USER}@/{database}?" + "&".join(
            f"{name}={quote(value, safe='')}" for name, value in parameters.items()
        )

    def tcp_url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The URL that connects by TCP, to the server's port or to that of a proxy."""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/{database}"

    # --- start and end ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and wait until the server answers."""
        self.port = self.port or free_port()
        # After a kill the old file may still say "ready", and its process id may by now belong to another process.
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
        """Stop it in an orderly way and disconnect its clients; does nothing if it does not run."""
        self._end(signal.SIGINT)

    def close(self) -> None:
        """End it and its standby, whatever state they are in."""
        for found in (*self._standbys, self):
            found.go_on()
            found._end(signal.SIGQUIT)

    def crash(self) -> None:
        """Kill all its processes together."""
        found = self._signal(signal.SIGKILL)
        eventually(lambda: not any(map(proc.is_alive, found)), "the end of the killed processes")
        self._end(signal.SIGKILL)

    def hold(self) -> None:
        """Stop all its processes (SIGSTOP), as if its machine had gone away; ``go_on`` is the opposite."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue held processes (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def pids(self) -> list[int]:
        """The ids of its processes; the first one is the parent of the others."""
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
            if postmaster is not None:  # a server that is about to start has not written it yet
                with suppress(ProcessLookupError):
                    os.kill(postmaster, number)
            return watcher.poll() is not None

        eventually(has_ended, "the server's end")

    # --- statements and standby -------------------------------------------------------------------------------

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Execute one statement in its own transaction; returns its rows."""
        import psycopg  # noqa: PLC0415 - comes with an extra: for those who have a server to be asked

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """Create an empty database; returns its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        # A server that syncs nothing copies files faster than it writes their content to the WAL.
        self.execute(f"create database {name} strategy file_copy")
        return name

    def standby(self, *, synchronous: bool = False) -> Server:
        """
        Start a standby and wait until it is connected; there is at most one.

        Args:
            synchronous: From now on this server confirms a commit only when the standby has it, too.
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
        """Promote a standby to primary."""
        self.execute("select pg_promote()")
        eventually(lambda: self.execute("select not pg_is_in_recovery()") == [(True,)], "the promotion")


@contextmanager
def server(*settings: str, quick: bool = True) -> Iterator[Server]:
    """
    Run a primary; at the end, stop it and its standby and remove their folder.

    Args:
        settings: Additional settings, as ``name=value``.
        quick: Sync nothing to the disk.
    """
    # Keep the path short: a socket's path has at most 107 bytes.
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
