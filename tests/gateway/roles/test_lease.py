"""How long a gateway delivers whose store confirms nothing, and what publishers see meanwhile."""

from __future__ import annotations

from proton import Endpoint

from gateway.app import Gateway
from tests.gateway.roles.conftest import Connect, Start, ask
from tests.support.client import Receiver, texts
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.shared_store import SharedDatabase
from tests.support.waiting import wait_until


def holds(gateway: RunningGateway) -> bool:
    """Whether the gateway may deliver."""

    def look(running: Gateway) -> bool:
        lease = running.vpns["default"].lease
        assert lease is not None
        return lease.holds()

    return gateway.call(look)


def test_nothing_is_delivered_when_the_lease_has_run_out(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """Consumers, browsers and log readers get nothing then, whatever their credit; with a commit all goes on."""
    gateway = start()
    client = connect(gateway)
    client.sender("orders").send_all(data(number) for number in range(30))
    consumer = client.receiver("orders", credit=2)
    reader = client.receiver("log://>", credit=2, filters={"rewind:replay-start": "beginning"})
    assert len(consumer.take(2)) == len(reader.take(2)) == 2
    with database.cut():
        wait_until(lambda: not holds(gateway), "the lease runs out")
        consumer.flow(5)
        reader.flow(5)
        # An answer of the gateway's that comes after all that it did about the credit.
        client.open_session()
        assert not consumer.arrived and not reader.arrived
        answer = ask(gateway, "/readyz")
        assert answer.status_code == 503 and "confirms no commit" in answer.json()["reason"]
        wait_until(
            lambda: (
                [
                    alarm["alarm"]
                    for alarm in ask(gateway, "/SEMP/v2/monitor/msgVpns/default/alarms").json()["data"]
                ]
                == ["store-unconfirmed"]
            ),
            "the alarm is raised",
        )
    assert texts(consumer.take(5)) == [str(number) for number in range(2, 7)]
    assert texts(reader.take(5)) == [str(number) for number in range(2, 7)]
    wait_until(lambda: ask(gateway, "/readyz").status_code == 200, "it is ready again")


def test_what_the_engine_has_does_not_leave_either(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """Messages that wait for the session's window go out when a commit has succeeded, not when the window opens."""
    gateway = start()
    client = connect(gateway)
    client.sender("orders").send_all(data("x" * 50_000) for _ in range(40))
    session = client.connection.session()
    session.incoming_capacity = 100_000
    session.open()
    # Nobody reads on this link yet: its session's window closes.
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


def test_publishers_wait(database: SharedDatabase, start: Start, connect: Connect) -> None:
    """Where nothing can be confirmed, nothing is refused: messages are accepted when the store answers again."""
    gateway = start()
    client = connect(gateway)
    sender = client.sender("orders")
    with database.cut():
        deliveries = [sender.send(data(number)) for number in range(5)]
        wait_until(lambda: not holds(gateway), "the lease runs out")
        client.open_session()
        assert [delivery.remote_state for delivery in deliveries] == [0] * 5
    assert [sender.outcome(delivery) for delivery in deliveries] == ["ACCEPTED"] * 5


def test_a_stop_does_not_wait_for_a_store_out_of_reach(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """A gateway whose store does not answer can be stopped; what it was given is given up, and nobody was told."""
    gateway = start()
    client = connect(gateway)
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
