"""Whenever it ends: what is found afterwards is what there was after some transaction, with all that was told."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.effects import Effect
from store.check import check
from store.database import open_file
from store.recovery import recover
from tests.store.histories import histories
from tests.store.model import MADE_MS, Model, State, state_of
from tests.store.writing import writing

ROUNDS = 4
LINES = (1, 40, 300)


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def states(history: list[list[Effect]]) -> list[State]:
    """What there is after no, one, two … transactions."""
    model = Model()
    found = [model.state()]
    for effects in history:
        for effect in effects:
            model.apply(effect)
        found.append(model.state())
    return found


def reopened(path: Path) -> State:
    """What a start finds; the file keeps every promise."""
    open_file(path, MADE_MS + 1, synchronous="OFF")
    assert check(path) == []
    state = state_of(path)
    assert recover(path).log.next_id == state.last_id + 1
    return state


SLOW = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25
)


@SLOW
@given(history=histories(), checkpoint_bytes=st.sampled_from([1, 1 << 16, 1 << 24]))
def test_a_kill_after_any_commit_loses_nothing_that_was_told(
    fresh: Callable[[], Path], history: list[list[Effect]], checkpoint_bytes: int
) -> None:
    """The files as they are the moment each transaction is told of, checkpoints or not, hold it and all before it."""
    path = fresh()
    copies: list[Path] = []

    def copy() -> None:
        # The main file first: what a checkpoint moves into it meanwhile stays in the WAL until this returns.
        copies.append(path.with_name(f"{path.stem}-{len(copies)}.db"))
        shutil.copy(path, copies[-1])
        shutil.copy(wal_of(path), wal_of(copies[-1]))

    with writing(path, checkpoint_bytes=checkpoint_bytes, on_told=copy) as w:
        for effects in history:
            assert w.commit(*effects).error is None
    assert len(copies) == len(history)
    for found, state in zip([*copies, path], [*states(history)[1:], states(history)[-1]], strict=True):
        assert reopened(found) == state
        found.unlink()


@SLOW
@given(history=histories(), data=st.data())
def test_a_wal_that_ends_anywhere_holds_the_transactions_before(
    fresh: Callable[[], Path], history: list[list[Effect]], data: st.DataObject
) -> None:
    """Cut at any byte, with nothing or anything behind the cut: whole transactions, to the last that was written."""
    path = fresh()
    ends: list[int] = []

    with writing(path, on_told=lambda: ends.append(wal_of(path).stat().st_size)) as w:
        for effects in history:
            w.commit(*effects)
        w.hold.clear()
        w.commit()  # nothing: it is told of, and the files are as they are
        main, wal = path.read_bytes(), wal_of(path).read_bytes()
    expected = states(history)
    ends = ends[: len(history)]
    for _ in range(5):
        boundary = data.draw(st.sampled_from(ends)) + data.draw(st.sampled_from([-1, 0, 1]))
        cut = min(data.draw(st.just(boundary) | st.integers(0, len(wal))), len(wal))
        junk = random.Random(data.draw(st.integers(0, 9))).randbytes(
            data.draw(st.sampled_from([0, 1, 9_000]))
        )
        copy = fresh()
        copy.write_bytes(main)
        wal_of(copy).write_bytes(wal[:cut] + junk)
        assert reopened(copy) == expected[sum(end <= cut for end in ends)]
        copy.unlink()


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_keeps_its_word(path: Path) -> None:
    """kill -9 in full flight, four times: every message that was told is there, and no id is ever told twice."""
    told: set[int] = set()
    logged: set[int] = set()
    for number in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.store.victim", str(path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        ) as victim:
            assert victim.stdout is not None
            lines = [victim.stdout.readline() for _ in range(LINES[number % len(LINES)])]
            victim.kill()
            lines += victim.stdout.readlines()
        for line in lines:
            if not line.endswith("\n"):
                continue  # cut off by the kill
            first, last, is_logged = line.split()
            ids = set(range(int(first), int(last) + 1))
            assert not ids & told
            told |= ids
            logged |= ids if is_logged == "True" else set()
        state = reopened(path)
        assert logged <= set(state.messages)
        assert max(told) <= state.last_id
    assert len(logged) > sum(LINES)
