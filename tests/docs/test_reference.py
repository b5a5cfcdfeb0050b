"""The reference says what the code says."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate import pages, rendered
from gateway.cli import main as rewind
from tests.docs.examples import ROOT, Block, Reader

TASKS = ROOT / "docs" / "reference" / "http.md"
NO_SUCH_CLIENT = 6
"""What who disconnects a client is told that is not there."""


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_what_the_code_gives(page: Path) -> None:
    """Where this fails, ``./run docs --write`` writes the page."""
    text = page.read_text(encoding="utf-8")
    assert text == rendered(text)


def _tasks(column: int) -> list[str]:
    """The commands in a column of the table of tasks, one after another."""
    table = TASKS.read_text(encoding="utf-8").partition("| Task |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[column] for line in table.splitlines()[2:]]
    return [command for cell in cells for command in re.findall(r"`([^`]+)`", cell)]


def _now(command: str, replay_id: str) -> str:
    """A command with the ids and times of this gateway in place of the page's."""
    now = datetime.now(UTC).replace(microsecond=0)
    command = command.replace("rmid1:…", replay_id).replace("1767323045", str(round(now.timestamp())))
    return command.replace("2026-01-02T03:04:05Z", now.isoformat().replace("+00:00", "Z"))


def _typed(reader: Reader, text: str, *, may_fail: bool = False) -> str:
    return reader.read(Block(TASKS, 0, "sh", text, "fails" if may_fail else ""))


@pytest.mark.slow
@pytest.mark.system
def test_every_task_can_be_done_over_http(tmp_path: Path) -> None:
    """The commands of the table, in order; the client that is to be disconnected is not there."""
    commands = _tasks(1)
    assert len(commands) > 25
    with Reader(tmp_path) as reader:
        replay_id = _message(reader)
        setup = TASKS.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
        _typed(reader, setup)
        for command in commands:
            if "cancel" in command:  # of what is under way: nobody consumes
                _typed(reader, "ask PUT action/$V/queues/q/startReplay")
            answer = json.loads(_typed(reader, _now(command.replace("curl ", "curl -s "), replay_id)))
            code = answer["meta"].get("error", {}).get("code")
            assert code == (NO_SUCH_CLIENT if "disconnect" in command else None), f"{command}: {answer}"


@pytest.mark.slow
@pytest.mark.system
def test_every_task_can_be_done_by_the_command_line(tmp_path: Path) -> None:
    """The same by ``rewind``."""
    with Reader(tmp_path) as reader:
        replay_id = _message(reader)
        for command in _tasks(2):
            if "cancel" in command:  # of what is under way: nobody consumes
                _typed(reader, "rewind replay start q")
            # Nobody consumes, so that a replay would be waited for in vain.
            typed = shlex.split(_now(command.replace("--wait", ""), replay_id))
            ran = CliRunner().invoke(rewind, typed, env=reader.environment)
            assert ran.exit_code == int("disconnect" in command), f"{command}: {ran.output}"


def _message(reader: Reader) -> str:
    """Start a gateway that has a configuration to read again, and publish a message; its replay id."""
    reader.read(Block(TASKS, 0, "toml", "[[listener]]\nport = 5672\n", "gateway"))
    _typed(reader, "echo one > one.txt; sleep 1.1; rewind send topic://a/b one.txt")
    return str(json.loads(_typed(reader, "rewind tail 'log://>' --from last --count 1 --json"))["replayId"])
