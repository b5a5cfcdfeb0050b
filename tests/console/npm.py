"""The npm packages of the console's tests, installed from their lock once for each content of the lock."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
MODULES: Final = FOLDER / "node_modules"

_INSTALLED: Final = MODULES / ".installed"
"""A file with the hash of the lock that was installed last."""


def install() -> Path:
    """The folder of the packages. npm has checked their hashes, and has run none of their scripts."""
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    if not _INSTALLED.exists() or _INSTALLED.read_text() != lock:
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=FOLDER, check=True)
        _INSTALLED.write_text(lock)
    return MODULES
