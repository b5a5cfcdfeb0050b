"""
The Debian package: one package for Debian 12 and 13, which have different Pythons.

``/opt/rewind`` is a virtual environment in which ``bin/python`` is the system's ``python3``, with a folder of
libraries for each of these Pythons. So pip installs nothing on the machine, dpkg knows every file, and a machine that
is upgraded from Debian 12 to 13 needs no other package. Files that are the same for both Pythons are stored once.
"""

from __future__ import annotations

import filecmp
import gzip
import hashlib
import os
import sys
import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sbom
import wheels
from checkout import Checkout, date_all, run

HERE = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.13")
"""The Pythons of Debian 12 and 13. ``debian/control`` names the same."""

LOCKS = ("base", "oauth", "postgresql", "telemetry")
"""All that a gateway can use, except the archive's libraries, which are larger than all else together."""

COMMAND = """\
#!/opt/rewind/bin/python -I
import sys
import tomllib

from gateway.cli import main

sys.exit(main())
"""


def build(
    checkout: Checkout, made: Iterable[Path], output: Path, scratch: Path, pythons: Sequence[str] = PYTHONS
) -> Path:
    """
    Makes the package.

    Args:
        made: The paths that ``wheels.build`` returned.
    """
    tree = scratch / "deb"
    fill(tree, checkout, made, scratch, pythons, LOCKS)
    share = tree / "usr" / "share"
    place(HERE / "debian" / "rewind.toml", tree / "etc/rewind/rewind.toml")
    place(HERE / "debian" / "rewind.service", tree / "usr/lib/systemd/system/rewind.service")
    place(HERE / "debian" / "copyright", share / "doc/rewind-gateway/copyright")
    sbom.write(checkout, share / "doc/rewind-gateway/sbom.cdx.json", LOCKS, pythons[-1])
    manual = scratch / "manual"
    date = datetime.fromtimestamp(checkout.epoch, UTC)
    run(sys.executable, HERE / "manual.py", manual, f"{date:%Y-%m-%d}", PYTHONPATH=str(checkout.root))
    place(manual / "rewind.bash", share / "bash-completion/completions/rewind")
    place(manual / "_rewind", share / "zsh/vendor-completions/_rewind")
    place(manual / "rewind.fish", share / "fish/vendor_completions.d/rewind.fish")
    compress(manual / "rewind.1", share / "man/man1/rewind.1.gz")
    compress(checkout.root / "CHANGELOG.md", share / "doc/rewind-gateway/changelog.gz")
    control(tree, checkout)
    date_all(tree, checkout.epoch)
    package = output / f"rewind-gateway_{checkout.debian_version}_amd64.deb"
    run(
        *("dpkg-deb", "--root-owner-group", "-Zzstd", "-z9", "--build", tree, package),
        SOURCE_DATE_EPOCH=str(checkout.epoch),
    )
    return package


def fill(
    tree: Path,
    checkout: Checkout,
    made: Iterable[Path],
    scratch: Path,
    pythons: Sequence[str],
    locks: Iterable[str],
) -> None:
    """Puts the virtual environment and the command into a tree."""
    made, locks = list(made), list(locks)
    home = tree / "opt" / "rewind"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    folders = [home / "lib" / f"python{python}" / "site-packages" for python in pythons]
    for python, folder in zip(pythons, folders, strict=True):
        wheels.site_packages(folder, checkout, made, locks, python, scratch)
    for folder in folders[1:]:
        share_files(folders[0], folder)
    command = tree / "usr" / "bin" / "rewind"
    command.parent.mkdir(parents=True)
    command.write_text(COMMAND)
    command.chmod(0o755)


def share_files(first: Path, second: Path) -> None:
    """Stores files that are the same in both folders once, under two names."""
    for path in second.rglob("*"):
        other = first / path.relative_to(second)
        if path.is_file() and other.is_file() and filecmp.cmp(path, other, shallow=False):
            path.unlink()
            os.link(other, path)


def place(source: Path, target: Path) -> None:
    """Copies a file, and makes the folders that it needs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def compress(source: Path, target: Path) -> None:
    """Copies a file in compressed form, without its name and time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


def control(tree: Path, checkout: Checkout) -> None:
    """Writes what dpkg needs to know of a tree."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    inodes = {path.stat().st_ino: path.stat().st_size for path in files}
    project: dict[str, Any] = tomllib.loads((checkout.root / "pyproject.toml").read_text())["project"]
    values = {
        "VERSION": checkout.debian_version,
        "SIZE": str(sum(inodes.values()) // 1024),
        "SUMMARY": project["description"].partition(":")[0].removeprefix("An "),
    }
    folder = tree / "DEBIAN"
    folder.mkdir()
    for name in ("control", "preinst", "postinst", "prerm", "postrm"):
        text = (HERE / "debian" / name).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        (folder / name).write_text(text)
        (folder / name).chmod(0o644 if name == "control" else 0o755)
    (folder / "conffiles").write_text("/etc/rewind/rewind.toml\n")
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files)
    (folder / "md5sums").write_text("".join(sums))
