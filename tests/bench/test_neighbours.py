"""The gauge of the machine's other work."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.bench import neighbours
from tests.bench.neighbours import Neighbours

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_child_that_was_waited_for_is_ours() -> None:
    """Servers and generators run as children: their time must not be taken for a neighbour's."""
    own, busy = neighbours._own_seconds(), neighbours._busy_seconds()

    subprocess.run([sys.executable, "-c", BURN], check=True)

    assert neighbours._own_seconds() - own >= 0.28
    assert neighbours._busy_seconds() - busy >= 0.28


@pytest.mark.parametrize(("busy", "own", "cores"), [(3.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 1.5, 0.0)])
def test_others_have_what_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, busy: float, own: float, cores: float
) -> None:
    """Busy less own, by elapsed time, and never negative: clock ticks are coarse."""
    readings = {"_busy_seconds": [0.0, busy], "_own_seconds": [0.0, own]}
    for name, values in readings.items():
        monkeypatch.setattr(neighbours, name, iter(values).__next__)
    monkeypatch.setattr(neighbours, "time", SimpleNamespace(perf_counter=iter([10.0, 12.0]).__next__))

    with Neighbours() as beside:
        pass

    assert beside.cores == cores
