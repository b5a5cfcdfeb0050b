"""Whenever it ends: what is found afterwards is what there was after some transaction, with all that was told."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.effects import AddReferences, Effect, SettleInTransaction
from gateway.core.model import WHOLE
from store.sqlite.check import check
from store.sqlite.database import open_file
from store.sqlite.store import recover
from tests.store.effects import BY_PRIORITY, publication, purge, queue, settled, trimming
from tests.store.histories import histories
from tests.store.vpn_file import MADE_MS, collect_garbage, commit, empty_model, query, state_of, writing_to
from tests.store.writing import writing
from tests.support.naive_store import State

ROUNDS = 4
LINES = (1, 40, 300)


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def states(history: list[list[Effect]]) -> list[State]:
    """What there is after no, one, two … transactions."""
    model = empty_model()
    found = [model.state()]
    for effects in history:
        for effect in effects:
            model.apply(effect)
        found.append(model.state())
    return found


def reopened(path: Path) -> State:
    """What a start finds; the file keeps every promise."""
    open_file(path, MADE_MS + 1, synchronous="OFF").close()
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


class Cut(NamedTuple):
    """Where a WAL ends. Numbers, of which the remainder counts: how long it is may differ from run to run."""

    place: int
    offset: int
    """Octets from the end of a transaction; ``ANYWHERE``: the place is one of all octets."""
    junk: bytes
    """What stands behind it."""


ANYWHERE = 2

cuts = st.builds(
    Cut,
    st.integers(0, 1 << 20),
    st.sampled_from([-1, 0, 1, ANYWHERE]),
    st.builds(
        lambda seed, count: random.Random(seed).randbytes(count),
        st.integers(0, 9),
        st.sampled_from([0, 1, 9_000]),
    ),
)


@SLOW
@given(history=histories(), made=st.lists(cuts, min_size=5, max_size=5))
def test_a_wal_that_ends_anywhere_holds_the_transactions_before(
    fresh: Callable[[], Path], history: list[list[Effect]], made: list[Cut]
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
    for place, offset, junk in made:
        anywhere = place % (len(wal) + 1)
        cut = anywhere if offset == ANYWHERE else min(ends[place % len(ends)] + offset, len(wal))
        copy = fresh()
        copy.write_bytes(main)
        wal_of(copy).write_bytes(wal[:cut] + junk)
        assert reopened(copy) == expected[sum(end <= cut for end in ends)]
        copy.unlink()


LARGE = b"x" * 3_000
"""Some of these make a transaction of many pages."""

BEFORE: list[Effect] = [
    *queue(1, "q"),
    *queue(2, "r"),
    publication(1, [LARGE] * 10, endpoints=(1, 2), time_ms=MADE_MS),
    publication(11, [LARGE] * 10, topic="#queue/r", endpoints=(1, 2), logged=False, time_ms=MADE_MS),
]
TRANSACTION: list[Effect] = [
    publication(21, [LARGE] * 10, topic="a/b", endpoints=(1,), time_ms=MADE_MS),
    publication(31, [LARGE] * 10, topic="#queue/r", endpoints=(2,), logged=False, time_ms=MADE_MS),
    publication(41, [LARGE] * 10, topic="a", time_ms=MADE_MS),
    SettleInTransaction(1, WHOLE, None, {1: 19}, 20, 1, len(LARGE), list(range(1, 20))),
    SettleInTransaction(2, WHOLE, None, {2: 2, 12: 12, 20: 20}, 20, 17, 17 * len(LARGE), [2, 12, 20]),
]
"""Topics with and without an endpoint, in the log and not; what is acknowledged is held by both, one or nobody then."""


def test_a_crash_at_any_statement_of_a_transaction_leaves_nothing_of_it(fresh: Callable[[], Path]) -> None:
    """The files at each of its steps, pages already written out among them, hold what was there before it began."""
    path = fresh()
    copies: list[Path] = []
    connection = writing_to(path)
    # Pages do not wait for the commit in memory.
    connection.execute("pragma cache_size = 1")
    commit(connection, BEFORE)
    sizes: list[int] = []

    def copy(*statement: object) -> bool:
        sizes.append(wal_of(path).stat().st_size)
        copies.append(fresh())
        shutil.copy(path, copies[-1])
        shutil.copy(wal_of(path), wal_of(copies[-1]))
        return True

    connection.exec_trace = copy
    commit(connection, TRANSACTION)
    connection.exec_trace = None
    copy("its end")
    connection.close()
    nothing, before, after = states([BEFORE, TRANSACTION])
    assert nothing != before != after
    assert sizes[-2] > sizes[0], "some of it was in the file before it was committed"
    assert [reopened(found) for found in copies] == [before] * (len(copies) - 1) + [after]


def test_a_transaction_is_there_with_its_last_byte(fresh: Callable[[], Path]) -> None:
    """The WAL cut at every page of it: without the last one nothing of it is there."""
    path = fresh()
    connection = writing_to(path)
    commit(connection, BEFORE)
    begin = wal_of(path).stat().st_size
    commit(connection, TRANSACTION)
    main, wal = path.read_bytes(), wal_of(path).read_bytes()
    page_bytes = 24 + connection.execute("pragma page_size").get
    connection.close()
    _, before, after = states([BEFORE, TRANSACTION])
    cuts = [*range(begin, len(wal), page_bytes), len(wal) - 1, len(wal)]
    assert len(cuts) > 20
    for cut in cuts:
        copy = fresh()
        copy.write_bytes(main)
        wal_of(copy).write_bytes(wal[:cut])
        assert reopened(copy) == (after if cut == len(wal) else before)


@pytest.mark.parametrize("logged", [True, False])
def test_what_a_dropped_cursor_leaves_is_let_go_of_once(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, logged: bool
) -> None:
    """A crash between any two pieces: what was let go of is not let go of again, and what is left is, at last."""
    monkeypatch.setattr("store.cursors.PIECE_ROWS", 3)
    path, model = fresh(), empty_model()
    with closing(writing_to(path)) as connection:
        for effects in (
            [*queue(1, "q", settings=BY_PRIORITY), *queue(2, "r")],
            [publication(1, [b"x"] * 20, endpoints=(1, 2), logged=logged, time_ms=MADE_MS, ranked=True)],
            lambda: settled(model, 1, [3, 4, 9, 10, 11], is_joined=False),
            lambda: [AddReferences(1, [3, 10])] if logged else [],
            lambda: [trimming(model, 13)] if logged else [],
            lambda: purge(model, 1),
            [publication(21, [b"y"] * 5, endpoints=(1, 2), logged=False, time_ms=MADE_MS, ranked=True)],
        ):
            found = effects() if callable(effects) else effects
            commit(connection, found)
            for effect in found:
                model.apply(effect)
    pieces = 0
    while query(path, "select 1 from garbage"):
        copy = fresh()
        shutil.copy(path, copy)
        assert reopened(copy) == model.state()
        assert collect_garbage(copy)
        assert reopened(copy) == model.state()
        collect_garbage(path, pieces=1)
        pieces += 1
    assert pieces > 5
    assert reopened(path) == model.state()
    for table, column in (("cursor", "number"), ("cursor_range", "number"), ("reference", "cursor")):
        assert query(path, f"select * from {table} where {column} = 1") == []
