"""How effects become rows, and small batches a single statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.effects import (
    CountedUpTo,
    Effect,
    Publication,
    SaveArchived,
)
from gateway.core.model import CONTENT, ID
from store.checksum import content_sum, topic_sum
from store.cursors import runs
from store.errors import WriteFailed
from store.sqlite import writer as writer_module
from store.sqlite.check import check
from store.sqlite.database import connect_reader
from store.sqlite.log_row import EMPTY, MOST_UNSAVED, LogTail, read_tail
from store.sqlite.schema import PAGE_BYTES
from store.sqlite.statements import LARGEST_INSERT, chunks
from store.sqlite.store import recover
from store.sqlite.transaction import FEW, FewMessages, Transaction, few_messages
from store.transaction import Before
from tests.store.effects import applied, deletion, publication, purge, queue, route, settled, trimming
from tests.store.histories import histories
from tests.store.vpn_file import (
    MADE_MS,
    check_file,
    collect_garbage,
    commit,
    empty_model,
    query,
    state_of,
    writing_to,
    written,
)
from tests.store.writing import Writing, writing
from tests.support.chance import times
from tests.support.naive_store import NaiveStore

# --- Effects turned into rows ---------------------------------------------------------------------------------------

QUEUE = queue(1, "q")
OTHER = queue(2, "r")


# The file that the fixture copies does not change between examples.
@given(history=histories())
def test_the_file_holds_what_the_effects_say(fresh: Callable[[], Path], history: list[list[Effect]]) -> None:
    """After every transaction all tables equal the naive store: rows, routes, held counts, cursors and the log."""
    path, model = fresh(), empty_model()
    with closing(writing_to(path)) as connection:
        for effects in history:
            commit(connection, effects)
            applied(model, effects)
            assert state_of(path) == model.state()


def test_what_is_so_already_is_written_all_the_same(fresh: Callable[[], Path]) -> None:
    """Each commit writes to the WAL, even if no value changes: otherwise an unwritable store would look writable."""
    path = fresh()
    wal = Path(f"{path}-wal")
    with closing(writing_to(path)) as connection:
        before = wal.stat().st_size if wal.exists() else 0
        commit(connection, [SaveArchived(0)])
        assert wal.stat().st_size > before


@given(st.lists(st.integers(), max_size=3 * LARGEST_INSERT))
def test_chunks_are_powers_of_two_and_lose_nothing(items: list[int]) -> None:
    """The pieces joined are the whole; each has 1, 2, 4 … LARGEST_INSERT items, and their lengths never rise."""
    pieces = list(chunks(items))
    assert [item for piece in pieces for item in piece] == items
    lengths = [len(piece) for piece in pieces]
    assert all(length in {1 << k for k in range(LARGEST_INSERT.bit_length())} for length in lengths)
    assert lengths == sorted(lengths, reverse=True)
    assert len([length for length in lengths if length < LARGEST_INSERT]) < LARGEST_INSERT.bit_length()


@given(st.sets(st.integers(0, 40)))
def test_runs_are_the_longest_runs_of_consecutive_ids(ids: set[int]) -> None:
    """Runs have exactly the given ids, and between two runs at least one id is missing."""
    found = runs(sorted(ids))
    assert [i for first, last in found for i in range(first, last + 1)] == sorted(ids)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


def statements_of(path: Path, model: NaiveStore, effects: Sequence[Effect], **options: Any) -> list[str]:
    """Commit effects, check the file against the naive store, and return the transaction's statements."""
    found: list[str] = []
    with closing(writing_to(path)) as connection:
        connection.exec_trace = lambda cursor, sql, values: found.append(sql) is None
        commit(connection, effects, **options)
        connection.exec_trace = None
    assert state_of(path) == model.state()
    return found[found.index("begin immediate") :]


def test_what_comes_often_takes_few_statements(path: Path) -> None:
    """
    Each statement costs a switch of threads. 500 single messages of one kind take at most a dozen, a hundred
    settlements of one endpoint write its cursor once, and no statement of a purge reads messages.
    """
    model = written(path, [QUEUE])
    made = [publication(1 + k, [b"%d" % k], endpoints=(1,), time_ms=MADE_MS) for k in range(500)]
    assert len(statements_of(path, model, applied(model, made))) <= 12
    moves = [move for i in range(1, 101) for move in applied(model, settled(model, 1, [i]))]
    done = statements_of(path, model, moves)
    assert sum(statement.startswith("update cursor") for statement in done) == 1
    emptied = statements_of(path, model, applied(model, purge(model, 1)), has_held=False)
    assert not any("message" in statement for statement in emptied)
    assert len(emptied) < 12


def test_a_cursor_that_is_no_more_is_passed_over(path: Path) -> None:
    """A settlement after its cursor was dropped releases nothing; the messages are released with the dropped cursor."""
    held = publication(1, [b"x"] * 9, endpoints=(1, 2), logged=False, time_ms=MADE_MS)
    model = written(path, [[*QUEUE, *OTHER, held]])
    late = settled(model, 1, range(1, 10))
    first = [*applied(model, purge(model, 1)), *late]
    for effects in (first, late):
        statements_of(path, model, effects)
        assert query(path, "select distinct held from message") == [(2,)]
    assert collect_garbage(path)
    statements_of(path, model, late)
    assert query(path, "select distinct held from message") == [(1,)]


def test_trimming_tells_that_there_are_held_messages_now(path: Path) -> None:
    """The first trim makes messages held: a settlement after it in the same transaction releases a trimmed message."""
    model = written(path, [[*QUEUE, publication(1, [b"x"] * 3, endpoints=(1,), time_ms=MADE_MS)]])
    trim = applied(model, [trimming(model, 3)])
    statements_of(path, model, [*trim, *applied(model, settled(model, 1, [1]))], has_held=False)
    assert query(path, "select id, held from message") == [(2, 1), (3, None)]


# --- A few messages by one statement --------------------------------------------------------------------------------

KNOWN = {route(1).number}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FewMessages | None]]:
    """The single statement for each small batch; None where one statement is not enough."""
    found: list[FewMessages | None] = []

    def watched(*arguments: Any) -> FewMessages | None:
        found.append(few_messages(*arguments))
        return found[-1]

    monkeypatch.setattr(writer_module, "few_messages", watched)
    # Small batches are committed on the caller's thread, however slow the disk is.
    monkeypatch.setattr(writer_module, "COMMIT_NOW_SECONDS", float("inf"))
    yield found


def lone(
    number: int, *, endpoints: tuple[int, ...] = (1,), logged: bool = True, size: int = 10
) -> Publication:
    return publication(number, [bytes(size)], endpoints=endpoints, logged=logged, time_ms=MADE_MS + number)


@pytest.mark.parametrize("tail", [EMPTY, LogTail(3, 4, 1, 1_000, 7)])
@pytest.mark.parametrize("with_held", [False, True])
def test_messages_are_one_statement(tail: LogTail, with_held: bool) -> None:
    """
    The statement's values are the rows of all publications in their order, and the sums for their checksums. The tail
    has what a start needs to know; unlogged messages do not count for the size of the log.
    """
    first = lone(5, size=30)
    held = publication(6, [b"x", b"yy"], endpoints=(1,), logged=False, time_ms=MADE_MS + 5)
    found = few_messages([first, held] if with_held else [first], tail, KNOWN)
    assert found is not None
    rows = [*first.rows, *held.rows] if with_held else first.rows
    sums = [*[content_sum(row[CONTENT]) for row in rows], *[topic_sum("a")] * len(rows)]
    assert list(found.values) == [*[value for row in rows for value in row], *sums]
    logged_bytes = tail.logged_bytes + first.logged_bytes
    assert found.tail == LogTail(tail.messages + len(rows), rows[-1][ID], MADE_MS + 5, logged_bytes, 30)
    assert found.has_held is with_held


@pytest.mark.parametrize(
    ("effects", "tail"),
    [
        ([], EMPTY),
        ([CountedUpTo(1)], EMPTY),
        ([lone(1), CountedUpTo(1)], EMPTY),
        ([lone(1, endpoints=(1, 2))], EMPTY),
        ([lone(1), lone(2)], EMPTY._replace(messages=MOST_UNSAVED - 2)),
        ([lone(n) for n in range(1, FEW + 2)], EMPTY),
    ],
    ids=[
        "nothing",
        "no message",
        "a message and another thing",
        "a new route",
        "the log's row is due",
        "many",
    ],
)
def test_one_statement_is_not_enough(effects: Sequence[Effect], tail: LogTail) -> None:
    """A batch with anything but messages on known routes, or with too many, needs a transaction of statements."""
    assert few_messages(effects, tail, KNOWN) is None


SMALL_BATCHES = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.booleans()), min_size=1, max_size=4),
        st.just("settle"),
        st.just("submit"),
    ),
    max_size=25,
)


@settings(max_examples=times(30, 2_000))
@given(SMALL_BATCHES)
def test_any_order_of_small_commits_leaves_what_they_say(
    fresh: Callable[[], Path], batches: list[Any]
) -> None:
    """Small batches of logged and unlogged messages, settlements and the writer's own thread leave the right file."""
    path = fresh()
    next_id = 1
    unsettled: list[int] = []
    with writing(path) as w:
        w.write(*QUEUE)
        for batch in batches:
            if batch == "settle":
                if unsettled:
                    w.write_now(*settled(w.model, 1, [unsettled.pop(0)], counted_id=next_id - 1))
                continue
            effects: list[Effect] = []
            for size, logged, routed in [(10, True, True)] if batch == "submit" else batch:
                endpoints = (1,) if routed or not logged else ()
                unsettled += [next_id] * len(endpoints)
                effects.append(lone(next_id, endpoints=endpoints, logged=logged, size=size))
                next_id += 1
            (w.write if batch == "submit" else w.write_now)(*effects)
    check_file(path, w.model)


def test_the_answer_is_called_once_it_is_durable(path: Path, made: list[FewMessages | None]) -> None:
    """``answer`` is called when other connections see the message, and not after a failure."""
    seen: list[list[Any]] = []

    def answer() -> None:
        seen.append(query(path, "select max(id) from message"))

    with writing(path) as w:
        w.commit(*QUEUE)
        for number in (1, 2, 3):
            assert w.commit_now(lone(number), answer=answer) is None
        assert w.commit_now(lone(3), answer=answer) is not None
    assert seen == [[(1,)], [(2,)], [(3,)]]
    assert len(made) == 3, "the first finds the WAL without room ahead: several statements"
    assert made[-1] is not None


@pytest.fixture
def begun(path: Path, made: list[FewMessages | None]) -> Iterator[Writing]:
    """A writer after two messages, with room ahead in the WAL, so that each further message is one statement."""
    with writing(path) as w:
        w.write(*QUEUE)
        w.write_now(lone(1))
        w.write_now(lone(2))
        yield w
    assert check(path) == []


def test_what_was_written_is_noted_though_the_answer_fails(path: Path, begun: Writing) -> None:
    """If ``answer`` raises, the writer still knows that the message is in the file."""

    def answer() -> None:
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        begun.commit_now(lone(3), answer=answer)
    assert begun.writer._tail.last_id == 3
    begun.write_now(lone(4))
    assert query(path, "select count(*) from message") == [(4,)]


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ([lone(3), lone(2)], apsw.ConstraintError),
        (
            [publication(3, [b"x"], endpoints=(1,), logged=False, topic="\ud800", time_ms=MADE_MS)],
            UnicodeEncodeError,
        ),
    ],
    ids=["an id twice", "no text"],
)
def test_a_statement_that_fails_leaves_nothing(
    path: Path, begun: Writing, made: list[FewMessages | None], bad: list[Effect], cause: type[Exception]
) -> None:
    """If SQLite or the driver refuses one message, all messages of the batch fail, and the next batch is written."""
    error = begun.commit_now(*bad)
    assert isinstance(error, WriteFailed)
    assert isinstance(error.__cause__, cause)
    begun.write_now(lone(4))
    assert None not in made[-2:]
    assert query(path, "select id from message order by id") == [(1,), (2,), (4,)]


def test_what_a_failed_transaction_owes_is_not_passed_over(
    path: Path, begun: Writing, made: list[FewMessages | None]
) -> None:
    """Effects left from a failed transaction are written with the next message, which then is no single statement."""
    given_before = len(made)
    begun.writer._owed = [SaveArchived(2)]
    begun.write_now(lone(3))
    assert len(made) == given_before
    assert query(path, "select archived_id from log") == [(2,)]
    begun.write_now(lone(4))
    assert made[-1] is not None


# --- Messages published since the log's row was written -------------------------------------------------------------

FRAME_BYTES = PAGE_BYTES + 24


def saved_id(path: Path) -> int:
    """The last id in the log's row."""
    ((last_id,),) = query(path, "select last_id from log")
    return int(last_id)


def test_a_message_alone_is_two_pages(path: Path) -> None:
    """A message writes a page for its row and one for the index of routes, and rarely a new page of either."""
    count = 100
    with closing(writing_to(path)) as connection:
        commit(connection, [*QUEUE, publication(1, [bytes(200)], endpoints=(1,), time_ms=MADE_MS)])
        wal = Path(f"{path}-wal")
        before = wal.stat().st_size
        for number in range(2, 2 + count):
            known = Before(routes=[route(1).number], has_held=False)
            transaction = Transaction(connection, read_tail(connection), known)
            connection.execute("begin immediate")
            transaction.apply([publication(number, [bytes(200)], endpoints=(1,), time_ms=MADE_MS)])
            transaction.finish()
            connection.execute("commit")
        written = wal.stat().st_size - before
    assert written < count * 2.3 * FRAME_BYTES


def test_a_writer_writes_the_row_now_and_then(path: Path) -> None:
    """Even if only messages are written, fewer than MOST_UNSAVED are left for a start to look at."""
    size = MOST_UNSAVED // 4
    with writing(path) as w:
        for first in range(1, 20 * size, size):
            w.write(publication(first, [b"x"] * size, time_ms=MADE_MS + first))
            assert w.model.last_id - saved_id(path) < MOST_UNSAVED
        assert saved_id(path) > 0
    check_file(path, w.model)


@pytest.mark.parametrize("ending", ["settled", "purged", "deleted", "trimmed"])
def test_an_id_whose_message_is_gone_is_not_given_out_again(path: Path, ending: str) -> None:
    """If the newest messages are deleted before the log's row was written, their ids are still not reused."""
    is_logged = ending == "trimmed"
    with writing(path) as w:
        w.write(*QUEUE, *OTHER)
        w.write(publication(1, [b"x"] * 9, endpoints=(1,), logged=is_logged, time_ms=MADE_MS + 7))
        if ending in ("purged", "deleted"):
            w.write(*(purge if ending == "purged" else deletion)(w.model, 1))
        else:
            assert saved_id(path) == 0
            w.write(*settled(w.model, 1, range(1, 10)))
        if is_logged:
            assert saved_id(path) == 0
            w.write(trimming(w.model, 10))
    collect_garbage(path)
    assert query(path, "select count(*) from message") == [(0,)]
    found = recover(path).log
    assert (found.next_id, found.last_time_ms) == (10, MADE_MS + 7)
    check_file(path, w.model)


def test_a_transaction_that_fails_counts_for_nothing(path: Path) -> None:
    """A failed transaction changes no counter; messages before and after it are counted once."""
    with writing(path) as w:
        w.write(publication(1, [b"x"] * 5, time_ms=MADE_MS))
        taken = [publication(6, [b"large" * 9], time_ms=MADE_MS + 5), publication(1, [b"x"], time_ms=MADE_MS)]
        assert w.commit(*taken) is not None
        w.write(publication(6, [b"x"] * 5, time_ms=MADE_MS + 1))
        w.write(trimming(w.model, 3))
        assert saved_id(path) == 10
    assert query(path, "select last_time, largest_bytes from log") == [(MADE_MS + 1, 1)]
    check_file(path, w.model)


def test_a_writer_goes_on_from_the_tail_that_it_finds(path: Path) -> None:
    """A start does not write the log's row; the next write of the row includes all earlier messages."""
    model = empty_model()
    for first in (1, 6):
        with writing(path, model=model) as w:
            w.write(publication(first, [b"x"] * 5, time_ms=MADE_MS + first))
        assert saved_id(path) == 0
    with writing(path, model=model) as w:
        w.write(*QUEUE)
    with closing(connect_reader(path)) as connection:
        assert read_tail(connection) == EMPTY
    check_file(path, model)
