"""The data folder's lock, and files that cannot be opened."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from store.data_folder import LOCK_FILE, DataFolder
from store.errors import StoreError, StoreLocked
from store.sqlite.database import connect_reader, open_file
from store.sqlite.recovery import recover
from tests.store.model import MADE_MS, commit, state_of, writing_to
from tests.store.test_transaction import QUEUE

HOLDER = """
import sys
from pathlib import Path
from store.data_folder import DataFolder
folder = DataFolder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_is_made_and_held(tmp_path: Path) -> None:
    """With the folders above it; its lock file says who holds it."""
    folder = DataFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    assert folder.file_of("default") == tmp_path / "a" / "b" / "default.db"
    folder.release()


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    """The error names the process and what to do; the first one's lock file is left as it was."""
    folder = DataFolder(tmp_path)
    with pytest.raises(StoreLocked) as caught:
        DataFolder(tmp_path)
    assert str(caught.value) == (
        f"cannot use the data folder {tmp_path}: another gateway uses it (process {os.getpid()}). "
        "Stop that one, or give another folder with --data"
    )
    assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    folder.release()
    DataFolder(tmp_path).release()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    """A gateway that was killed leaves the lock file and no lock; a longer process id is overwritten."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match=rf"\(process {holder.pid}\)"):
            DataFolder(tmp_path)
        holder.kill()
    (tmp_path / LOCK_FILE).write_text("12345678901234567890\n")
    folder = DataFolder(tmp_path)
    assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    folder.release()


def test_a_lock_file_without_a_number_is_no_obstacle(tmp_path: Path) -> None:
    """A holder that has not written its number yet is called unknown."""
    folder = DataFolder(tmp_path)
    (tmp_path / LOCK_FILE).write_bytes(b"")
    with pytest.raises(StoreLocked, match=r"\(process unknown\)"):
        DataFolder(tmp_path)
    folder.release()


@pytest.mark.parametrize("taken", ["", "folder", f"folder/{LOCK_FILE}/x"], ids=["above", "itself", "lock"])
def test_a_folder_that_cannot_be_used_is_told_so(tmp_path: Path, taken: str) -> None:
    """A file in its place or above it, or a folder in the lock file's: one sentence with the cause and a way out."""
    place = tmp_path / "data"
    if taken.endswith("x"):
        (place / taken).mkdir(parents=True)
    else:
        (place / taken).parent.mkdir(exist_ok=True)
        (place / taken).write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot use the data folder .*Give a folder this user may write"):
        DataFolder(place / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told_so(tmp_path: Path) -> None:
    """The cause is in the sentence."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        DataFolder(tmp_path / "data")
    tmp_path.chmod(0o700)


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
        open_file(path, MADE_MS, synchronous="FULL")
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A folder in its place, or no folder around it."""
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "folder.db", tmp_path / "missing" / "default.db"):
        with pytest.raises(StoreError, match=f"cannot open {path}: unable to open database file"):
            open_file(path, MADE_MS, synchronous="FULL")


def test_a_new_log_has_a_generation_of_its_own(tmp_path: Path) -> None:
    """Random and positive: a log made anew is never taken for the one before."""
    generations = set()
    for name in "abc":
        path = tmp_path / f"{name}.db"
        open_file(path, MADE_MS, synchronous="FULL")
        log = recover(path).log
        assert (log.first_id, log.next_id, log.last_time_ms, log.floor_ms) == (1, 1, MADE_MS, MADE_MS)
        generations.add(log.generation)
    assert len(generations) == 3
    assert all(0 <= generation < 1 << 63 for generation in generations)


def test_any_path_will_do(tmp_path: Path) -> None:
    """Characters that mean something in a URI are those of the file: readers and the writer open the same one."""
    path = tmp_path / "a b%20?mode=rw#ä.db"
    open_file(path, MADE_MS, synchronous="FULL")
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE])
        assert [name for name in os.listdir(tmp_path) if name.endswith(".db")] == [path.name]
        assert list(state_of(path).endpoints) == [1]


def test_readers_do_not_wait_for_the_writer(path: Path) -> None:
    """While a transaction is open, a reader sees what was committed before, at once."""
    with closing(writing_to(path)) as writer, closing(connect_reader(path)) as reader:
        writer.execute("begin immediate")
        writer.execute("update log set last_id = 99")
        assert reader.execute("select last_id from log").fetchone() == (0,)
        writer.execute("commit")
        assert reader.execute("select last_id from log").fetchone() == (99,)
