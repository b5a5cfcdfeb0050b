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
"""What is compiled there runs on all of them."""


def need_root() -> None:
    """Raises ``Failed`` for anybody who cannot make a Debian system."""
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
        Makes one, of Debian's own mirror or of ``$REWIND_DEBIAN_MIRROR``.

        Args:
            release: A key of ``DEBIAN``, or Debian's name for a suite.
            packages: What it has beside what is essential.
            variant: One of mmdebstrap's.
            keep_packages: Leave them in ``/var/cache/apt/archives``.
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
            # A suite that moves has a date to be valid until, which copies of it outlive; its signature counts.
            *(() if release in DEBIAN else ('--aptopt=Acquire::Check-Valid-Until "false"',)),
            *(["--skip=cleanup/apt", "--skip=download/empty"] if keep_packages else ()),
            DEBIAN.get(release, release),
            path,
            *([mirror] if mirror else ()),
        )
        return cls(path)

    def run(self, *command: str, **environment: str) -> str:
        """What a command prints that runs inside."""
        return run(*self.command(*command), **environment)

    def command(self, *command: str, alone: bool = False) -> list[str]:
        """
        How a command is run inside, with ``/proc`` and ``/dev`` of its own, which end with it.

        Args:
            alone: On a network of its own, of which nobody else hears.
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
    """A folder for what is made on the way, empty, and gone afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
