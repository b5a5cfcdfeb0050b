"""The data folder: its lock and modes; checksums of messages, and histograms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import adler32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.checksum import (
    HEAD,
    HEAD_BITS,
    HEAD_MODULUS,
    HELD_BYTES,
    content_sum,
    content_sums,
    head_of,
    is_sound,
)
from store.data_folder import LOCK_FILE, DataFolder
from store.errors import StoreError, StoreLocked
from store.ports import Histogram
from store.sqlite.database import open_file
from store.sqlite.statements import LARGEST_INSERT
from store.sqlite.store import message_file

# --- The data folder's lock -----------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from store.data_folder import DataFolder
folder = DataFolder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_is_made_and_held(tmp_path: Path) -> None:
    """Missing parent folders are made, too; the lock file has the process id of the holder."""
    folder = DataFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    assert message_file(folder.path, "default") == tmp_path / "a" / "b" / "default.db"
    folder.release()


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    """The error names the holder's process and a way out; the lock file stays as it was."""
    folder = DataFolder(tmp_path)
    with pytest.raises(StoreLocked) as caught:
        DataFolder(tmp_path)
    assert str(caught.value) == (
        f"cannot use the data folder {tmp_path}: another gateway uses it (process {os.getpid()}). "
        "Stop that gateway, or name another folder with --data"
    )
    assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    (tmp_path / LOCK_FILE).write_bytes(b"")  # a holder that has not written its number yet
    with pytest.raises(StoreLocked, match=r"\(process unknown\)"):
        DataFolder(tmp_path)
    folder.release()
    DataFolder(tmp_path).release()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    """A killed gateway leaves its lock file but no lock; the next holder overwrites even a longer process id."""
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


@pytest.mark.parametrize("taken", ["", "folder", f"folder/{LOCK_FILE}/x"], ids=["above", "itself", "lock"])
def test_a_folder_that_cannot_be_used_is_told_so(tmp_path: Path, taken: str) -> None:
    """A file in place of the folder or its parent, or a folder in place of the lock file, is an error with advice."""
    place = tmp_path / "data"
    if taken.endswith("x"):
        (place / taken).mkdir(parents=True)
    else:
        (place / taken).parent.mkdir(exist_ok=True)
        (place / taken).write_bytes(b"")
    with pytest.raises(
        StoreError, match=r"cannot use the data folder .*Name a folder that this user may write"
    ):
        DataFolder(place / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told_so(tmp_path: Path) -> None:
    """The error says "Permission denied"."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        DataFolder(tmp_path / "data")
    tmp_path.chmod(0o700)


def test_what_is_made_is_its_user_s_alone(tmp_path: Path) -> None:
    """Folder, lock, file and WAL are for their user alone, whatever the umask, so no warning is due."""
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
    """An existing folder keeps its mode; it and its files that others may read are listed with their modes."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o755)
    for name, mode in (("old.db", 0o644), ("closed.db", 0o600)):
        (path / name).touch()
        (path / name).chmod(mode)
    folder = DataFolder(path)
    assert folder.open_to_others() == [f"{path} 0755", "old.db 0644"]
    folder.release()


def test_a_file_that_is_gone_meanwhile_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check or a backup that ends removes its files, and must not keep a gateway from starting."""
    folder = DataFolder(tmp_path)
    tmp_path.chmod(0o755)
    scandir = os.scandir
    (tmp_path / "default.db-wal").touch()

    def scanned(path: Path) -> list[os.DirEntry[str]]:
        found = list(scandir(path))
        (tmp_path / "default.db-wal").unlink()
        return found

    monkeypatch.setattr(os, "scandir", scanned)
    assert folder.open_to_others() == [f"{tmp_path} 0755"]
    monkeypatch.undo()
    folder.release()


# --- Checksums of messages ------------------------------------------------------------------------------------------

Fields = tuple[int, int, str, int, int, bytes]

NUMBERS = st.integers(0, 2**47)
FIELDS: st.SearchStrategy[Fields] = st.tuples(
    NUMBERS, NUMBERS, st.text(st.characters(codec="utf-8")), NUMBERS, NUMBERS, st.binary()
)


def checksum_of(fields: Fields) -> int:
    *head, content = fields
    return (content_sum(content) << HEAD_BITS) + head_of(*head)


CONTENT_FIELD = 5
TOPIC_FIELD = 2


@given(FIELDS, st.sampled_from([0, 1, TOPIC_FIELD, 3, 4, CONTENT_FIELD]), st.data())
def test_a_byte_that_changes_is_seen(fields: Fields, field: int, data: st.DataObject) -> None:
    """A message is sound as written, and not if one byte of a number, of the topic or of the content changes."""
    changed: list[Any] = list(fields)
    if field == TOPIC_FIELD:
        changed[field] = data.draw(st.text("abcdefgh/", min_size=1))
        fields = (*fields[:field], changed[field], *fields[field + 1 :])
        place = data.draw(st.integers(0, len(changed[field]) - 1))
        other = data.draw(st.characters(max_codepoint=127).filter(lambda c: c != changed[field][place]))
        changed[field] = changed[field][:place] + other + changed[field][place + 1 :]
    elif field == CONTENT_FIELD:
        fields = (*fields[:field], fields[field] + b"x")
        content = bytearray(fields[field])
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        changed[field] = bytes(content)
    else:
        changed[field] ^= data.draw(st.integers(1, 255)) << (8 * data.draw(st.integers(0, 5)))
    checksum = checksum_of(fields)
    assert is_sound(*fields, checksum)
    assert not is_sound(*changed, checksum)
    assert 0 <= checksum < 1 << 47, "six bytes in the file"


@given(st.integers(0, HEAD), st.integers(0, HEAD))
def test_a_checksum_that_changes_is_seen(head: int, other: int) -> None:
    """The checksum's head is accepted only if it is congruent to the right one; its content sum must be equal."""
    fields = (1, 2, "t", 3, 4, b"x")
    checksum = content_sum(b"x") << HEAD_BITS
    assert is_sound(*fields, checksum + head) == (head % HEAD_MODULUS == head_of(1, 2, "t", 3, 4))
    assert not is_sound(*fields, checksum + (1 << HEAD_BITS) + other)


def test_contents_are_summed_in_pieces_as_whole() -> None:
    """Sums in pieces equal Adler-32 of the whole, around the length from which ``zlib`` releases the GIL."""
    contents = [bytes(length) + b"x" for length in (0, HELD_BYTES - 1, HELD_BYTES, 3 * HELD_BYTES)]
    whole = list(map(adler32, contents))
    assert content_sums(contents, max(map(len, contents))) == whole
    assert content_sums(contents[2:3], 1) == whole[2:3]


def test_heads_of_a_run_can_be_counted_up() -> None:
    """The head of the last message of the longest run does not overflow into the content's sum."""
    assert HEAD_MODULUS - 1 + LARGEST_INSERT - 1 <= HEAD


# --- Numbers counted by ranges --------------------------------------------------------------------------------------


def test_bounds_are_inclusive_and_counts_add_up() -> None:
    """A number at a bound counts below it, one above all bounds as +Inf, and the counts are cumulative."""
    histogram = Histogram((1, 10))
    for value in (0, 1, 2, 10, 11):
        histogram.add(value)
    assert histogram.cumulative() == [("1", 2), ("10", 4), ("+Inf", 5)]
    assert histogram.total == 24
