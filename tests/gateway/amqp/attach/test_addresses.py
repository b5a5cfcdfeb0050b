"""Addresses in each form, dynamic nodes, the anonymous relay, selectors, and the no-local filter."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Described, Link, symbol, ulong

from amqp_ext.codec import Byte, Symbol
from gateway.app import Gateway
from gateway.config import Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import (
    NO_LOCAL,
    SELECTOR,
    Client,
    Receiver,
    browsing,
    numbered,
    refusal,
    texts,
)
from tests.support.messages import MESSAGE_ANNOTATIONS, PROPERTIES, data, message_to, section, selectable
from tests.support.running import RunningGateway
from tests.support.transactions import Controller, publish

# --- What the forms of addresses reach --------------------------------------------------------------------------------

INVALID = "amqp:invalid-field"


def test_names_of_queues(client: Client) -> None:
    """A queue's name may have levels, spaces and any letters; `/queues/` takes it percent-encoded."""
    for name in ("a/b/c", "with space", "käse/ñ", "a#b", "1"):
        client.sender(f"queue://{name}").send_all([data(name)])
        encoded = "".join(f"%{byte:02X}" for byte in name.encode())
        assert texts(client.receiver(f"/queues/{encoded}").drain()) == [name]


NOTHING: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(("a//b", "/queues/", "queue://", "nonsense://a", "a<b"), (INVALID, INVALID)),
    "/exchanges/e": (INVALID, INVALID),
    "x" * 300: (INVALID, INVALID),
    "log://a/>": ("amqp:not-allowed", None),
    "log://no/../such thing?replay-start=nonsense": ("amqp:not-allowed", INVALID),
    "unknown?create=never": ("amqp:not-found", "amqp:not-found"),
    "hub/ConsumerGroups/$Default/Partitions/1": (INVALID, "amqp:not-found"),
}
"""The conditions that refuse an address as a target and as a source (None: the source is good)."""


def test_addresses_that_name_nothing(gateway: RunningGateway, client: Client) -> None:
    """An address that names nothing is refused, on either end, and makes no queue."""
    for address, (as_target, as_source) in NOTHING.items():
        assert refusal(client.sender, address).name == as_target, address
        if as_source is not None:
            assert refusal(client.receiver, address).name == as_source, address
        assert gateway.endpoints() == set(), address


@pytest.mark.parametrize("prefix", ["", "amqp://127.0.0.1/", "amqps://hub.example.com:5671/"])
def test_event_hubs_form(client: Client, prefix: str) -> None:
    """Event Hubs' form of a source reads the log of what was sent to that name, whatever the consumer group."""
    client.sender("hub").send_all([data("a"), data("b")])
    client.sender("other").send_all([data("not this")])
    receiver = client.receiver(
        f"{prefix}hub/ConsumerGroups/$Default/Partitions/0",
        filters={"apache.org:selector-filter:string": "amqp.annotation.x-opt-offset > '-1'"},
    )
    assert texts(receiver.drain()) == ["a", "b"]
    client.sender(f"{prefix}hub/Partitions/0").send_all([data("c")])
    assert texts(receiver.drain()) == ["c"]


def test_the_topic_of_a_queue_needs_the_queue(client: Client) -> None:
    """`topic://#queue/NAME` sends to the queue NAME if that exists; otherwise the attach is refused."""
    refused = refusal(client.sender, "topic://#queue/orders")
    assert (refused.name, "queue://orders" in refused.text) == ("amqp:not-found", True)
    receiver = client.receiver("orders")
    client.sender("topic://#queue/orders").send_all([data("a")])
    assert texts(receiver.drain()) == ["a"]


# --- dynamic nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["source", "target"])
@pytest.mark.parametrize("end", ["close", "cut"])
def test_a_dynamic_queue(gateway: RunningGateway, connect: Connect, node: str, end: str) -> None:
    """
    A dynamic node is a temporary queue with a unique name, which others can send to and consume from. It is deleted
    with the link that asked for it: other links to it are detached, and its name is not found any more.
    """
    owner, other = connect(gateway), connect(gateway)
    attach = owner.receiver if node == "source" else owner.sender
    own = attach(None, dynamic=True)
    name = own.address
    assert name
    assert name != attach(None, dynamic=True).address
    sender, consumer = other.sender(name), other.receiver(name, credit=1)
    sender.send_all([data("reply")])
    assert texts(consumer.take_and_accept(1)) == ["reply"]
    if end == "close":
        own.close()
    else:
        owner.cut()
    for link in (consumer, sender):
        assert link.detached_by_peer().name == "amqp:resource-deleted"
    assert name not in gateway.endpoints()
    for again in (other.sender, other.receiver):
        assert refusal(again, name).name == "amqp:not-found"
    relay = other.sender(None)
    assert relay.rejection(relay.send(message_to(name, "late"))).name == "amqp:not-found"


@pytest.mark.parametrize(
    "end", ["dynamic source", "dynamic target", "topic://a/b", "topic://a/b?replay-start=beginning"]
)
def test_a_client_that_is_gone_before_its_attach_is_answered(
    gateway: RunningGateway, connect: Connect, end: str
) -> None:
    """A connection that is lost while its attach is under way leaves no temporary endpoint behind."""
    for _ in range(10):
        client = connect(gateway)
        is_target, is_dynamic = end.endswith("target"), end.startswith("dynamic")
        link = client.session.sender("hasty") if is_target else client.session.receiver("hasty")
        terminus = link.target if is_target else link.source
        terminus.address, terminus.dynamic = None if is_dynamic else end, is_dynamic
        link.open()
        client.wait(lambda: True, "the attach is written")
        client.cut()
    client = connect(gateway)
    client.wait(lambda: gateway.endpoints() == set(), "nothing is left")


# --- the anonymous relay ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_jms_producer_says_whether_to_is_a_queue(client: Client, in_transaction: bool) -> None:
    """
    Without a destination it sends on the relay, where `x-opt-jms-dest` of each message says it (AMQP JMS mapping).
    """
    on = {"topic": client.receiver("topic://orders"), "queue": client.receiver("orders")}
    controller, relay = Controller(client), client.sender(None)
    for annotation, where in (
        *((Byte(number), ("queue", "topic")[number % 2]) for number in range(5)),
        ("topic", "queue"),
        (None, "queue"),
    ):
        annotations = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-jms-dest"): annotation})
        message = annotations + message_to("orders", "said")
        if in_transaction:
            txn_id = controller.declare()
            publish(relay, message, txn_id)
            assert controller.commit(txn_id) == "ACCEPTED"
        else:
            relay.send_all([message])
        relay.send_all([message_to("orders", "plain")])
        expected = {"topic": [], "queue": ["plain"]}
        expected[where].insert(0, "said")
        assert {name: texts(receiver.drain(5)) for name, receiver in on.items()} == expected, annotation


@pytest.mark.parametrize("settled", [False, True])
def test_the_relay_delivers_by_to(client: Client, settled: bool) -> None:
    """
    On the anonymous relay each message goes where its `to` says, queue or topic; each destination keeps the order.
    """
    subscriber = client.receiver("topic://a/>", credit=100)
    relay = client.sender(None)
    for i in range(30):
        relay.send(message_to(("queue://q1", "/queues/q2", "topic://a/b")[i % 3], i), settled=settled)
    assert texts(client.receiver("q1", credit=10).take(10)) == numbered(0, 30, 3)
    assert texts(client.receiver("q2", credit=10).take(10)) == numbered(1, 30, 3)
    assert texts(subscriber.take(10)) == numbered(2, 30, 3)


def test_the_relay_remembers_no_address_of_any_length(gateway: RunningGateway, client: Client) -> None:
    """Ten thousand addresses are remembered for a user, and a host or an option may make each a message long."""
    relay = client.sender(None)
    for to in ("topic://a", f"amqp://{'h' * 100_000}/orders", f"orders?replay-start={'x' * 100_000}"):
        relay.send_all([message_to(to, "x")])
    assert gateway.depth("orders") == 2

    def remembered(running: Gateway) -> list[str]:
        assert running._container is not None
        (shared,) = running._container._shared.values()
        return [destination.address for topics in shared.relay_topics.values() for destination in topics]

    assert gateway.call(remembered) == ["topic://a"]


def test_the_relay_rejects_a_bad_to(client: Client) -> None:
    """A message on the relay whose `to` is not a valid target is rejected, and the link stays attached."""
    relay = client.sender(None)
    for raw, condition in (
        (data("no properties"), INVALID),
        (section(PROPERTIES, ["id"]) + data("no to"), INVALID),
        (message_to("", "x"), INVALID),
        (message_to("a//b", "x"), INVALID),
        (message_to("log://a", "x"), "amqp:not-allowed"),
        (message_to("topic://#queue/nobody", "x"), "amqp:not-found"),
    ):
        assert relay.rejection(relay.send(raw)).name == condition, raw
    relay.send_all([message_to("orders", "fine")])
    assert texts(client.receiver("orders").drain()) == ["fine"]


START = "rewind:replay-start"


def again(client: Client, receiver: Receiver) -> Receiver:
    """Detach a link without closing it, and attach it with the source that the gateway answered (section 2.6.3)."""
    answered = receiver.link.remote_source
    link_name = receiver.link.name
    held = client.session.receiver("to hold what was answered")
    held.source.copy(answered)
    receiver.detach()

    def set_up(link: Link) -> None:
        link.source.copy(held.source)

    return client.receiver(None, name=link_name, set_up=set_up)


def test_a_consumer_goes_on_and_rewinds_nothing(client: Client) -> None:
    """A consumer that attaches again with the answered source asks for no replay, which would be refused here."""
    client.sender("orders").send_all(data(i) for i in range(4))
    client.receiver("orders")
    consumer = client.receiver("orders", filters={"apache.org:selector-filter:string": "TRUE"}, credit=2)
    assert texts(consumer.take_and_accept(2)) == ["0", "1"]
    consumer = again(client, consumer)
    assert texts(consumer.drain()) == ["2", "3"]


SECOND = Described(symbol(START), "#2")


@pytest.mark.parametrize(
    ("address", "options", "first"),
    [
        # The start `live` asks for no replay, whatever offset it resolved to at the first attach.
        ("orders", {"filters": {START: "live"}}, 0),
        # A browser cannot ask for a replay, so its answer has no start.
        ("orders", {"set_up": browsing}, 0),
        # The answer has the start as requested, the resolved offset, or both; both count as one start.
        *(
            (address, {"filters": {key: SECOND}}, 1)
            for address in ("log://>", "orders")
            for key in (START, "x")
        ),
        # A filter of another dialect stays in the answer, next to the resolved start, and holds.
        ("orders", {"capabilities": ["stream"], "filters": {"rabbitmq:stream-offset-spec": "first"}}, 0),
    ],
)
def test_what_is_in_place_is_in_place_again(
    client: Client, address: str, options: dict[str, Any], first: int
) -> None:
    """
    A link attached again with the source of its answer gets the same messages as before, and those published since.
    """
    queue = "orders?kind=stream" if "capabilities" in options else "orders"
    client.sender(queue).send_all(data(i) for i in range(4))
    receiver = client.receiver(address, **options)
    assert texts(receiver.drain()) == numbered(first, 4)
    client.sender("orders").send_all([data(4)])
    assert texts(again(client, receiver).drain()) == numbered(first, 5)


def test_a_bounded_replay_keeps_its_bound(client: Client) -> None:
    """`until` is in the answer, and holds when the link is attached again."""
    client.sender("orders").send_all(data(i) for i in range(4))
    reader = again(client, client.receiver("log://>?replay-start=%232&until=now"))
    client.sender("orders").send_all([data(4)])
    assert texts(reader.take_to_end()) == ["1", "2", "3"]


def test_what_its_capabilities_said_is_still_said(client: Client) -> None:
    """The answer still says that a bare address is a topic, and that a subscription is shared."""
    first = client.receiver("a/>", name="sub|1", capabilities=["topic", "shared"])
    client.sender("topic://a/b").send_all([data(0)])
    second = again(client, client.receiver("a/>", name="sub|2", capabilities=["topic", "shared"]))
    first.close()
    assert texts(second.drain()) == ["0"]


# --- Selectors and property filters on consumers, log readers and browsers --------------------------------------------


def browser(client: Client, address: str, **more: Any) -> Receiver:
    return client.receiver(address, set_up=browsing, **more)


def test_a_consumer_takes_what_its_selector_matches_and_leaves_the_rest_in_place(
    gateway: RunningGateway, connect: Connect
) -> None:
    """
    The consumer gets what matches, also from behind thousands of messages that do not, which are read from the store in
    pages; a consumer without a selector gets the rest, in order.
    """
    connect(gateway).sender("orders").send_all(selectable(i) for i in range(3_000))
    gateway.restart()
    client = connect(gateway)
    for wanted, (first, last) in (("n = 2999", (2_999, 3_000)), ("n BETWEEN 40 AND 49", (40, 50))):
        choosy = client.receiver("orders", filters={SELECTOR: wanted}, credit=50)
        assert texts(choosy.take_and_accept(last - first)) == numbered(first, last)
        choosy.close()
    assert texts(client.receiver("orders").drain(3_000)) == numbered(40) + numbered(50, 2_999)


def test_accepted_filters_are_in_the_reply_and_others_are_not(client: Client) -> None:
    """The reply's source holds selector, no-local and property filters unchanged, and no unknown ones."""
    known = {SELECTOR: "n = 1", "amqp:application-properties-filter": {"n": 1}, NO_LOCAL: []}
    receiver = client.receiver("orders", filters={**known, "example.org:unknown": 1})
    assert set(receiver.filters) == {*known, "rewind:replay-start"}
    assert receiver.filters[SELECTOR] == Described(symbol(SELECTOR), "n = 1")


def test_a_selector_that_is_none_is_refused_with_its_place(client: Client) -> None:
    """A bad selector is refused with amqp:invalid-field and a text that names the character at which it goes wrong."""
    for address in ("orders", "log://>"):
        refused = refusal(client.receiver, address, filters={SELECTOR: "n = = 3"})
        assert refused.name == "amqp:invalid-field"
        assert "at character" in refused.text


def test_a_browser_sees_everything_and_takes_nothing(client: Client) -> None:
    """
    A browser gets all messages on the queue that its selector matches, unsettled ones too; it cannot ask for a replay.
    """
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


def test_a_browser_misses_nothing_that_comes_while_it_looks(
    gateway: RunningGateway, connect: Connect
) -> None:
    """
    A browser sees every message that a publisher adds meanwhile, whatever the timing of its reads and the commits.
    """
    client, publisher = connect(gateway), connect(gateway)
    looking = browser(client, "orders", credit=1_000)
    sender = publisher.sender("orders")
    for i in range(120):
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
"""The filter by its name, and by its code as Qpid JMS sends it."""


def knows(gateway: RunningGateway) -> int:
    """How many connections have a consumer that needs the origins of messages to be remembered."""
    return gateway.call(lambda running: len(running.vpns["default"].publishing.origins.watchers))


# --- subscriptions to topics ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("filters", FORMS, ids=["by name", "by code"])
def test_a_subscriber_is_not_given_its_own_messages(
    gateway: RunningGateway, connect: Connect, filters: dict[str, Any]
) -> None:
    """
    What its own connection publishes, settled or not, by link or relay, is not even stored for it; other subscribers
    get it.
    """
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
    # Direct messages are not in the log.
    assert texts(other.read_log()) == [text for text in all_of_them if text != "own 4"]


def test_a_durable_subscriber_goes_by_its_container(gateway: RunningGateway, connect: Connect) -> None:
    """What its container publishes while it is detached, on any connection and after a restart, is not kept for it."""
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
    """Another container takes the subscription over with the messages on it; from then on its own are left out."""
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


# --- queues, the log and browsers -------------------------------------------------------------------------------------
def test_a_queues_consumer_leaves_its_own_to_others(gateway: RunningGateway, connect: Connect) -> None:
    """The consumer's own messages are skipped, and stay in their place on the queue for other consumers."""
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
    """A reader of the log or of a stream does not get its own live messages; history is not filtered."""
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
    """No-local holds together with a selector, on a browser, and on a dynamic source."""
    receiver = client.receiver(**{"address": "orders", "filters": FORMS[0], "credit": 50} | options)
    client.sender(receiver.address).send_all([data("own")])
    connect(gateway).sender(receiver.address).send_all([data("theirs")])
    assert texts(receiver.take(1)) == ["theirs"]
    assert symbol(NO_LOCAL) in receiver.filters or receiver.address != "orders"


def test_nothing_is_remembered_once_nobody_asks(
    client: Client, connect: Connect, gateway: RunningGateway
) -> None:
    """Origins are remembered while a connection has a no-local consumer of a queue; topic subscribers need none."""
    client.receiver("topic://news", filters=FORMS[0])
    assert knows(gateway) == 0
    one, two = connect(gateway), connect(gateway)
    for asking in (one, two):
        asking.receiver("orders", filters=FORMS[0])
    assert knows(gateway) == 2
    one.cut()
    two.close()
    client.wait(lambda: knows(gateway) == 0, "nobody asks any more")
