"""What only a reader of PostgreSQL does: it waits for servers, reads from standbys, and leaves no snapshot open."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from gateway.core.effects import TrimTopics
from gateway.core.log import RetentionMark
from gateway.core.model import CONTENT, ID
from store.checksum import HEAD_BITS, content_sum, head_of
from store.errors import LogTrimmed, ReadFailed, TakenOut
from store.postgresql import reader as reader_module
from store.postgresql import standby as standby_module
from store.postgresql.database import Database, ReadConnection
from store.postgresql.reader import PostgresReader
from store.postgresql.standby import StandbyReader
from tests.store.effects import publication, queue, route
from tests.store.port.postgresql_vpn import PostgresTables
from tests.store.postgresql.vpn import Gateway, PostgresVpn
from tests.store.vpn_file import MADE_MS, bounds
from tests.support.postgresql import Server, eventually, server

pytestmark = pytest.mark.postgresql

T = TypeVar("T")

_numbers = count(1)


# --- What only a reader of PostgreSQL does --------------------------------------------------------------------------

QUEUE_ROUTE = route(1).number
WRITTEN = [queue(1, "q"), [publication(1, [b"x"] * 25, endpoints=(1,), time_ms=MADE_MS)]]


@contextmanager
def filled(found: Server) -> Iterator[PostgresTables]:
    """A Message VPN with 25 messages."""
    vpn = PostgresTables(found)
    try:
        vpn.write(WRITTEN)
        yield vpn
    finally:
        vpn.close()


@pytest.fixture
def vpn(postgresql_tables: PostgresTables) -> PostgresTables:
    """A Message VPN with 25 messages."""
    postgresql_tables.clear()
    postgresql_tables.write(WRITTEN)
    return postgresql_tables


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """A server for tests that kill and restart it."""
    with server() as found:
        yield found


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Server, Server]]:
    """A primary, and its standby."""
    with server() as primary:
        yield primary, primary.standby()


READS: list[Callable[[PostgresReader], object]] = [
    lambda reader: reader.log_page(1, 26, ()),
    lambda reader: reader.log_page(1, 26, (), held=True),
    lambda reader: reader.routed_page([QUEUE_ROUTE], 0),
    lambda reader: reader.routed_page([QUEUE_ROUTE, QUEUE_ROUTE + 1], 0),
    lambda reader: reader.routed_page(range(1, 90), 0),
    lambda reader: reader.messages([1, 2]),
    lambda reader: reader.attempts(1),
    lambda reader: reader.first_since(MADE_MS),
    lambda reader: reader.positions_since([MADE_MS]),
    lambda reader: reader.time_of(1),
    lambda reader: reader.last_matching(None),
    lambda reader: reader.tally(1, 26, ()),
]


def test_a_reader_leaves_no_snapshot_behind(postgresql: Server, vpn: PostgresTables) -> None:
    """No read leaves a transaction open: dead rows can be vacuumed, and partitions dropped."""
    reader = vpn.open_reader(rows=7)
    for read in READS:
        read(reader)
        pid = reader.connections.mine.connection.info.backend_pid
        found = postgresql.execute(
            f"select state, xact_start, backend_xmin from pg_stat_activity where pid = {pid}"
        )
        assert found == [("idle", None, None)]


def test_a_reader_cannot_write(vpn: PostgresTables) -> None:
    """Its connection refuses: the writer alone changes the store."""
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        vpn.open_reader().connections.mine.connection.execute("delete from message")


def test_a_damaged_message_that_is_trimmed_meanwhile_hides_no_other(
    vpn: PostgresTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a page that is not sound are read one by one, and are gone: the log begins after the position."""
    reader = vpn.open_reader()
    vpn.execute("update message set content = 'y' where id = 1")
    one_by_one = PostgresReader._one_by_one

    def trimmed_before(self: PostgresReader, *page: Any) -> Any:
        vpn.execute("update log set first_id = 10")
        return one_by_one(self, *page)

    monkeypatch.setattr(PostgresReader, "_one_by_one", trimmed_before)
    with pytest.raises(LogTrimmed, match="the log begins at 10"):
        reader.log_page(1, 26, ())


def test_a_page_is_read_along_an_index(vpn: PostgresTables) -> None:
    """Pages are read along an index, without a sort or a sequential scan, though the tables have no statistics."""
    reader = vpn.open_reader(rows=7)
    connection = reader.connections.mine
    asked: list[str] = []
    ask = connection.ask

    def spy(sql: str, values: object) -> object:
        asked.append(sql)
        return ask(sql, values)  # type: ignore[arg-type]

    connection.ask = spy  # type: ignore[assignment, method-assign]
    reader.log_page(3, 26, ())
    reader.routed_page([QUEUE_ROUTE], 3, 26)
    for sql in asked:
        prepared = connection.connection.execute(
            "select name from pg_prepared_statements where statement = %s", (sql,)
        ).fetchall()
        assert len(prepared) == 1, "it is prepared once"
        places = ", ".join(["3", "26", "7", f"{QUEUE_ROUTE}"][: 4 if "$4" in sql else 3])
        plan = "\n".join(
            line
            for (line,) in connection.connection.execute(
                f"explain (costs off) execute {prepared[0][0]} ({places})".encode()
            )
        )
        assert "Seq Scan on message" not in plan
        assert "Sort" not in plan or "held_message" in plan, plan


def test_a_read_waits_for_a_server_that_is_away(mortal: Server) -> None:
    """Reads wait for a crashed server, and succeed once it is back."""
    with filled(mortal) as vpn:
        reader = vpn.open_reader()
        assert len(reader.log_page(1, 26, ()).rows) == 25
        mortal.crash()
        waiting = [reader.submit(lambda read=read: read(reader)) for read in READS]  # type: ignore[misc]
        with pytest.raises(TimeoutError):
            waiting[0].result(0.3)
        mortal.start()
        vpn.reconnect()
        for future in waiting:
            future.result(60)
        page = reader.log_page(20, 26, ())
        assert [row[ID] for row in page.rows] == [20, 21, 22, 23, 24, 25]


def test_a_read_is_given_up_after_a_while_or_at_the_end(
    mortal: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting read fails with the reason if no server comes back, and immediately if its reader is closed."""
    with filled(mortal) as vpn:
        readers = [vpn.open_reader(), vpn.open_reader()]
        mortal.crash()
        waiting: Future[object] = readers[0].submit(lambda: readers[0].log_page(1, 26, ()))
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        threading.Thread(target=readers[0].close).start()
        with pytest.raises(ReadFailed):
            waiting.result(30)
        monkeypatch.setattr(reader_module, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(ReadFailed, match="connect"):
            readers[1].log_page(1, 26, ())
        mortal.start()
        vpn.reconnect()


def test_a_password_that_cannot_be_read_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing password file, which may be about to be replaced, raises ReadFailed once the patience (here 0) ends."""
    database = Database("postgresql:///postgres", tmp_path / "password")
    reader = PostgresReader(partial(database.connect, "v", "reader"), "v", bounds(), 1)
    try:
        monkeypatch.setattr(reader_module, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(ReadFailed, match="No such file"):
            reader.log_page(1, 26, ())
    finally:
        reader.close()


def test_a_server_that_stands_still_is_given_up(mortal: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader cuts a connection that stops answering, and makes another; a closed reader does not wait for it."""
    monkeypatch.setattr(ReadConnection.ask, "__defaults__", (0.2,))
    with filled(mortal) as vpn:
        reader, closed = vpn.open_reader(), vpn.open_reader()
        first = reader.submit(lambda: (reader.log_page(1, 26, ()), reader.connections.mine)[1]).result(30)
        closed.submit(lambda: closed.log_page(1, 26, ())).result(30)
        monkeypatch.setattr(ReadConnection.ask, "__defaults__", (reader_module.ANSWER_SECONDS,))
        mortal.hold()
        try:
            never = closed.submit(lambda: closed.log_page(1, 26, ()))
            closed.close()
            with pytest.raises((ReadFailed, CancelledError)):
                never.result(30)
            monkeypatch.setattr(ReadConnection.ask, "__defaults__", (0.2,))
            waiting = reader.submit(lambda: reader.log_page(1, 26, ()))
            eventually(lambda: first.connection.closed, "the cut")
        finally:
            mortal.go_on()
        assert len(waiting.result(60).rows) == 25


def test_a_page_lacks_nothing_that_readers_were_not_told_of(vpn: PostgresTables) -> None:
    """
    Readers learn which messages a rule of retention removed only after the removal. Until then a page that lacks such
    messages fails. Pages of other topics or later ids do not fail, and neither do pages that lack known removals only.
    """
    reader, rule = vpn.open_reader(), json.dumps([["t"], ["u"]])
    vpn.write([[publication(26, [b"y"] * 20, topic="t", time_ms=MADE_MS)]])

    def take_out(*ids: int) -> None:
        vpn.commit([TrimTopics(ids[0], ids[-1] + 1, counts_topics=True, ids=ids, rule=rule)])

    reader.known_marks = ()
    take_out(26, 28)
    for position, patterns in ((1, ()), (1, ("t",)), (28, (">",))):
        with pytest.raises(TakenOut, match=f"a retention rule removed messages from id {position} on"):
            reader.log_page(position, 46, patterns)
    assert len(reader.log_page(29, 46, ()).rows) == 17
    assert [row[ID] for row in reader.log_page(1, 26, ("u",)).rows] == []
    reader.known_marks = [RetentionMark(rule, 29, 1)]
    assert len(reader.log_page(26, 46, ()).rows) == 18
    take_out(30, 31)
    assert len(reader.log_page(26, 29, ()).rows) == 1
    with pytest.raises(TakenOut):
        reader.log_page(26, 46, ())


def test_a_page_of_a_standby_passes_over_nothing(
    machines: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read waits for a standby that lags: its page has all that was reported to the caller, or the read fails."""
    primary, standby = machines
    with filled(primary) as vpn:
        vpn.commit([])
        reader = vpn.open_reader(server=standby)
        assert len(reader.log_page(1, 26, ()).rows) == 25
        standby.execute("select pg_wal_replay_pause()")
        vpn.commit([publication(26, [b"y"] * 5, endpoints=(1,), time_ms=MADE_MS)])
        vpn.commit([])  # until this commit the standby may have to take the last one back
        reads: list[Callable[[], object]] = [
            lambda: reader.log_page(20, 31, ()).rows,
            lambda: reader.routed_page([QUEUE_ROUTE], 19, 31).rows,
            lambda: reader.messages(range(20, 31)),
        ]
        with monkeypatch.context() as patch:
            patch.setattr(reader_module, "PATIENCE_SECONDS", 0.0)
            for read in reads:
                with pytest.raises(ReadFailed, match="behind"):
                    read()
        waiting = reader.submit(lambda: [read() for read in reads])
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        standby.execute("select pg_wal_replay_resume()")
        expected = primary.execute("select 1")  # the primary goes on meanwhile
        assert expected == [(1,)]
        for rows in waiting.result(30):
            assert [row[ID] for row in rows] == list(range(20, 31))  # type: ignore[attr-defined]


# --- History read from a standby ------------------------------------------------------------------------------------


class Pair:
    """A store whose history is read from a standby."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary, self.standby = primary, standby
        self.vpn = PostgresVpn(primary, "postgres", f"v{next(_numbers)}")
        self.log = f"rewind_{self.vpn.name}.log"
        self.gateway: Gateway = self.vpn.gateway(self.vpn.stores(read_url=standby.url()))  # type: ignore[arg-type]
        reader = self.gateway.store.reader
        assert isinstance(reader, StandbyReader)
        self.reader = reader

    def publish(self, first: int, count: int, content: bytes = b"told") -> None:
        self.gateway.publish(first, content, count)

    def ask(self, read: Callable[[StandbyReader], T]) -> T:
        """Read as a link does, on a thread of the pool."""
        return self.reader.submit(lambda: read(self.reader)).result(60)

    def follows(self, last_id: int) -> None:
        """Wait until the standby knows that the ids up to this one were reported as durable."""
        eventually(lambda: self.told() >= last_id, "the standby's replay")

    def told(self) -> int:
        if self.standby.execute(f"select to_regclass('{self.log}')") == [(None,)]:
            return 0
        ((found,),) = self.standby.execute(f"select told_id from {self.log}")
        return int(found)

    def read(self, end: int) -> list[int]:
        """Ids of the log below ``end``, as a log reader gets them."""
        return [row[ID] for row in self.ask(lambda reader: reader.log_page(1, end, ())).rows]

    def reads_of_standby(self) -> list[object]:
        """The standby's sessions that have last read a page."""
        return self.standby.execute(
            "select 1 from pg_stat_activity "
            f"where application_name like 'rewind % standby {self.vpn.name}' and query ~ 'string_agg'"
        )


@contextmanager
def paired(primary: Server, standby: Server) -> Iterator[Pair]:
    """A store with ten messages, all of them on the standby."""
    found = Pair(primary, standby)
    found.publish(1, 10)
    found.follows(10)
    yield found
    found.vpn.close()


@pytest.fixture
def pair(machines: tuple[Server, Server]) -> Iterator[Pair]:
    with paired(*machines) as found:
        yield found


def test_history_comes_from_the_standby(pair: Pair) -> None:
    """Pages and counts of history are read from the standby only; times and single look-ups come from the primary."""
    pages = f"select 1 from pg_stat_activity where application_name like 'rewind % reader {pair.vpn.name}'"
    assert pair.read(11) == list(range(1, 11))
    assert pair.reads_of_standby()
    assert pair.primary.execute(pages) == []
    assert pair.ask(lambda reader: reader.tally(1, 11, ())) == [("a", 10, 40)]
    newest = pair.ask(lambda reader: reader.topics_below(11, 9, ()))
    assert newest == ([(10, "a"), (9, "a")], 9)
    assert pair.primary.execute(pages) == []
    assert pair.ask(lambda reader: reader.first_since(0)) == 1
    assert pair.ask(lambda reader: reader.last_matching(None)) == 10
    assert pair.ask(lambda reader: reader.time_of(10)) == MADE_MS
    assert pair.primary.execute(pages) == [(1,)]


def test_nothing_is_passed_over_where_replay_is_paused(pair: Pair) -> None:
    """A page that the standby does not have yet comes from the primary immediately."""
    pair.standby.execute("select pg_wal_replay_pause()")
    pair.publish(11, 5)
    assert pair.read(16) == list(range(1, 16))
    assert pair.read(11) == list(range(1, 11)), "what it has is still read there"
    assert pair.reads_of_standby()
    counted = pair.ask(lambda reader: reader.tally(1, 16, ()))
    assert counted == [("a", 15, 60)]
    newest = pair.ask(lambda reader: reader.topics_below(16, 15, ()))
    assert newest.found == [(15, "a")]
    pair.standby.execute("select pg_wal_replay_resume()")
    pair.follows(15)
    assert pair.read(16) == list(range(1, 16))


def test_a_standby_that_is_gone_holds_nobody_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the standby was killed, pages come from the primary, and from the standby again once it is back."""
    monkeypatch.setattr(standby_module, "REST_SECONDS", 0.0)
    assert pair.read(11) == list(range(1, 11))
    pair.standby.crash()
    for _ in range(3):
        assert pair.read(11) == list(range(1, 11))
    pair.standby.start()
    assert pair.reads_of_standby() == []
    assert pair.read(11) == list(range(1, 11))
    assert pair.reads_of_standby()


def test_a_standby_that_was_stopped_holds_nobody_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the standby keeps its connections but stops answering, the read is repeated on the primary."""
    assert pair.read(11) == list(range(1, 11))
    monkeypatch.setattr(ReadConnection.ask, "__defaults__", (0.5,))
    pair.standby.hold()
    try:
        assert pair.read(11) == list(range(1, 11))
    finally:
        pair.standby.go_on()


def test_what_a_standby_has_damaged_comes_from_the_primary(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is damaged on the standby's disk is read from the primary, and the damage is reported."""
    monkeypatch.setattr(standby_module, "REST_SECONDS", 0.0)
    pair.publish(11, 1, b"the needle")
    pair.gateway.beat()
    pair.follows(11)
    for asked in (pair.primary, pair.standby):
        asked.execute("checkpoint")
    pair.standby.stop()
    turned = 0
    for path in (pair.standby.data / "base").glob("*/[0-9]*"):
        content = path.read_bytes()
        if b"the needle" in content:
            path.write_bytes(content.replace(b"the needle", b"the noodle"))
            turned += 1
    assert turned
    pair.standby.start()
    assert pair.reader.standby_damage is None
    page = pair.ask(lambda reader: reader.log_page(11, 12, ()))
    assert [row[CONTENT] for row in page.rows] == [b"the needle"]
    assert pair.reader.damage is None
    assert "message 11" in (pair.reader.standby_damage or "")


def test_what_a_failover_took_back_is_not_read() -> None:
    """
    A server that was left behind by a failover has other messages under ids that were given out again. A read returns
    the messages that were reported as durable, which are on the primary.
    """
    with server() as primary, paired(primary, primary.standby()) as pair:
        pair.gateway.beat()
        pair.follows(10)
        pair.standby.promote()
        # A commit that only this server has, and that its gateway never saw succeed.
        pair.standby.execute(
            f"update {pair.log} set commit_no = commit_no + 1, told_id = last_id, last_id = 15"
        )
        for number in range(11, 16):
            checksum = content_sum(b"lost") << HEAD_BITS | head_of(number, MADE_MS, "a", 0, 0)
            pair.standby.execute(
                f"insert into rewind_{pair.vpn.name}.message (id, time, checksum, route, bare, topic, content) "
                f"values ({number}, {MADE_MS}, {checksum}, 0, 0, 'a', 'lost')"
            )
        pair.publish(11, 5)
        page = pair.ask(lambda reader: reader.log_page(11, 16, ()))
        told = [(number, b"told") for number in range(11, 16)]
        assert [(row[ID], row[CONTENT]) for row in page.rows] == told
