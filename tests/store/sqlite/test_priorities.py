"""References that have a priority: arranged when a queue changes, and read by it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.core.effects import AddReferences, RemoveReferences, RenumberEndpoint, SaveEndpoint
from gateway.core.endpoint.settings import EndpointSettings
from store.sqlite.check import check
from store.sqlite.database import open_file
from store.sqlite.reader import ONE_PRIORITY, SqliteReader
from store.sqlite.recovery import recover
from tests.store.histories import publication
from tests.store.vpn_file import MADE_MS, commit, writing_to

BY_PRIORITY = EndpointSettings(priorities=True).to_json()
PLAIN = EndpointSettings().to_json()
CONTENTS = [
    *(bytes.fromhex("005370c004024050") + bytes((n % 12,)) + b"body" for n in range(36)),
    b"bare",
]
"""With priorities from 0 to above 9, three of each, and one without a header."""
EXPECTED = {i + 1: min(i % 12, 9) for i in range(36)} | {37: 4}


@pytest.fixture
def filled(path: Path) -> Path:
    """A plain queue and one that delivers by priority, both with the same messages."""
    bares = [9] * 36 + [0]
    with closing(writing_to(path)) as connection:
        commit(connection, [SaveEndpoint(1, "q", "queue", PLAIN, None)])
        commit(connection, [SaveEndpoint(2, "r", "queue", BY_PRIORITY, None)])
        both = publication(1, CONTENTS, endpoints=(1, 2), time_ms=MADE_MS, bares=bares, ranked=(2,))
        commit(connection, [both])
    return path


def priorities_on(path: Path, number: int) -> dict[int, int | None]:
    with closing(sqlite3.connect(path)) as connection:
        query = "select message, priority from reference where endpoint = ?"
        return dict(connection.execute(query, (number,)).fetchall())


def test_references_have_their_priorities_where_they_matter(filled: Path) -> None:
    """On the queue that delivers by them; on the other they have none."""
    assert priorities_on(filled, 2) == EXPECTED
    assert set(priorities_on(filled, 1).values()) == {None}
    assert check(filled) == []


def test_a_changed_queue_is_arranged_with_its_settings(filled: Path) -> None:
    """There and back, in the transaction that opens the file: references, settings, and nothing of other queues."""
    open_file(filled, MADE_MS, synchronous="FULL", priorities={"q": True, "r": False, "unknown": True})
    assert priorities_on(filled, 1) == EXPECTED
    assert set(priorities_on(filled, 2).values()) == {None}
    assert check(filled) == []
    q, r = (EndpointSettings.from_json(e.definition.settings) for e in recover(filled).endpoints)
    assert (q.priorities, r.priorities) == (True, False)
    open_file(filled, MADE_MS, synchronous="FULL", priorities={"q": False})
    assert set(priorities_on(filled, 1).values()) == {None}
    assert check(filled) == []


def test_an_unchanged_queue_is_left_as_it_is(filled: Path) -> None:
    """Nothing is written for a queue that is what it was, or that nobody declares any more."""
    before = priorities_on(filled, 1), priorities_on(filled, 2), recover(filled)
    open_file(filled, MADE_MS, synchronous="FULL", priorities={"q": False, "r": True})
    open_file(filled, MADE_MS, synchronous="FULL")
    assert (priorities_on(filled, 1), priorities_on(filled, 2), recover(filled)) == before


def test_a_lane_is_read_in_pages(filled: Path) -> None:
    """Only messages of the priority, from behind an id to before another, with their failed deliveries."""
    reader = SqliteReader(filled, threads=1, page_rows=4, page_bytes=10**6, largest_bytes=20)
    try:
        nines = [i for i, priority in EXPECTED.items() if priority == 9]
        found = [row[0] for row in reader.endpoint_page(2, 0, priority=9)]
        assert found == nines[:4]
        assert [row[0] for row in reader.endpoint_page(2, found[-1], priority=9)] == nines[4:8]
        assert [row[0] for row in reader.endpoint_page(2, 0, nines[2], priority=9)] == nines[:2]
        assert reader.endpoint_page(1, 0, priority=9) == []
        assert reader.attempts(2, priority=9) == []
    finally:
        reader.close()


def test_a_lane_is_a_run_of_the_index(filled: Path) -> None:
    """A page of a priority that few messages have does not look at the others, however many they are."""
    with closing(sqlite3.connect(filled)) as connection:
        plan = connection.execute(
            "explain query plan select id from reference join message on message.id = reference.message "
            f"where reference.endpoint = 1{ONE_PRIORITY.replace('?', '9')} and reference.message > 1 "
            "and reference.message < 9 order by reference.message"
        ).fetchall()
    steps = [row[3] for row in plan]
    assert any(
        "reference_priority (endpoint=? AND priority=? AND message>? AND message<?)" in step for step in steps
    )
    assert not any("TEMP B-TREE" in step for step in steps)


def test_settling_and_emptying_leave_nothing_in_the_index(filled: Path) -> None:
    """The index is SQLite's own to keep: what is settled is out of it, replayed messages are in it."""
    with closing(writing_to(filled)) as connection:
        commit(connection, [RemoveReferences(2, list(range(1, 37)), 13 * 36)])
        assert priorities_on(filled, 2) == {37: 4}
        commit(connection, [RenumberEndpoint(2, 3, None)])
        commit(connection, [AddReferences(3, [5, 10, 37], 30, None, [4, 9, 4])])
    assert priorities_on(filled, 3) == {5: 4, 10: 9, 37: 4}
    assert check(filled) == []
