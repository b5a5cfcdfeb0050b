"""A PostgreSQL server for one test: in a folder of its own, reached by a socket in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root


def programs() -> Path | None:
    """The folder of ``initdb`` and ``pg_ctl``, newest version first; None where there is no server."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[-3]))
    return folders[-1].parent if folders else None


@contextmanager
def server(bin_folder: Path) -> Iterator[str]:
    """A running server; the socket's path. User and database are ``postgres``, and no password is asked for."""
    folder = Path(
        tempfile.mkdtemp(prefix="rewind-postgresql-")
    )  # short: a socket's path has 107 bytes at most
    if OWNER is not None:
        shutil.chown(folder, OWNER)
    data = str(folder / "data")

    def run(program: str, *arguments: str) -> None:
        command = [str(bin_folder / program), "-D", data, *arguments]
        subprocess.run(command, user=OWNER, cwd=folder, stdout=subprocess.DEVNULL, check=True)

    try:
        run("initdb", "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        settings = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", settings, "start")
        try:
            yield str(folder / ".s.PGSQL.5432")
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
