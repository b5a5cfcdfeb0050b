"""Copies of stores, and the number of ids that a copied log skips."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings

from gateway.core.effects import Effect
from store import copies
from store.copies import LEAST_SKIPPED, MOST_SKIPPED, SKIP_IDS, Copied, CopyMark, LogRow, MarkState, renew
from store.errors import StoreError
from store.sqlite.check import check
from store.sqlite.copies import SqliteTables, back_up
from store.sqlite.database import open_file
from tests.store.effects import publication
from tests.store.ended import ended_at, steps_of
from tests.store.filled_file import filled_file, rows_of
from tests.store.histories import histories
from tests.store.places import Pair, Place, copied, opened
from tests.store.vpn_file import (
    MADE_MS,
    commit,
    execute,
    generation_of,
    next_id,
    query,
    state_of,
    writing_to,
    written,
)
from tests.support.chance import times

# --- Copies of stores: equal to the source, also after an interruption, and only one store goes on with the ids -------

SLOW = settings(max_examples=times(5, 500))


@pytest.fixture(
    params=[
        ("sqlite", "sqlite"),
        pytest.param(("sqlite", "postgresql"), marks=pytest.mark.postgresql),
        pytest.param(("postgresql", "sqlite"), marks=pytest.mark.postgresql),
    ],
    ids="-".join,
)
def pair(request: pytest.FixtureRequest, fresh: Callable[[], Path]) -> Pair:
    return Pair(*request.param, fresh, lambda: Place(request.getfixturevalue("postgresql")))


@pytest.fixture
def filled(path: Path) -> Path:
    filled_file(path)
    return path


@SLOW
@pytest.mark.parametrize("through", [None, pytest.param("postgresql", marks=pytest.mark.postgresql)])
@given(history=histories())
def test_a_copy_is_the_same_store(
    fresh: Callable[[], Path],
    request: pytest.FixtureRequest,
    through: str | None,
    history: list[list[Effect]],
) -> None:
    """
    After any history the copy has every row of every table and the generation, and is sound: file to file, and from a
    file into a database and back.
    """
    path, back = fresh(), fresh()
    back.unlink()
    before = written(path, history).state()
    places = [path, *([Place(request.getfixturevalue(through))] if through else []), back]
    for source, target in pairwise(places):
        found = copied(source, target)
        assert found.has_closed
        assert found.log.generation == generation_of(path)
        assert found.messages == len(query(path, "select id from message"))
    assert state_of(back) == before
    assert {**rows_of(back), "log": []} == {**rows_of(path), "log": []}
    open_file(back, MADE_MS, synchronous="OFF").close()
    assert check(back) == []
    assert generation_of(back) == generation_of(path)
    assert next_id(back) == before.last_id + 1


def test_ended_at_any_step_it_goes_on(pair: Pair, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A copy that was killed at any step and repeated has each row of the source once. Never would both stores open, and
    in the end one does.
    """
    monkeypatch.setattr(copies, "COMMIT_BYTES", 10_000)

    def new() -> tuple[Path | Place, Path | Place]:
        return pair.source_of(filled), pair.new_target()

    source, target = new()
    names = steps_of(lambda step: copied(source, target, step=step))
    assert names.count("messages") > 4
    assert {"marked", "entries", "tables", "compared", "closed", "opened"} < set(names)
    # The first step of each kind, and one in the middle of the messages.
    some = {names.index(kind) for kind in names} | {names.index("messages") + 2}
    for at in range(len(names)) if pair.source == pair.target else sorted(some):
        source, target = new()
        numbers = count()
        assert ended_at(
            "here",
            lambda step, at=at, numbers=numbers, source=source, target=target: copied(
                source, target, step=lambda name: step("here" if next(numbers) == at else name)
            ),
        )
        with closing(opened(source)) as ours, closing(opened(target, is_target=True)) as theirs:
            marks = [mark and mark.state for mark in (ours.mark(), theirs.mark())]
        assert marks in (
            [None, MarkState.UNFINISHED],
            [MarkState.MOVED, MarkState.UNFINISHED],
            [MarkState.MOVED, None],
        )
        again = copied(source, target)
        assert again.copied.messages < again.messages or names[at] == "marked"
        back = pair.file_of(target)
        assert {**rows_of(back), "log": []} == {**rows_of(filled), "log": []}
        assert state_of(back) == state_of(filled)
        assert check(back) == []


def test_what_changed_between_two_runs_is_copied(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a gateway has changed the source after an interrupted run, the next run copies its changes."""
    monkeypatch.setattr(copies, "COMMIT_BYTES", 10_000)
    target = tmp_path / "target.db"
    assert ended_at("compared", lambda step: copied(filled, target, step=step))
    with pytest.raises(StoreError, match="an unfinished copy"):
        open_file(target, MADE_MS, synchronous="OFF")
    execute(
        filled,
        "delete from message where id between 5010 and 5013",
        "update message set held = held + 1 where id = 45",
        "delete from property_value where message = 35",
        "delete from point",
        "update cursor set floor = 1 where number = 1",
    )
    with closing(writing_to(filled)) as connection:
        commit(connection, [publication(20_002, [b"new"] * 5, time_ms=MADE_MS + 9)])
    # The changes above break a promise: the copy has them, but its check fails.
    with pytest.raises(StoreError, match=r"message 45 is on record as held by"):
        copied(filled, target)
    assert rows_of(target) == rows_of(filled) | {"log": rows_of(target)["log"]}


def test_only_nothing_is_copied_over(filled: Path, fresh: Callable[[], Path], tmp_path: Path) -> None:
    """A target that has a store, or the unfinished copy of another store, is refused and stays as it is."""
    other = fresh()
    before = rows_of(other)
    with pytest.raises(StoreError, match="it has a store already"):
        copied(filled, other)
    with pytest.raises(StoreError, match="it has a store already"):
        copied(filled, filled)
    assert rows_of(other) == before
    target = tmp_path / "target.db"
    assert ended_at("tables", lambda step: copied(filled, target, step=step))
    with pytest.raises(StoreError, match=rf"it is an unfinished copy of {filled}"):
        copied(other, target)
    with pytest.raises(StoreError, match=rf"it is an unfinished copy of {filled}"):
        copied(target, tmp_path / "third.db")
    copied(filled, target)
    assert state_of(target).messages == state_of(filled).messages


def test_the_source_is_closed_and_the_copy_goes_on(filled: Path, tmp_path: Path) -> None:
    """A finished copy can be repeated without effect; the source cannot be copied elsewhere or opened any more."""
    target = tmp_path / "target.db"
    first = copied(filled, target)
    assert first.has_closed
    again = copied(filled, target)
    assert (again.messages, again.copied.messages) == (first.messages, 0)
    with pytest.raises(StoreError, match=rf"its copy {target} continues"):
        copied(filled, tmp_path / "other.db")
    with pytest.raises(StoreError, match=rf"its copy {target} continues"):
        open_file(filled, MADE_MS, synchronous="OFF")
    # The copy is a store like any other, and can be copied in turn.
    copied(target, tmp_path / "third.db")


def test_a_copy_can_be_another_log(filled: Path, tmp_path: Path) -> None:
    """Copied as a new log, the copy has its own generation, and the source stays open."""
    found = copied(filled, tmp_path / "target.db", as_new_log=True)
    assert not found.has_closed
    assert generation_of(tmp_path / "target.db") == found.log.generation != generation_of(filled)
    assert next_id(tmp_path / "target.db") == next_id(filled) + MOST_SKIPPED
    open_file(filled, MADE_MS, synchronous="OFF").close()
    open_file(tmp_path / "target.db", MADE_MS, synchronous="OFF").close()
    assert check(tmp_path / "target.db") == []


def test_a_copy_of_a_backup_is_another_log(filled: Path, tmp_path: Path) -> None:
    """A copy of a backup gets a generation of its own, as the log that was backed up has gone on."""
    back_up(filled, tmp_path / "backup.db")
    found = copied(tmp_path / "backup.db", tmp_path / "target.db")
    assert found.log.generation != generation_of(filled)
    assert not found.has_closed


def test_a_damaged_message_is_not_copied(filled: Path, tmp_path: Path) -> None:
    """The copy stops with an error that names the message, and the source stays open."""
    execute(filled, "update message set content = x'00' where id = 5001")
    with pytest.raises(StoreError, match="message 5001 is not what was written"):
        copied(filled, tmp_path / "target.db")
    open_file(filled, MADE_MS, synchronous="OFF").close()


def test_a_copy_that_is_not_the_same_is_no_store(filled: Path, tmp_path: Path) -> None:
    """If the copy differs from the source in the end, the source stays open and the copy stays unfinished."""
    target = tmp_path / "target.db"

    def spoil(name: str) -> None:
        if name == "tables":
            execute(target, "delete from point")

    with pytest.raises(StoreError, match=r"table point: the copy is not what .* has"):
        copied(filled, target, step=spoil)
    with pytest.raises(StoreError, match="an unfinished copy"):
        open_file(target, MADE_MS, synchronous="OFF")
    open_file(filled, MADE_MS, synchronous="OFF").close()


def test_progress_is_told(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress has the position, the last id, and the number and size of the messages copied so far."""
    monkeypatch.setattr(copies, "COMMIT_BYTES", 10_000)
    seen: list[Copied] = []
    copied(filled, tmp_path / "target.db", progress=seen.append)
    assert seen == sorted(seen)
    assert {found.last_id for found in seen} == {20_001}
    (messages, size) = query(filled, "select count(*), sum(length(content)) from message")[0]
    assert (seen[-1].messages, seen[-1].size_bytes) == (messages, size)
    assert seen[-1].position > 20_001
    assert len(seen) > 8


def test_a_mark_is_of_one_row(path: Path) -> None:
    """A new mark replaces the old one."""
    with closing(SqliteTables(path)) as tables:
        for mark in (CopyMark(MarkState.UNFINISHED, "a"), CopyMark(MarkState.MOVED, "b")):
            tables.write_mark(mark)
            assert tables.mark() == mark
        assert query(path, "select count(*) from copy_mark") == [(1,)]
        tables.write_mark(None)
        assert tables.mark() is None


def test_another_generation_by_hand(filled: Path, tmp_path: Path) -> None:
    """A new generation by hand reopens a source that was closed by a copy; an unfinished copy is refused."""
    before = rows_of(filled)
    copied(filled, tmp_path / "target.db")
    with closing(SqliteTables(filled)) as tables:
        was, log = renew(tables, 100)
    assert was.last_id == 20_001
    assert next_id(filled) == log.last_id + 1 == 20_102
    assert generation_of(filled) == log.generation != was.generation == generation_of(tmp_path / "target.db")
    assert {**rows_of(filled), "log": []} == {**before, "log": []}
    open_file(filled, MADE_MS, synchronous="OFF").close()
    assert generation_of(filled) == log.generation
    assert check(filled) == []
    with closing(SqliteTables(filled)) as tables:
        tables.write_mark(CopyMark(MarkState.UNFINISHED, "there"))
        with pytest.raises(StoreError, match="an unfinished copy of there"):
            renew(tables, 100)
    with (
        closing(SqliteTables(tmp_path / "empty.db", is_target=True)) as tables,
        pytest.raises(StoreError, match="it is not a store of a gateway"),
    ):
        renew(tables, 100)


# --- How many ids a log skips that goes on from a copy ----------------------------------------------------------------

HOUR = 3_600_000
LOG = LogRow(
    generation=7,
    first_id=100_001,
    last_id=200_000,
    last_time=10 * HOUR,
    floor_time=9 * HOUR,
    size_bytes=1,
    largest_bytes=1,
    next_number=3,
    archived_id=150_000,
    counted_id=200_000,
)
"""A log of 100,000 ids in one hour."""


@pytest.mark.parametrize(
    ("log", "hours", "ids"),
    [
        (LOG, 1, 400_000),
        (LOG, 24, 9_600_000),
        (LOG, 0, LEAST_SKIPPED),
        (LOG, -5, LEAST_SKIPPED),
        (LOG, 24 * 365, MOST_SKIPPED),
        (LOG._replace(first_id=200_001), 24, SKIP_IDS),
        (LOG._replace(floor_time=10 * HOUR), 24, SKIP_IDS),
    ],
)
def test_as_many_as_may_have_been_given_out(log: LogRow, hours: int, ids: int) -> None:
    """Within bounds, four times the log's average rate times the time since its newest message."""
    assert log.ids_since(log.last_time + hours * HOUR) == ids
