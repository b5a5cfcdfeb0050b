"""A gateway whose store another one has taken: it tells nobody anything more, lets go of everybody, and waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from gateway.app import Gateway
from gateway.core.errors import Refused as CommandRefused
from tests.gateway.roles.conftest import Connect, Start, ask, is_active
from tests.support.client import texts
from tests.support.messages import data
from tests.support.shared_store import SharedDatabase
from tests.support.waiting import wait_until


def test_its_clients_are_closed_and_it_waits(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """Publishers, consumers and readers alike get `forced`; whoever comes back is told of the active gateway."""
    gateway = start()
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
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """A message on its way when the store is taken is neither accepted nor refused: its publisher asks the other."""
    gateway = start()
    client = connect(gateway)
    sender = client.sender("orders")
    with database.cut():
        delivery = sender.send(data(1))
        client.wait(
            lambda: gateway.call(lambda running: running.vpns["default"].committer.pending_bytes),
            "the message is on its way to the store",
        )
        database.take_away(active="other.example.com:5672")
    assert client.closed_by_peer().name == "amqp:connection:forced"
    assert delivery.remote_state == 0 and not delivery.settled
    database.release()
    wait_until(lambda: is_active(gateway), "it takes the store over again")
    assert connect(gateway).receiver("orders").drain() == []


def test_nothing_that_it_knew_is_kept(database: SharedDatabase, start: Start, connect: Connect) -> None:
    """Active again, it goes by the store alone: what was there is there once, and ids go on."""
    gateway = start()
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


def test_an_administrator_who_waited_is_told(database: SharedDatabase, start: Start) -> None:
    """A command under way ends with an error: nobody knows here what became of it."""
    gateway = start()

    def order(running: Gateway) -> Future[None]:
        assert gateway._loop is not None
        done = running.vpns["default"].committer.committed()
        return asyncio.run_coroutine_threadsafe(done, gateway._loop)

    with database.cut():
        done = gateway.call(order)
        database.take_away(active="other.example.com:5672")
    with pytest.raises(CommandRefused, match="another gateway"):
        done.result(10)


def test_one_that_is_told_late_delivers_nothing(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """One that learns it by its own commit has closed everybody before anything else is delivered."""
    gateway = start()
    client = connect(gateway)
    client.sender("orders").send_all(data(number) for number in range(10))
    receiver = client.receiver("orders", credit=2)
    taken = receiver.take(2)
    database.take_away(active="other.example.com:5672", tell=False)
    receiver.settle(taken)
    assert client.closed_by_peer().name == "amqp:connection:forced"
    assert not receiver.arrived
    assert not is_active(gateway)


def test_a_gateway_can_be_stopped_while_it_lets_go(
    database: SharedDatabase, start: Start, connect: Connect
) -> None:
    """A stop right behind a deposition waits for it, and leaves the store to others."""
    gateway = start()
    clients = [connect(gateway) for _ in range(3)]
    database.take_away()
    assert clients[0].closed_by_peer().name == "amqp:connection:forced"
    gateway.stop()
    other = start("b")
    assert is_active(other)
