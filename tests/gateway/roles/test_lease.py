"""How long a gateway delivers if its store confirms no commit, and what publishers see meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner
from proton import Delivery, Endpoint, Terminus, symbol

from gateway.app import Gateway
from gateway.cli import main
from gateway.config import Queue, VpnStore
from gateway.core.errors import Refused as CommandRefused
from gateway.vpn import message_vpn
from store.errors import StoreError
from tests.gateway.roles.conftest import Connect, Start, alarms, ask, is_active, published_by_proton
from tests.support.client import Client, Received, Receiver, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.shared_store import URL, SharedDatabase
from tests.support.waiting import wait_until

# --- How long a gateway delivers if its store confirms no commit, and what publishers see meanwhile -----------------


def holds(gateway: RunningGateway) -> bool:
    """Whether the lease holds, so that the gateway may deliver."""

    def look(running: Gateway) -> bool:
        lease = running.vpns["default"].lease
        assert lease is not None
        return lease.holds()

    return gateway.call(look)


def test_nothing_is_delivered_when_the_lease_has_run_out(
    database: SharedDatabase, gateway: RunningGateway, client: Client
) -> None:
    """Consumers and log readers then get nothing, whatever their credit; with the next commit they go on."""
    client.sender("orders").send_all(data(number) for number in range(30))
    consumer = client.receiver("orders", credit=2)
    reader = client.receiver("log://>", credit=2, filters={"rewind:replay-start": "beginning"})
    assert len(consumer.take(2)) == len(reader.take(2)) == 2
    with database.cut():
        wait_until(lambda: not holds(gateway), "the lease runs out")
        consumer.flow(5)
        reader.flow(5)
        # This is answered after everything that the gateway did about the credit.
        client.open_session()
        assert not consumer.arrived and not reader.arrived
        answer = ask(gateway, "/readyz")
        assert answer.status_code == 503 and "confirms no commit" in answer.json()["reason"]
        wait_until(lambda: list(alarms(gateway)) == ["store-unconfirmed"], "the alarm is raised")
    assert texts(consumer.take(5)) == [str(number) for number in range(2, 7)]
    assert texts(reader.take(5)) == [str(number) for number in range(2, 7)]
    wait_until(lambda: ask(gateway, "/readyz").status_code == 200, "it is ready again")


def test_what_the_engine_has_does_not_leave_either(
    database: SharedDatabase, gateway: RunningGateway, client: Client
) -> None:
    """Deliveries that wait for the session's window are sent after the next commit, not when the window opens."""
    client.sender("orders").send_all(data("x" * 50_000) for _ in range(40))
    session = client.connection.session()
    session.incoming_capacity = 100_000
    session.open()
    # Nobody reads on this link yet, so the window of its session closes.
    link = session.receiver("unread")
    link.source.address = "orders"
    link.open()
    link.flow(40)
    client.wait(lambda: session.incoming_bytes > 50_000, "messages arrive")
    client.open_session()
    with database.cut():
        wait_until(lambda: not holds(gateway), "the lease runs out")
        receiver = Receiver(client, link)
        client.watch(receiver)
        receiver.read()
        before = len(receiver.arrived)
        behind = client.connection.session()
        behind.open()
        client.wait(
            lambda: gateway.call(
                lambda running: any(len(c.links.sessions) == 4 for c in running._container.connections)  # type: ignore[union-attr]
            ),
            "the gateway has read that the window is open, and what was sent after that",
        )
        gateway.connections()
        turns = iter((False, False, True))
        client.wait(lambda: next(turns), "whatever it wrote is read")
        assert len(receiver.arrived) == before < 40
        assert behind.state & Endpoint.REMOTE_UNINIT
    client.wait(lambda: behind.state & Endpoint.REMOTE_ACTIVE, "the session is begun")
    assert len(receiver.take(40)) == 40


def test_a_stop_does_not_wait_for_a_store_out_of_reach(
    database: SharedDatabase, gateway: RunningGateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway whose store does not answer can be stopped; the pending message is dropped, without an outcome."""
    monkeypatch.setattr(message_vpn, "CLOSE_SECONDS", 0.3)
    sender = client.sender("orders")
    with database.cut():
        delivery = sender.send(data(1))
        client.wait(
            lambda: gateway.call(lambda running: running.vpns["default"].committer.pending_bytes),
            "the message is on its way to the store",
        )
        gateway.stop()
    assert client.closed_by_peer().name == "amqp:connection:forced"
    assert delivery.remote_state == 0


# --- Another gateway takes the store --------------------------------------------------------------------------------


def test_its_clients_are_closed_and_it_waits(
    database: SharedDatabase, gateway: RunningGateway, connect: Connect
) -> None:
    """Publishers, consumers and readers get `forced`; clients that connect again are told the active gateway."""
    publisher, consumer, reader = (connect(gateway) for _ in range(3))
    publisher.sender("orders").send_all([data(0)])
    consumer.receiver("orders", credit=10).take(1)
    reader.receiver("log://>", credit=10).take(0)
    database.take_away(active="other.example.com:5672")
    for client in (publisher, consumer, reader):
        assert client.closed_by_peer().name == "amqp:connection:forced"
    assert not is_active(gateway)
    assert ask(gateway, "/readyz").json()["state"] == "waiting"
    wait_until(
        lambda: ask(gateway, "/readyz").json().get("active") == "other.example.com:5672",
        "it asks for the store again, and finds who has it",
    )


def test_nothing_is_told_of_batches_that_met_another(
    database: SharedDatabase, gateway: RunningGateway, connect: Connect
) -> None:
    """
    A message that is being committed when the store is taken gets no outcome: its publisher sends it to the other
    gateway. A pending command of an administrator fails, as its result is unknown here.
    """

    def order(running: Gateway) -> Future[None]:
        assert gateway._loop is not None
        done = running.vpns["default"].committer.committed()
        return asyncio.run_coroutine_threadsafe(done, gateway._loop)

    client = connect(gateway)
    sender = client.sender("orders")
    with database.cut():
        delivery = sender.send(data(1))
        client.wait(
            lambda: gateway.call(lambda running: running.vpns["default"].committer.pending_bytes),
            "the message is on its way to the store",
        )
        done = gateway.call(order)
        database.take_away(active="other.example.com:5672")
    assert client.closed_by_peer().name == "amqp:connection:forced"
    assert delivery.remote_state == 0 and not delivery.settled
    with pytest.raises(CommandRefused, match="another gateway"):
        done.result(10)
    database.release()
    wait_until(lambda: is_active(gateway), "it takes the store over again")
    assert connect(gateway).receiver("orders").drain() == []


def test_nothing_that_it_knew_is_kept(
    database: SharedDatabase, gateway: RunningGateway, connect: Connect
) -> None:
    """Active again, the gateway recovers from the store: each message is there once, and ids continue."""
    client = connect(gateway)
    client.sender("orders").send_all(data(number) for number in range(20))
    client.receiver("orders", credit=5).take(5)
    temporary = client.receiver(None, dynamic=True)
    assert temporary.address in gateway.endpoints()
    before = gateway.call(lambda running: running.vpns["default"])
    database.take_away()
    assert client.closed_by_peer().name == "amqp:connection:forced"
    client.close()
    wait_until(lambda: is_active(gateway), "it takes the store over again")
    assert gateway.call(lambda running: running.vpns["default"]) is not before
    assert temporary.address not in gateway.endpoints()
    again = connect(gateway)
    again.sender("orders").send_all([data(20)])
    received = again.receiver("orders", credit=21).take_and_accept(21)
    assert texts(received) == [str(number) for number in range(21)]
    assert [message.id for message in received] == sorted({message.id for message in received})


def test_one_that_is_told_late_delivers_nothing(
    database: SharedDatabase, gateway: RunningGateway, client: Client
) -> None:
    """A gateway that learns it from its own commit closes all clients before it delivers anything more."""
    client.sender("orders").send_all(data(number) for number in range(10))
    receiver = client.receiver("orders", credit=2)
    taken = receiver.take(2)
    database.take_away(active="other.example.com:5672", tell=False)
    receiver.settle(taken)
    assert client.closed_by_peer().name == "amqp:connection:forced"
    assert not receiver.arrived
    assert not is_active(gateway)


def test_a_gateway_can_be_stopped_while_it_lets_go_and_while_it_waits(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """A stop just after the store was taken, or while the gateway waits, leaves the store to others."""
    gateway = start()
    clients = [connect(gateway) for _ in range(3)]
    database.take_away()
    assert clients[0].closed_by_peer().name == "amqp:connection:forced"
    gateway.stop()
    other = start("b")
    assert is_active(other)
    gateway.start()
    assert not is_active(gateway)
    gateway.stop()
    assert is_active(other)
    other.stop()
    gateway.start()
    assert is_active(gateway)


# --- A busy gateway loses its store again and again -----------------------------------------------------------------

ROUNDS = 4
ACCEPTED = 300
"""How many messages are accepted, at least, before the store is taken again."""

ENDED = (AssertionError, AttributeError, OSError, Refused)
"""The errors that a client may get when its connection is closed at any moment."""


class Comer:
    """Repeats what a client does, each time on a new connection, in a thread of its own."""

    def __init__(self, gateway: RunningGateway, does: Any) -> None:
        self._gateway = gateway
        self._does = does
        self.name = does.__name__
        self.times = 0
        """How often it was done to the end."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def end(self) -> None:
        """Stop, and wait for the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(*ENDED), Client(self._gateway.url) as client:
                self._does(client)
                self.times += 1


def test_a_busy_gateway_loses_its_store(database: SharedDatabase, start: Start) -> None:
    """
    Whatever publishers, consumers, replays, browsers, log readers and temporary queues are doing: it ends, the gateway
    makes no error, and each accepted message is there once.
    """
    queues = {
        "orders": Queue(subscriptions=("t/>",), dead_message_queue="dead"),  # type: ignore[call-arg]
        "kept": Queue(subscriptions=("t/>",)),
        "rewound": Queue(subscriptions=("t/>",)),
    }
    gateway = start(vpn={"queues": queues})
    accepted: list[str] = []
    is_over = threading.Event()
    number = 0

    def publish(client: Client) -> None:
        nonlocal number
        sender = client.sender("topic://t/1")
        while not is_over.is_set():
            batch = []
            for _ in range(20):
                number += 1
                batch.append((str(number), sender.send(data(number))))
            for body, delivery in batch:
                if sender.outcome(delivery) == "ACCEPTED":
                    accepted.append(body)

    def consume(client: Client) -> None:
        receiver = client.receiver("orders", credit=100)
        for message in receiver.take(30):
            receiver.settle([message], Delivery.ACCEPTED if message.id % 7 else Delivery.REJECTED)

    def replay(client: Client) -> None:
        client.receiver("rewound?replay-start=beginning", credit=50).take(40)

    def read(client: Client) -> None:
        client.receiver("log://>?replay-start=beginning", credit=500).take(200)
        client.receiver(
            "kept",
            credit=200,
            set_up=lambda link: setattr(link.source, "distribution_mode", Terminus.DIST_MODE_COPY),
        ).take(50)

    def make(client: Client) -> None:
        receiver = client.receiver(None, dynamic=True, credit=5)
        client.sender(receiver.address).send_all([data("x")])
        receiver.take_and_accept(1)

    gone: list[weakref.ref[Any]] = []
    comers = [Comer(gateway, does) for does in (publish, consume, replay, read, make)]
    try:
        for _ in range(ROUNDS):
            wait_until(lambda: is_active(gateway), "it has the store")
            so_far = len(accepted)
            wait_until(lambda so_far=so_far: len(accepted) >= so_far + ACCEPTED, "messages are accepted")
            gone.append(gateway.call(lambda running: weakref.ref(running.vpns["default"])))
            database.take_away(tell=bool(len(gone) % 2))
    finally:
        is_over.set()
        for comer in comers:
            comer.end()
    assert [
        comer.name for comer in comers[1:] if not comer.times
    ] == []  # the publisher may have been cut each time
    wait_until(lambda: is_active(gateway), "it has the store")

    with Client(gateway.url) as client:
        log = client.receiver("log://>?replay-start=beginning&until=now").take_to_end()
        bodies = [message.text for message in log if message.annotations["x-opt-topic"] == "t/1"]
        assert len(bodies) == len(set(bodies)) and set(accepted) <= set(bodies)
        assert bodies == sorted(bodies, key=int)
        kept: list[Received] = []
        receiver = client.receiver("kept")
        receiver.collect(kept, len(bodies))
        assert texts(kept) == bodies

    def are_gone(running: Gateway) -> bool:
        gc.collect()
        return all(found() is None for found in gone)

    wait_until(lambda: gateway.call(are_gone), "nothing of what was deposed is held any more")
    gateway.stop()


# --- A gateway that waits for its store -----------------------------------------------------------------------------


def closed(gateway: RunningGateway, *, product: str, hostname: str = "localhost") -> Any:
    """The condition with which a client's connection is closed; `product` is how the client names itself."""
    with Client(gateway.url, hostname=hostname, properties={symbol("product"): product}) as client:
        refused = client.closed_by_peer()
        assert client.connection.remote_properties[symbol("amqp:connection-establishment-failed")] is True
        return refused


def test_it_starts_and_says_who_is_active(database: SharedDatabase, start: Start) -> None:
    """
    If another gateway has the store, this one is alive but not ready, and names the active gateway; requests that need
    the store are answered with 503 and a sentence.
    """
    database.hold("other.example.com:5672")
    gateway = start()
    assert not is_active(gateway)
    assert ask(gateway, "/healthz").status_code == 200
    answer = ask(gateway, "/readyz")
    assert answer.status_code == 503
    told = answer.json()
    assert (told["state"], told["active"]) == ("waiting", "other.example.com:5672")
    assert ask(gateway, "/readyz?vpn=default").status_code == 503
    assert ask(gateway, "/readyz?vpn=another").status_code == 404
    for path in ("/SEMP/v2/monitor/msgVpns", "/SEMP/v2/monitor/msgVpns/default"):
        data = ask(gateway, path).json()["data"]
        shown = data[0] if isinstance(data, list) else data
        assert (shown["state"], shown["activeGateway"]) == ("standby", "other.example.com:5672")
    assert ask(gateway, "/SEMP/v2/config/msgVpns").json()["data"][0]["msgVpnName"] == "default"
    answer = ask(gateway, "/SEMP/v2/monitor/msgVpns/default/queues")
    assert answer.status_code == 503
    assert "other.example.com:5672" in answer.json()["meta"]["error"]["description"]
    assert 'rewind_vpn_active{vpn="default"} 0.0' in ask(gateway, "/metrics").text


OTHER = {"network-host": "other.example.com", "port": 5673}
SIX = {"network-host": "::1", "port": 5673, "hostname": "vhost:default"}


@pytest.mark.parametrize(
    ("active", "product", "hostname", "name", "info"),
    [
        # Qpid JMS gets `open`, and then `close` with the address of the active gateway (AMQP 1.0 section 2.8.18).
        ("other.example.com:5673", "QpidJMS", "localhost", "amqp:connection:redirect", OTHER),
        # A client that named the Message VPN by its hostname is told to use the same hostname there.
        ("[::1]:5673", "QpidJMS", "vhost:default", "amqp:connection:redirect", SIX),
        # Clients that reconnect by themselves do so only after `forced`; so all others get that, with the address.
        ("other.example.com:5673", "another", "localhost", "amqp:connection:forced", OTHER),
        # There is no redirect without an address.
        ("", "another", "localhost", "amqp:connection:forced", {}),
        ("", "QpidJMS", "localhost", "amqp:connection:forced", {}),
    ],
)
def test_clients_are_told_where_to_go(
    database: SharedDatabase, start: Start, active: str, product: str, hostname: str, name: str, info: Any
) -> None:
    """With the condition that each client follows."""
    database.hold(active)
    refused = closed(start(), product=product, hostname=hostname)
    assert (refused.name, refused.info) == (name, info)
    assert all(isinstance(host, str) for key, host in refused.info.items() if key == "network-host")
    assert active in refused.text or active.startswith("[")


def test_it_takes_over(database: SharedDatabase, start: Start, connect: Connect) -> None:
    """
    Once no gateway has the store, this one takes over, with all accepted messages. Meanwhile it opens no connection: a
    Proton client then tries its next address, and after an open it would begin with the first again.
    """
    first, second = start("a"), start("b")
    assert is_active(first) and not is_active(second)
    assert ask(second, "/readyz").json()["active"] == "a.example.com:5672"
    assert published_by_proton([second.url, first.url]).endswith(first.address)
    with Client(first.url) as client:
        client.sender("orders").send_all(data(number) for number in range(10))
    first.stop()
    wait_until(lambda: is_active(second), "the other takes over")
    assert ask(second, "/readyz").status_code == 200
    received = connect(second).receiver("orders", credit=10).take_and_accept(10)
    assert texts(received) == [str(number) for number in range(10)]
    assert 'rewind_vpn_active{vpn="default"} 1.0' in ask(second, "/metrics").text


def test_a_store_that_is_not_there_yet_is_waited_for(database: SharedDatabase, start: Start) -> None:
    """
    A gateway that starts before its database goes on trying, and says why it is not ready, without the password. As
    long as that lasts, there is an alarm.
    """
    database.hold("other.example.com:5672")
    database.fault = f"cannot connect to {URL}"
    gateway = start()
    told = ask(gateway, "/readyz").json()
    assert (
        told["state"] == "waiting"
        and "cannot connect to postgresql://rewind:***@a,b/double" in told["reason"]
    )
    assert URL not in ask(gateway, "/SEMP/v2/monitor/msgVpns").text
    raised = wait_until(lambda: alarms(gateway), "the alarm is raised")
    assert list(raised) == ["store"] and "cannot connect" in raised["store"]
    database.fault = None
    wait_until(lambda: not alarms(gateway), "the alarm is cleared")
    assert not is_active(gateway)
    database.release()
    wait_until(lambda: is_active(gateway), "it has the store")


def test_an_engine_that_is_not_installed_stops_the_gateway(start: Start, database: SharedDatabase) -> None:
    """Waiting would not help, so the gateway ends with an error."""

    def missing(settings: VpnStore) -> Any:
        raise StoreError("cannot use", settings.url, "no such module", "Install the extra")

    database.engine = missing  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="Install the extra"):
        start()


def test_a_person_is_told_which_gateway_is_active(start: Start) -> None:
    """Proton's clients are sent on without a word, but not those of the command line, which have one address."""
    start("a")
    waiting = start("b")
    for words in (("send", "orders"), ("tail", "orders")):
        ran = CliRunner().invoke(main, [*words, "--url", waiting.url], input="x\n")
        assert ran.exit_code == 1
        assert "the gateway at a.example.com:5672 is active; connect there" in ran.stderr
