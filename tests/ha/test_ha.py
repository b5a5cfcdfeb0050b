"""
``./run ha`` works, with the settings that the guide gives; its ledger finds everything that no pair of gateways may do.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ha.__main__ import ready
from tests.ha.cluster import CLUSTER
from tests.ha.ledger import PUBLISHER_SHIFT, Ledger
from tests.ha.processes import ROOT, runs, started_at
from tests.support.chance import IS_NIGHTLY
from tests.support.waiting import wait_until

OTHER = 1 << PUBLISHER_SHIFT


def kept() -> Ledger:
    """A ledger without faults: two publishers, two gateways, one takeover."""
    ledger = Ledger()
    ledger.accept([0, 1], "a", [0.0, 0.0])
    ledger.accept([OTHER, 2], "b", [0.0, 0.0])
    ledger.receive("q", 1, 0)
    ledger.read([(1, 0), (2, 1), (3, OTHER), (5, 2), (6, OTHER + 7)])
    return ledger


def test_what_is_well_is_no_fault() -> None:
    """Gaps in the ids, a message whose outcome was lost, a takeover, and a redelivery are no faults."""
    ledger = kept()
    ledger.receive("q", 1, 0)
    ledger.check(ledger.take_accepted())
    ledger.check_all(takeovers=2)
    assert ledger.faults == []
    assert ledger.take_accepted() == []
    assert ledger.missing("q") == [1, 2, OTHER, OTHER + 7]
    assert ledger.last_id == 6


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([(6, 3)], "id 6 follows 6"),
        ([(7, 1)], "0/1 is in the log twice: 2, 7"),
        ([(7, OTHER + 6)], "1/6 is behind 1/7"),
    ],
)
def test_a_log_that_is_wrong_is_a_fault(rows: list[tuple[int, int]], fault: str) -> None:
    """Faults: an id that is used again, a message that is there twice, a message after a later one of its publisher."""
    ledger = kept()
    ledger.read(rows)
    assert any(fault in found for found in ledger.faults), ledger.faults


def test_a_lost_message_is_a_fault() -> None:
    """The message was accepted, and the log, which is read later, does not have it."""
    ledger = kept()
    ledger.accept([3], "b", [0.0])
    ledger.check(ledger.take_accepted())
    assert ledger.faults == ["1 accepted messages are not in the log: 0/3 the first"]


def test_an_id_told_for_two_messages_is_a_fault() -> None:
    """The two messages may be told to two consumers, to one, or to one while the log has another."""
    ledger = kept()
    ledger.receive("q", 2, 2)
    ledger.receive("r", 1, 1)
    ledger.check_all(takeovers=2)
    assert ledger.faults == ["id 1 was told for 0/0 and for 0/1", "id 2 was told for 0/2; the log has 0/1"]


def test_two_gateways_that_accept_are_a_fault() -> None:
    """The accepting gateway changes more often than there were takeovers."""
    ledger = kept()
    ledger.accept([3], "a", [0.0])
    ledger.read([(7, 3)])
    ledger.check_all(takeovers=2)
    assert ledger.faults == ["2 times a gateway took over, and acceptance changed 3 times"]


def test_acceptance_counts_from_what_was_sent_after_the_mark() -> None:
    """The acceptance of a message that was sent before the mark does not show that any gateway accepts again."""
    ledger = Ledger()
    ledger.mark()
    ledger.accept([0], "a", [0.0])
    assert ledger.seconds_without() is None
    ledger.accept([1], "a", [float("inf")])
    seconds = ledger.seconds_without()
    assert seconds is not None and 0 <= seconds < 60


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
    """Processes and folder go with their starter, even if it is killed."""
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
    not IS_NIGHTLY,
    reason="minutes of a cluster, whose parts wait for each other's time-outs: ./run ha, and nightly",
)
def test_every_step_passes() -> None:
    """All parts are killed in turn, and every accepted message is in the log."""
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


GUIDE = (ROOT / "docs" / "guides" / "two-machines.md").read_text()
SETTINGS = {
    **{name: value for name, value in CLUSTER.items() if name != "postgresql"},
    **{name: CLUSTER["postgresql"][name] for name in ("use_pg_rewind", "use_slots")},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_guide_names_the_settings_that_are_tried(name: str) -> None:
    """The guide's configuration has each setting of the cluster, with the value that is used here."""
    value = SETTINGS[name]
    written = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    assert re.findall(rf"^ +{name}: (\S+)$", GUIDE, re.MULTILINE) == [written]
