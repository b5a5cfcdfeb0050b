"""History read from a standby: what was told and nothing else; the primary gives what the standby does not have."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from gateway.core.model import CONTENT, ID
from store.checksum import HEAD_BITS, content_sum, head_of
from store.postgresql import standby as standby_module
from store.postgresql.database import ReadConnection
from store.postgresql.standby import StandbyReader
from tests.store.effects import publication
from tests.store.postgresql.vpn import Gateway, PostgresVpn
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server, eventually, server

pytestmark = pytest.mark.postgresql


class Pair:
    """A store whose history is read from a standby."""

    def __init__(self, primary: Server) -> None:
        database = primary.new_database()
        self.primary, self.standby = primary, primary.standby()
        self.database = database
        self.vpn = PostgresVpn(primary, database, "v")
        self.gateway: Gateway = self.vpn.gateway(self.vpn.stores(read_url=self.standby.url(database)))  # type: ignore[arg-type]
        reader = self.gateway.store.reader
        assert isinstance(reader, StandbyReader)
        self.reader = reader

    def publish(self, first: int, count: int, content: bytes = b"told") -> None:
        assert self.gateway.commit(publication(first, [content] * count, time_ms=MADE_MS)) is None

    def follows(self, last_id: int) -> None:
        """Wait until the standby knows that ids up to this one stay."""
        eventually(lambda: self.told() >= last_id, "the standby's replay")

    def told(self) -> int:
        if self.standby.execute("select to_regclass('rewind_v.log')", self.database) == [(None,)]:
            return 0
        ((found,),) = self.standby.execute("select told_id from rewind_v.log", self.database)
        return int(found)

    def read(self, end: int) -> list[int]:
        """Ids of the log below ``end``, as a log reader gets them: on a thread of the pool."""
        waiting: Future[list[int]] = self.reader.submit(
            lambda: [row[ID] for row in self.reader.log_page(1, end, ()).rows]
        )
        return waiting.result(60)

    def reads_of_standby(self) -> list[object]:
        """Those who have asked it for a page."""
        return self.standby.execute(
            "select 1 from pg_stat_activity where application_name like 'rewind % standby v' and query ~ 'string_agg'"
        )


@pytest.fixture
def pair() -> Iterator[Pair]:
    with server() as primary:
        found = Pair(primary)
        found.publish(1, 10)
        found.follows(10)
        yield found
        found.vpn.close()


def test_history_comes_from_the_standby(pair: Pair) -> None:
    """Pages and counts of it are read there, and nowhere else; what changes by deliveries is read from the primary."""
    pages = "select 1 from pg_stat_activity where application_name like 'rewind % reader v'"
    assert pair.read(11) == list(range(1, 11))
    assert pair.reads_of_standby()
    assert pair.primary.execute(pages) == []
    assert pair.reader.submit(lambda: pair.reader.tally(1, 11, ())).result(60) == [("a", 10, 40)]
    newest = pair.reader.submit(lambda: pair.reader.topics_below(11, 9, ())).result(60)
    assert newest == ([(10, "a"), (9, "a")], 9)
    assert pair.primary.execute(pages) == []
    reads = [
        pair.reader.submit(lambda: pair.reader.first_since(0)),
        pair.reader.submit(lambda: pair.reader.last_matching(None)),
        pair.reader.submit(lambda: pair.reader.time_of(10)),
    ]
    assert [read.result(60) for read in reads] == [1, 10, MADE_MS]
    assert pair.primary.execute(pages) == [(1,)]


def test_nothing_is_passed_over_where_replay_is_paused(pair: Pair) -> None:
    """A page up to what was told has all of it, though the standby does not: it comes from the primary, at once."""
    pair.standby.execute("select pg_wal_replay_pause()")
    pair.publish(11, 5)
    assert pair.read(16) == list(range(1, 16))
    assert pair.read(11) == list(range(1, 11)), "what it has is still read there"
    assert pair.reads_of_standby()
    counted = pair.reader.submit(lambda: pair.reader.tally(1, 16, ())).result(60)
    assert counted == [("a", 15, 60)]
    newest = pair.reader.submit(lambda: pair.reader.topics_below(16, 15, ())).result(60)
    assert newest.found == [(15, "a")]
    pair.standby.execute("select pg_wal_replay_resume()")
    pair.follows(15)
    assert pair.read(16) == list(range(1, 16))


def test_a_standby_that_is_gone_holds_nobody_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed between two pages: the primary has the next ones, and the standby does again once it is back."""
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
    """It keeps its connections and says nothing: the read is given up, and the primary asked."""
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
    """A bit of a message turns on the standby's disk: it is read all the same, and somebody is told."""
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
    page = pair.reader.submit(lambda: pair.reader.log_page(11, 12, ())).result(60)
    assert [row[CONTENT] for row in page.rows] == [b"the needle"]
    assert pair.reader.damage is None
    assert "message 11" in (pair.reader.standby_damage or "")


def test_what_a_failover_took_back_is_not_read(pair: Pair) -> None:
    """
    A server that a failover has left behind has other messages with the ids that were given again: those that were told
    of are read, and they are on the primary.
    """
    pair.gateway.beat()
    pair.follows(10)
    pair.standby.promote()
    # As the commit that it had alone when it was cut off: its gateway never heard that it was done.
    pair.standby.execute(
        "update rewind_v.log set commit_no = commit_no + 1, told_id = last_id, last_id = 15", pair.database
    )
    for number in range(11, 16):
        checksum = content_sum(b"lost") << HEAD_BITS | head_of(number, MADE_MS, "a", 0, 0)
        pair.standby.execute(
            "insert into rewind_v.message (id, time, checksum, route, bare, topic, content) "
            f"values ({number}, {MADE_MS}, {checksum}, 0, 0, 'a', 'lost')",
            pair.database,
        )
    pair.publish(11, 5)
    page = pair.reader.submit(lambda: pair.reader.log_page(11, 16, ())).result(60)
    assert [(row[ID], row[CONTENT]) for row in page.rows] == [(number, b"told") for number in range(11, 16)]
