"""The use cases of replay, from end to end; and a gateway that is killed in the middle of replays."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest

from gateway.config import Queue, Vpn
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import Client, Received, numbered, texts
from tests.support.messages import data, trade
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway
from tests.support.transactions import DISCHARGE, Controller, acknowledge, publish
from tests.system.gateway_process import GatewayProcess

# --- The use cases of Solace's message replay and of Apache Qpid's queue replay ---------------------------------------

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@pytest.fixture
def gateway_over_time(clock: Clock, start: Start) -> RunningGateway:
    """A gateway whose clock the test can move by months."""
    return start(vpn=Vpn(queues={"trades": Queue(exclusive="wait")}))


def with_start(address: str, start: str) -> str:
    """An address with a replay start."""
    return f"{address}?replay-start={quote(start, safe='')}"


def date_of(time_ms: int) -> str:
    """A time as RFC 3339 has it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def publish_orders(client: Client, topic: str, numbers: range) -> list[str]:
    """Publish a message to a topic for each number; their texts."""
    client.sender(f"topic://{topic}").send_all(data(n) for n in numbers)
    return [str(n) for n in numbers]


def make_queue(gateway: RunningGateway, client: Client, name: str, *subscriptions: str) -> None:
    """A queue with topic subscriptions, as an administrator makes it."""
    client.sender(name).close()
    gateway.subscribe(name, subscriptions)


# --- an application that joins late -----------------------------------------------------------------------------------


def test_late_join_with_a_queue(gateway_over_time: RunningGateway, connect: Connect, clock: Clock) -> None:
    """
    "An application that had no queue or subscription on the event broker when the data was published may want to
    connect, create its queue and subscriptions, and then use message replay to consume previously published data."
    "Once the replay has caught up to the live data stream, message delivery switches to live message delivery."
    """
    gateway = gateway_over_time
    trading = connect(gateway)
    expected: list[str] = []
    for month in range(6):
        numbers = range(month * 300, month * 300 + 300)
        expected += publish_orders(trading, "flights/JFK/AA", numbers)
        publish_orders(trading, "flights/EWR/UA", numbers)
        clock.ms += 30 * DAY_MS
    analytics = connect(gateway)
    make_queue(gateway, analytics, "analytics", "flights/JFK/>")
    assert gateway.depth("analytics") == 0, "a subscription alone brings nothing back"
    with Publishing(gateway.url, "topic://flights/JFK/B6", "topic://flights/LGA/B6", first=2_000) as live:
        live.wait_for(2_200)
        consumer = analytics.receiver(with_start("analytics", "beginning"))
        consumer.collect(taken := [], 2_500)
        live.stop()
        expected += [str(n) for n in range(2_000, live.next, 2)]
        consumer.collect(taken, len(expected))
    assert texts(taken) == expected, "history and live, once each, in publish order"
    analytics.wait(lambda: gateway.replay_state("analytics") == "complete", "the replay is complete")


def test_late_join_with_a_durable_subscription(
    gateway_over_time: RunningGateway, connect: Connect, clock: Clock
) -> None:
    """
    "A new analytics or trading algorithm is brought online that requires some amount of historical data to make
    decisions about subsequent live data."
    """
    gateway = gateway_over_time
    trading = connect(gateway)
    publish_orders(trading, "prices/ACME", range(100))
    clock.ms += 90 * DAY_MS
    some = publish_orders(trading, "prices/ACME", range(100, 200))
    algorithm = connect(gateway)
    address = with_start("topic://prices/*", "30D")
    consumer = algorithm.receiver(address, name="algorithm", durable=True, credit=500)
    assert texts(consumer.take_and_accept(100)) == some, "what it needs, and no more"
    some = publish_orders(trading, "prices/ACME", range(200, 210))
    assert texts(consumer.take_and_accept(10)) == some
    consumer.detach()
    kept = publish_orders(trading, "prices/ACME", range(210, 220))
    algorithm.close()
    trading.close()
    gateway.restart()
    consumer = connect(gateway).receiver("topic://prices/*", name="algorithm", durable=True, credit=500)
    assert texts(consumer.take_and_accept(10)) == kept, "durable from now on, without a replay"


# --- a subscription that was wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_administrator", [False, True], ids=["by its consumer", "by an administrator"])
def test_a_corrected_subscription(
    gateway_over_time: RunningGateway, connect: Connect, clock: Clock, by_administrator: bool
) -> None:
    """
    "If the set of topics on a queue was configured in error, it may not be noticed immediately. The administrator
    corrects the topic-to-queue mapping … requests a replay to the queue … after all old messages, including those
    that were missed because of the incorrect mapping, have been replayed, the application rejoins the live stream."
    """
    gateway = gateway_over_time
    client = connect(gateway)
    make_queue(gateway, client, "orders", "orders/eu/>")
    application = client.receiver("orders", credit=1_000)
    publish_orders(client, "orders/us/new", range(50))  # before the day in question
    clock.ms += DAY_MS
    morning_ms = clock.ms
    expected = []
    for hour in range(8):
        numbers = range(1_000 + hour * 100, 1_000 + hour * 100 + 100)
        expected += publish_orders(client, "orders/us/new", numbers[::2])
        publish_orders(client, "orders/eu/new", numbers[1::2])
        clock.ms += 60 * MINUTE_MS
    wrong = application.take_and_accept(400)
    assert all(int(text) % 2 for text in texts(wrong)), "it had got the wrong half, and nobody had noticed"
    gateway.subscribe("orders", ["orders/us/>"])
    with Publishing(gateway.url, "topic://orders/us/new", "topic://orders/eu/new", first=5_000) as live:
        live.wait_for(5_100)
        if by_administrator:
            gateway.start_replay("orders", date_of(morning_ms))
            assert application.detached_by_peer().replay_error == "started"
            application = client.receiver("orders")
        else:
            application.close()
            application = client.receiver(with_start("orders", date_of(morning_ms)))
        application.collect(taken := [], 600)
        live.stop()
        expected += [str(n) for n in range(5_000, live.next, 2)]
        application.collect(taken, len(expected))
    assert texts(taken) == expected, "what was missed, once, in order, and then live"


# --- data lost downstream ---------------------------------------------------------------------------------------------


class Database:
    """An application's own: each message that it has processed, with its replay id, in one transaction."""

    def __init__(self, other: Database | None = None) -> None:
        self._file = sqlite3.connect(":memory:")
        self._file.execute("create table processed (id text primary key, body text not null)")
        if other is not None:
            other._file.backup(self._file)

    def process(self, messages: list[Received]) -> None:
        """Store messages; a duplicate is an error."""
        rows = [(str(m.annotations["x-opt-replay-id"]), m.text) for m in messages]
        with self._file:
            self._file.executemany("insert into processed values (?, ?)", rows)

    def contents(self) -> list[tuple[str, str]]:
        """All that was processed, in order: replay ids sort as the messages do."""
        return self._file.execute("select id, body from processed order by id").fetchall()

    @property
    def position(self) -> str:
        """Where to go on: after the last message."""
        return self.contents()[-1][0] if self.contents() else "beginning"

    @property
    def bodies(self) -> list[str]:
        return [body for _, body in self.contents()]


def test_recovery_of_a_corrupted_database(gateway: RunningGateway, connect: Connect) -> None:
    """
    "An application … updates its own database, including with the replication group message ID, and acknowledges.
    If its own database is corrupted, it may restart with a known-good one … and request a replay to its queue from
    the ID in the last record of the database, redoing the work it had done already."
    """
    client = connect(gateway)
    make_queue(gateway, client, "trades", "trades/>")
    publish_orders(client, "trades/a", range(500))
    consumer = client.receiver("trades", credit=2_000)
    database = Database()
    database.process(consumer.take_and_accept(500))
    backup = Database(database)
    publish_orders(client, "trades/b", range(500, 1_200))
    database.process(consumer.take_and_accept(700))
    client.wait(lambda: gateway.depth("trades") == 0, "all is acknowledged")
    before = database.contents()
    client.cut()
    with Publishing(gateway.url, "topic://trades/c", first=1_200) as live:
        live.wait_for(1_300)
        client = connect(gateway)
        consumer = client.receiver(with_start("trades", backup.position))
        consumer.collect(taken := [], 900)
        live.stop()
        consumer.collect(taken, live.next - 500)
    assert {message.delivery_count for message in taken} == {0}, "not marked as redelivered"
    backup.process(taken)
    assert backup.contents()[:1_200] == before, "the same messages with the same ids as the first time"
    assert backup.bodies == numbered(live.next)


# --- a consumer that keeps its position itself ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_a_consumer_that_stores_its_position_itself(
    gateway: RunningGateway, connect: Connect, seed: int
) -> None:
    """
    "Correlate the current state of the consumer's database with a last received message." "Let it be opened for
    reading from a known message, irrespective of whether the message has been committed or not, … in the same order
    in which they were originally delivered." "The consumer may never acknowledge." "Zero impact on other queues and
    their consumers."
    """
    chance = random.Random(seed)
    make_queue(gateway, connect(gateway), "beside", "trades/>")
    database = Database()
    with Publishing(gateway.url, "topic://trades/a", limit=4_000) as live:
        for _crash in range(8):
            client = connect(gateway)
            reader = client.receiver(with_start("log://trades/>", database.position), credit=5_000)
            for _ in range(chance.randrange(4)):
                live.wait_for(min(live.accepted + 100, 4_000))
                client.wait(lambda reader=reader: reader.arrived, "more arrives")
                database.process([reader.arrived.popleft() for _ in range(len(reader.arrived))])
            # It dies with messages that it has received and not stored, and never acknowledges one.
            client.cut()
        live.stop()
    gateway.restart()
    client = connect(gateway)
    reader = client.receiver(with_start("log://trades/>", database.position) + "&until=now")
    database.process(reader.take_to_end())
    assert database.bodies == numbered(live.next), "no gap, no duplicate, in order"
    assert gateway.depth("beside") == live.next, "nobody else was touched"


def test_a_known_point_is_found_whatever_was_acknowledged(client: Client) -> None:
    """
    "Replay messages from a queue from a given message identified by a message ID or a header property",
    "irrespective of whether the message has been committed or not".
    """
    sender = client.sender("trades")
    sender.send_all(trade(n, {"tradeId": f"FFS98765432{n}"}, message_id=f"m-{n}") for n in range(10))
    client.receiver("trades", credit=10).take_and_accept(7)
    for start in ("message-id:m-4", "match:tradeId = 'FFS987654324'"):
        reader = client.receiver(with_start("log://#queue/trades", start) + "&until=now")
        assert texts(reader.take_to_end()) == ["4", "5", "6", "7", "8", "9"]


# --- the points in time of the proposal -------------------------------------------------------------------------------

MIDNIGHT_MS = 1_800_662_400_000
"""A midnight, UTC: 2027-01-23, a Saturday."""

RECOVERY_POINTS = {
    "A few minutes ago": ("10m", 4),
    "Trade ID FFS987654321": ("match:tradeId = 'FFS987654321'", 3),
    "Start of day": ("2027-01-23T00:00:00Z", 2),
    "End of yesterday": ("point:end-of-day", 2),
    "Friday": ("2027-01-22T00:00:00Z", 1),
}
"""A start for each, and the number of the first trade that it leads to."""


@pytest.fixture
def days_of_trades(gateway_over_time: RunningGateway, connect: Connect, clock: Clock) -> RunningGateway:
    """Trades on Thursday, Friday and four times on Saturday; it is ten minutes after the last but one."""
    gateway = gateway_over_time
    client = connect(gateway)
    sender = client.sender("trades")
    times_ms = [-2 * DAY_MS + 1, -DAY_MS + 1, 0, 5 * MINUTE_MS, 60 * MINUTE_MS, 65 * MINUTE_MS]
    for n, time_ms in enumerate(times_ms):
        if time_ms == 0:
            gateway.run_coroutine(lambda g: g.vpns["default"].log.create_point("end-of-day"))
        clock.ms = MIDNIGHT_MS + time_ms
        sender.send_all([trade(n, {"tradeId": f"FFS98765432{n - 2}"})])
    clock.ms = MIDNIGHT_MS + 70 * MINUTE_MS
    consumer = client.receiver("trades", credit=10)
    consumer.take_and_accept(len(times_ms))
    consumer.close()
    return gateway


@pytest.mark.parametrize("address", ["trades", "log://#queue/trades"])
def test_recovery_from_any_point(days_of_trades: RunningGateway, connect: Connect, address: str) -> None:
    """
    "We can stretch the point in time the consumer recovers from back to any point: a few minutes ago, Trade ID
    FFS987654321, start of day, end of yesterday, Friday." "Administratively defined points in the queue exist."
    "Retry an end of day batch job": the same day's messages again and again, and no later ones.
    """
    client = connect(days_of_trades)
    for start, first in RECOVERY_POINTS.values():
        consumer = client.receiver(with_start(address, start), credit=10)
        taken = consumer.take_and_accept(6 - first)
        assert texts(taken) == numbered(first, 6)
        assert [message.is_end for message in taken] == [False] * (5 - first) + [True]
        consumer.close()
    day = with_start("log://#queue/trades", "2027-01-22T00:00:00Z") + "&until=2027-01-22T23:59:59.999Z"
    for _ in range(2):
        assert texts(client.receiver(day).take_to_end()) == ["1"]


# --- analysis on demand -----------------------------------------------------------------------------------------------


def test_analysis_on_demand(gateway: RunningGateway, connect: Connect) -> None:
    """
    "An enterprise may want to replay the data that was sent to an application, to capture the entire history of the
    message flow to it, for later review or analysis": as often as it likes, while the application goes on unharmed.
    """
    client = connect(gateway)
    make_queue(gateway, client, "application", "events/>")
    application = client.receiver("application", credit=5_000)
    publish_orders(client, "events/a", range(0, 600, 2))
    publish_orders(client, "events/b", range(1, 600, 2))
    publish_orders(client, "other", range(50))
    analysts = [
        connect(gateway).receiver(with_start("log://events/>", "beginning") + "&until=now") for _ in range(3)
    ]
    histories = [texts(analyst.take_to_end()) for analyst in analysts]
    assert histories == [[str(n) for n in (*range(0, 600, 2), *range(1, 600, 2))]] * 3
    assert texts(application.take_and_accept(600)) == histories[0]
    publish_orders(client, "events/a", range(600, 610))
    assert len(application.take_and_accept(10)) == 10


# --- A gateway that is killed in the middle of replays and transactions, and started again on the same files ----------


def client_of(process: GatewayProcess) -> Client:
    return Client(process.ready["amqp"][0])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    """The gateways of a test, the last one running."""
    processes = [GatewayProcess(tmp_path / "data")]
    yield processes
    processes[-1].stop()


def kill_and_start(processes: list[GatewayProcess]) -> GatewayProcess:
    """`kill -9`, and a new gateway on the same files."""
    processes[-1].kill()
    processes.append(GatewayProcess(processes[-1].data))
    return processes[-1]


@pytest.mark.system
def test_a_named_replay_goes_on_under_its_name_after_kills(process: list[GatewayProcess]) -> None:
    """
    Killed twice in its middle while others publish, the replay goes on: one record, which says so; history keeps the
    mark, and messages published since have none. Messages settled before are not delivered again, and all others that
    were accepted are, once, in order.
    """
    url = process[-1].ready["amqp"][0]
    with Client(url) as client:
        client.sender("orders").send_all([data(i) for i in range(2_000)])
        receiver = client.receiver("orders?replay-start=beginning&replay-name=nightly", credit=300)
        taken = receiver.take(300)
        found = {message.id: message.annotations.get("x-opt-replay-name") for message in taken}
        receiver.settle(taken[:250])
        client.open_session()  # A round trip: the settlements arrive before the next messages.
    accepted = 2_000
    for _ in range(2):
        with Publishing(url, "orders") as publishing:
            publishing.wait_for(200)
            publishing.expect_an_end()
            url = kill_and_start(process).ready["amqp"][0]
        accepted += publishing.accepted
    client = client_of(process[-1])
    (record,) = process[-1].ask("GET", "monitor", "/replays")
    assert (record["replayName"], record["target"], record["endedTimeMs"]) == ("nightly", "orders", None)
    assert record["outcome"] == "interrupted by a stop, and continued"
    logged = texts(client.read_log())
    assert len(logged) >= accepted
    receiver = client.receiver("orders", credit=100)
    receiver.collect(taken := [], len(logged) - 250)
    assert texts(taken) == logged[250:]
    found |= {message.id: message.annotations.get("x-opt-replay-name") for message in taken}
    assert sorted(found) == list(range(1, len(logged) + 1))
    assert found == {i: "nightly" if i <= 2_000 else None for i in found}
    client.wait(lambda: process[-1].ask("GET", "monitor", "/replays")[0]["endedTimeMs"], "it ends")
    (record,) = process[-1].ask("GET", "monitor", "/replays")
    assert (record["state"], record["outcome"]) == ("complete", "every message was acknowledged")
    client.close()


@pytest.mark.system
def test_a_transaction_survives_being_killed_whole_or_not_at_all(process: list[GatewayProcess]) -> None:
    """
    After a kill among commits, each message is on its first queue, or moved and copied; no reported commit is undone.
    """
    count = 60
    client = client_of(process[-1])
    client.sender("queue://in").send_all([data(i) for i in range(count)])
    controller = Controller(client)
    sender, copies = client.sender("queue://out"), client.sender("topic://copies")
    receiver = client.receiver("queue://in", credit=50)
    discharges = []
    for message in receiver.take(50):
        txn_id = controller.declare()
        for link in (sender, copies):
            publish(link, data(message.text), txn_id)
        acknowledge(message, txn_id)
        discharges.append(controller.ask(DISCHARGE, [txn_id, False]))
    client.wait(lambda: discharges[9].remote_state, "some are committed")
    started = kill_and_start(process)
    told = sum(1 for discharge in discharges if discharge.remote_state)
    client.cut()
    client = client_of(started)
    moved = texts(client.receiver("log://copies?until=now").take_to_end())
    assert len(moved) >= told >= 10
    queue: list[Received] = []
    client.receiver("queue://out").collect(queue, len(moved))
    assert texts(queue) == moved
    left: list[Received] = []
    receiver = client.receiver("queue://in")
    receiver.collect(left, count - len(moved))
    assert sorted(map(int, [*texts(left), *moved])) == list(range(count))
    assert receiver.drain(0) == []
    client.close()
