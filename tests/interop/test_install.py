"""Installing a foreign client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop.__main__ import install
from interop.client import Client, Failed


def client_in(folder: Path, *commands: str) -> Client:
    """One that is installed by these lines of shell."""
    (folder / "pinned").write_text("1.0")
    install_by = tuple(("sh", "-c", command) for command in commands)
    return Client("any", "any 1.0", "shell", (), install=install_by, folder=folder, pinned=("pinned",))


def test_a_client_is_installed_once_by_whoever_is_first(tmp_path: Path) -> None:
    """Several at once wait for each other: none runs a program that another is still building."""
    client = client_in(
        tmp_path, "mkdir building && dd if=/dev/zero bs=1M count=50 2>&- | cksum > sum", "echo 1 >> made"
    )
    with ThreadPoolExecutor(4) as several:
        list(several.map(install, [client] * 4))
    assert (tmp_path / "made").read_text() == "1\n"


def test_another_version_is_installed_again(tmp_path: Path) -> None:
    """What is pinned says what is there."""
    client = client_in(tmp_path, "cat pinned >> made")
    install(client)
    (tmp_path / "pinned").write_text("2.0")
    install(client)
    assert (tmp_path / "made").read_text() == "1.02.0"


def test_a_client_that_cannot_be_installed_is_a_failure(tmp_path: Path) -> None:
    """The installer's last lines are told, and the next one tries again."""
    client = client_in(tmp_path, "echo no such package; exit 3")
    for _ in range(2):
        with pytest.raises(Failed, match="ended with 3: no such package"):
            install(client)
