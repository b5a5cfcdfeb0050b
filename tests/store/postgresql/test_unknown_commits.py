"""
Failures that do not say what became of a transaction: whatever the error, what is told is what the database has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import psycopg
import pytest
from psycopg import errors

from store.errors import WriteFailed
from store.postgresql import statements, takeover
from store.postgresql.statements import Connection, NotSaid, Statement, Step
from store.postgresql.transaction import FEW
from store.postgresql.writer import CLIENT_TRIES
from tests.store.effects import publication, queue, settled
from tests.store.postgresql.schema_state import state_of
from tests.store.postgresql.test_writer import applied, check_state
from tests.store.postgresql.vpn import PostgresVpn
from tests.store.vpn_file import MADE_MS, empty_model

Commit: TypeAlias = Callable[[Connection, Sequence[Step]], None]

CLIENT = [
    psycopg.OperationalError("sending query and params failed"),
    psycopg.InterfaceError("the connection does not know"),
    psycopg.InternalError("got no result from the query"),
    errors.PipelineAborted("pipeline aborted"),
    NotSaid("nothing was said"),
]
"""Of the connection's, without the server's word, while it looks alive."""

OTHER = [
    psycopg.DataError("cannot be loaded"),
    psycopg.ProgrammingError("you cannot mix COPY with other operations"),
    MemoryError(),
    OSError("too many files"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a notice"),
    errors.QueryCanceled("after it was done"),
    errors.StatementCompletionUnknown("it is not known"),
    errors.DiskFull("of a server that panics"),
    errors.UniqueViolation("which cannot be"),
]
"""What psycopg, or Python, or the server may say at any moment."""


def _name(error: Exception) -> str:
    return type(error).__name__


class Failing:
    """In place of what commits: fails some times, before or after it has done so, and the connection stands."""

    def __init__(self, error: Exception, *, after: bool, times: int = 1) -> None:
        self._error = error
        self._after = after
        self._left = 0
        self._times = times

    def begin(self) -> None:
        """From the next transaction on that writes messages."""
        self._left = self._times

    @property
    def has_happened(self) -> bool:
        return self._left == 0

    def __call__(self, connection: Connection, steps: Sequence[Step]) -> None:
        # The fence says the last id, where there is one.
        is_failing = self._left and isinstance(steps[0], Statement) and steps[0].values[3]
        if is_failing and not self._after:
            self._left -= 1
            raise self._error
        statements.commit(connection, steps)
        if is_failing:
            self._left -= 1
            raise self._error


def _failing(monkeypatch: pytest.MonkeyPatch, failing: Failing) -> None:
    monkeypatch.setattr("store.postgresql.writer.commit", failing)


@pytest.mark.parametrize("size", [1, FEW + 1], ids=["few", "many"])
@pytest.mark.parametrize("error", [*CLIENT, *OTHER], ids=_name)
def test_what_was_committed_is_told_whatever_the_error(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception, size: int
) -> None:
    """
    It was committed, and the client failed after that, once, with a connection that still answers: it is told without
    an error, and so is the next one, and both are there, once.
    """
    failing = Failing(error, after=True)
    _failing(monkeypatch, failing)
    gateway = vpn.gateway()
    model = empty_model()
    assert gateway.commit(*applied(model, queue(1, "q"))) is None
    failing.begin()
    made = publication(1, [b"x"] * size, endpoints=(1,), time_ms=MADE_MS)
    assert gateway.commit(*applied(model, [made])) is None
    assert failing.has_happened
    made = publication(size + 1, [b"y"] * size, endpoints=(1,), time_ms=MADE_MS)
    assert gateway.commit(*applied(model, [made])) is None
    assert gateway.commit(*applied(model, list(settled(model, 1, [1])))) is None
    check_state(asked, model)


@pytest.mark.parametrize("error", CLIENT, ids=_name)
def test_what_was_not_committed_is_carried_out_again(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The connection's trouble came before anything was sent: it is done then, and told."""
    failing = Failing(error, after=False, times=CLIENT_TRIES - 1)
    _failing(monkeypatch, failing)
    gateway = vpn.gateway()
    failing.begin()
    assert gateway.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    assert failing.has_happened
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == [1, 2]


@pytest.mark.parametrize(
    ("error", "times"), [*[(error, CLIENT_TRIES) for error in CLIENT], *[(error, 1) for error in OTHER]]
)
def test_what_is_told_to_have_failed_is_not_there(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int
) -> None:
    """A failure that is a value's, or comes again and again: it is told once nothing is known to be there."""
    failing = Failing(error, after=False, times=times)
    _failing(monkeypatch, failing)
    gateway = vpn.gateway()
    failing.begin()
    failed = gateway.commit(publication(1, [b"x"], time_ms=MADE_MS))
    assert isinstance(failed, WriteFailed)
    assert failed.__cause__ is error
    assert state_of(asked).messages == {}
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == [2]


def test_a_number_that_is_taken_is_another_ones(vpn: PostgresVpn, asked: Connection) -> None:
    """
    The next number is in the row, of a transaction that nobody asked for any more: what is committed now is not taken
    for it. It is there when it is told, and so is the next.
    """
    gateway = vpn.gateway()
    assert gateway.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    asked.execute(b"update log set commit_no = commit_no + 1")
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None
    assert gateway.commit(publication(3, [b"z"] * (FEW + 1), time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == [1, 2, *range(3, 3 + FEW + 1)]


def test_a_barrier_that_fails_says_nothing_of_what_was_committed(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the standby was ended by somebody, and so was the barrier after it: it is done all the same."""
    failures = [errors.QueryCanceled("canceling statement due to user request")]
    barrier = takeover.barrier

    def failing(connection: Connection, epoch: int) -> int:
        if failures:
            raise failures.pop()
        return barrier(connection, epoch)

    gateway = vpn.gateway()
    monkeypatch.setattr("store.postgresql.takeover.barrier", failing)
    gateway.writer._warnings.append("canceling wait for synchronous replication")
    assert gateway.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    assert failures == []
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == [1, 2]


@pytest.mark.parametrize("size", [1, FEW + 1], ids=["few", "many"])
def test_a_transaction_that_was_left_open_takes_nothing_with_it(
    vpn: PostgresVpn, asked: Connection, size: int
) -> None:
    """What is sent inside of it brings no error, and is not committed: it is not told before it is."""
    gateway = vpn.gateway()
    gateway.writer._connection.execute(b"begin")
    assert gateway.commit(publication(1, [b"x"] * size, time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == list(range(1, size + 1))


def test_a_commit_that_rolls_back_is_none(vpn: PostgresVpn, asked: Connection) -> None:
    """COMMIT of a transaction that has failed brings no error, and says ROLLBACK."""
    vpn.gateway().close()

    def fails(connection: Connection) -> None:
        with pytest.raises(psycopg.Error):
            connection.execute(b"select 1 / 0")

    with pytest.raises(NotSaid):
        statements.commit(asked, [Statement("update log set active = 'x'"), fails])
    assert asked.execute(b"select active from log").fetchall() == [("",)]


def test_what_can_be_written_is_not_given_up_for_a_failure_that_passes(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a definition is at fault is tried, and the client fails at that: it is in the next transaction."""
    gateway = vpn.gateway()
    assert gateway.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    failures = [psycopg.OperationalError("sending query failed")]

    def failing(connection: Connection, steps: Sequence[Step]) -> object:
        if failures:
            raise failures.pop()
        return statements.carry_out(connection, steps)

    monkeypatch.setattr("store.postgresql.writer.carry_out", failing)
    # An id twice is refused; the queue is what the broker goes by all the same.
    failed = gateway.commit(publication(1, [b"y"], time_ms=MADE_MS), *queue(1, "q"))
    assert isinstance(failed, WriteFailed)
    assert failures == []
    assert gateway.commit(publication(2, [b"z"], time_ms=MADE_MS)) is None
    assert [endpoint.name for endpoint in state_of(asked).endpoints.values()] == ["q"]
