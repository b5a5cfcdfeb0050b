"""The report of a failed trial."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interop.__main__ import attempt
from interop.client import LONGEST_LINE, MOST_LINES, Client, Failed
from interop.gateway_process import GatewayProcess
from interop.scenarios import Trial

PROGRAM = """
import json, sys
for number in range(300):
    print(json.dumps({"event": "message", "body": f"m-{number}"}))
print(json.dumps({"event": "message", "body": "x" * 10_000}))
print("what the library complained of", file=sys.stderr)
sys.exit(3)
"""


def a_scenario(trial: Trial) -> None:
    trial.start("receive").finish()
    raise Failed("it went wrong")


def test_a_failed_trial_is_told_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has each program's first and last lines, within bounds, its exit and its complaint, and the gateway's log."""
    (tmp_path / "program.py").write_text(PROGRAM)
    client = Client("a-client", "a library", "Python", [sys.executable, str(tmp_path / "program.py")])
    with GatewayProcess() as gateway:
        result = attempt(client, a_scenario, gateway)
    assert (result.status, result.note) == ("fail", "it went wrong")
    told = capsys.readouterr().err
    assert "a-client, a scenario: it went wrong" in told
    assert f"program.py receive --url {gateway.url}" in told
    assert '"m-0"' in told
    assert '"m-299"' in told
    assert '"m-150"' not in told
    assert f"… {301 - MOST_LINES} more lines …" in told
    assert max(map(len, told.splitlines())) < LONGEST_LINE + 1_000
    assert "exit status 3" in told
    assert "what the library complained of" in told
    assert '"event": "ready"' in told
