"""
What is packaged: the files of this checkout; and the version and the date of all that is made of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """Something cannot be built; the message says what, and what to do."""


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """
    Run a command, and return what it prints.

    Raises:
        Failed: Its exit status is not zero; the message has the last lines of its output.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise Failed(f"{' '.join(map(str, command))[:300]} ended with {done.returncode}:\n{said}")
    return done.stdout


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"package: {text}", file=sys.stderr, flush=True)


class Checkout:
    """
    A git checkout of Rewind.

    The same commit gives the same names, dates and bytes. What is not committed is packaged as well, under another
    version.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def git(self, *arguments: str) -> str:
        """Run git in this checkout, and return what it prints."""
        return run("git", *arguments, cwd=self.root).strip()

    @cached_property
    def version(self) -> str:
        """The version in pyproject.toml, the only place that has it."""
        return str(tomllib.loads((self.root / "pyproject.toml").read_text())["project"]["version"])

    @cached_property
    def epoch(self) -> int:
        """The time of the commit, in seconds since 1970: it is the date of every file that is made."""
        return int(self.git("log", "-1", "--format=%ct"))

    @cached_property
    def debian_version(self) -> str:
        """
        The version of the packages: of a release, its version. Of another commit, one that sorts by the number of
        commits: before the release of this version, or after it if that exists.
        """
        tag, head = f"v{self.version}", self.git("rev-parse", "HEAD")
        is_dirty = bool(self.git("status", "--porcelain"))
        released = self.git("tag", "--list", tag) and self.git("rev-list", "-n", "1", tag)
        if released == head and not is_dirty:
            return self.version
        count = self.git("rev-list", "--count", "HEAD")
        return f"{self.version}{'+' if released else '~'}git{count}.{head[:8]}{'.dirty' if is_dirty else ''}"

    def export(self, folder: Path) -> Path:
        """Copies what belongs to the checkout into a new folder, as a fresh clone has it; returns that."""
        listed = self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in filter(None, listed):
            source, target = self.root / name, folder / name
            if not source.is_file():
                continue  # removed, and not yet committed
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
        return folder


def date_all(folder: Path, epoch: int) -> None:
    """Gives every file and folder in here the same time, and makes it readable by all, whatever the umask."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    os.utime(folder, (epoch, epoch))
