"""
The writer's connection fails at every step of a transaction: each batch reported as committed is stored once, and each
stored batch is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

import psycopg
import pytest
from psycopg import errors

from gateway.core.model import CONTENT
from store.errors import Deposed, WriteFailed
from store.postgresql import database, takeover
from store.postgresql.database import Connection, NotSaid, Statement, Step
from store.postgresql.transaction import FEW
from store.postgresql.writer import CLIENT_TRIES
from tests.store.effects import applied, publication, purge, queue, settled, trimming
from tests.store.postgresql.vpn import Gateway, PostgresVpn, state_of
from tests.store.state import check_state
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import eventually
from tests.support.tcp_proxy import Fate, Proxy, Way

# --- The writer's connection is cut at every step of a transaction, swallows bytes, or is refused -------------------


class OneMishap:
    """
    Applies a fate to one chunk: the one with this number among those that go this way and contain these bytes. All
    other chunks pass.
    """

    def __init__(self, way: Way, number: int, fate: Fate, having: bytes = b"") -> None:
        self._way = way
        self._left = number
        self._fate = fate
        self._having = having
        self._lock = threading.Lock()
        self.has_happened = False

    def __call__(self, way: Way, number: int, chunk: bytes) -> Fate:
        with self._lock:
            if way is not self._way or self.has_happened or self._having not in chunk:
                return Fate.PASS
            if self._left:
                self._left -= 1
                return Fate.PASS
            self.has_happened = True
            return self._fate


@pytest.mark.parametrize("size", [1, FEW + 1], ids=["few", "many"])
@pytest.mark.parametrize(
    ("way", "fate"),
    [
        (Way.TO_SERVER, Fate.CUT),
        (Way.TO_SERVER, Fate.HALVE_AND_CUT),
        (Way.TO_SERVER, Fate.PASS_AND_CUT),
        (Way.TO_CLIENT, Fate.CUT),
    ],
    ids=["lost on the way", "half of it lost", "done and cut", "answer lost"],
)
def test_a_connection_that_is_cut_at_any_step(
    behind: Gateway, proxy: Proxy, asked: Connection, way: Way, fate: Fate, size: int
) -> None:
    """
    Messages, a settlement and a trim are committed, each time with a cut one step later, until no step is left. Each
    batch is stored once, and reported without an error.
    """
    behind.write(*queue(1, "q"))
    for step in count():
        mishap = OneMishap(way, step, fate)
        first = behind.model.last_id + 1
        proxy.fate = mishap
        behind.publish(first, count=size, on=(1,))
        behind.write(*settled(behind.model, 1, [first]))
        if size > 1:
            behind.write(trimming(behind.model, first + 2))
        if not mishap.has_happened:
            break
        check_state(state_of(asked), behind.model)
    proxy.fate = lambda way, number, chunk: Fate.PASS
    assert step > 1
    check_state(state_of(asked), behind.model)


def test_an_answer_that_never_comes(
    behind: Gateway, proxy: Proxy, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open but the answer is lost: after a while the writer looks whether it has committed."""
    monkeypatch.setattr("store.postgresql.writer.LOST_SECONDS", 0.5)
    partitions = b"select count(*) from pg_inherits where inhparent = to_regclass('message')"
    eventually(lambda: asked.execute(partitions).fetchall() == [(2,)], "the first partitions")
    proxy.fate = mishap = OneMishap(Way.TO_CLIENT, 0, Fate.SWALLOW, b"INSERT")
    behind.publish(1)
    assert mishap.has_happened
    assert list(state_of(asked).messages) == [1]
    behind.publish(2)


def test_publishers_wait_for_a_database_that_is_gone(
    behind: Gateway, proxy: Proxy, asked: Connection
) -> None:
    """Nothing is reported while the database cannot be reached; afterwards everything is committed in order."""
    _break(proxy)
    sent = [behind.submit(publication(n, [b"x"], time_ms=MADE_MS)) for n in range(1, 20)]
    before = proxy.connections
    eventually(lambda: proxy.connections > before + 3, "more tries")
    assert behind.told == []
    proxy.refuses = False
    assert [behind.wait(batch) for batch in sent] == [None] * len(sent)
    assert list(state_of(asked).messages) == list(range(1, 20))


def test_an_idle_writer_finds_its_connection_lost(behind: Gateway, proxy: Proxy) -> None:
    """The heartbeat finds the loss and connects again, before the next message needs the connection."""
    made = proxy.connections
    proxy.cut()
    behind.beat()
    assert behind.told == []
    assert proxy.connections > made


@pytest.mark.parametrize("way", ["no connection", "no answer"])
def test_a_closed_writer_gives_up(
    behind: Gateway, proxy: Proxy, asked: Connection, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Closing does not wait for an unreachable database: what is not written soon is reported as failed."""
    monkeypatch.setattr("store.postgresql.writer.CLOSE_SECONDS", 0.5)
    if way == "no answer":
        proxy.fate = lambda way, number, chunk: Fate.SWALLOW
        proxy.refuses = True
    else:
        _break(proxy)
    batch = behind.submit(publication(1, [b"x"], time_ms=MADE_MS))
    behind.close()
    assert isinstance(behind.wait(batch), WriteFailed)
    assert state_of(asked).messages == {}


@pytest.mark.parametrize("moment", ["before", "in between"])
def test_taken_over_while_it_was_cut_off(
    vpn: PostgresVpn, behind: Gateway, proxy: Proxy, asked: Connection, moment: str
) -> None:
    """
    Another gateway takes over while this one cannot reach the database. What this one had not committed is never
    stored, and it and everything sent later fails as Deposed.
    """
    behind.publish(1, b"first")
    if moment == "before":
        _break(proxy)
    else:
        # The takeover comes in the middle of the transaction.
        proxy.fate = OneMishap(Way.TO_SERVER, 0, Fate.HALVE_AND_CUT, b"lost")
        proxy.refuses = True
    lost = behind.submit(publication(2, [b"lost"] * (FEW + 1), time_ms=MADE_MS))
    other = vpn.taken_over(vpn.stores())
    other.publish(2, b"theirs")
    proxy.refuses = False
    assert isinstance(behind.wait(lost), Deposed)
    assert isinstance(behind.commit(publication(3, [b"late"], time_ms=MADE_MS)), Deposed)
    assert [row[CONTENT] for row in state_of(asked).messages.values()] == [b"first", b"theirs"]
    other.publish(3, b"theirs")


def test_a_server_that_was_restarted(vpn: PostgresVpn, gateway: Gateway, asked: Connection) -> None:
    """The server ends the writer's sessions, as in a restart: the writer connects again and goes on."""
    sent = []
    for n in range(1, 60):
        sent.append(gateway.submit(publication(n, [b"x"], time_ms=MADE_MS)))
        if n % 20 == 0:
            asked.execute(
                b"select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s",
                (f"rewind % writer {vpn.name}",),
            )
    assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)
    assert list(state_of(asked).messages) == list(range(1, 60))


def _break(proxy: Proxy) -> None:
    """Cut the connections, and refuse new ones."""
    proxy.refuses = True
    proxy.cut()


# --- Failures that leave open whether a transaction was committed ---------------------------------------------------

CLIENT = [
    psycopg.OperationalError("sending query and params failed"),
    psycopg.InterfaceError("the connection does not know"),
    psycopg.InternalError("got no result from the query"),
    errors.PipelineAborted("pipeline aborted"),
    NotSaid("nothing was said"),
]
"""Errors of the connection that the server has not sent, while the connection looks alive."""

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
"""Other errors that psycopg, Python or the server may raise at any moment."""


def _name(error: Exception) -> str:
    return type(error).__name__


class Failing:
    """
    Replaces the writer's ``commit``: fails so many times before or after it has committed messages, and keeps the
    connection.
    """

    def __init__(self, error: Exception, *, after: bool, times: int) -> None:
        self._error = error
        self._after = after
        self._left = times

    @property
    def has_happened(self) -> bool:
        return self._left == 0

    def __call__(self, connection: Connection, steps: Sequence[Step]) -> None:
        # The fence has the last id if there are messages.
        is_failing = self._left and isinstance(steps[0], Statement) and steps[0].values[3]
        if is_failing and not self._after:
            self._left -= 1
            raise self._error
        database.commit(connection, steps)
        if is_failing:
            self._left -= 1
            raise self._error


FailingCommit: TypeAlias = Callable[..., Failing]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingCommit:
    """Makes a ``Failing`` that commits for the writer from then on."""

    def made(error: Exception, *, after: bool, times: int = 1) -> Failing:
        found = Failing(error, after=after, times=times)
        monkeypatch.setattr("store.postgresql.writer.commit", found)
        return found

    return made


@pytest.mark.parametrize("size", [1, FEW + 1], ids=["few", "many"])
@pytest.mark.parametrize("error", [*CLIENT, *OTHER], ids=_name)
def test_what_was_committed_is_told_whatever_the_error(
    gateway: Gateway, asked: Connection, failing: FailingCommit, error: Exception, size: int
) -> None:
    """
    The batch is committed, then the client fails once, and the connection still works: this batch and the next are
    reported without an error, and are stored once.
    """
    gateway.write(*queue(1, "q"))
    made = failing(error, after=True)
    gateway.publish(1, count=size, on=(1,))
    assert made.has_happened
    gateway.publish(size + 1, b"y", size, on=(1,))
    gateway.write(*settled(gateway.model, 1, [1]))
    check_state(state_of(asked), gateway.model)


@pytest.mark.parametrize(
    ("error", "times", "is_done"),
    [
        *[(error, CLIENT_TRIES - 1, True) for error in CLIENT],
        *[(error, CLIENT_TRIES, False) for error in CLIENT],
        *[(error, 1, False) for error in OTHER],
    ],
)
def test_what_was_not_committed_is_done_or_told_to_have_failed(
    gateway: Gateway, asked: Connection, failing: FailingCommit, error: Exception, times: int, is_done: bool
) -> None:
    """
    An error of the connection before anything was sent leads to another try, which is reported as committed. An error
    that repeats, or is no connection's, is reported as failed, once it is known that nothing was stored.
    """
    made = failing(error, after=False, times=times)
    failed = gateway.commit(publication(1, [b"x"], time_ms=MADE_MS))
    assert made.has_happened
    if is_done:
        assert failed is None
    else:
        assert isinstance(failed, WriteFailed)
        assert failed.__cause__ is error
    assert list(state_of(asked).messages) == ([1] if is_done else [])
    gateway.publish(2)
    assert list(state_of(asked).messages) == ([1, 2] if is_done else [2])


def test_a_number_that_is_taken_is_another_ones(gateway: Gateway, asked: Connection) -> None:
    """
    The log's row already has the next commit number, of a transaction that the writer did not expect: the writer does
    not take that for its own commit, and stores its batches before it reports them.
    """
    gateway.publish(1)
    asked.execute(b"update log set commit_no = commit_no + 1")
    gateway.publish(2)
    gateway.publish(3, b"z", FEW + 1)
    check_state(state_of(asked), gateway.model)


def test_a_barrier_that_fails_says_nothing_of_what_was_committed(
    gateway: Gateway, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the standby is cancelled and the barrier after it fails: the batch is still found committed."""
    failures = [errors.QueryCanceled("canceling statement due to user request")]
    barrier = takeover.barrier

    def failing(connection: Connection, epoch: int) -> int:
        if failures:
            raise failures.pop()
        return barrier(connection, epoch)

    monkeypatch.setattr("store.postgresql.takeover.barrier", failing)
    gateway.writer._warnings.append("canceling wait for synchronous replication")
    gateway.publish(1)
    assert failures == []
    gateway.publish(2)
    assert list(state_of(asked).messages) == [1, 2]


@pytest.mark.parametrize("size", [1, FEW + 1], ids=["few", "many"])
def test_a_transaction_that_was_left_open_takes_nothing_with_it(
    gateway: Gateway, asked: Connection, size: int
) -> None:
    """Statements within a transaction that was left open are not reported before they are committed."""
    gateway.writer._connection.execute(b"begin")
    gateway.publish(1, count=size)
    assert list(state_of(asked).messages) == list(range(1, size + 1))


def test_a_commit_that_rolls_back_is_none(vpn: PostgresVpn, asked: Connection) -> None:
    """COMMIT of a failed transaction raises no error in PostgreSQL but answers ROLLBACK, which raises NotSaid here."""
    vpn.gateway().close()

    def fails(connection: Connection) -> None:
        with pytest.raises(psycopg.Error):
            connection.execute(b"select 1 / 0")

    with pytest.raises(NotSaid):
        database.commit(asked, [Statement("update log set active = 'x'"), fails])
    assert asked.execute(b"select active from log").fetchall() == [("",)]


def test_what_can_be_written_is_not_given_up_for_a_failure_that_passes(
    gateway: Gateway, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client fails while the writer tests whether a definition is at fault: it is written with the next batch."""
    gateway.publish(1)
    failures = [psycopg.OperationalError("sending query failed")]

    def failing(connection: Connection, steps: Sequence[Step]) -> object:
        if failures:
            raise failures.pop()
        return database.carry_out(connection, steps)

    monkeypatch.setattr("store.postgresql.writer.carry_out", failing)
    # The message is refused, as its id exists; the broker has the queue in its memory, so it has to be stored.
    failed = gateway.commit(publication(1, [b"y"], time_ms=MADE_MS), *queue(1, "q"))
    assert isinstance(failed, WriteFailed)
    assert failures == []
    gateway.publish(2)
    assert [endpoint.name for endpoint in state_of(asked).endpoints.values()] == ["q"]


# --- What a writer has to repeat, and what it deletes in pieces ------------------------------------------------------


def test_what_failed_for_a_while_is_owed(gateway: Gateway, asked: Connection) -> None:
    """A settlement whose transaction failed for a temporary reason is written with the next transaction."""
    gateway.write(*queue(1, "q"))
    gateway.publish(1, count=9, on=(1,))
    asked.execute(
        b"create function full_disk() returns trigger language plpgsql as "
        b"$$ begin raise exception 'no space left' using errcode = 'disk_full'; end $$"
    )
    asked.execute(b"create trigger full_disk before update on cursor execute function full_disk()")
    failed = gateway.commit(*applied(gateway.model, settled(gateway.model, 1, [1, 2, 3])))
    assert isinstance(failed, WriteFailed)
    assert "no space left" in str(failed)
    asked.execute(b"drop trigger full_disk on cursor")
    gateway.publish(10)
    check_state(state_of(asked), gateway.model)


def test_what_dropped_cursors_leave_is_worked_off(gateway: Gateway, asked: Connection) -> None:
    """Messages held for a purged queue alone are deleted, and so is the route that no message names any more."""
    gateway.write(*queue(1, "q"), *queue(2, "r"))
    gateway.publish(1, count=3_000, on=(1,))
    gateway.write(publication(3_001, [b"x"] * 3_000, endpoints=(1, 2), logged=False, time_ms=MADE_MS))
    gateway.write(trimming(gateway.model, 2_900))
    gateway.write(*purge(gateway.model, 1))
    gateway.write(trimming(gateway.model, 3_001))
    for query in (b"select count(*) = 0 from garbage", b"select count(*) = 1 from route"):
        eventually(lambda query=query: asked.execute(query).fetchall() == [(True,)], query.decode())  # type: ignore[misc]
    check_state(state_of(asked), gateway.model)
    held = b"select count(*), min(held), max(held) from held_message"
    assert asked.execute(held).fetchall() == [(3_000, 1, 1)]
