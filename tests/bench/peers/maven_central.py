"""Distributions from Maven Central, by Maven, which checks them and keeps them for the next time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .broker import PeerFailed

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


def unpacked(artifact: str, folder: Path) -> Path:
    """
    Bring an archive and unpack it in ``folder``.

    Args:
        artifact: ``group:artifact:version:type:classifier``.

    Returns:
        The one folder that it has at its top.

    Raises:
        PeerFailed: There is no Java or no Maven, or the archive cannot be brought.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerFailed(f"{artifact} needs {program}, which is not installed")
    folder.mkdir()
    command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", COPY]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise PeerFailed(f"{artifact} cannot be brought from Maven Central: {done.stdout.strip()[:500]}")
    (archive,) = folder.iterdir()
    shutil.unpack_archive(archive, folder, filter="data")
    archive.unlink()
    (found,) = folder.iterdir()
    return found
