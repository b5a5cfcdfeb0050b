"""The no-local filter: a consumer is not given what its own client publishes."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Described, symbol, ulong

from gateway.config import Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, browsing, texts
from tests.support.messages import data, message_to
from tests.support.running import RunningGateway

NO_LOCAL = "apache.org:no-local-filter:list"
FORMS: list[dict[str, Any]] = [
    {NO_LOCAL: []},
    {"no-local": Described(ulong(0x0000_468C_0000_0003), "NoLocalFilter{}")},
]
"""By name, and as Qpid JMS sends it."""


def knows(gateway: RunningGateway) -> int:
    """Connections for whose sake origins are remembered."""
    return gateway.call(lambda running: len(running.vpns["default"].origins.watchers))


# --- subscriptions to topics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", FORMS, ids=["by name", "by code"])
def test_a_subscriber_is_not_given_its_own_messages(
    gateway: RunningGateway, connect: Connect, filters: dict[str, Any]
) -> None:
    """What its own connection publishes is not even stored for it, settled or not, by link or relay; others get it."""
    own, other = connect(gateway), connect(gateway)
    receiver = own.receiver("topic://news", filters=filters, credit=50)
    assert set(filters) <= set(receiver.filters), "the reply says that it is applied"
    everything = other.receiver("topic://news", credit=50)
    sender, relay = own.sender("topic://news"), own.sender(None)
    sender.send_all([data("own 1"), data("own 2")])
    relay.send_all([message_to("topic://news", "own 3")])
    sender.send(data("own 4"), settled=True)
    sender.send_all([data("own 5")])
    (name,) = {name for name in gateway.endpoints() if gateway.depth(name) == 0}
    assert gateway.flows(name) == 1
    other.sender("topic://news").send_all([data("theirs")])
    assert texts(receiver.take(1)) == ["theirs"]
    all_of_them = [*(f"own {i}" for i in range(1, 6)), "theirs"]
    assert texts(everything.take(6)) == all_of_them
    logged = other.receiver("log://>?replay-start=beginning&until=now").take_to_end()
    assert texts(logged) == [text for text in all_of_them if text != "own 4"], (
        "settled ones are not in the log"
    )


def test_a_durable_subscriber_goes_by_its_container(gateway: RunningGateway, connect: Connect) -> None:
    """What its container publishes while it is away, on whatever connection and over a restart, is not kept for it."""
    subscription: dict[str, Any] = {"name": "durable", "durable": True, "filters": FORMS[0]}
    first = connect(gateway, container="app")
    first.receiver("topic://news", **subscription).detach()
    first.sender("topic://news").send_all([data("while away")])
    first.close()
    gateway.restart()
    again, other = connect(gateway, container="app"), connect(gateway, container="other")
    again.sender("topic://news").send_all([data("after the restart")])
    other.sender("topic://news").send_all([data("theirs")])
    assert texts(again.receiver("topic://news", **subscription).drain()) == ["theirs"]


def test_a_durable_subscriber_that_comes_back_as_another(gateway: RunningGateway, connect: Connect) -> None:
    """A new container takes the subscription over with all that lies there; from then on its own is left out."""
    subscription: dict[str, Any] = {"name": "durable", "durable": True}
    first, second = connect(gateway, container="first"), connect(gateway, container="second")
    first.receiver("topic://news", **subscription, filters=FORMS[0]).detach()
    first.sender("topic://news").send_all([data(1)])
    second.sender("topic://news").send_all([data(2)])
    receiver = second.receiver("topic://news", **subscription, filters=FORMS[0], credit=5)
    assert texts(receiver.take_and_accept(1)) == ["2"]
    second.sender("topic://news").send_all([data(3)])
    first.sender("topic://news").send_all([data(4)])
    assert texts(receiver.take_and_accept(1)) == ["4"]
    receiver.detach()
    receiver = second.receiver("topic://news", **subscription, credit=5)
    second.sender("topic://news").send_all([data(5)])
    assert texts(receiver.take_and_accept(1)) == ["5"], "without the filter it takes everything"


def test_a_replay_brings_history_whoever_published_it(client: Client) -> None:
    """History is not local: a subscriber that asks for a replay gets its own, and live messages without."""
    sender = client.sender("topic://news")
    sender.send_all(data(i) for i in range(5))
    receiver = client.receiver("topic://news?replay-start=beginning", filters=FORMS[0], credit=50)
    assert texts(receiver.take_and_accept(5)) == [str(i) for i in range(5)]
    sender.send_all([data("own")])
    assert receiver.drain() == []


# --- queues, the log and browsers -------------------------------------------------------------------------------------


def test_a_queues_consumer_leaves_its_own_to_others(gateway: RunningGateway, connect: Connect) -> None:
    """Skipped for that consumer, its own messages stay on the queue, in their place, for whoever comes."""
    own, other = connect(gateway), connect(gateway)
    receiver = own.receiver("orders", filters=FORMS[0], credit=50)
    mine, theirs = own.sender("orders"), other.sender("orders")
    for i in range(5):
        mine.send_all([data(f"own {i}")])
        theirs.send_all([data(f"theirs {i}")])
    assert texts(receiver.take_and_accept(5)) == [f"theirs {i}" for i in range(5)]
    assert texts(other.receiver("orders", credit=50).take_and_accept(5)) == [f"own {i}" for i in range(5)]


@pytest.mark.parametrize("address", ["log://>", "tape"])
def test_a_log_readers_own_are_left_out(start: Start, connect: Connect, address: str) -> None:
    """Of what comes live, a reader of the log or of a stream is not given its own; what came before is not local."""
    vpn = Vpn(queues={"tape": Queue(kind="stream", subscriptions=("news",))})
    gateway = start(vpn=vpn)
    own, other = connect(gateway), connect(gateway)
    sender = own.sender("topic://news")
    sender.send_all([data("history")])
    reader = own.receiver(f"{address}?replay-start=beginning", filters=FORMS[0], credit=50)
    assert texts(reader.take(1)) == ["history"]
    sender.send_all([data("own")])
    other.sender("topic://news").send_all([data("theirs")])
    assert texts(reader.take(1)) == ["theirs"]


@pytest.mark.parametrize(
    "options",
    [
        {"filters": {**FORMS[0], "apache.org:selector-filter:string": "JMSDeliveryMode = 'NON_PERSISTENT'"}},
        {"set_up": browsing},
        {"address": None, "dynamic": True, "capabilities": ("temporary-topic",)},
    ],
    ids=["with a selector", "a browser", "a temporary topic"],
)
def test_other_forms(
    client: Client, connect: Connect, gateway: RunningGateway, options: dict[str, Any]
) -> None:
    """It goes with a selector; a browser and a dynamic source leave out what is their own, too."""
    receiver = client.receiver(**{"address": "orders", "filters": FORMS[0], "credit": 50} | options)
    client.sender(receiver.address).send_all([data("own")])
    connect(gateway).sender(receiver.address).send_all([data("theirs")])
    assert texts(receiver.take(1)) == ["theirs"]
    assert symbol(NO_LOCAL) in receiver.filters or receiver.address != "orders"


def test_nothing_is_remembered_once_nobody_asks(
    client: Client, connect: Connect, gateway: RunningGateway
) -> None:
    """Origins are known from the first connection with such a consumer to the end of the last; topics need none."""
    client.receiver("topic://news", filters=FORMS[0])
    assert knows(gateway) == 0
    one, two = connect(gateway), connect(gateway)
    for asking in (one, two):
        asking.receiver("orders", filters=FORMS[0])
    assert knows(gateway) == 2
    one.cut()
    two.close()
    client.wait(lambda: knows(gateway) == 0, "nobody asks any more")
