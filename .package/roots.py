"""
Small Debian systems in a folder, made by mmdebstrap: to compile in, to install into, to make an image of.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkout import Failed, run

DEBIAN = {"12": "bookworm", "13": "trixie"}
"""The releases for which there is a package, with their names."""

OLDEST = "12"
"""What is compiled on this release runs on all of them."""


def need_root() -> None:
    """Raises ``Failed`` for a user, or on a machine, that cannot make a Debian system."""
    if os.geteuid() != 0:
        raise Failed("only root can make Debian's roots: sudo ./run package")
    if shutil.which("mmdebstrap") is None:
        raise Failed("mmdebstrap is missing: apt-get install mmdebstrap")


class Root:
    """A Debian system in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(
        cls, path: Path, release: str, *packages: str, variant: str = "apt", keep_packages: bool = False
    ) -> Root:
        """
        Makes a Debian system, from Debian's own mirror or from ``$REWIND_DEBIAN_MIRROR``.

        Args:
            release: A key of ``DEBIAN``, or Debian's name for a suite.
            packages: What it has in addition to the essential packages.
            variant: A variant of mmdebstrap's.
            keep_packages: Leave the packages in ``/var/cache/apt/archives``.
        """
        mirror = os.environ.get("REWIND_DEBIAN_MIRROR")
        run(
            "mmdebstrap",
            "--quiet",
            f"--variant={variant}",
            *([f"--include={','.join(packages)}"] if packages else ()),
            '--aptopt=Acquire::Languages "none"',
            '--aptopt=APT::Install-Recommends "false"',
            "--dpkgopt=force-unsafe-io",  # a root that is lost is made again
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=path-include=/usr/share/doc/rewind-gateway/*",
            # A suite such as testing is valid until a date; copies of it live longer. Its signature is still checked.
            *(() if release in DEBIAN else ('--aptopt=Acquire::Check-Valid-Until "false"',)),
            *(["--skip=cleanup/apt", "--skip=download/empty"] if keep_packages else ()),
            DEBIAN.get(release, release),
            path,
            *([mirror] if mirror else ()),
        )
        return cls(path)

    def run(self, *command: str, **environment: str) -> str:
        """Run a command inside, and return what it prints."""
        return run(*self.command(*command), **environment)

    def command(self, *command: str, alone: bool = False) -> list[str]:
        """
        The command line that runs a command inside, with its own ``/proc`` and ``/dev``, which end with it.

        Args:
            alone: Also with a network of its own, which is separate from the machine's.
        """
        mounts = (
            'mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=755 dev "$0/dev" &&'
            " for name in null zero full random urandom tty; do"
            ' touch "$0/dev/$name" && mount --bind "/dev/$name" "$0/dev/$name" || exit; done &&'
            ' mkdir "$0/dev/shm" && mount -t tmpfs shm "$0/dev/shm" &&'
            ' exec chroot "$0" "$@"'
        )
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
            *(("--net",) if alone else ()),
            *("sh", "-c", f"{'ip link set lo up && ' if alone else ''}{mounts}", str(self.path), *command),
        ]


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for intermediate files, which is removed afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
