"""Selectors and property filters on consumers, log readers and browsers."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Described, symbol, ulong

from gateway.config import Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import (
    BEGINNING,
    NO_LOCAL,
    SELECTOR,
    Client,
    Receiver,
    browsing,
    numbered,
    refusal,
    texts,
)
from tests.support.messages import PROPERTIES, data, message_to, section, selectable
from tests.support.running import RunningGateway


def browser(client: Client, address: str, **more: Any) -> Receiver:
    return client.receiver(address, set_up=browsing, **more)


def test_a_consumer_takes_what_its_selector_matches_and_leaves_the_rest_in_place(
    gateway: RunningGateway, connect: Connect
) -> None:
    """
    Out of the middle comes what matches, also behind thousands of messages that do not, in pages from the store; a
    consumer without a selector gets the others, in order.
    """
    connect(gateway).sender("orders").send_all(selectable(i) for i in range(3_000))
    gateway.restart()
    client = connect(gateway)
    for wanted, (first, last) in (("n = 2999", (2_999, 3_000)), ("n BETWEEN 40 AND 49", (40, 50))):
        choosy = client.receiver("orders", filters={SELECTOR: wanted}, credit=50)
        assert texts(choosy.take_and_accept(last - first)) == numbered(first, last)
        choosy.close()
    assert texts(client.receiver("orders").drain(3_000)) == numbered(40) + numbered(50, 2_999)


def test_live_messages_go_to_the_consumer_that_wants_them(client: Client) -> None:
    """Of two consumers with selectors each gets its own, as it is published; what nobody wants waits."""
    odd = client.receiver("orders", filters={SELECTOR: "odd = TRUE"}, credit=100)
    large = client.receiver("orders", filters={SELECTOR: "odd = FALSE AND n >= 50"}, credit=100)
    client.sender("orders").send_all(selectable(i, odd=bool(i % 2)) for i in range(100))
    assert texts(odd.take_and_accept(50)) == numbered(1, 100, 2)
    assert texts(large.take_and_accept(25)) == numbered(50, 100, 2)
    assert texts(client.receiver("orders").drain()) == numbered(0, 50, 2)


def test_a_released_message_is_looked_at_again(
    client: Client, gateway: RunningGateway, connect: Connect
) -> None:
    """What one consumer gives back goes to another whose selector matches, before newer ones."""
    client.sender("orders").send_all(selectable(i) for i in range(10))
    first = client.receiver("orders", credit=10)
    taken = first.take(10)
    choosy = connect(gateway).receiver("orders", filters={SELECTOR: "n IN (3, 7)"}, credit=10)
    first.settle(taken, Delivery.RELEASED)
    first.close()
    assert texts(choosy.take_and_accept(2)) == ["3", "7"]
    assert len(client.receiver("orders").drain()) == 8


def test_accepted_filters_are_in_the_reply_and_others_are_not(client: Client) -> None:
    """The reply's source holds selector, no-local and property filters unchanged, and no unknown ones."""
    known = {SELECTOR: "n = 1", "amqp:application-properties-filter": {"n": 1}, NO_LOCAL: []}
    receiver = client.receiver("orders", filters={**known, "example.org:unknown": 1})
    assert set(receiver.filters) == {*known, "rewind:replay-start"}
    assert receiver.filters[SELECTOR] == Described(symbol(SELECTOR), "n = 1")


def test_property_filters_select_by_prefix_and_value(client: Client) -> None:
    """properties and application-properties filters must both match; `&p:` is a prefix."""
    sender = client.sender("orders")
    for subject in ("flight/AA", "flight/UA", "train/AA"):
        for n in (1, 2):
            sender.send_all([section(PROPERTIES, [None, None, None, subject]) + selectable(n)])
    filters = {
        "amqp:properties-filter": {symbol("subject"): "&p:flight/"},
        "amqp:application-properties-filter": {"n": 2},
    }
    assert texts(client.receiver("log://>?until=now", filters=filters).take_to_end()) == ["2", "2"]


def test_a_selector_that_is_none_is_refused_with_its_place(client: Client) -> None:
    """A bad selector gets amqp:invalid-field, a sentence, and the character it stumbles over."""
    for address in ("orders", "log://>"):
        refused = refusal(client.receiver, address, filters={SELECTOR: "n = = 3"})
        assert refused.name == "amqp:invalid-field"
        assert "at character" in refused.text


def test_the_last_match_before_live_is_marked_for_a_log_reader_with_a_selector(client: Client) -> None:
    """With a selector, too, exactly the last message before live carries the mark."""
    sender = client.sender("topic://a/b")
    sender.send_all(selectable(i) for i in range(50))
    reader = client.receiver("log://a/>", filters={SELECTOR: "n < 30", **BEGINNING}, credit=100)
    taken = reader.take(30)
    assert [m.is_end for m in taken] == [False] * 29 + [True]
    sender.send_all([selectable(3)])
    assert not reader.take(1)[0].is_end


def test_a_browser_sees_everything_and_takes_nothing(client: Client) -> None:
    """It gets what lies on the queue, by its selector, also what is unsettled; it cannot ask for a replay."""
    client.sender("orders").send_all(selectable(i) for i in range(20))
    consumer = client.receiver("orders", credit=5)
    held = consumer.take(5)
    looking = browser(client, "orders", filters={SELECTOR: "n > 17"}, credit=10)
    assert texts(browser(client, "orders").drain()) == numbered(20)
    assert texts(looking.take(2)) == ["18", "19"]
    consumer.settle(held)
    consumer.close()
    client.sender("orders").send_all(selectable(i) for i in (3, 20))
    assert texts(looking.take(1)) == ["20"], "it goes on to what comes"
    assert texts(client.receiver("orders").drain()) == [*numbered(5, 20), "3", "20"]
    refused = refusal(browser, client, "orders?replay-start=beginning")
    assert refused.replay_refusal == ("amqp:not-allowed", "browser-flow", 137)


def test_undeliverable_here_keeps_a_message_from_that_consumer_alone(
    client: Client, gateway: RunningGateway, connect: Connect
) -> None:
    """Modified with undeliverable-here: the consumer does not see it again, another one does, in its place."""
    client.sender("orders").send_all(selectable(i) for i in range(5))
    first = client.receiver("orders", credit=10)
    taken = first.take(5)
    first.modify([taken[2]], undeliverable=True)
    first.settle(taken[:2] + taken[3:])
    assert first.drain() == []
    assert texts(connect(gateway).receiver("orders").drain()) == ["2"]


def test_a_browser_misses_nothing_that_comes_while_it_looks(
    gateway: RunningGateway, connect: Connect
) -> None:
    """A browser sees every message that a publisher adds meanwhile, however its looks and the commits fall together."""
    client, publisher = connect(gateway), connect(gateway)
    looking = browser(client, "orders", credit=1_000)
    sender = publisher.sender("orders")
    for i in range(300):
        sender.send_all([data(i)])
        if i % 3 == 0:
            assert looking.take(1)[0].text == str(i), "it did not see the last one"
        elif i % 3 == 2:
            assert texts(looking.take(2)) == [str(i - 1), str(i)]


# --- The no-local filter --------------------------------------------------------------------------------------------

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
    # Settled ones are not in the log.
    assert texts(other.read_log()) == [text for text in all_of_them if text != "own 4"]


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
    assert texts(receiver.take_and_accept(5)) == numbered(5)
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
        {"filters": {**FORMS[0], SELECTOR: "JMSDeliveryMode = 'NON_PERSISTENT'"}},
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
