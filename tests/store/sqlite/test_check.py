"""The check of a file: silent on a sound one, and it finds each thing that can be wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from store.sqlite.check import check
from store.sqlite.database import open_file
from tests.store.effects import (
    publication,
    queue,
    route,
)
from tests.store.vpn_file import MADE_MS, commit, execute, writing_to

BOTH = route(1, 2).number


@pytest.fixture
def sound(path: Path) -> Path:
    """A file with something in it."""
    with closing(writing_to(path)) as connection:
        commit(connection, [*queue(1, "q"), publication(1, [b"12345"] * 4, endpoints=(1,), time_ms=MADE_MS)])
    return path


def test_a_damaged_page_is_found(sound: Path) -> None:
    """What SQLite itself cannot make sense of is told in its words."""
    open_file(sound, MADE_MS, synchronous="OFF").close()  # leaves no WAL beside it
    content = bytearray(sound.read_bytes())
    content[4096:8192] = b"\x5a" * 4096
    sound.write_bytes(content)
    (first, *_) = check(sound)
    assert "SQLite" in first or "malformed" in first


@pytest.mark.parametrize("content", [b"this is no database" * 100, b""], ids=["text", "empty"])
def test_what_is_no_gateways_file_is_told_so(tmp_path: Path, content: bytes) -> None:
    """One sentence, whatever the file is; it is left as it was."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    (found,) = check(path)
    assert "not a database" in found or "no file of a gateway" in found
    assert path.read_bytes() == content


def test_a_missing_file_is_told_so_and_not_made(tmp_path: Path) -> None:
    """Looking makes nothing."""
    path = tmp_path / "x.db"
    assert check(path) == [f"there is no file {path}"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_later_version_is_told_so(sound: Path) -> None:
    """Its promises are others: no guess is made."""
    execute(
        sound,
        "insert into _sqlite_migrations (migration_set, name, applied_at) values ('rewind', 'm999_new', '')",
    )
    assert check(sound) == ["it knows m999_new: it was written by a later version"]


def test_a_file_in_use_is_checked_as_it_is_at_one_moment(sound: Path) -> None:
    """A writer that is at work meanwhile neither waits nor causes a false alarm."""
    with closing(writing_to(sound)) as connection:
        connection.execute("begin immediate")
        connection.execute("update log set size_bytes = 0")
        assert check(sound) == []
        connection.execute("rollback")
