"""The log read from PostgreSQL: the same rows as over AMQP, only reported commits, and no row silently missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
import pytest

from gateway.core.effects import SavePoint, TrimLog, TrimTopics
from gateway.core.model import Point
from spark_bridge.columns.message_block import PAGE_BYTES
from spark_bridge.errors import OptionError
from spark_bridge.options import WHOLE_LOG, Schema, Selection, parse
from spark_bridge.places import database_place
from spark_bridge.places.database_place import DatabasePlace, LogTables
from store.archive.columns import ALL
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange
from store.postgresql.database import ReadConnection
from tests.spark_bridge.log_gateway import LogGateway
from tests.spark_bridge.places.test_log_file import REFUSALS, SELECTIONS, fill
from tests.spark_bridge.reading import streaming, table
from tests.spark_bridge.stored_log import body
from tests.store.effects import publication
from tests.store.postgresql.vpn import Gateway, PostgresVpn
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server, eventually, server

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture(scope="module")
def gateway(postgresql: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The url of a gateway and the dsn of its store; see ``fill``."""
    dsn = postgresql.tcp_url(postgresql.new_database())
    config = f'[vpn.default.store]\nurl = "{dsn}"\n'
    with LogGateway(tmp_path_factory.mktemp("gateway"), config) as running:
        fill(running)
        yield running.url, dsn


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Server, Server]]:
    """A primary and its asynchronous standby."""
    with server() as primary:
        yield primary, primary.standby()


class Written:
    """A Message VPN that the test writes through its store, without a gateway."""

    def __init__(self, primary: Server, name: str) -> None:
        self.database = primary.new_database()
        self.vpn = PostgresVpn(primary, self.database, name)
        self.gateway: Gateway = self.vpn.gateway()
        self.last = 0

    def publish(self, count: int, topic: str = "n/1") -> None:
        """Publish more messages."""
        first, self.last = self.last + 1, self.last + count
        contents = [body(number) for number in range(first, self.last + 1)]
        error = self.gateway.commit(publication(first, contents, topic=topic, time_ms=MADE_MS))
        assert error is None

    def at(self, where: Server) -> Schema:
        """The address of the log on this server."""
        return Schema(where.tcp_url(self.database), self.vpn.name)

    def place(self, where: Server) -> DatabasePlace:
        """The place from which the log on this server is read."""
        return DatabasePlace(self.at(where))


@pytest.fixture
def written(machines: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[Written]:
    """A Message VPN for one test; the standby already has its tables."""
    primary, standby = machines
    found = Written(primary, request.node.name[:40])
    eventually(lambda: _has(standby, found), "replication")
    yield found
    found.vpn.close()


def offsets(place: DatabasePlace, selection: Selection, ids: IdRange) -> list[int]:
    """All offsets of a range."""
    return [n for batch in place.read(selection, ALL, ids) for n in batch.column("offset").to_pylist()]


@contextmanager
def behind(standby: Server) -> Iterator[None]:
    """Pause the standby's replay during the block."""
    standby.execute("select pg_wal_replay_pause()")
    try:
        yield
    finally:
        standby.execute("select pg_wal_replay_resume()")


def _has(standby: Server, written: Written) -> bool:
    try:
        with LogTables(written.at(standby)):
            return True
    except ConnectionFailed:
        return False


@pytest.mark.parametrize("options", SELECTIONS, ids=str)
def test_dsn_and_url_give_the_same_rows(gateway: tuple[str, str], options: dict[str, str]) -> None:
    """Bodies of every kind, nulls, Unicode, empty ones and a megabyte are equal in every column."""
    url, dsn = gateway
    ours, theirs = table(dsn=dsn, **options), table(url=url, **options)
    assert ours.equals(theirs)
    assert ours.schema == theirs.schema
    assert ours.num_rows or options.keys() & {"replayStart", "startingTimestamp", "endingTimestamp"}


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [*REFUSALS, ({"messageVpn": "none"}, ConnectionFailed, "no tables of the Message VPN 'none'")],
)
def test_what_the_log_does_not_have_is_refused(
    gateway: tuple[str, str], options: dict[str, str], error: type[Exception], sentence: str
) -> None:
    """As over AMQP, a start or end that the log does not have is an error."""
    with pytest.raises(error, match=sentence):
        table(dsn=gateway[1], **options)


def test_a_page_is_bounded_by_bytes(gateway: tuple[str, str]) -> None:
    """Pages of large messages are shorter, and no message is lost between two pages."""
    with LogTables(Schema(gateway[1])) as tables:
        extent = tables.settled_extent()
        pages = list(tables.pages(extent, whole=True))
    assert [number for page in pages for number in page.column("id").to_pylist()] == list(
        range(1, extent.last + 1)
    )
    assert max(page.column("content").nbytes for page in pages) <= PAGE_BYTES + (2 << 20)


def test_a_point_a_topic_with_nul_and_what_was_trimmed(
    machines: tuple[Server, Server], written: Written
) -> None:
    """
    A point is a start, and U+0000 in a topic is read as written. Trimmed ids are lost, even if their rows still exist;
    with failOnDataLoss=false they are left out.
    """
    primary, _ = machines
    written.publish(20, topic="a\0/\1")
    position = 11
    assert written.gateway.commit(SavePoint(Point("p\0", position, MADE_MS, MADE_MS))) is None
    place = written.place(primary)
    assert place.plan(Selection(start="point:p\0")).first == position
    whole = place.plan(WHOLE_LOG)
    (batch,) = place.read(WHOLE_LOG, ALL, whole)
    assert set(batch.column("topic").to_pylist()) == {"a\0/\1"}
    assert written.gateway.commit(TrimLog(1, 6)) is None
    with pytest.raises(DataLoss, match="offset 1 was to be read, and the log begins at 6 now"):
        list(place.read(WHOLE_LOG, ALL, whole))
    assert offsets(place, Selection(fail_on_data_loss=False), whole) == list(range(6, 21))
    with pytest.raises(DataLoss, match="was recreated"):
        list(place.read(WHOLE_LOG, ALL, IdRange(6, 20, (whole.generation or 0) + 1)))
    with pytest.raises(DataLoss, match="the log ends at 20 now"):
        list(place.read(WHOLE_LOG, ALL, IdRange(6, 21, whole.generation)))


def test_what_a_rule_takes_out_of_a_planned_range_is_data_loss_or_left_out(
    machines: tuple[Server, Server], written: Written
) -> None:
    """
    Messages that a rule of retention removes after the plan fail a read on primary and standby, or are left out with
    failOnDataLoss=false. Earlier removals, and removals of other topics or ids, do not. A start among removed messages
    is refused.
    """
    for number in range(20):
        written.publish(1, topic=f"n/{number % 2}")
    rule = json.dumps([["n/1"]])

    def take_out(*ids: int) -> None:
        effect = TrimTopics(ids[0], ids[-1] + 1, counts_topics=True, ids=ids, rule=rule)
        assert written.gateway.commit(effect) is None

    take_out(2, 4)
    primary, standby = (written.place(machine) for machine in machines)
    even = Selection(patterns=("n/0",))
    planned, of_others, later = (primary.plan(found) for found in (WHOLE_LOG, even, Selection(start="#9")))
    assert (planned.taken_below, of_others.taken_below, later.taken_below) == ((5,), (), (5,))
    there = [1, 3, *range(5, 21)]
    eventually(lambda: standby.extent(WHOLE_LOG) == planned, "replication")
    assert offsets(primary, WHOLE_LOG, planned) == offsets(standby, WHOLE_LOG, planned) == there
    for start in ("#2", "2001-01-01T00:00:00Z"):
        with pytest.raises(DataLoss):
            primary.plan(Selection(start=start))
    assert primary.plan(replace(even, start="#2")).first == 2
    take_out(6, 8)
    eventually(lambda: standby.extent(WHOLE_LOG).taken_below == (9,), "replication")
    for place in (primary, standby):
        with pytest.raises(DataLoss, match="removed messages from the log since the read was planned"):
            offsets(place, WHOLE_LOG, planned)
        assert offsets(place, WHOLE_LOG, later) == there[there.index(9) :]
        assert offsets(place, even, of_others) == list(range(1, 21, 2))
        lenient = offsets(place, Selection(fail_on_data_loss=False), planned)
        assert lenient == [found for found in there if found not in (6, 8)]


def test_a_message_that_is_not_what_was_written_is_not_read(
    machines: tuple[Server, Server], written: Written
) -> None:
    """A changed byte of a content fails the read with an error that names the message."""
    written.publish(20)
    written.vpn.server.execute(
        f'update "rewind_{written.vpn.name}".message set content = set_byte(content, 3, 0) where id = 7',
        written.database,
    )
    place = written.place(machines[0])
    with pytest.raises(ConnectionFailed, match="message 7 is not what was written"):
        list(place.read(WHOLE_LOG, ALL, place.plan(WHOLE_LOG)))


def test_a_standby_does_not_tell_of_a_commit_that_may_be_taken_back(
    machines: tuple[Server, Server], written: Written
) -> None:
    """
    A plan on a standby excludes the newest commit, which the gateway may not have reported yet. The next commit, which
    may be an idle gateway's heartbeat, makes it part of a plan.
    """
    _, standby = machines
    written.publish(5)
    written.gateway.beat()
    written.publish(3)
    written.gateway.close()  # no commit follows
    with LogTables(written.at(standby)) as tables:
        eventually(lambda: tables.extent(up_to=0).last == 8, "the standby's replay")
        assert tables.settled_extent().last == 5
    with LogTables(written.at(machines[0])) as tables:
        assert tables.settled_extent().last == 8
    again = written.vpn.gateway()
    again.beat()
    place = written.place(standby)
    eventually(lambda: place.plan(WHOLE_LOG).last == 8, "the next commit's replay")


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_standby_that_is_behind_is_waited_for(
    machines: tuple[Server, Server], written: Written, fail_on_data_loss: bool
) -> None:
    """A range that was planned on the primary is read on a lagging standby once that has replayed it."""
    primary, standby = machines
    written.publish(5)
    with LogTables(written.at(standby)) as tables:
        eventually(lambda: tables.extent(up_to=0).last == 5, "the standby's replay")
    selection = Selection(fail_on_data_loss=fail_on_data_loss)
    with ThreadPoolExecutor(1) as beside:
        with behind(standby):
            written.publish(5)
            ids = written.place(primary).plan(WHOLE_LOG)
            reading = beside.submit(offsets, written.place(standby), selection, ids)
            sessions = "select 1 from pg_stat_activity where application_name like 'rewind%spark%'"
            eventually(lambda: standby.execute(sessions), "the reader's connection")
            assert not reading.done()
        assert reading.result(60) == list(range(1, 11))


def test_a_standby_that_does_not_come_up_fails_the_read(
    machines: tuple[Server, Server], written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that waits too long for the standby fails, also with failOnDataLoss=false."""
    primary, standby = machines
    written.publish(5)
    with behind(standby):
        written.publish(5)
        ids = written.place(primary).plan(WHOLE_LOG)
        monkeypatch.setattr(database_place, "PATIENCE_SECONDS", 0.2)
        for fails in (True, False):
            with pytest.raises(ConnectionFailed, match="does not reach offset 10"):
                offsets(written.place(standby), Selection(fail_on_data_loss=fails), ids)


def test_a_stream_that_is_ahead_of_its_standby_fails_and_delivers_nothing_twice(
    machines: tuple[Server, Server], written: Written
) -> None:
    """A checkpoint above the standby's last id is an error, and not taken for a restored log that begins again."""
    _, standby = machines
    written.publish(5)
    address = written.at(standby)
    options = {"dsn": address.dsn, "messageVpn": address.vpn, "failOnDataLoss": "false"}
    with streaming("offset bigint", **options) as stream:
        start = stream.initialOffset()
        (name,) = start
        assert name == f"postgresql://127.0.0.1:{standby.port}/{written.database}#{written.vpn.name}"
        ahead = {name: start[name] | {"offset": 1_000}}
        with pytest.raises(ConnectionFailed, match="the standby is behind, or has an older copy"):
            stream.latestOffset(ahead, stream.getDefaultReadLimit())


def test_a_server_that_is_restarted_is_read_on_from(
    written: Written, machines: tuple[Server, Server]
) -> None:
    """If the connection is lost between two pages, the read connects again, and each message comes once."""
    primary, _ = machines
    written.publish(8_000)
    written.publish(4_000)
    with LogTables(written.at(primary)) as tables:
        extent = tables.settled_extent()
        pages = tables.pages(extent, {"id"})
        found = next(pages).column("id").to_pylist()
        primary.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'rewind%spark%'"
        )
        found += [number for page in pages for number in page.column("id").to_pylist()]
    assert found == list(range(1, 12_001))


def test_a_reader_needs_four_tables(machines: tuple[Server, Server], written: Written) -> None:
    """The right to select from four tables is enough, also for partitions that are made later."""
    primary, _ = machines
    schema = f'"rewind_{written.vpn.name}"'
    for statement in (
        "create role reader login",
        f"grant usage on schema {schema} to reader",
        f"grant select on {schema}.log, {schema}.message, {schema}.point, {schema}.retention to reader",
    ):
        eventually(partial(_is_executed, primary, statement, written.database), statement)
    written.publish(5)
    address = written.at(primary)
    place = DatabasePlace(Schema(address.dsn.replace("//postgres@", "//reader@"), address.vpn))
    (batch,) = place.read(WHOLE_LOG, ALL, place.plan(WHOLE_LOG))
    assert batch.num_rows == 5
    with pytest.raises(OptionError, match="no such point"):
        place.plan(Selection(start="point:none"))


def _is_executed(server: Server, statement: str, database: str) -> bool:
    """Execute a statement; False if the gateway makes a partition of the table at that moment, so try again."""
    try:
        server.execute(statement, database)
    except psycopg.errors.InternalError_:
        return False
    return True


def test_a_server_that_stands_still_is_given_up(
    written: Written, machines: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a server keeps its connections but stops answering, the read goes on with the other server in the dsn."""
    primary, standby = machines
    written.publish(5)
    written.gateway.beat()
    place = written.place(standby)
    eventually(lambda: place.extent(WHOLE_LOG).last == 5, "the standby's replay")
    both = Schema(
        f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/{written.database}"
        "?connect_timeout=2",
        written.vpn.name,
    )
    with LogTables(both) as tables:
        assert tables.is_standby
        monkeypatch.setattr(ReadConnection.ask, "__defaults__", (0.3,))
        standby.hold()
        try:
            (page,) = tables.pages(tables.extent(), {"id"})
            assert page.column("id").to_pylist() == list(range(1, 6))
            monkeypatch.undo()
            assert not tables.is_standby
        finally:
            standby.go_on()


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:s3cret@h/rewind",
        "postgresql://ann@h/rewind?password=s3cret",
        "postgresql://ann@h/rewind?pass%77ord=s3cret",
        "host=h password=s3cret",
        "host=h password = 's3cret'",
        "host=h s3cret",
        "amqp://ann:s3cret@h",
    ],
)
def test_a_password_in_a_dsn_is_refused_and_not_repeated(dsn: str) -> None:
    """A password in the dsn is refused, because Spark shows options in plans; the error does not repeat it."""
    with pytest.raises(OptionError) as refused:
        table(dsn=dsn)
    assert "s3cret" not in str(refused.value)


def test_a_password_comes_from_a_file(
    tmp_path: Path, written: Written, machines: tuple[Server, Server]
) -> None:
    """The password's file is read at each connection, on each worker; the address's repr does not show it."""
    missing, there = tmp_path / "none", tmp_path / "password"
    there.write_text("s3cret\n")
    schema = written.at(machines[0])
    options = {"dsn": schema.dsn, "messageVpn": schema.vpn}
    (address,) = parse(options | {"passwordFile": str(there)}).addresses
    assert isinstance(address, Schema)
    assert "s3cret" not in repr(address)
    assert DatabasePlace(address).extent(WHOLE_LOG).last == 0
    with pytest.raises(ConnectionFailed, match="No such file"):
        table(passwordFile=str(missing), **options)
