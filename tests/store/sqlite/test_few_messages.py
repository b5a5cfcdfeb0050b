"""A few messages by one statement: the same file as by a transaction of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.effects import CountedUpTo, Effect, Publication
from store.checksum import content_sum, topic_sum
from store.errors import WriteFailed
from store.ports import Batch
from store.sqlite import writer as writer_module
from store.sqlite.check import check
from store.sqlite.log_row import EMPTY, MOST_UNSAVED, LogTail
from store.sqlite.transaction import FEW, FewMessages, few_messages
from tests.store.effects import publication, queue, route, settled
from tests.store.vpn_file import MADE_MS, empty_model, query, state_of
from tests.store.writing import Writing, writing

QUEUE = queue(1, "q")
KNOWN = {route(1).number}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FewMessages | None]]:
    """What the writer was given for each small batch; None where one statement was not enough."""
    found: list[FewMessages | None] = []

    def watched(*arguments: Any) -> FewMessages | None:
        found.append(few_messages(*arguments))
        return found[-1]

    monkeypatch.setattr(writer_module, "few_messages", watched)
    # However slow the disk is.
    monkeypatch.setattr(writer_module, "COMMIT_NOW_SECONDS", float("inf"))
    yield found


def commit_now(w: Writing, *effects: Effect) -> WriteFailed | None:
    size = sum(effect.size_bytes for effect in effects if isinstance(effect, Publication))
    while True:  # the thread may be at work
        is_done, error = w.writer.commit_now(Batch(effects, size))
        if is_done:
            return error


def lone(
    number: int, *, endpoints: tuple[int, ...] = (1,), logged: bool = True, size: int = 10
) -> Publication:
    return publication(number, [bytes(size)], endpoints=endpoints, logged=logged, time_ms=MADE_MS + number)


# --- what it is enough for ------------------------------------------------------------------------------------------


def test_one_message_is_one_statement_without_another_thing() -> None:
    """Its values are the row, and what its checksum is made of; what a start needs to know is in the tail."""
    message = lone(5, size=30)
    found = few_messages([message], EMPTY, KNOWN)
    assert found is not None
    assert found.values == [*message.rows[0], content_sum(bytes(30)), topic_sum("a")]
    assert found.tail == LogTail(1, 5, MADE_MS + 5, message.logged_bytes, 30)
    assert not found.has_held


def test_messages_of_several_publishers_are_one_statement() -> None:
    """In their order; what the log does not hold counts for no size of the log."""
    first, second = (
        lone(5, size=30),
        publication(6, [b"x", b"yy"], endpoints=(1,), logged=False, time_ms=MADE_MS),
    )
    found = few_messages([first, second], LogTail(3, 4, 1, 1_000, 7), KNOWN)
    assert found is not None
    rows = [*first.rows, *second.rows]
    assert list(found.values[: 7 * len(rows)]) == [value for row in rows for value in row]
    assert found.tail == LogTail(6, 7, MADE_MS, 1_000 + first.logged_bytes, 30)
    assert found.has_held


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
    """Where anything else is to be written with the messages, all of it is one transaction."""
    assert few_messages(effects, tail, KNOWN) is None


# --- written --------------------------------------------------------------------------------------------------------


def test_the_file_is_the_same_and_the_row_of_the_log_is_written_now_and_then(
    path: Path, made: list[FewMessages | None]
) -> None:
    """Most messages come by one statement, and what a start has to look at stays short."""
    model = empty_model()
    count = 2 * MOST_UNSAVED + 10
    with writing(path) as w:
        w.commit(*QUEUE)
        for effect in QUEUE:
            model.apply(effect)
        for number in range(1, count + 1):
            assert commit_now(w, lone(number)) is None
            model.apply(lone(number))
        ((last_id,),) = query(path, "select last_id from log")
        assert count - last_id < MOST_UNSAVED
    assert state_of(path) == model.state()
    assert check(path) == []
    assert sum(found is not None for found in made) > count * 0.9


SMALL_BATCHES = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.booleans()), min_size=1, max_size=4),
        st.just("settle"),
        st.just("submit"),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SMALL_BATCHES)
def test_any_order_of_small_commits_leaves_what_they_say(
    fresh: Callable[[], Path], batches: list[Any]
) -> None:
    """By one statement or by several, logged or not, between settlements and what the thread writes."""
    path = fresh()
    model = empty_model()
    next_id = 1
    unsettled: list[int] = []
    with writing(path) as w:
        w.commit(*QUEUE)
        for effect in QUEUE:
            model.apply(effect)
        for batch in batches:
            effects: list[Effect] = []
            if batch == "settle":
                if not unsettled:
                    continue
                effects += settled(model, 1, [unsettled.pop(0)], counted_id=next_id - 1)
            elif batch == "submit":
                effects.append(lone(next_id))
                unsettled.append(next_id)
                next_id += 1
            else:
                for size, logged, routed in batch:
                    endpoints = (1,) if routed or not logged else ()
                    unsettled += [next_id] * len(endpoints)
                    effects.append(lone(next_id, endpoints=endpoints, logged=logged, size=size))
                    next_id += 1
            if batch == "submit":
                assert w.commit(*effects).error is None
            else:
                assert commit_now(w, *effects) is None
            for effect in effects:
                model.apply(effect)
    assert state_of(path) == model.state()
    assert check(path) == []


def test_the_answer_is_called_once_it_is_durable(path: Path, made: list[FewMessages | None]) -> None:
    """By one statement or by several: every other connection sees the message at that moment, and of a failure nobody
    is told."""
    seen: list[list[Any]] = []

    def answer() -> None:
        seen.append(query(path, "select max(id) from message"))

    with writing(path) as w:
        w.commit(*QUEUE)
        for number in (1, 2, 3):
            while w.writer.commit_now(Batch([lone(number)], 10), answer) != (True, None):
                pass
        assert w.writer.commit_now(Batch([lone(3)], 10), answer)[1] is not None
    assert seen == [[(1,)], [(2,)], [(3,)]]
    assert len(made) == 3, "the first finds the WAL without room ahead: several statements"
    assert made[-1] is not None


def test_what_was_written_is_noted_though_the_answer_fails(
    path: Path, made: list[FewMessages | None]
) -> None:
    """A mistake of whoever is answered does not make the writer forget what is in the file."""

    def answer() -> None:
        raise RuntimeError("a mistake")

    with writing(path) as w:
        w.commit(*QUEUE)
        assert commit_now(w, lone(1)) is None
        assert commit_now(w, lone(2)) is None
        with pytest.raises(RuntimeError, match="a mistake"):
            w.writer.commit_now(Batch([lone(3)], 10), answer)
        assert w.writer._tail.last_id == 3
        assert commit_now(w, lone(4)) is None
    assert query(path, "select count(*) from message") == [(4,)]
    assert check(path) == []


# --- not written ----------------------------------------------------------------------------------------------------


def test_a_statement_that_fails_leaves_nothing(path: Path, made: list[FewMessages | None]) -> None:
    """All of its messages fail together, none is in the file, and the next is written."""
    with writing(path) as w:
        w.commit(*QUEUE)
        assert commit_now(w, lone(1)) is None
        assert commit_now(w, lone(2)) is None
        taken = lone(2)
        error = commit_now(w, lone(3), taken)
        assert isinstance(error, WriteFailed)
        assert isinstance(error.__cause__, apsw.ConstraintError)
        assert commit_now(w, lone(4)) is None
    assert [found is not None for found in made[-3:]] == [True, True, True]
    assert query(path, "select id from message order by id") == [(1,), (2,), (4,)]
    assert check(path) == []


def test_what_is_no_text_fails_as_any_other(path: Path, made: list[FewMessages | None]) -> None:
    """It is an error of Python's, found when the statement's values are made: told, and not raised."""
    with writing(path) as w:
        w.commit(*QUEUE)
        assert commit_now(w, lone(1)) is None
        assert commit_now(w, lone(2)) is None
        bad = publication(3, [b"x"], endpoints=(1,), logged=False, topic="\ud800", time_ms=MADE_MS)
        error = commit_now(w, bad)
        assert isinstance(error, WriteFailed)
        assert isinstance(error.__cause__, UnicodeEncodeError)
        assert commit_now(w, lone(4)) is None
    assert query(path, "select id from message order by id") == [(1,), (2,), (4,)]


def test_what_a_failed_transaction_owes_is_not_passed_over(
    path: Path, made: list[FewMessages | None]
) -> None:
    """It is written first with the next message, which is then no single statement."""
    with writing(path) as w:
        w.commit(*QUEUE)
        assert commit_now(w, lone(1)) is None
        assert commit_now(w, lone(2)) is None
        given_before = len(made)
        w.writer._owed = [CountedUpTo(2)]
        assert commit_now(w, lone(3)) is None
        assert len(made) == given_before
        assert query(path, "select counted_id from log") == [(2,)]
        assert commit_now(w, lone(4)) is None
        assert made[-1] is not None
