"""``./run ha`` does what it says, and nothing of it stays behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from .__main__ import ready
from .processes import runs, started_at, wait_until

ROOT = Path(__file__).resolve().parents[2]

STARTS_ONE = """
from pathlib import Path
from tests.ha.processes import Workshop
with Workshop() as workshop:
    room = workshop.room("room")
    away = workshop.room("away")
    workshop.watch_folder(away)
    process = workshop.start(["sleep", "1000"], room)
    forgotten = workshop.start(["sh", "-c", "cd ../away && exec setsid --fork sleep 1000"], room)
    forgotten.wait()
    print(workshop.folder, process.pid, flush=True)
    input()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_nothing_stays_behind(*, is_killed: bool) -> None:
    """Processes and the folder go with whoever started them, also when that is killed."""
    run = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdin is not None
    folder, pid = run.stdout.readline().split()
    began = started_at(int(pid))
    assert runs(int(pid), began) and Path(folder).is_dir()
    if is_killed:
        run.kill()
    run.communicate()
    wait_until(lambda: not Path(folder).exists(), "the folder's end", 30)
    assert not runs(int(pid), began)
    assert not [one for one in Path("/proc").glob("[0-9]*/cwd") if folder in str(one.resolve())]


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.postgresql
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(ready()), reason=f"./run ha installs it: {ready()}")
@pytest.mark.skipif(
    settings.get_current_profile_name() != "nightly",
    reason="minutes of a cluster, whose parts wait for each other's time-outs: ./run ha, and nightly",
)
def test_every_step_passes() -> None:
    """All parts are killed in turn, and every accepted message is there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ha"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("    PASS ") == 11 and done.stdout.endswith("PASS: every step\n")
