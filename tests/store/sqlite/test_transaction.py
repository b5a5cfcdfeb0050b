"""Effects turned into rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.effects import (
    Effect,
    Publication,
    RemoveReferences,
    RenumberEndpoint,
    SaveArchived,
    SaveEndpoint,
    TrimLog,
)
from store.sqlite.transaction import LARGEST_INSERT, SHORTEST_RUN, chunks, runs
from tests.store.histories import histories, publication
from tests.store.vpn_file import MADE_MS, commit, empty_model, state_of, writing_to

QUEUE = SaveEndpoint(1, "q", "queue", "{}", None)
OTHER = SaveEndpoint(2, "r", "queue", "{}", None)


# What the fixture copies does not change between examples.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories())
def test_the_file_holds_what_the_effects_say(fresh: Callable[[], Path], history: list[list[Effect]]) -> None:
    """After every transaction, all tables equal a recount: rows, references, held counts, depths, sizes, the log."""
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
        commit(connection, [QUEUE, published])
        assert connection.execute("select * from message order by id").fetchall() == published.rows


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
        commit(connection, [QUEUE, *published])
        rows = [row for publication in published for row in publication.rows]
        assert connection.execute("select * from message order by id").fetchall() == rows
        assert connection.execute("select message from reference order by message").fetchall() == [
            (row[0],) for row in rows
        ]


def test_many_publishers_of_one_message_each_take_few_statements(path: Path) -> None:
    """A statement is a switch of threads: 500 single messages of one kind are written with a dozen at most."""
    published = [publication(1 + k, [b"%d" % k], endpoints=(1,), time_ms=MADE_MS) for k in range(500)]
    statements: list[str] = []
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE])
        connection.set_trace_callback(statements.append)
        commit(connection, published)
        connection.set_trace_callback(None)
        assert connection.execute("select count(*) from message").fetchone() == (500,)
    assert len(statements) <= 12


@pytest.mark.parametrize("together", [False, True])
def test_a_message_that_is_not_logged_goes_with_its_last_reference(path: Path, together: bool) -> None:
    """It stays while any endpoint refers to it, and is gone with the last, also when both settle in one transaction."""
    published = publication(1, [b"x"] * 20, endpoints=(1, 2), logged=False, time_ms=MADE_MS)
    ids = list(range(1, 21))
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE, OTHER, published])
        first, second = RemoveReferences(1, ids, 20), RemoveReferences(2, ids, 20)
        if together:
            commit(connection, [first, second])
        else:
            commit(connection, [first])
            assert connection.execute("select distinct held from message").fetchall() == [(1,)]
            commit(connection, [second])
        assert connection.execute("select count(*) from message").fetchone() == (0,)
        # The log remembers the id all the same: it is never given out again.
        assert connection.execute("select last_id from log").fetchone() == (20,)


def test_a_logged_message_outlives_its_references(path: Path) -> None:
    """Settling empties the endpoint, not the log."""
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE, publication(1, [b"x"], endpoints=(1,), time_ms=MADE_MS)])
        commit(connection, [RemoveReferences(1, [1], 1)])
        assert connection.execute("select id, held from message").fetchall() == [(1, None)]
        assert connection.execute("select count(*) from reference").fetchone() == (0,)


def test_an_emptied_endpoint_leaves_its_references_to_be_collected(path: Path) -> None:
    """It goes on under the new number with depth 0, and the old number is reported and kept as garbage."""
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE, publication(1, [b"xy"] * 3, endpoints=(1,), time_ms=MADE_MS)])
        assert commit(connection, [RenumberEndpoint(1, 2, None)]) == [1]
        assert connection.execute("select number, name, depth, size_bytes from endpoint").fetchall() == [
            (2, "q", 0, 0)
        ]
        assert connection.execute("select number from garbage").fetchall() == [(1,)]
        assert connection.execute("select count(*) from reference where endpoint = 1").fetchone() == (3,)


def test_messages_published_and_dropped_in_one_transaction_do_not_count(path: Path) -> None:
    """A publication to the old number before the endpoint is emptied does not count on the new one."""
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE])
        commit(
            connection,
            [
                publication(1, [b"x"] * 10, endpoints=(1,), time_ms=MADE_MS),
                RenumberEndpoint(1, 2, None),
                publication(11, [b"xyz"], endpoints=(2,), time_ms=MADE_MS),
            ],
        )
        assert connection.execute("select number, depth, size_bytes from endpoint").fetchall() == [(2, 1, 3)]


def test_what_waits_for_collection_still_holds_a_trimmed_message(path: Path) -> None:
    """Trimmed while on an endpoint and on one just emptied, it counts both: collecting one leaves it to the other."""
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE, OTHER, publication(1, [b"x"] * 3, endpoints=(1, 2), time_ms=MADE_MS)])
        commit(connection, [RenumberEndpoint(1, 3, None)])
        trim = TrimLog(1, 3)
        commit(connection, [trim])
        assert connection.execute("select id, held from message").fetchall() == [(1, 2), (2, 2), (3, None)]
        assert (trim.freed_bytes, trim.newest_ms) == (2, MADE_MS)
        commit(connection, [RemoveReferences(2, [1, 2, 3], 3)])
        assert connection.execute("select id, held from message").fetchall() == [(1, 1), (2, 1), (3, None)]


def test_trimming_tells_that_there_are_held_messages_now(path: Path) -> None:
    """In a file where the log held all, a settlement behind a trimming, in one transaction, frees what was trimmed."""
    trim, settled = TrimLog(1, 3), RemoveReferences(1, [1], 1)
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE, publication(1, [b"x"] * 3, endpoints=(1,), time_ms=MADE_MS)])
        commit(connection, [trim, settled], has_held=False)
        assert connection.execute("select id, held from message").fetchall() == [(2, 1), (3, None)]


def test_the_log_row_says_what_was_written(path: Path) -> None:
    """Last id, last time, bytes logged and the largest content, of logged and other messages, in one row."""
    with closing(writing_to(path)) as connection:
        commit(
            connection,
            [
                QUEUE,
                publication(5, [b"12345", b"1"], time_ms=MADE_MS + 3),
                publication(7, [b"1234567"], endpoints=(1,), logged=False, time_ms=MADE_MS + 9),
            ],
        )
        row = connection.execute(
            "select first_id, last_id, last_time, size_bytes, largest_bytes, next_number from log"
        ).fetchone()
    assert row == (1, 7, MADE_MS + 9, 6, 7, 2)


def test_the_largest_content_is_remembered(path: Path) -> None:
    """A smaller one later does not lower it, nor does the large one's going: pages are bounded by it."""
    with closing(writing_to(path)) as connection:
        commit(connection, [QUEUE, publication(1, [b"12345"], endpoints=(1,), logged=False, time_ms=MADE_MS)])
        commit(connection, [RemoveReferences(1, [1], 5), publication(2, [b"1"], time_ms=MADE_MS)])
        assert connection.execute("select largest_bytes from log").fetchone() == (5,)
