"""Backups of a file in use: one whole state, checked, and a log of its own wherever it is opened as a store."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.core.effects import SaveArchived, SavePoint
from gateway.core.model import Point
from store.copies import SKIP_IDS, CopyMark, MarkState, write_mark
from store.errors import StoreError
from store.sqlite import copies
from store.sqlite.check import check
from store.sqlite.copies import back_up
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import open_file
from tests.store.effects import publication, queue
from tests.store.ended import ended_at, steps_of
from tests.store.vpn_file import MADE_MS, commit, execute, generation_of, next_id, query, state_of, writing_to
from tests.store.writing import writing

CONTENT = b"x" * 12_000
COUNT = 250
"""Messages of that size are a few steps."""


@pytest.fixture
def filled(path: Path) -> Path:
    """Some megabytes in the main file, and some more in the write-ahead log."""
    with closing(writing_to(path)) as connection:
        commit(connection, [*queue(1, "q"), SavePoint(Point("p", 1, MADE_MS, MADE_MS))])
        commit(connection, [publication(1, [CONTENT] * COUNT, endpoints=(1,), time_ms=MADE_MS)])
    return path


def test_a_backup_is_what_there_was_when_it_was_begun(filled: Path, tmp_path: Path) -> None:
    """Whatever is committed and checkpointed while it is copied: one state, and the gateway's file is whole."""
    to = tmp_path / "backup"
    before = state_of(filled)
    seen: list[tuple[int, int]] = []
    with writing(filled, checkpoint_bytes=1) as w:

        def meanwhile(name: str) -> None:
            first = COUNT + 1 + len(w.told) * 50
            if name.startswith("step"):
                content = b"y" * 2_000
                w.commit(publication(first, [content] * 50, endpoints=(1,), time_ms=MADE_MS + first))

        found = back_up(filled, to, progress=lambda *sizes: seen.append(sizes), step=meanwhile)
        assert len(w.told) >= 3
    assert state_of(to) == before
    assert (check(to), check(filled)) == ([], [])
    assert state_of(filled).last_id > COUNT
    assert found == (generation_of(filled), COUNT, to.stat().st_size)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > COUNT * len(CONTENT)


def test_a_backup_is_one_file_of_its_user_alone(filled: Path, tmp_path: Path) -> None:
    """No write-ahead log lies beside it, not even after it was checked where nothing can be written."""
    folder = tmp_path / "backups"
    folder.mkdir()
    to = folder / "b"
    mask = os.umask(0)
    try:
        back_up(filled, to)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    assert check(to) == []
    assert [entry.name for entry in folder.iterdir()] == ["b"]


@pytest.mark.parametrize("is_there", [False, True])
def test_ended_at_any_step_there_is_no_backup_or_a_whole_one(
    filled: Path, tmp_path: Path, is_there: bool
) -> None:
    """The name stands for what was there before until all of the new one is; and the next run is not in its way."""
    to = tmp_path / "backup"
    old = tmp_path / "old"
    names = steps_of(lambda step: back_up(filled, old, step=step))
    assert {"step 1", "copied", "marked", "checked"} < set(names)
    execute(filled, "delete from point")
    for name in names:
        if is_there:
            shutil.copy(old, to)
        assert ended_at(name, lambda step: back_up(filled, to, replace=True, step=step))
        if is_there:
            assert to.read_bytes() == old.read_bytes()
        else:
            assert not to.exists()
        back_up(filled, to, replace=True)
        assert state_of(to) == state_of(filled)
        assert list(tmp_path.glob("backup*")) == [to]
        to.unlink()


def test_a_backup_that_fails_leaves_nothing(filled: Path, tmp_path: Path) -> None:
    """A full disk, or Ctrl-C."""
    to = tmp_path / "backup"

    def full(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(filled, to, step=full)
    assert list(tmp_path.glob("backup*")) == []


def test_what_is_in_the_way_is_said(filled: Path, tmp_path: Path) -> None:
    """A file that is there is not overwritten unasked; a file that is not there cannot be backed up."""
    to = tmp_path / "backup"
    to.write_text("mine")
    with pytest.raises(StoreError, match=r"it is there already\. Say --replace"):
        back_up(filled, to)
    assert to.read_text() == "mine"
    with pytest.raises(StoreError, match="there is no such file"):
        back_up(tmp_path / "none.db", tmp_path / "b")
    with pytest.raises(StoreError, match="cannot write"):
        back_up(filled, tmp_path / "no folder" / "b")
    to.unlink()
    seen = []

    def again(name: str) -> None:
        if name == "step 1":
            with pytest.raises(StoreError, match="another process is writing it"):
                back_up(filled, to)
            seen.append(name)

    back_up(filled, to, step=again)
    assert seen == ["step 1"]
    assert state_of(to) == state_of(filled)


def test_an_unsound_copy_does_not_replace_a_sound_one(filled: Path, tmp_path: Path) -> None:
    """It is kept under another name, for whoever has no other."""
    to = tmp_path / "backup"
    back_up(filled, to)
    sound = to.read_bytes()
    execute(filled, "update message set time = time + 1 where id = 7")
    with pytest.raises(StoreError, match="message 7 is not what was written"):
        back_up(filled, to, replace=True)
    assert to.read_bytes() == sound
    assert query(tmp_path / "backup.unsound", "select count(*) from message") == [(COUNT,)]


def test_it_takes_its_time(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than so many bytes a second, whatever the disk can do."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(copies, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    found = back_up(filled, tmp_path / "backup", bytes_per_second=1_000)
    assert now[0] == pytest.approx(found.size_bytes / 1_000, rel=0.05)


# --- opened as a store ----------------------------------------------------------------------------------------------


def test_a_backup_put_in_place_by_hand_is_another_log_each_time(
    filled: Path, tmp_path: Path, fresh: Callable[[], Path]
) -> None:
    """However it comes to its place: a generation of its own, ids that were not given out, and nothing else changed."""
    to = tmp_path / "backup"
    with closing(writing_to(filled)) as connection:
        commit(connection, [SaveArchived(20)])
    back_up(filled, to)
    before = state_of(filled)
    generations = {generation_of(filled)}
    for _ in range(2):
        placed = fresh()
        shutil.copy(to, placed)
        assert generation_of(placed) == generation_of(filled)
        open_file(placed, MADE_MS, synchronous="OFF").close()
        assert check(placed) == []
        generations.add(generation_of(placed))
        state = state_of(placed)
        assert next_id(placed) == COUNT + SKIP_IDS + 1 == state.last_id + 1
        assert state.archived_id == 0
        state.last_id, state.archived_id = before.last_id, before.archived_id
        assert state == before
        # Opened once more it is the same log.
        open_file(placed, MADE_MS, synchronous="OFF").close()
        assert generation_of(placed) in generations
        assert next_id(placed) == COUNT + SKIP_IDS + 1
    assert len(generations) == 3


@pytest.mark.parametrize(
    ("state", "sentence"),
    [(MarkState.UNFINISHED, "an unfinished copy of there"), (MarkState.MOVED, "was copied to there")],
)
def test_what_is_no_store_is_neither_opened_nor_backed_up(
    path: Path, tmp_path: Path, state: MarkState, sentence: str
) -> None:
    """
    A copy that is not whole, and a store that goes on elsewhere; nothing of it is changed. Whoever backs it up every
    night shall know that it goes on elsewhere.
    """
    with closing(writing_to(path)) as connection:
        write_mark(SqliteShortTables(connection), CopyMark(state, "there"))
    before = generation_of(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=sentence):
            open_file(path, MADE_MS, synchronous="OFF")
    with pytest.raises(StoreError, match=rf"{sentence}.*Back that one up"):
        back_up(path, tmp_path / "b")
    assert list(tmp_path.glob("b*")) == []
    assert generation_of(path) == before
