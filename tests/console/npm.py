"""The packages that the tests of the console take from npm: installed as their lock says, once for each state of it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
MODULES: Final = FOLDER / "node_modules"

_INSTALLED: Final = MODULES / ".installed"
"""Holds the hash of the lock that was installed last."""


def install() -> Path:
    """The folder of the packages, whose hashes npm has checked. None of their own scripts is run."""
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    if not _INSTALLED.exists() or _INSTALLED.read_text() != lock:
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=FOLDER, check=True)
        _INSTALLED.write_text(lock)
    return MODULES
