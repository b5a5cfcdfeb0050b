"""Installing foreign clients, and the page about them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop.__main__ import install
from interop.client import Client, Failed
from interop.matrix import Result
from interop.page import page

# --- The page about foreign clients: it lists exceptions, and says the expected once ----------------------------------

CLIENTS = (
    Client("plain", "plain 1", "Python", ()),
    Client("wordy", "wordy 1", "Java", ()),
    Client("other", "other 1", "Go", (), dialect="other"),
)


def refusal(condition: str | None, text: str) -> dict[str, dict[str, str | None]]:
    return {"taken": {"kind": "Error", "condition": condition, "text": text}}


def results(of_plain: str = "pass", note: str = "") -> list[Result]:
    """Two behaviours that the clients of one dialect cannot request."""
    return [
        Result("plain", "queue", of_plain, note),
        Result("plain", "browser", "cannot", "its API has no browser"),
        Result("wordy", "queue", "pass"),
        Result("wordy", "browser", "pass", seen=refusal(None, "refused: 'q-wordy' is taken [amqp:locked]")),
        Result("other", "queue", "cannot", "it has no queues"),
        Result("other", "browser", "cannot", "it has no queues"),
        Result("plain", "exclusive", "pass", seen=refusal("amqp:locked", "'q-plain' is taken")),
        Result("wordy", "exclusive", "pass"),
        Result("other", "exclusive", "pass", seen=refusal("amqp:locked", "code 4")),
    ]


def test_a_page_without_failures() -> None:
    """
    The page begins by saying that nothing failed. The table leaves out clients that can request nothing, and behaviours
    of all clients. A refusal is shown in the gateway's words, and a library that hides refusals is named.
    """
    text = page(CLIENTS, results(), {"": ["queue", "browser"]})
    assert "**Nothing failed**: 6 trials passed with 3 clients; in 3 the library has no way to ask." in text
    assert text.index("Nothing failed") < text.index("## What a user sees when refused")
    assert "As it should be with each of 2 clients: queue." in text
    assert "Left out, as their APIs can ask for none of it: other." in text
    assert "| browser | – <sup>1</sup> | ✓ |" in text
    assert text.endswith("1. plain: its API has no browser\n")
    assert "it has no queues" not in text, "what is so with all of a dialect is no news"
    assert "| taken | `amqp:locked` | 'q' is taken |" in text
    assert "| plain | plain 1 | Python | `Error` | in a field |" in text
    assert "| wordy | wordy 1 | Java | `Error` | in the text |" in text
    assert "- taken, other: code 4" in text
    assert "- taken, wordy" not in text


def test_failures_come_first_and_what_fails_alike_is_one_line() -> None:
    failed = [*results("fail", "not there"), Result("plain", "topic", "fail", "not there")]
    text = page(CLIENTS, failed, {"": ["queue", "browser"]})
    assert "**2 failed**" in text
    assert "- plain, queue, topic: not there" in text
    assert "| queue | ✗ <sup>1</sup> | ✓ |" in text


# --- Installing a foreign client --------------------------------------------------------------------------------------


def client_in(folder: Path, *commands: str) -> Client:
    """A client that these shell commands install."""
    (folder / "pinned").write_text("1.0")
    install_by = tuple(("sh", "-c", command) for command in commands)
    return Client("any", "any 1.0", "shell", (), install=install_by, folder=folder, pinned=("pinned",))


def test_a_client_is_installed_once_by_whoever_is_first(tmp_path: Path) -> None:
    """Concurrent installers wait for each other: none runs a program that another one is still building."""
    client = client_in(
        tmp_path, "mkdir building && dd if=/dev/zero bs=1M count=50 2>&- | cksum > sum", "echo 1 >> made"
    )
    with ThreadPoolExecutor(4) as several:
        list(several.map(install, [client] * 4))
    assert (tmp_path / "made").read_text() == "1\n"


def test_another_version_is_installed_again(tmp_path: Path) -> None:
    """A client is installed again when its pinned version changes."""
    client = client_in(tmp_path, "cat pinned >> made")
    install(client)
    (tmp_path / "pinned").write_text("2.0")
    install(client)
    assert (tmp_path / "made").read_text() == "1.02.0"


def test_a_client_that_cannot_be_installed_is_a_failure(tmp_path: Path) -> None:
    """The error has the installer's last lines, and the next caller tries again."""
    client = client_in(tmp_path, "echo no such package; exit 3")
    for _ in range(2):
        with pytest.raises(Failed, match="ended with 3: no such package"):
            install(client)
