"""Group commit: what is reported and in which order, what an error costs, cleaning up, and checkpoints."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway.core.effects import MoveCursor, Publication, SaveEndpoint
from gateway.core.model import WHOLE, RouteDefinition
from store.checksum import HEAD_BITS, content_sum, head_of
from store.cursors import PIECE_ROWS
from store.errors import WriteFailed
from store.group_commit import GROUP_BYTES
from store.ports import MANY_SETTLED, SMALL_MOVES, Batch
from store.sqlite import writer as writer_module
from store.sqlite.check import check
from store.sqlite.checkpointer import AHEAD, Checkpointer
from store.sqlite.database import connect_reader
from store.sqlite.writer import LET_GO_NOW
from tests.store.effects import applied, deletion, publication, purge, queue, settled
from tests.store.vpn_file import MADE_MS, copied_files, query, state_of, writing_to
from tests.store.writing import Writing, writing
from tests.support.waiting import wait_until

# --- Group commit ---------------------------------------------------------------------------------------------------

QUEUE = queue(1, "q")


def message(number: int, *, topic: str = "a", size: int = 10) -> Publication:
    return publication(number, [bytes(size)], topic=topic, time_ms=MADE_MS)


def spool(count: int, *, endpoint: int = 1, first: int = 1, logged: bool = True) -> Publication:
    """Messages on one queue."""
    return publication(first, [b"x"] * count, endpoints=(endpoint,), logged=logged, time_ms=MADE_MS)


def ids(path: Path) -> list[int]:
    """The ids of all messages that another connection sees now."""
    return sorted(state_of(path).messages)


def count_of(path: Path, table: str) -> int:
    ((count,),) = query(path, f"select count(*) from {table}")
    return int(count)


# --- commit, then tell ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("size", "together"), [(10, [10]), (GROUP_BYTES // 4, [4, 4, 2])], ids=["small", "large"]
)
def test_what_waits_together_is_committed_together(path: Path, size: int, together: list[int]) -> None:
    """
    Batches that arrive during a commit become one transaction, reported together, up to GROUP_BYTES; the rest waits for
    the next transaction, so no commit takes too long.
    """
    with writing(path) as w:
        with w.held():
            waiting = [w.submit(message(number, size=size)) for number in range(1, 11)]
        w.transaction_of(waiting[-1])
    assert [len(told.batches) for told in w.told[1:]] == together
    assert all(told.error is None for told in w.told)
    assert list(map(id, w.batches[1:])) == list(map(id, waiting))
    assert ids(path) == list(range(1, 11))


def test_closing_leaves_nothing_in_the_wal(path: Path, tmp_path: Path) -> None:
    """The WAL is empty after a close, even with a reader connected, so a copy of the file alone is complete."""
    with closing(connect_reader(path)) as reader:
        with writing(path) as w:
            w.commit(message(1))
            assert reader.execute("select count(*) from message").fetchall() == [(1,)]
        assert wal_bytes(path) == 0
        shutil.copy(path, tmp_path / "copy.db")
        assert ids(tmp_path / "copy.db") == [1]


# --- on the caller's thread -----------------------------------------------------------------------------------------
def test_a_small_batch_is_committed_on_the_spot(path: Path) -> None:
    """``commit_now`` returns after a message and its settlements are durable, and does not call ``on_commit``."""
    with writing(path) as w:
        w.write(*QUEUE, spool(9))
        told = len(w.told)
        small = [*settled(w.model, 1, [1, 2, 3]), message(10)]
        assert Batch(small, 10).is_small
        w.write_now(*small)
        assert state_of(path) == w.model.state()
        assert len(w.told) == told


def _moved(done: range, *, in_order: bool = True) -> MoveCursor:
    ranges = {} if in_order else {i: i for i in done}
    return MoveCursor(1, WHOLE, done[-1] if in_order else None, ranges, None, 0, 0, done)


@pytest.mark.parametrize(
    ("effects", "is_small"),
    [
        ([_moved(range(1, 3))] * SMALL_MOVES, True),
        ([_moved(range(1, 3))] * (SMALL_MOVES + 1), False),
        ([_moved(range(1, 100, 2), in_order=False)], False),
        ([_moved(range(1, MANY_SETTLED + 1))], True),
        ([_moved(range(1, MANY_SETTLED + 2))], False),
        ([_moved(range(1, MANY_SETTLED + 2)), message(1)], True),
    ],
    ids=["few moves", "many moves", "many ranges", "few settled", "many settled", "a message goes along"],
)
def test_what_the_loop_does_not_wait_for(effects: list[Any], is_small: bool) -> None:
    """Many moves, ranges or settlements are too much for the loop's thread, unless a publisher waits for a message."""
    assert Batch(effects, 10).is_small is is_small


def test_messages_that_the_log_does_not_hold_are_not_let_go_of_on_the_spot(path: Path) -> None:
    """Releasing an unlogged message changes and deletes a row: many are left to the writer's thread, a few are not."""
    with writing(path) as w:
        w.write(*QUEUE, spool(LET_GO_NOW + 2, logged=False))
        w.write_now(*settled(w.model, 1, [1]))
        many = settled(w.model, 1, range(2, LET_GO_NOW + 3))
        assert w.writer.commit_now(Batch(many, 0)) == (False, None)
    assert ids(path) == list(range(2, LET_GO_NOW + 3))


def test_nothing_is_committed_on_the_spot_while_the_thread_is_at_work_or_where_commits_take_long(
    path: Path,
) -> None:
    """``commit_now`` then writes nothing, and the caller has to submit: to keep the order, or to spare the loop."""
    with writing(path) as w:
        with w.held():
            assert w.writer.commit_now(Batch([message(2)], 10)) == (False, None)
        w.commit(message(3))
        w.writer._slow_share = 1.0
        assert w.writer.commit_now(Batch([message(4)], 10)) == (False, None)
    assert ids(path) == [3]


def test_one_slow_commit_among_quick_ones_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one slow commit the next is still made on the caller's thread; after many slow ones it is not."""
    now = 0.0
    took = 0.0

    def clock() -> float:
        nonlocal now
        now += took
        return now

    with writing(path) as w:
        monkeypatch.setattr(writer_module.time, "monotonic", clock)
        number = 0
        for seconds in [0.0] * 20 + [1.0] + [0.0] * 20:
            number, took = number + 1, seconds
            assert w.writer.commit_now(Batch([message(number)], 10))[0]
        took = 1.0
        while w.writer.commit_now(Batch([message(number + 1)], 10))[0]:
            number += 1
            assert number < 100
        assert number > 45
    assert ids(path) == list(range(1, number + 1))


# --- errors ---------------------------------------------------------------------------------------------------------
@contextmanager
def poisoned(path: Path, how: str) -> Iterator[None]:
    """Make the insert of a message with the topic ``poison`` fail."""
    with closing(writing_to(path)) as connection:
        connection.execute(
            "create trigger poison before insert on message when new.topic = 'poison' "
            f"begin select raise({how}, 'poison'); end"
        )
        yield


@pytest.mark.parametrize("how", ["abort", "rollback", "fail"])
@pytest.mark.parametrize("bad", [2, 4, 7])
def test_a_batch_that_cannot_be_written_fails_alone(path: Path, how: str, bad: int) -> None:
    """
    The batches that waited with it are written, and all are reported once, in order. Committed on the caller's thread,
    such a batch returns the error.
    """
    with writing(path) as w, poisoned(path, how):
        w.commit(*QUEUE, message(1))
        with w.held():
            together = [w.submit(message(n, topic="poison" if n == bad else "a")) for n in range(2, 8)]
        w.transaction_of(together[-1])
        failed = [told for told in w.told if told.error is not None]
        assert [list(map(id, told.batches)) for told in failed] == [[id(together[bad - 2])]]
        assert list(map(id, w.batches[2:])) == list(map(id, together))
        assert ids(path) == [n for n in range(1, 8) if n != bad]
        for error in (failed[0].error, w.commit_now(message(8, topic="poison"))):
            assert isinstance(error, WriteFailed)
            assert isinstance(error.__cause__, apsw.ConstraintError)
        assert w.commit_now(message(8)) is None
        assert w.commit(message(9)) is None
    assert ids(path) == [n for n in range(1, 10) if n != bad]
    assert check(path) == []


def test_a_full_disk_fails_what_does_not_fit(path: Path) -> None:
    """SQLITE_FULL is reported; once there is room, writing goes on, and no counter has the failed messages."""
    with writing(path) as w:
        w.write(*QUEUE, message(1))
        pages = w.writer._connection.execute("pragma page_count").get
        w.writer._connection.execute(f"pragma max_page_count = {pages + 5}")
        error = w.commit(publication(2, [bytes(1 << 20)], endpoints=(1,), time_ms=MADE_MS))
        assert isinstance(error, WriteFailed)
        assert isinstance(error.__cause__, apsw.FullError)
        assert "full" in str(error)
        w.write(publication(3, [b"fits"], endpoints=(1,), time_ms=MADE_MS))
        w.writer._connection.execute("pragma max_page_count = 1000000")
        w.write(publication(4, [bytes(1 << 20)], endpoints=(1,), time_ms=MADE_MS))
    assert state_of(path) == w.model.state()


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While the event is set, the COMMIT of every writer made after this fails."""
    broken = threading.Event()

    class Connection(apsw.Connection):
        def execute(self, sql: str, *values: Any) -> apsw.Cursor:  # type: ignore[override]
            if broken.is_set() and sql == "commit":
                raise apsw.IOError("disk I/O error")
            return super().execute(sql, *values)

    def connect(path: Path, *, synchronous: str) -> apsw.Connection:
        return Connection(str(path))

    monkeypatch.setattr(writer_module, "connect_writer", connect)
    return broken


def test_an_error_that_may_pass_fails_all_that_waited(path: Path, broken_disk: threading.Event) -> None:
    """
    An error of the disk is no batch's fault, so batches are not retried one by one. Even at COMMIT it undoes the whole
    transaction.
    """
    with writing(path) as w:
        w.write(*QUEUE, message(1))
        with w.held():
            broken_disk.set()
            together = [w.submit(*purge(w.model, 1), message(2)), *[w.submit(message(n)) for n in (3, 4)]]
        told = w.transaction_of(together[-1])
        assert list(map(id, told.batches)) == list(map(id, together))
        assert str(told.error) == "disk I/O error"
        assert state_of(path) == w.model.state()
        assert list(w.writer._garbage) == []
        broken_disk.clear()
        assert w.commit(message(5)) is None
    assert ids(path) == [1, 5]


@pytest.mark.parametrize("by_closing", [False, True])
def test_what_the_broker_goes_by_is_made_up_for(
    path: Path, broken_disk: threading.Event, by_closing: bool
) -> None:
    """Failed settlements and definitions are written with the next transaction, or when the writer closes."""
    with writing(path) as w:
        w.write(*QUEUE, spool(9, logged=False))
        broken_disk.set()
        done = applied(w.model, settled(w.model, 1, [1, 2, 3]))
        w.commit(*done, publication(10, [b"not stored"], endpoints=(1,), time_ms=MADE_MS))
        w.commit(*applied(w.model, purge(w.model, 1)))
        broken_disk.clear()
        if not by_closing:
            w.write(spool(1, first=11))
            assert state_of(path) == w.model.state()
    assert state_of(path) == w.model.state()


@pytest.mark.parametrize("is_at_fault", [False, True])
def test_what_another_spoiled_is_made_up_for(path: Path, is_at_fault: bool) -> None:
    """If a message fails its batch, the batch's settlements and valid definitions are written later."""
    made = [SaveEndpoint(2, 1, "\ud800", "queue", "{}", None)] if is_at_fault else queue(2, "r")
    with writing(path) as w:
        w.write(*QUEUE, spool(9))
        done = settled(w.model, 1, [1, 2])
        bad = publication(11, [b"x"], topic="\ud800", endpoints=(1,), logged=False, time_ms=MADE_MS)
        assert w.commit(*done, *made, bad) is not None
        applied(w.model, [*done, *([] if is_at_fault else made)])
        w.write(message(12))
    assert state_of(path) == w.model.state()


# --- what dropped cursors and unused routes leave ---------------------------------------------------------------------
def test_garbage_of_the_last_run_is_collected(path: Path) -> None:
    """A new writer deletes what a dropped cursor of the last run left."""
    with writing(path) as w:
        w.write(*QUEUE, spool(3 * PIECE_ROWS, logged=False))
        w.hold.clear()
        w.commit(*deletion(w.model, 1))
        w.writer.submit(None)  # type: ignore[arg-type]  # the end, before any piece is collected
    assert count_of(path, "message") == 3 * PIECE_ROWS
    with writing(path) as w:
        wait_until(lambda: not w.writer._garbage, "nothing is left")
    assert ids(path) == []
    assert count_of(path, "cursor") == 0


def test_garbage_that_cannot_be_collected_is_tried_again(path: Path) -> None:
    """While collecting fails, messages are still committed; afterwards the rest is collected."""
    with writing(path) as w, closing(writing_to(path)) as other:
        w.write(*QUEUE, spool(10, logged=False))
        other.execute("create trigger stuck before delete on garbage begin select raise(abort, 'stuck'); end")
        w.commit(*purge(w.model, 1))
        assert w.commit(message(11)) is None
        assert count_of(path, "garbage") == 1
        other.execute("drop trigger stuck")
        wait_until(lambda: not w.writer._garbage, "nothing is left")
    assert ids(path) == [11]
    assert count_of(path, "garbage") == 0


def test_garbage_is_collected_under_load(path: Path) -> None:
    """What a purged endpoint left is collected even while publishers keep the writer busy."""
    with writing(path) as w:
        w.write(*QUEUE, spool(3 * PIECE_ROWS, logged=False))
        w.commit(*purge(w.model, 1))
        number = 3 * PIECE_ROWS
        while w.writer._garbage:
            for _ in range(50):
                number += 1
                last = w.submit(message(number))
            w.transaction_of(last)
    assert ids(path) == list(range(3 * PIECE_ROWS + 1, number + 1))


def on_route(number: int, first: int) -> Publication:
    """An unlogged message on a route of its own, as of a short-lived subscription."""
    rows = [(first, MADE_MS, "a", 0, number, 1, b"x")]
    return Publication(rows, "a", [RouteDefinition(number, (1,), None)], False, [1], None)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_many_short_lived_routes_leave_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    """A route is dropped some time after its last message, idle or under load, and is created again when needed."""
    monkeypatch.setattr(writer_module, "SWEEP_SECONDS", 0.001)
    with writing(path) as w:
        w.commit(*QUEUE)
        for k in range(1, 301):
            w.submit(on_route(k, k))
        move = MoveCursor(1, WHOLE, 299, {}, 300, 1, 1, list(range(1, 300)))
        w.commit(move)
        number = 300
        while count_of(path, "route") > 1:
            if is_loaded:
                last = [w.submit(message(number := number + 1)) for _ in range(100)]
                w.transaction_of(last[-1])
        assert query(path, "select number from route") == [(300,)]
        assert w.commit(on_route(7, number + 1)) is None
        assert query(path, "select number from route") == [(7,), (300,)]
    assert check(path) == []


def test_routes_are_looked_at_though_all_is_committed_on_the_spot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread drops unused routes even if all batches are committed on the caller's thread."""
    monkeypatch.setattr(writer_module, "SWEEP_SECONDS", 0.001)
    with writing(path) as w:
        w.commit(*QUEUE)
        wait_until(lambda: not w.writer._routes.is_due, "they were looked at")
        w.writer._slow_share = 0.0
        assert w.commit_now(on_route(1, 1)) is None
        assert count_of(path, "route") == 1
        w.commit(MoveCursor(1, WHOLE, 1, {}, 1, 0, 0, [1]))
        wait_until(lambda: count_of(path, "route") == 0, "it is dropped")


# --- The WAL is checkpointed in parallel to the writer, and stays small ---------------------------------------------

KILOBYTE = 1024
MEGABYTE = 1024 * KILOBYTE
CHECKPOINT_BYTES = 256 * KILOBYTE
MESSAGE_BYTES = 64 * KILOBYTE


def wal_bytes(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def steadily(w: Writing, path: Path, numbers: Iterator[int], total_bytes: int) -> int:
    """Commit ``total_bytes``, a message at a time; returns the largest size of the WAL."""
    largest = 0
    for _ in range(total_bytes // MESSAGE_BYTES):
        assert w.commit(publication(next(numbers), [bytes(MESSAGE_BYTES)], time_ms=MADE_MS)) is None
        largest = max(largest, wal_bytes(path))
    return largest


@contextmanager
def snapshot(path: Path) -> Iterator[apsw.Connection]:
    """A reader that keeps its first snapshot open."""
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        connection.execute("select count(*) from message").fetchall()
        yield connection
        connection.execute("commit")


@pytest.mark.slow
def test_a_long_read_lets_the_wal_grow_and_no_longer(path: Path) -> None:
    """The WAL grows while a reader holds a snapshot; afterwards it shrinks and stays small."""
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
    """While the messages of a deep, purged queue are deleted, the WAL is restarted again and again."""
    pieces = 50
    with writing(path, checkpoint_bytes=CHECKPOINT_BYTES) as w:
        w.write(*QUEUE, spool(PIECE_ROWS * pieces, logged=False))
        with closing(writing_to(path)) as other:
            while other.execute("pragma wal_checkpoint(truncate)").fetchall()[0][0]:
                pass
        w.commit(*purge(w.model, 1))
        largest = 0
        while w.writer._garbage:
            largest = max(largest, wal_bytes(path))
    assert largest < 4 * MEGABYTE


@pytest.fixture
def checkpointer(path: Path) -> Iterator[Checkpointer]:
    """A checkpointer whose passes the test makes itself."""
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
    """RESTART is not tried while a reader holds frames: the writer would have to checkpoint them once it ends."""
    with closing(writing_to(path)) as writer:
        fill(writer, MEGABYTE)
        with snapshot(path):
            for _ in range(3):
                fill(writer, MEGABYTE)
                checkpointer._checkpoint()
                assert not checkpointer.is_ready
        checkpointer._checkpoint()
        assert checkpointer.is_ready
        checkpointer.restart_wal(writer)
        assert not checkpointer.is_ready
        before = wal_bytes(path)
        fill(writer, KILOBYTE)
        assert wal_bytes(path) == before


def test_a_fast_writer_gets_its_restart(path: Path, checkpointer: Checkpointer) -> None:
    """A restart is due after a pass that copied all earlier frames, however much was written during the pass."""
    with closing(writing_to(path)) as writer:
        # The reader's snapshot limits the pass to the frames before it, as if the rest were written during the pass.
        fill(writer, 2 * MEGABYTE)
        with snapshot(path):
            fill(writer, MEGABYTE)
            checkpointer._checkpoint()
            assert not checkpointer.is_ready
        fill(writer, MEGABYTE)
        with snapshot(path):
            fill(writer, MEGABYTE)
            checkpointer._checkpoint()
            assert checkpointer.is_ready


def test_a_restart_that_a_reader_prevents_is_tried_again(path: Path, checkpointer: Checkpointer) -> None:
    """A restart that a reader blocks gives up immediately, stays due, and succeeds after the reader has ended."""
    with closing(writing_to(path)) as writer:
        fill(writer, KILOBYTE)
        checkpointer._checkpoint()
        assert checkpointer.is_ready
        with snapshot(path):
            fill(writer, KILOBYTE)
            checkpointer.restart_wal(writer)
            assert checkpointer.is_ready
        checkpointer.restart_wal(writer)
        assert not checkpointer.is_ready


def test_small_commits_find_the_wal_longer_than_what_is_in_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL grows ahead in large pieces rather than with each commit; after a kill it has all commits."""
    monkeypatch.setattr(writer_module, "COMMIT_NOW_SECONDS", float("inf"))
    sizes = set()
    commits = 200
    with writing(path) as w:
        for number in range(1, commits + 1):
            assert w.commit_now(message(number, size=300)) is None
            sizes.add(wal_bytes(path))
            if number % 40 == 0:
                killed = copied_files(path, tmp_path / f"killed-{number}.db")
                assert list(state_of(killed).messages) == list(range(1, number + 1))
                assert check(killed) == []
        assert wal_bytes(path) > 2 * len(AHEAD)
    assert len(sizes) < commits / 10


def test_a_kill_while_the_wal_gets_longer_leaves_what_was_there(
    path: Path, tmp_path: Path, checkpointer: Checkpointer
) -> None:
    """After a kill the file has its commits: none, when the WAL has no header yet, or one."""
    with closing(writing_to(path)) as writer:
        for count_before in (0, 1):
            writer.execute("begin immediate")
            fill(writer, KILOBYTE)
            checkpointer.lengthen_wal()
            killed = copied_files(path, tmp_path / f"killed-{count_before}.db")
            writer.execute("commit")
            assert wal_bytes(killed) >= len(AHEAD)
            with closing(writing_to(killed)) as connection:
                assert connection.execute("select count(*) from message").fetchall() == [(count_before,)]
                fill(connection, KILOBYTE)
            assert check(killed) == []
            with closing(connect_reader(path)) as reader:
                assert reader.execute("select count(*) from message").fetchall() == [(count_before + 1,)]
