"""What was published since the log's row was written: counted in at a start, and never lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from gateway.core.effects import Effect
from store.sqlite.check import check
from store.sqlite.database import connect_reader
from store.sqlite.log_row import EMPTY, MOST_UNSAVED, read_tail
from store.sqlite.schema import PAGE_BYTES
from store.sqlite.store import recover
from store.sqlite.transaction import Transaction
from store.transaction import Before
from tests.store.effects import deletion, publication, purge, queue, route, settled, trimming
from tests.store.vpn_file import MADE_MS, collect_garbage, commit, empty_model, query, state_of, writing_to
from tests.store.writing import writing
from tests.support.naive_store import NaiveStore

QUEUE = queue(1, "q")
FRAME_BYTES = PAGE_BYTES + 24


def applied(model: NaiveStore, effects: Sequence[Effect]) -> Sequence[Effect]:
    for effect in effects:
        model.apply(effect)
    return effects


def saved_id(path: Path) -> int:
    """Up to which id the log's row holds."""
    ((last_id,),) = query(path, "select last_id from log")
    return int(last_id)


def test_a_message_alone_is_two_pages(path: Path) -> None:
    """Its row and its place in the index of its route; now and then a page of either begins."""
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
    """However long messages come and nothing else: what a start has to look at stays short."""
    model = empty_model()
    size = MOST_UNSAVED // 4
    with writing(path) as w:
        for first in range(1, 20 * size, size):
            published = publication(first, [b"x"] * size, time_ms=MADE_MS + first)
            assert w.commit(*applied(model, [published])).error is None
            assert model.last_id - saved_id(path) < MOST_UNSAVED
        assert saved_id(path) > 0
    assert state_of(path) == model.state()
    assert check(path) == []


@pytest.mark.parametrize("ending", ["settled", "purged", "deleted", "trimmed"])
def test_an_id_whose_message_is_gone_is_not_given_out_again(path: Path, ending: str) -> None:
    """The newest messages are deleted before anything else had the log's row written: their ids stay given out."""
    model, is_logged = empty_model(), ending == "trimmed"
    with writing(path) as w:
        w.commit(*applied(model, [*QUEUE, *queue(2, "r")]))
        published = publication(1, [b"x"] * 9, endpoints=(1,), logged=is_logged, time_ms=MADE_MS + 7)
        w.commit(*applied(model, [published]))
        assert saved_id(path) == 0
        if ending == "settled":
            w.commit(*applied(model, settled(model, 1, range(1, 10))))
        elif ending == "trimmed":
            w.commit(*applied(model, settled(model, 1, range(1, 10))))
            assert saved_id(path) == 0
            w.commit(*applied(model, [trimming(model, 10)]))
        elif ending == "purged":
            w.commit(*applied(model, purge(model, 1)))
        else:
            w.commit(*applied(model, deletion(model, 1)))
    collect_garbage(path)
    assert query(path, "select count(*) from message") == [(0,)]
    found = recover(path).log
    assert (found.next_id, found.last_time_ms) == (10, MADE_MS + 7)
    assert state_of(path) == model.state()
    assert check(path) == []


def test_a_transaction_that_fails_counts_for_nothing(path: Path) -> None:
    """What was published before it and after it is counted in all the same, once."""
    model = empty_model()
    with writing(path) as w:
        w.commit(*applied(model, [publication(1, [b"x"] * 5, time_ms=MADE_MS)]))
        taken = [publication(6, [b"large" * 9], time_ms=MADE_MS + 5), publication(1, [b"x"], time_ms=MADE_MS)]
        assert w.commit(*taken).error is not None
        w.commit(*applied(model, [publication(6, [b"x"] * 5, time_ms=MADE_MS + 1)]))
        w.commit(*applied(model, [trimming(model, 3)]))
        assert saved_id(path) == 10
    assert query(path, "select last_time, largest_bytes from log") == [(MADE_MS + 1, 1)]
    assert state_of(path) == model.state()
    assert check(path) == []


def test_a_writer_goes_on_from_the_tail_that_it_finds(path: Path) -> None:
    """A start leaves the row as it is; with the next reason to write it, all that came before is in it."""
    model = empty_model()
    for first in (1, 6):
        with writing(path) as w:
            w.commit(*applied(model, [publication(first, [b"x"] * 5, time_ms=MADE_MS + first)]))
        assert saved_id(path) == 0
    with writing(path) as w:
        w.commit(*applied(model, QUEUE))
    with closing(connect_reader(path)) as connection:
        assert read_tail(connection) == EMPTY
    assert state_of(path) == model.state()
    assert check(path) == []
