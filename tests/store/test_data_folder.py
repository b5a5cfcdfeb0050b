"""The data folder's lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.data_folder import LOCK_FILE, DataFolder
from store.errors import StoreError, StoreLocked
from store.sqlite.database import open_file
from store.sqlite.store import message_file

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
    assert message_file(folder.path, "default") == tmp_path / "a" / "b" / "default.db"
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


def test_what_is_made_is_its_user_s_alone(tmp_path: Path) -> None:
    """Folder, lock, file and WAL, whatever the umask is; and that is no reason to tell anybody."""
    before = os.umask(0)
    try:
        folder = DataFolder(tmp_path / "data")
        connection = open_file(message_file(folder.path, "default"), 1, synchronous="full")
        connection.execute("update log set next_number = 2")
    finally:
        os.umask(before)
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(folder.path)}
    connection.close()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {"rewind.lock", "default.db", "default.db-wal", "default.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert folder.open_to_others() == []
    folder.release()


def test_what_others_may_read_is_named(tmp_path: Path) -> None:
    """A folder that was made open is left so; it and the files in it that are open, too, are told with their modes."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o755)
    for name, mode in (("old.db", 0o644), ("closed.db", 0o600)):
        (path / name).touch()
        (path / name).chmod(mode)
    folder = DataFolder(path)
    assert folder.open_to_others() == [f"{path} 0755", "old.db 0644"]
    folder.release()
