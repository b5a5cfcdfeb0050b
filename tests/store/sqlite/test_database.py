"""Files that cannot be opened, and connections to those that can."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from store.errors import StoreError
from store.sqlite.database import connect_reader, open_file
from store.sqlite.store import recover
from tests.store.sqlite.test_transaction import QUEUE
from tests.store.vpn_file import MADE_MS, commit, state_of, writing_to


@pytest.mark.parametrize(
    ("content", "cause"),
    [(b"not SQLite at all\n" * 100, "not a database"), (b"SQLite format 3\0" + b"\xff" * 4_080, "")],
    ids=["text", "header"],
)
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes, cause: str) -> None:
    """The error names the file and what can be done; not a byte of it is changed."""
    path = tmp_path / "default.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"cannot open {path}: .*{cause}.*Restore it from a backup"):
        open_file(path, MADE_MS, synchronous="FULL").close()
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A folder in its place, or no folder around it."""
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "folder.db", tmp_path / "missing" / "default.db"):
        with pytest.raises(StoreError, match=f"cannot open {path}: unable to open database file"):
            open_file(path, MADE_MS, synchronous="FULL").close()


def test_a_new_log_has_a_generation_of_its_own(tmp_path: Path) -> None:
    """Random and positive: a log made anew is never taken for the one before."""
    generations = set()
    for name in "abc":
        path = tmp_path / f"{name}.db"
        open_file(path, MADE_MS, synchronous="FULL").close()
        log = recover(path).log
        assert (log.first_id, log.next_id, log.last_time_ms, log.floor_ms) == (1, 1, MADE_MS, MADE_MS)
        generations.add(log.generation)
    assert len(generations) == 3
    assert all(0 <= generation < 1 << 63 for generation in generations)


def test_what_migrates_files_is_not_loaded_for_one_that_is_migrated(path: Path) -> None:
    """A start is shorter by that, and a gateway smaller."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom store.sqlite.database import open_file\n"
        f"open_file(Path({str(path)!r}), 1, synchronous='OFF').close()\n"
        "assert 'apsw' in sys.modules and 'sqlite_utils' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_any_path_will_do(tmp_path: Path) -> None:
    """Characters that mean something in a URI are those of the file: readers and the writer open the same one."""
    path = tmp_path / "a b%20?mode=rw#ä.db"
    open_file(path, MADE_MS, synchronous="FULL").close()
    with closing(writing_to(path)) as connection:
        commit(connection, QUEUE)
        assert [name for name in os.listdir(tmp_path) if name.endswith(".db")] == [path.name]
        assert list(state_of(path).endpoints) == [1]


def test_readers_do_not_wait_for_the_writer(path: Path) -> None:
    """While a transaction is open, a reader sees what was committed before, at once."""
    with closing(writing_to(path)) as writer, closing(connect_reader(path)) as reader:
        writer.execute("begin immediate")
        writer.execute("update log set last_id = 99")
        assert reader.execute("select last_id from log").fetchall() == [(0,)]
        writer.execute("commit")
        assert reader.execute("select last_id from log").fetchall() == [(99,)]
