"""Kills of a process that writes, with every engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.core.model import HELD, ID
from tests.store.port.adapters import Adapter, Place
from tests.store.victim import opened, stores_of

LINES = (1, 40, 300)
"""Half the number of lines after which the process is killed, for each round."""


def run_victim(engine: str, place: Place, lines: int) -> list[str]:
    """Kill a writing process after ``2 * lines`` lines; returns its complete lines."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.victim", engine, *place],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    ) as victim:
        assert victim.stdout is not None
        told = [victim.stdout.readline() for _ in range(2 * lines)]
        victim.kill()
        told += victim.stdout.readlines()
    return [line for line in told if line.endswith("\n")]


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_keeps_its_word(adapter: Adapter) -> None:
    """After each of three kills every logged message that was reported is stored; no id is reported twice."""
    place = adapter.place()
    told: set[int] = set()
    logged: set[int] = set()
    for lines in LINES:
        for line in run_victim(adapter.name, place, lines):
            first, last, is_logged = line.split()
            ids = set(range(int(first), int(last) + 1))
            assert not ids & told
            told |= ids
            logged |= ids if is_logged == "True" else set()
        store = opened(stores_of(adapter.name, place.where), place.vpn)
        try:
            end = store.recovered.log.next_id
            assert max(told) < end
            found, position = set[int](), 1
            while position < end:
                page = store.reader.log_page(position, end, ())
                found |= {row[ID] for row in page.rows if row[HELD] is None}
                position = page.position
            assert logged <= found
        finally:
            store.close()
        assert adapter.check(place) == []
    assert len(logged) > sum(LINES)
