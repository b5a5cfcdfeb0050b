"""The WAL is worked off beside the writer, and stays small."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import apsw
import pytest

from store.checksum import HEAD_BITS, content_sum, head_of
from store.cursors import PIECE_ROWS
from store.ports import Batch
from store.sqlite import writer as writer_module
from store.sqlite.check import check
from store.sqlite.checkpointer import AHEAD, Checkpointer
from store.sqlite.database import connect_reader
from tests.store.effects import publication, purge, queue
from tests.store.vpn_file import MADE_MS, empty_model, state_of, writing_to
from tests.store.writing import Writing, writing

KILOBYTE = 1024
MEGABYTE = 1024 * KILOBYTE
CHECKPOINT_BYTES = 256 * KILOBYTE
MESSAGE_BYTES = 64 * KILOBYTE


def wal_bytes(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def steadily(w: Writing, path: Path, numbers: Iterator[int], total_bytes: int) -> int:
    """Commit so much, a message at a time; the largest the WAL ever was."""
    largest = 0
    for _ in range(total_bytes // MESSAGE_BYTES):
        told = w.commit(publication(next(numbers), [bytes(MESSAGE_BYTES)], time_ms=MADE_MS))
        assert told.error is None
        largest = max(largest, wal_bytes(path))
    return largest


@contextmanager
def snapshot(path: Path) -> Iterator[apsw.Connection]:
    """A reader that holds on to what it saw first."""
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        connection.execute("select count(*) from message").fetchall()
        yield connection
        connection.execute("commit")


@pytest.mark.slow
def test_the_wal_stays_small_under_steady_writing(path: Path) -> None:
    """However much is written, the WAL begins anew again and again: it never holds half of it."""
    with writing(path, checkpoint_bytes=CHECKPOINT_BYTES, synchronous="FULL") as w:
        assert steadily(w, path, count(1), 32 * MEGABYTE) < 16 * MEGABYTE


@pytest.mark.slow
def test_a_long_read_lets_the_wal_grow_and_no_longer(path: Path) -> None:
    """While a reader holds a snapshot the WAL must keep all; after it, the file shrinks and stays small."""
    numbers = count(1)
    with writing(path, checkpoint_bytes=CHECKPOINT_BYTES, wal_limit_bytes=MEGABYTE, synchronous="FULL") as w:
        with snapshot(path) as reader:
            assert steadily(w, path, numbers, 8 * MEGABYTE) >= 8 * MEGABYTE
            assert reader.execute("select count(*) from message").fetchall() == [(0,)]
        written = 0
        while wal_bytes(path) > MEGABYTE:
            steadily(w, path, numbers, MEGABYTE)
            written += 1
            assert written < 64
        assert steadily(w, path, numbers, 24 * MEGABYTE) < 12 * MEGABYTE


@pytest.mark.slow
def test_collecting_garbage_does_not_let_the_wal_grow(path: Path) -> None:
    """A deep queue that was emptied is collected with nobody publishing: the WAL begins anew meanwhile."""
    pieces = 100
    with writing(path, checkpoint_bytes=CHECKPOINT_BYTES) as w:
        model = empty_model()
        contents = [b"x"] * PIECE_ROWS * pieces
        for effect in [
            *queue(1, "q"),
            publication(1, contents, endpoints=(1,), logged=False, time_ms=MADE_MS),
        ]:
            w.commit(effect)
            model.apply(effect)
        with closing(writing_to(path)) as other:
            while other.execute("pragma wal_checkpoint(truncate)").fetchall()[0][0]:
                pass
        w.commit(*purge(model, 1))
        largest = 0
        while w.writer._garbage:
            largest = max(largest, wal_bytes(path))
    assert largest < 4 * MEGABYTE


@pytest.fixture
def checkpointer(path: Path) -> Iterator[Checkpointer]:
    """One whose passes the test makes itself."""
    checkpointer = Checkpointer(path, CHECKPOINT_BYTES)
    yield checkpointer
    checkpointer.close()


def fill(connection: apsw.Connection, total_bytes: int) -> None:
    ((message_id,),) = connection.execute("select coalesce(max(id), 0) + 1 from message")
    content = bytes(total_bytes)
    checksum = (content_sum(content) << HEAD_BITS) + head_of(message_id, 0, "t", 0, 0)
    connection.execute(
        "insert into message values (?, 0, 't', 0, 0, null, ?, ?)", (message_id, checksum, content)
    )


def test_the_writer_is_left_alone_while_a_reader_holds_frames(path: Path, checkpointer: Checkpointer) -> None:
    """RESTART is not even tried then: when the reader ended, the writer would have to do all that PASSIVE could not."""
    with closing(writing_to(path)) as writer, closing(writing_to(path)) as beside:
        fill(writer, MEGABYTE)
        with snapshot(path):
            for _ in range(3):
                fill(writer, MEGABYTE)
                checkpointer._checkpoint(beside)
                assert not checkpointer.is_ready
        checkpointer._checkpoint(beside)
        assert checkpointer.is_ready
        checkpointer.restart_wal(writer)
        assert not checkpointer.is_ready
        before = wal_bytes(path)
        fill(writer, KILOBYTE)
        assert wal_bytes(path) == before


def test_a_fast_writer_gets_its_restart(path: Path, checkpointer: Checkpointer) -> None:
    """More than a checkpoint's worth written during a pass is no reason to wait: what was there before it is done."""
    with closing(writing_to(path)) as writer, closing(writing_to(path)) as beside:
        # What a pass finds at its beginning is played by what this reader sees: the writer goes on, the pass does not.
        fill(writer, 2 * MEGABYTE)
        with snapshot(path):
            fill(writer, MEGABYTE)
            checkpointer._checkpoint(beside)
            assert not checkpointer.is_ready
        fill(writer, MEGABYTE)
        with snapshot(path):
            fill(writer, MEGABYTE)
            checkpointer._checkpoint(beside)
            assert checkpointer.is_ready


def test_a_restart_that_a_reader_prevents_is_tried_again(path: Path, checkpointer: Checkpointer) -> None:
    """It gives up at once, stays due, and works after the reader has gone."""
    with closing(writing_to(path)) as writer, closing(writing_to(path)) as beside:
        fill(writer, KILOBYTE)
        checkpointer._checkpoint(beside)
        assert checkpointer.is_ready
        with snapshot(path):
            fill(writer, KILOBYTE)
            checkpointer.restart_wal(writer)
            assert checkpointer.is_ready
        checkpointer.restart_wal(writer)
        assert not checkpointer.is_ready


def copied(path: Path, to: Path) -> Path:
    """The files as a kill would leave them now."""
    shutil.copy(path, to)
    shutil.copy(f"{path}-wal", f"{to}-wal")
    return to


def test_small_commits_find_the_wal_longer_than_what_is_in_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file grows a piece at a time, not with each of them; what a kill leaves holds all that was committed."""
    monkeypatch.setattr(writer_module, "COMMIT_NOW_SECONDS", float("inf"))
    sizes = set()
    commits = 200
    with writing(path) as w:
        for number in range(1, commits + 1):
            batch = Batch([publication(number, [b"x" * 300], time_ms=MADE_MS)], 300)
            # The thread may be at work.
            while (done := w.writer.commit_now(batch)) == (False, None):
                pass
            assert done == (True, None)
            sizes.add(wal_bytes(path))
            if number % 40 == 0:
                killed = copied(path, tmp_path / f"killed-{number}.db")
                assert list(state_of(killed).messages) == list(range(1, number + 1))
                assert check(killed) == []
        assert wal_bytes(path) > 2 * len(AHEAD)
    assert len(sizes) < commits / 10


def test_a_kill_while_the_wal_gets_longer_leaves_what_was_there(
    path: Path, tmp_path: Path, checkpointer: Checkpointer
) -> None:
    """Before the first commit, when not even the WAL's header is written, and after one."""
    with closing(writing_to(path)) as writer:
        for count_before in (0, 1):
            writer.execute("begin immediate")
            fill(writer, KILOBYTE)
            checkpointer.lengthen_wal()
            killed = copied(path, tmp_path / f"killed-{count_before}.db")
            writer.execute("commit")
            assert wal_bytes(killed) >= len(AHEAD)
            with closing(writing_to(killed)) as connection:
                assert connection.execute("select count(*) from message").fetchall() == [(count_before,)]
                fill(connection, KILOBYTE)
            assert check(killed) == []
            with closing(connect_reader(path)) as reader:
                assert reader.execute("select count(*) from message").fetchall() == [(count_before + 1,)]
