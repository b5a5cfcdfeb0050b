"""Restoring: another log in the old one's place, at once or not at all, and what was there is kept."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from store.copies import CopyMark, MarkState, read_mark, write_mark
from store.errors import StoreError
from store.sqlite import copies
from store.sqlite.check import check
from store.sqlite.copies import back_up, restore
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader
from tests.store.effects import publication, queue
from tests.store.ended import ended_at, steps_of
from tests.store.vpn_file import MADE_MS, commit, execute, generation_of, next_id, state_of, writing_to

COUNT = 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder, of a gateway that does not run."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def store(path: Path, folder: Path, backup: Path) -> Path:
    """A store that went on after the backup was made, and was killed: half of it is in its write-ahead log."""
    place = folder / "default.db"
    with closing(writing_to(path)) as connection:
        commit(connection, [publication(COUNT + 1, [b"later"] * COUNT, time_ms=MADE_MS)])
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{place}{suffix}")
    return place


@pytest.fixture
def backup(path: Path, tmp_path: Path) -> Path:
    with closing(writing_to(path)) as connection:
        commit(connection, queue(1, "q"))
        commit(connection, [publication(1, [b"first"] * COUNT, endpoints=(1,), time_ms=MADE_MS)])
    back_up(path, tmp_path / "backup")
    return tmp_path / "backup"


def test_it_is_another_log_from_the_backups_end_on(backup: Path, folder: Path) -> None:
    """Messages and definitions are the backup's; the generation is new each time, and ids are left out."""
    place = folder / "default.db"
    generations = {generation_of(backup)}
    before = backup.read_bytes()
    for next_is in (COUNT + 101, COUNT + 201):  # those of the first one are given out by then
        found = restore(backup, place, replace=True, skip_ids=100)
        assert (found.before.generation, found.before.last_id, found.log.last_id + 1) == (
            generation_of(backup),
            COUNT,
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
    """Nothing is replaced unasked. What was replaced is whole under another name, its write-ahead log included."""
    with pytest.raises(StoreError, match=r"there is a store already\. Say --replace"):
        restore(backup, store)
    found = restore(backup, store, replace=True, skip_ids=100)
    assert found.kept is not None
    assert next_id(store) == 2 * COUNT + 101
    assert check(found.kept) == []
    assert state_of(found.kept).last_id == 2 * COUNT
    again = restore(backup, store, replace=True, skip_ids=100)
    assert again.kept not in {None, found.kept}
    assert next_id(store) == 2 * COUNT + 201


def files(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if not entry.name.endswith("-shm")}


@pytest.mark.parametrize("damaged", [False, True])
def test_ended_at_any_step_there_is_the_old_store_or_the_new_one_or_none(
    backup: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Never one's file with the other's write-ahead log, or without its own; and the next run does all of it."""
    if damaged:  # its write-ahead log cannot be carried over

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
            assert state_of(store).last_id == 2 * COUNT
        kept = restore(backup, store, replace=True).kept
        assert check(store) == []
        assert next_id(store) > COUNT
        assert store.stat().st_nlink == 1
        left = files(store.parent)
        assert "default.db.part" not in left
        assert "default.db-wal" not in left or left["default.db-wal"] == b""
        if damaged:
            assert {main, wal} <= set(left.values())
        elif name != "in place":
            assert kept is not None
            assert state_of(kept).last_id == 2 * COUNT
            assert kept.stat().st_nlink == 1


def test_what_cannot_be_restored_changes_nothing(backup: Path, store: Path, tmp_path: Path) -> None:
    """No file, no database, an unsound backup, an unfinished copy."""
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
    """What was moved away is a copy like any other."""
    with closing(writing_to(store)) as connection:
        write_mark(SqliteShortTables(connection), CopyMark(MarkState.MOVED, "there"))
    place = tmp_path / "other.db"
    found = restore(store, place)
    assert found.before.last_id == 2 * COUNT
    assert generation_of(place) != generation_of(store)
    with closing(connect_reader(place)) as connection:
        assert read_mark(SqliteShortTables(connection)) is None
