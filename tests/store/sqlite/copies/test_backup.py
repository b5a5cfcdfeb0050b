"""Backups of a Message VPN's file, and restoring them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from gateway.core.effects import SaveArchived, SavePoint
from gateway.core.model import Point
from store.copies import SKIP_IDS, CopyMark, MarkState, read_mark, write_mark
from store.errors import StoreError
from store.sqlite import copies
from store.sqlite.check import check
from store.sqlite.copies import back_up, restore
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader, open_file
from tests.store.effects import publication, queue
from tests.store.ended import ended_at, steps_of
from tests.store.vpn_file import MADE_MS, commit, execute, generation_of, next_id, query, state_of, writing_to
from tests.store.writing import writing

# --- Backups of a file in use -----------------------------------------------------------------------------------------

CONTENT = b"x" * 12_000
COUNT = 250
"""So many messages of that size take a few steps to back up."""


@pytest.fixture
def filled(path: Path) -> Path:
    """A file with some megabytes of messages."""
    with closing(writing_to(path)) as connection:
        commit(connection, [*queue(1, "q"), SavePoint(Point("p", 1, MADE_MS, MADE_MS))])
        commit(connection, [publication(1, [CONTENT] * COUNT, endpoints=(1,), time_ms=MADE_MS)])
    return path


def test_a_backup_is_what_there_was_when_it_was_begun(filled: Path, tmp_path: Path) -> None:
    """Despite commits and checkpoints during the copy, the backup has the state of its beginning."""
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
    """A backup has no write-ahead log, not even after a check, and only its user may read it."""
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
    """Until the new backup is complete, its name has the old one or none; the next run succeeds and cleans up."""
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
    """A backup that is interrupted, as by Ctrl-C, leaves no file."""
    to = tmp_path / "backup"

    def full(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(filled, to, step=full)
    assert list(tmp_path.glob("backup*")) == []


def test_what_is_in_the_way_is_said(filled: Path, tmp_path: Path) -> None:
    """Errors: the backup exists, the source or the folder is missing, or another process writes the same backup."""
    to = tmp_path / "backup"
    to.write_text("mine")
    with pytest.raises(StoreError, match=r"it exists already\. Use --replace"):
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


def test_a_file_with_a_write_ahead_log_is_not_replaced(filled: Path, tmp_path: Path) -> None:
    """
    The file may be a store in use, this one as well, and SQLite would apply its write-ahead log to the backup. The
    store itself, closed, is no place for its backup either: it would open as another log.
    """
    other = tmp_path / "other.db"
    shutil.copy(filled, other)
    with closing(writing_to(other)) as connection:
        execute(filled, "pragma wal_checkpoint(truncate)")
        connection.execute("update log set last_time = last_time + 1")
        before = state_of(other)
        with pytest.raises(StoreError, match="in use"):
            back_up(filled, other, replace=True)
        with pytest.raises(StoreError, match="in use"):
            back_up(other, other, replace=True)
        assert state_of(other) == before
    with pytest.raises(StoreError, match="the store itself"):
        back_up(filled, filled, replace=True)
    back_up(filled, other, replace=True)
    assert state_of(other) == state_of(filled)


def test_an_unsound_copy_does_not_replace_a_sound_one(filled: Path, tmp_path: Path) -> None:
    """An unsound copy is kept under another name, in case there is no other backup."""
    to = tmp_path / "backup"
    back_up(filled, to)
    sound = to.read_bytes()
    execute(filled, "update message set time = time + 1 where id = 7")
    with pytest.raises(StoreError, match="message 7 is not what was written"):
        back_up(filled, to, replace=True)
    assert to.read_bytes() == sound
    assert query(tmp_path / "backup.unsound", "select count(*) from message") == [(COUNT,)]


def test_it_takes_its_time(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup copies no more than the given bytes per second."""
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
    """A copied backup that is opened gets a generation of its own and skips ids; nothing else changes."""
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
        # Opened again, it is still the same log.
        open_file(placed, MADE_MS, synchronous="OFF").close()
        assert generation_of(placed) in generations
        assert next_id(placed) == COUNT + SKIP_IDS + 1
    assert len(generations) == 3


@pytest.mark.parametrize(
    ("state", "sentence"),
    [(MarkState.UNFINISHED, "an unfinished copy of there"), (MarkState.MOVED, "its copy there continues")],
)
def test_what_is_no_store_is_neither_opened_nor_backed_up(
    path: Path, tmp_path: Path, state: MarkState, sentence: str
) -> None:
    """
    An unfinished copy and a store that was copied elsewhere are refused and not changed. A nightly backup fails, so
    that its operator learns that the store goes on elsewhere.
    """
    with closing(writing_to(path)) as connection:
        write_mark(SqliteShortTables(connection), CopyMark(state, "there"))
    before = generation_of(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=sentence):
            open_file(path, MADE_MS, synchronous="OFF")
    with pytest.raises(StoreError, match=rf"{sentence}.*Back up the copy"):
        back_up(path, tmp_path / "b")
    assert list(tmp_path.glob("b*")) == []
    assert generation_of(path) == before


# --- Restoring: a new log replaces the old one, completely or not at all, and the old one is kept ---------------------

FEW = 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder of a gateway that does not run."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def store(path: Path, folder: Path, backup: Path) -> Path:
    """A store that went on after the backup and was killed, so that half of it is in its write-ahead log."""
    place = folder / "default.db"
    with closing(writing_to(path)) as connection:
        commit(connection, [publication(FEW + 1, [b"later"] * FEW, time_ms=MADE_MS)])
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{place}{suffix}")
    return place


@pytest.fixture
def backup(path: Path, tmp_path: Path) -> Path:
    with closing(writing_to(path)) as connection:
        commit(connection, queue(1, "q"))
        commit(connection, [publication(1, [b"first"] * FEW, endpoints=(1,), time_ms=MADE_MS)])
    back_up(path, tmp_path / "backup")
    return tmp_path / "backup"


def test_it_is_another_log_from_the_backups_end_on(backup: Path, folder: Path) -> None:
    """A restored store has the backup's messages, a new generation each time, and skips ids."""
    place = folder / "default.db"
    generations = {generation_of(backup)}
    before = backup.read_bytes()
    for next_is in (FEW + 101, FEW + 201):  # the second one skips the ids of the first one, too
        found = restore(backup, place, replace=True, skip_ids=100)
        assert (found.before.generation, found.before.last_id, found.log.last_id + 1) == (
            generation_of(backup),
            FEW,
            next_is,
        )
        assert found.log.generation == generation_of(place)
        assert next_id(place) == next_is
        assert check(place) == []
        assert state_of(place).messages == state_of(backup).messages
        generations.add(found.log.generation)
        with closing(connect_reader(place)) as connection:
            assert read_mark(SqliteShortTables(connection)) is None
    assert len(generations) == 3
    assert backup.read_bytes() == before


def test_what_was_there_is_kept_and_says_how_far_ids_went(backup: Path, store: Path) -> None:
    """Replacing needs ``replace``. The old store is kept with its write-ahead log, and its ids are not reused."""
    with pytest.raises(StoreError, match=r"it has a store already\. Use --replace"):
        restore(backup, store)
    found = restore(backup, store, replace=True, skip_ids=100)
    assert found.kept is not None
    assert next_id(store) == 2 * FEW + 101
    assert check(found.kept) == []
    assert state_of(found.kept).last_id == 2 * FEW
    again = restore(backup, store, replace=True, skip_ids=100)
    assert again.kept not in {None, found.kept}
    assert next_id(store) == 2 * FEW + 201


def files(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if not entry.name.endswith("-shm")}


@pytest.mark.parametrize("damaged", [False, True])
def test_ended_at_any_step_there_is_the_old_store_or_the_new_one_or_none(
    backup: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """No file is ever there with the other store's write-ahead log or without its own; the next run completes it."""
    if damaged:  # the old write-ahead log cannot be checkpointed into its file

        def fails(path: Path, *, synchronous: str) -> apsw.Connection:
            raise apsw.IOError(path)

        monkeypatch.setattr(copies, "connect_writer", fails)
    old = files(store.parent)
    main, wal = old["default.db"], old["default.db-wal"]
    saved = tmp_path / "saved"
    shutil.copytree(store.parent, saved)
    names = steps_of(lambda step: restore(backup, store, replace=True, step=step))
    assert {"copied", "renewed", "kept ", "in place"} < set(names)
    assert ("removed -wal" in names) is damaged
    for name in names:
        shutil.rmtree(store.parent)
        shutil.copytree(saved, store.parent)
        assert ended_at(name, lambda step: restore(backup, store, replace=True, step=step))
        left = files(store.parent)
        there, there_wal = left.get("default.db"), left.get("default.db-wal", b"")
        if there is None:
            assert damaged
            assert {main, wal} <= set(left.values())
        elif name == "in place":
            assert (there_wal, generation_of(store) == generation_of(backup)) == (b"", False)
        elif damaged:
            assert (there, there_wal) == (main, wal)
        else:
            assert state_of(store).last_id == 2 * FEW
        kept = restore(backup, store, replace=True).kept
        assert check(store) == []
        assert next_id(store) > FEW
        assert store.stat().st_nlink == 1
        left = files(store.parent)
        assert "default.db.part" not in left
        assert "default.db-wal" not in left or left["default.db-wal"] == b""
        if damaged:
            assert {main, wal} <= set(left.values())
        elif name != "in place":
            assert kept is not None
            assert state_of(kept).last_id == 2 * FEW
            assert kept.stat().st_nlink == 1


def test_what_cannot_be_restored_changes_nothing(backup: Path, store: Path, tmp_path: Path) -> None:
    """A missing file, a file that is no database, an unsound backup and an unfinished copy are refused."""
    before = state_of(store)
    with pytest.raises(StoreError, match="no such file"):
        restore(tmp_path / "none", store, replace=True)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"garbage" * 1_000)
    with pytest.raises(StoreError, match="cannot copy"):
        restore(garbage, store, replace=True)
    execute(backup, "update message set time = time + 1 where id = 7")
    with pytest.raises(StoreError, match=r"message 7 is not what was written.*Nothing was changed"):
        restore(backup, store, replace=True)
    with closing(writing_to(backup)) as connection:
        write_mark(SqliteShortTables(connection), CopyMark(MarkState.UNFINISHED, "there"))
    with pytest.raises(StoreError, match="an unfinished copy of there"):
        restore(backup, store, replace=True)
    assert state_of(store) == before
    assert sorted(files(store.parent)) in (["default.db"], ["default.db", "default.db-wal"])


def test_a_store_that_goes_on_elsewhere_can_be_restored_as_another_log(store: Path, tmp_path: Path) -> None:
    """A store that was copied elsewhere can serve as a backup."""
    with closing(writing_to(store)) as connection:
        write_mark(SqliteShortTables(connection), CopyMark(MarkState.MOVED, "there"))
    place = tmp_path / "other.db"
    found = restore(store, place)
    assert found.before.last_id == 2 * FEW
    assert generation_of(place) != generation_of(store)
    with closing(connect_reader(place)) as connection:
        assert read_mark(SqliteShortTables(connection)) is None
