"""Effects turned into rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.effects import (
    AddReferences,
    DropCursor,
    Effect,
    MoveCursor,
    OpenCursor,
    Publication,
    SaveArchived,
    SavePoint,
)
from gateway.core.model import WHOLE, Point, stored_bytes
from store.cursors import SHORTEST_RUN, runs
from store.sqlite.statements import LARGEST_INSERT, chunks
from tests.store.effects import publication, purge, queue, route, settled, trimming
from tests.store.histories import histories
from tests.store.vpn_file import (
    COLUMNS,
    MADE_MS,
    collect_garbage,
    commit,
    empty_model,
    query,
    state_of,
    writing_to,
)
from tests.support.naive_store import NaiveStore

QUEUE = queue(1, "q")
OTHER = queue(2, "r")


def applied(model: NaiveStore, effects: Sequence[Effect]) -> Sequence[Effect]:
    for effect in effects:
        model.apply(effect)
    return effects


# What the fixture copies does not change between examples.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories())
def test_the_file_holds_what_the_effects_say(fresh: Callable[[], Path], history: list[list[Effect]]) -> None:
    """After every transaction, all tables equal a recount: rows, routes, held counts, cursors, the log."""
    path, model = fresh(), empty_model()
    with closing(writing_to(path)) as connection:
        for effects in history:
            commit(connection, effects)
            for effect in effects:
                model.apply(effect)
            assert state_of(path) == model.state()


def test_what_is_so_already_is_written_all_the_same(fresh: Callable[[], Path]) -> None:
    """Else a store that cannot be written would pass for one that can: SQLite writes no page that is as it was."""
    path = fresh()
    wal = Path(f"{path}-wal")
    with closing(writing_to(path)) as connection:
        before = wal.stat().st_size if wal.exists() else 0
        commit(connection, [SaveArchived(0)])
        assert wal.stat().st_size > before


@given(st.lists(st.integers(), max_size=3 * LARGEST_INSERT))
def test_chunks_are_powers_of_two_and_lose_nothing(items: list[int]) -> None:
    """Pieces joined are the whole; each has 1, 2, 4 … at most LARGEST_INSERT items, and none is longer than before."""
    pieces = list(chunks(items))
    assert [item for piece in pieces for item in piece] == items
    lengths = [len(piece) for piece in pieces]
    assert all(length in {1 << k for k in range(LARGEST_INSERT.bit_length())} for length in lengths)
    assert lengths == sorted(lengths, reverse=True)
    assert len([length for length in lengths if length < LARGEST_INSERT]) < LARGEST_INSERT.bit_length()


@given(st.sets(st.integers(0, 40)))
def test_runs_are_the_longest_runs_of_consecutive_ids(ids: set[int]) -> None:
    """Spelled out, runs are the ids again, and between two of them something is missing."""
    found = runs(sorted(ids))
    assert [i for first, last in found for i in range(first, last + 1)] == sorted(ids)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


@pytest.mark.parametrize("count", [1, SHORTEST_RUN - 1, SHORTEST_RUN, SHORTEST_RUN + 1, 255, 256, 257, 777])
def test_messages_that_differ_in_their_contents_alone_are_stored_row_by_row_alike(
    path: Path, count: int
) -> None:
    """However many there are, and so whichever statement is used, the rows read back are those published."""
    contents = [b"%d\0" % k for k in range(count)]
    published = publication(1, contents, endpoints=(1,), time_ms=MADE_MS, bares=[7] * count)
    with closing(writing_to(path)) as connection:
        commit(connection, [*QUEUE, published])
        assert connection.execute(f"select {COLUMNS} from message order by id").fetchall() == published.rows


def test_mixed_and_alike_messages_may_follow_each_other(path: Path) -> None:
    """Stretches of both kinds, long and short, in one transaction are stored as published, holes in ids included."""
    published: list[Publication] = []
    position = 1
    for k, count in enumerate([1, 20, 3, 1, 1, 40, 2, 300, 9]):
        bares = [i % 2 for i in range(count)] if k % 3 == 0 else [5] * count
        published.append(
            publication(
                position, [b"%d" % (position + i) for i in range(count)], topic="ab"[k % 2], time_ms=MADE_MS + k // 2,
                bares=bares, endpoints=(1,),
            )
        )  # fmt: skip
        position += count + (k == 5)
    with closing(writing_to(path)) as connection:
        commit(connection, [*QUEUE, *published])
        rows = [row for publication in published for row in publication.rows]
        assert connection.execute(f"select {COLUMNS} from message order by id").fetchall() == rows


def test_many_publishers_of_one_message_each_take_few_statements(path: Path) -> None:
    """A statement is a switch of threads: 500 single messages of one kind are written with a dozen at most."""
    published = [publication(1 + k, [b"%d" % k], endpoints=(1,), time_ms=MADE_MS) for k in range(500)]
    statements: list[str] = []
    with closing(writing_to(path)) as connection:
        commit(connection, QUEUE)
        connection.exec_trace = lambda cursor, sql, values: statements.append(sql) is None
        commit(connection, published)
        connection.exec_trace = None
        assert connection.execute("select count(*) from message").fetchone() == (500,)
    assert len(statements) <= 12


@pytest.mark.parametrize("together", [False, True])
def test_a_message_that_is_not_logged_goes_with_the_last_endpoint(path: Path, together: bool) -> None:
    """It stays while any endpoint needs it, and is gone with the last, also when both settle in one transaction."""
    model, ids = empty_model(), range(1, 21)
    published = publication(1, [b"x"] * 20, endpoints=(1, 2), logged=False, time_ms=MADE_MS)
    with closing(writing_to(path)) as connection:
        commit(connection, applied(model, [*QUEUE, *OTHER, published]))
        first = applied(model, settled(model, 1, ids))
        second = applied(model, settled(model, 2, ids))
        if together:
            commit(connection, [*first, *second])
        else:
            commit(connection, first)
            assert connection.execute("select distinct held from message").fetchall() == [(1,)]
            commit(connection, second)
        assert connection.execute("select count(*) from message").fetchall() == [(0,)]
        # The log remembers the id all the same: it is never given out again.
        assert connection.execute("select last_id from log").fetchall() == [(20,)]
    assert state_of(path) == model.state()


def test_a_logged_message_outlives_its_endpoints(path: Path) -> None:
    """Settling moves a cursor: the log keeps the message as it is."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        commit(connection, applied(model, [*QUEUE, publication(1, [b"x"], endpoints=(1,), time_ms=MADE_MS)]))
        commit(connection, applied(model, settled(model, 1, [1])))
    assert query(path, "select id, route, held from message") == [(1, route(1).number, None)]
    assert query(path, "select floor, counted_id, messages, size_bytes from cursor") == [(1, 1, 0, 0)]


def test_a_route_is_written_once(path: Path) -> None:
    """However many publications name it, in however many transactions; each priority of it is a route of its own."""
    made = [
        publication(first, [b"x"] * 3, endpoints=(1, 2), time_ms=MADE_MS, ranked=first > 3)
        for first in (1, 4, 7)
    ]
    with closing(writing_to(path)) as connection:
        commit(connection, [*QUEUE, *OTHER, made[0], made[1]])
        commit(connection, [made[2]])
    assert query(path, "select number, priority, endpoints from route order by number") == [
        (route(1, 2).number, None, "[1, 2]"),
        (route(1, 2, priority=4).number, 4, "[1, 2]"),
    ]


def test_moves_of_a_transaction_are_one_row(path: Path) -> None:
    """A hundred settlements of one endpoint in a group commit write its cursor once, to where the last one left it."""
    model = empty_model()
    statements: list[str] = []
    with closing(writing_to(path)) as connection:
        commit(
            connection,
            applied(model, [*QUEUE, publication(1, [b"xy"] * 200, endpoints=(1,), time_ms=MADE_MS)]),
        )
        moves = [move for i in range(1, 101) for move in applied(model, settled(model, 1, [i]))]
        connection.exec_trace = lambda cursor, sql, values: statements.append(sql) is None
        commit(connection, moves)
        connection.exec_trace = None
    assert sum(statement.startswith("update cursor") for statement in statements) == 1
    assert state_of(path) == model.state()


def test_moves_of_a_transaction_come_to_the_same_as_one_by_one(path: Path) -> None:
    """One that leaves the floor where it is does not undo the one before; each brings its ranges."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        commit(
            connection, applied(model, [*QUEUE, publication(1, [b"x"] * 9, endpoints=(1,), time_ms=MADE_MS)])
        )
        moves = list(applied(model, settled(model, 1, [1])))
        for i in (5, 7):
            moves += applied(model, settled(model, 1, [i], is_joined=False))
        assert [move.floor for move in moves] == [1, None, None]
        commit(connection, moves)
        assert connection.execute("select floor from cursor").fetchall() == [(1,)]
        assert connection.execute("select first, last from cursor_range order by first").fetchall() == [
            (5, 5),
            (7, 7),
        ]
    assert state_of(path) == model.state()


def test_a_stuck_consumer_makes_one_range(path: Path) -> None:
    """What is settled behind a message that is not joins: a row, and none once the message is settled."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        commit(
            connection, applied(model, [*QUEUE, publication(1, [b"x"] * 90, endpoints=(1,), time_ms=MADE_MS)])
        )
        for i in range(2, 80):
            commit(connection, applied(model, settled(model, 1, [i])))
        assert connection.execute("select * from cursor_range").fetchall() == [(1, WHOLE, 2, 79)]
        commit(connection, applied(model, settled(model, 1, [1])))
    assert query(path, "select * from cursor_range") == []
    assert query(path, "select floor from cursor") == [(79,)]


def test_a_cursor_that_is_no_more_is_passed_over(path: Path) -> None:
    """A move that comes after its cursor was dropped lets go of nothing: what was dropped is let go of behind."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        held = publication(1, [b"x"] * 9, endpoints=(1, 2), logged=False, time_ms=MADE_MS)
        commit(connection, applied(model, [*QUEUE, *OTHER, held]))
        late = settled(model, 1, range(1, 10))
        commit(connection, [*applied(model, purge(model, 1)), *late])
        assert connection.execute("select distinct held from message").fetchall() == [(2,)]
        assert state_of(path) == model.state()
        commit(connection, late)
    assert state_of(path) == model.state()
    assert collect_garbage(path)
    assert query(path, "select distinct held from message") == [(1,)]
    with closing(writing_to(path)) as connection:
        commit(connection, late)
    assert state_of(path) == model.state()


def test_a_purge_writes_a_few_rows_whatever_lies_there(path: Path) -> None:
    """The endpoint goes on with another cursor; no statement of it looks at messages."""
    model = empty_model()
    statements: list[str] = []
    with closing(writing_to(path)) as connection:
        commit(
            connection,
            applied(model, [*QUEUE, publication(1, [b"xy"] * 300, endpoints=(1,), time_ms=MADE_MS)]),
        )
        connection.exec_trace = lambda cursor, sql, values: statements.append(sql) is None
        commit(connection, applied(model, purge(model, 1)), has_held=False)
        connection.exec_trace = None
    statements = statements[statements.index("begin immediate") :]
    assert not any("message" in statement for statement in statements)
    assert len(statements) < 12
    assert state_of(path) == model.state()


def test_what_was_dropped_does_not_hold_what_is_trimmed_after(path: Path) -> None:
    """The log is trimmed while a dropped cursor waits: what it holds below is let go of first, and nothing twice."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        held = publication(1, [b"x"] * 3, endpoints=(1, 2), logged=False, time_ms=MADE_MS)
        logged = publication(4, [b"x"] * 3, endpoints=(1, 2), time_ms=MADE_MS)
        commit(connection, applied(model, [*QUEUE, *OTHER, held, logged]))
        commit(connection, applied(model, purge(model, 1)))
        trim = trimming(model, 6)
        commit(connection, applied(model, [trim]))
        assert connection.execute("select id, held from message").fetchall() == [
            (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, None)
        ]  # fmt: skip
        assert (trim.freed_bytes, trim.newest_ms) == (stored_bytes("t", [1, 1]), MADE_MS)
    assert state_of(path) == model.state()
    assert collect_garbage(path)
    assert state_of(path) == model.state()
    with closing(writing_to(path)) as connection:
        commit(connection, applied(model, settled(model, 2, range(1, 6))))
    assert [i for (i,) in query(path, "select id from message")] == [6]


def test_a_reference_holds_what_is_trimmed(path: Path) -> None:
    """By routes and by references at once, new ones among them: each counts, and the last one takes the message."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        commit(
            connection,
            applied(model, [*QUEUE, *OTHER, publication(1, [b"x"] * 5, endpoints=(1,), time_ms=MADE_MS)]),
        )
        commit(connection, applied(model, [AddReferences(2, [1, 3])]))
        commit(connection, applied(model, [trimming(model, 5, [(2, 4)])]))
        assert connection.execute("select id, held from message").fetchall() == [
            (1, 2), (2, 1), (3, 2), (4, 2), (5, None)
        ]  # fmt: skip
        commit(connection, applied(model, settled(model, 1, [1, 2, 3, 4, 5])))
        commit(connection, applied(model, settled(model, 2, [4, 1])))
    assert state_of(path) == model.state()
    assert query(path, "select id, held from message") == [(3, 1), (5, None)]
    assert query(path, "select * from reference") == [(2, 3)]


def test_trimming_tells_that_there_are_held_messages_now(path: Path) -> None:
    """In a file where the log held all, a settlement behind a trimming, in one transaction, frees what was trimmed."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        commit(
            connection, applied(model, [*QUEUE, publication(1, [b"x"] * 3, endpoints=(1,), time_ms=MADE_MS)])
        )
        trim = applied(model, [trimming(model, 3)])
        commit(connection, [*trim, *applied(model, settled(model, 1, [1]))], has_held=False)
    assert query(path, "select id, held from message") == [(2, 1), (3, None)]


def test_what_is_settled_before_a_trimming_is_not_held_by_it(path: Path) -> None:
    """In one transaction: the settlement is written first, and the count of the trimming stands."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        made = publication(1, [b"x"] * 3, endpoints=(1, 2), time_ms=MADE_MS)
        commit(connection, applied(model, [*QUEUE, *OTHER, made]))
        done = applied(model, settled(model, 1, [1, 2]))
        commit(connection, [*done, *applied(model, [trimming(model, 3)])])
    assert query(path, "select id, held from message") == [(1, 1), (2, 1), (3, None)]
    assert state_of(path) == model.state()


def test_the_log_row_says_what_was_written(path: Path) -> None:
    """Last id, last time, what the logged messages take, and the largest content of all, in one row."""
    with closing(writing_to(path)) as connection:
        commit(
            connection,
            [
                *QUEUE,
                publication(5, [b"12345", b"1"], topic="\u00e4", time_ms=MADE_MS + 3),
                publication(7, [b"1234567"], endpoints=(1,), logged=False, time_ms=MADE_MS + 9),
            ],
        )
    assert query(
        path, "select first_id, last_id, last_time, size_bytes, largest_bytes, next_number from log"
    ) == [(1, 7, MADE_MS + 9, stored_bytes("\u00e4", [5, 1]), 7, 2)]


def test_ids_that_are_given_out_stay_so(path: Path) -> None:
    """A cursor that begins behind ids that never came to be, or a point, and a publication before it in the commit."""
    with closing(writing_to(path)) as connection:
        published = publication(1, [b"x"], time_ms=MADE_MS)
        commit(connection, [published, OpenCursor(7, (WHOLE,), 30)])
        assert connection.execute("select last_id, next_number from log").fetchall() == [(30, 8)]
        again = publication(31, [b"x"], time_ms=MADE_MS)
        commit(connection, [again, SavePoint(Point("p", 41, MADE_MS, MADE_MS))])
        assert connection.execute("select last_id from log").fetchall() == [(40,)]


def test_a_replays_cursor_goes_at_once(path: Path) -> None:
    """It holds nothing: its few rows are deleted with the commit that drops it."""
    with closing(writing_to(path)) as connection:
        commit(connection, [*QUEUE, publication(1, [b"x"] * 9, endpoints=(1,), time_ms=MADE_MS)])
        commit(connection, [OpenCursor(5, (WHOLE,), 2), MoveCursor(5, WHOLE, 3, {5: 6}, None, -2, 0)])
        assert connection.execute("select floor, messages from cursor where number = 5").fetchall() == [
            (3, -2)
        ]
        commit(connection, [DropCursor(5, 0, 0)])
    assert query(path, "select number from cursor union select number from cursor_range") == [(1,)]
    assert query(path, "select * from garbage") == []


def test_the_largest_content_is_remembered(path: Path) -> None:
    """A smaller one later does not lower it, nor does the large one's going: pages are bounded by it."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        made = publication(1, [b"12345"], endpoints=(1,), logged=False, time_ms=MADE_MS)
        commit(connection, applied(model, [*QUEUE, made]))
        commit(connection, [*settled(model, 1, [1]), publication(2, [b"1"], time_ms=MADE_MS)])
        assert connection.execute("select largest_bytes from log").fetchall() == [(5,)]
