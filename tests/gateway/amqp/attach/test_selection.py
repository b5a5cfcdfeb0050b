"""Selectors and property filters on consumers, log readers and browsers."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Described, symbol, ulong

from gateway.config import Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Receiver, Refused, browsing, refusal, texts
from tests.support.client import numbered as numbered_texts
from tests.support.messages import APPLICATION_PROPERTIES, PROPERTIES, data, message_to, section
from tests.support.running import RunningGateway

# --- Selectors and property filters on consumers, log readers and browsers ------------------------------------------

SELECTOR = "apache.org:selector-filter:string"


def numbered(number: int, **more: object) -> bytes:
    """A message with the application property `n`."""
    return section(APPLICATION_PROPERTIES, {"n": number, **more}) + data(number)


def browser(client: Client, address: str, **more: Any) -> Receiver:
    return client.receiver(address, set_up=browsing, **more)


def test_a_consumer_takes_what_its_selector_matches_and_leaves_the_rest_in_place(client: Client) -> None:
    """Out of the middle comes what matches; a consumer without a selector gets the others, in order."""
    client.sender("orders").send_all(numbered(i) for i in range(100))
    choosy = client.receiver("orders", filters={SELECTOR: "n BETWEEN 40 AND 49"}, credit=50)
    assert texts(choosy.take_and_accept(10)) == numbered_texts(40, 50)
    choosy.close()
    rest = client.receiver("orders").drain()
    assert texts(rest) == [str(i) for i in range(100) if not 40 <= i < 50]


def test_live_messages_go_to_the_consumer_that_wants_them(client: Client) -> None:
    """Of two consumers with selectors each gets its own, as it is published; what nobody wants waits."""
    odd = client.receiver("orders", filters={SELECTOR: "odd = TRUE"}, credit=100)
    large = client.receiver("orders", filters={SELECTOR: "odd = FALSE AND n >= 50"}, credit=100)
    client.sender("orders").send_all(numbered(i, odd=bool(i % 2)) for i in range(100))
    assert texts(odd.take_and_accept(50)) == numbered_texts(1, 100, 2)
    assert texts(large.take_and_accept(25)) == numbered_texts(50, 100, 2)
    assert texts(client.receiver("orders").drain()) == numbered_texts(0, 50, 2)


def test_a_released_message_is_looked_at_again(
    client: Client, gateway: RunningGateway, connect: Connect
) -> None:
    """What one consumer gives back goes to another whose selector matches, before newer ones."""
    client.sender("orders").send_all(numbered(i) for i in range(10))
    first = client.receiver("orders", credit=10)
    taken = first.take(10)
    choosy = connect(gateway).receiver("orders", filters={SELECTOR: "n IN (3, 7)"}, credit=10)
    first.settle(taken, Delivery.RELEASED)
    first.close()
    assert texts(choosy.take_and_accept(2)) == ["3", "7"]
    assert len(client.receiver("orders").drain()) == 8


def test_a_selector_finds_what_lies_beyond_the_window(gateway: RunningGateway, client: Client) -> None:
    """A match behind thousands of messages that do not match is found, in pages from the store."""
    client.sender("orders").send_all(numbered(i) for i in range(3_000))
    gateway.restart()
    fresh = Client(gateway.url)
    try:
        assert texts(fresh.receiver("orders", filters={SELECTOR: "n = 2999"}, credit=5).take(1)) == ["2999"]
    finally:
        fresh.close()


def test_accepted_filters_are_in_the_reply_and_others_are_not(client: Client) -> None:
    """The reply's source holds selector, no-local and property filters unchanged, and no unknown ones."""
    receiver = client.receiver(
        "orders",
        filters={
            SELECTOR: "n = 1",
            "amqp:application-properties-filter": {"n": 1},
            "apache.org:no-local-filter:list": [],
            "example.org:unknown": 1,
        },
    )
    assert set(receiver.filters) == {
        SELECTOR,
        "amqp:application-properties-filter",
        "apache.org:no-local-filter:list",
        "rewind:replay-start",
    }
    assert receiver.filters[SELECTOR] == Described(symbol(SELECTOR), "n = 1")


def test_property_filters_select_by_prefix_and_value(client: Client) -> None:
    """properties and application-properties filters must both match; `&p:` is a prefix."""
    sender = client.sender("orders")
    for subject in ("flight/AA", "flight/UA", "train/AA"):
        for n in (1, 2):
            sender.send_all([section(PROPERTIES, [None, None, None, subject]) + numbered(n)])
    receiver = client.receiver(
        "log://>?replay-start=beginning&until=now",
        filters={
            "amqp:properties-filter": {symbol("subject"): "&p:flight/"},
            "amqp:application-properties-filter": {"n": 2},
        },
    )
    assert texts(receiver.take_to_end()) == ["2", "2"]


@pytest.mark.parametrize("address", ["orders", "log://>"])
def test_a_selector_that_is_none_is_refused_with_its_place(client: Client, address: str) -> None:
    """A bad selector gets amqp:invalid-field, a sentence, and the character it stumbles over."""
    with pytest.raises(Refused, match="at character") as refused:
        client.receiver(address, filters={SELECTOR: "n = = 3"})
    assert refused.value.name == "amqp:invalid-field"


def test_the_last_match_before_live_is_marked_for_a_log_reader_with_a_selector(client: Client) -> None:
    """With a selector, too, exactly the last message before live carries the mark."""
    sender = client.sender("topic://a/b")
    sender.send_all(numbered(i) for i in range(50))
    reader = client.receiver(
        "log://a/>", filters={SELECTOR: "n < 30", "rewind:replay-start": symbol("beginning")}, credit=100
    )
    taken = reader.take(30)
    assert [m.is_end for m in taken] == [False] * 29 + [True]
    sender.send_all([numbered(3)])
    assert not reader.take(1)[0].is_end


def test_a_browser_sees_everything_and_takes_nothing(client: Client) -> None:
    """It gets what lies on the queue, by its selector, also what is unsettled; it cannot ask for a replay."""
    client.sender("orders").send_all(numbered(i) for i in range(20))
    consumer = client.receiver("orders", credit=5)
    held = consumer.take(5)
    seen, looking = (
        browser(client, "orders"),
        browser(client, "orders", filters={SELECTOR: "n > 17"}, credit=10),
    )
    assert texts(seen.drain()) == numbered_texts(20)
    assert texts(looking.take(2)) == ["18", "19"]
    consumer.settle(held)
    consumer.close()
    client.sender("orders").send_all(numbered(i) for i in (3, 20))
    assert texts(looking.take(1)) == ["20"], "it goes on to what comes"
    assert texts(client.receiver("orders").drain()) == [*numbered_texts(5, 20), "3", "20"]
    refused = refusal(browser, client, "orders?replay-start=beginning")
    assert refused.replay_refusal == ("amqp:not-allowed", "browser-flow", 137)


def test_undeliverable_here_keeps_a_message_from_that_consumer_alone(
    client: Client, gateway: RunningGateway, connect: Connect
) -> None:
    """Modified with undeliverable-here: the consumer does not see it again, another one does, in its place."""
    client.sender("orders").send_all(numbered(i) for i in range(5))
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
