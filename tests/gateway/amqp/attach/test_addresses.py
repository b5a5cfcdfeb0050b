"""
What the forms of addresses reach: queues, dynamic nodes, the anonymous relay, Event Hubs' and RabbitMQ's forms; and
a link that is attached again with the source as the gateway answered it, which is how some clients resume.
"""

from __future__ import annotations

from typing import Any

import pytest
from proton import Described, Link, symbol

from amqp_ext.codec import Byte, Symbol
from gateway.config import ReplayLog, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Receiver, browsing, numbered, refusal, texts
from tests.support.messages import MESSAGE_ANNOTATIONS, PROPERTIES, data, message_to, section
from tests.support.running import RunningGateway
from tests.support.transactions import Controller, publish

INVALID = "amqp:invalid-field"

QUEUE_FORMS = [
    pytest.param("orders", (), id="bare"),
    pytest.param("queue://orders", (), id="scheme"),
    pytest.param("QUEUE://orders", (), id="scheme in capitals"),
    pytest.param("/queues/orders", (), id="RabbitMQ"),
    pytest.param("/queues/%6frders", (), id="RabbitMQ, percent-encoded"),
    pytest.param("amqp://127.0.0.1:5672/orders", (), id="URL"),
    pytest.param("amqps://some.host/queue://orders", (), id="URL with scheme"),
    pytest.param("orders", ("queue",), id="capability"),
    pytest.param("topic://orders", ("queue",), id="capability against the scheme"),
    pytest.param("orders?create=always", (), id="option"),
]


@pytest.mark.parametrize(("address", "capabilities"), QUEUE_FORMS)
def test_every_form_of_a_queue(
    gateway: RunningGateway, client: Client, address: str, capabilities: tuple[str, ...]
) -> None:
    """Each form of a queue's address reaches the same queue, as a target and as a source."""
    client.sender(address, capabilities=capabilities).send_all([data("by form")])
    assert gateway.endpoints() == {"orders"}
    client.sender("orders").send_all([data("by name")])
    assert texts(client.receiver(address, capabilities=capabilities).drain()) == ["by form", "by name"]


def test_names_of_queues(client: Client) -> None:
    """A queue's name may have levels, spaces and any letters; `/queues/` takes it percent-encoded."""
    for name in ("a/b/c", "with space", "käse/ñ", "a#b", "1"):
        client.sender(f"queue://{name}").send_all([data(name)])
        encoded = "".join(f"%{byte:02X}" for byte in name.encode())
        assert texts(client.receiver(f"/queues/{encoded}").drain()) == [name]


@pytest.mark.parametrize(
    ("address", "as_target", "as_source"),
    [
        *((address, INVALID, INVALID) for address in ("a//b", "/queues/", "queue://", "nonsense://a", "a<b")),
        ("/exchanges/e", INVALID, INVALID),
        ("x" * 300, INVALID, INVALID),
        ("log://a/>", "amqp:not-allowed", None),
        ("log://no/../such thing?replay-start=nonsense", "amqp:not-allowed", INVALID),
        ("unknown?create=never", "amqp:not-found", "amqp:not-found"),
        ("hub/ConsumerGroups/$Default/Partitions/1", INVALID, "amqp:not-found"),
    ],
)
def test_addresses_that_name_nothing(
    gateway: RunningGateway, client: Client, address: str, as_target: str, as_source: str | None
) -> None:
    """An address that names nothing is refused, on either end, and makes no queue."""
    assert refusal(client.sender, address).name == as_target
    if as_source is not None:
        assert refusal(client.receiver, address).name == as_source
    assert gateway.endpoints() == set()


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_queues_are_not_always_made(start: Start, connect: Connect, end: str) -> None:
    """With `create_queues = false` an unknown queue is refused as not found and not made."""
    gateway = start(Vpn(create_queues=False))
    refused = refusal(getattr(connect(gateway), end), "orders")
    assert (refused.name, "no queue 'orders'" in refused.text) == ("amqp:not-found", True)
    assert gateway.endpoints() == set()


@pytest.mark.parametrize("form", ["topic://a/b/c", "dsub://a/b/c", "a/b/c"])
def test_every_form_of_a_topic(client: Client, form: str) -> None:
    """A topic is `topic://…`, or any name with the capability `topic`, as a source and as a target."""
    capabilities = () if form.startswith("topic") else ("topic",)
    receiver = client.receiver(form, capabilities=capabilities, credit=2)
    other = client.receiver("topic://a/b/c", credit=2)
    client.sender(form, capabilities=capabilities).send_all([data("by form")])
    client.sender("topic://a/b/c").send_all([data("by scheme")])
    assert texts(receiver.take(2)) == texts(other.take(2)) == ["by form", "by scheme"]


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
    """The topic of a queue is a way to send to it, where it is; where it is not, the attach is refused."""
    refused = refusal(client.sender, "topic://#queue/orders")
    assert (refused.name, "queue://orders" in refused.text) == ("amqp:not-found", True)
    receiver = client.receiver("orders")
    client.sender("topic://#queue/orders").send_all([data("a")])
    assert texts(receiver.drain()) == ["a"]


# --- dynamic nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["source", "target"])
@pytest.mark.parametrize("end", ["close", "cut", "restart"])
def test_a_dynamic_queue(gateway: RunningGateway, connect: Connect, node: str, end: str) -> None:
    """
    A dynamic node is a temporary queue with a name of its own, for others to send to and consume from. It is deleted
    with the link that asked for it: others' links to it are told, and its name is not found any more.
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
    if end == "restart":
        gateway.restart()
        assert gateway.endpoints() == set()
        return
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


@pytest.mark.parametrize("node", ["source", "target"])
def test_a_temporary_topic(client: Client, connect: Connect, gateway: RunningGateway, node: str) -> None:
    """With the capability `temporary-topic` a dynamic node is a topic of its own, for others to send to."""
    attach = client.receiver if node == "source" else client.sender
    own = attach(None, dynamic=True, capabilities=("temporary-topic",))
    assert own.address.startswith("topic://")
    receivers = [client.receiver(own.address, credit=5) for _ in range(2)]
    connect(gateway).sender(own.address).send_all([data("to all")])
    assert [texts(receiver.take(1)) for receiver in receivers] == [["to all"], ["to all"]]
    if isinstance(own, Receiver):
        assert texts(own.drain(1)) == ["to all"]
    for link in (own, *receivers):
        link.close()
    client.wait(lambda: gateway.endpoints() == set(), "the endpoints are deleted")


@pytest.mark.parametrize(
    "end", ["dynamic source", "dynamic target", "topic://a/b", "topic://a/b?replay-start=beginning"]
)
def test_a_client_that_is_gone_before_its_attach_is_answered(
    gateway: RunningGateway, connect: Connect, end: str
) -> None:
    """A connection that is lost while its attach is under way leaves no temporary endpoint behind."""
    for _ in range(30):
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
@pytest.mark.parametrize(
    ("annotation", "where"),
    [
        *((Byte(number), ("queue", "topic")[number % 2]) for number in range(5)),
        ("topic", "queue"),
        (None, "queue"),
    ],
)
def test_a_jms_producer_says_whether_to_is_a_queue(
    client: Client, annotation: Any, where: str, in_transaction: bool
) -> None:
    """One without a destination has no link to say it by: `x-opt-jms-dest` of each message does (AMQP JMS mapping)."""
    on = {"topic": client.receiver("topic://orders", credit=5), "queue": client.receiver("orders", credit=5)}
    annotations = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-jms-dest"): annotation})
    plain = message_to("orders", "plain")
    message = annotations + message_to("orders", "said")
    relay = client.sender(None)
    if in_transaction:
        controller = Controller(client)
        txn_id = controller.declare()
        publish(relay, message, txn_id)
        assert controller.commit(txn_id) == "ACCEPTED"
    else:
        relay.send_all([message])
    relay.send_all([plain])
    expected = {"topic": [], "queue": ["plain"]}
    expected[where].insert(0, "said")
    assert {name: texts(receiver.drain(1)) for name, receiver in on.items()} == expected


@pytest.mark.parametrize("settled", [False, True])
def test_the_relay_delivers_by_to(client: Client, settled: bool) -> None:
    """On the anonymous relay each message goes where its `to` says, queue or topic, and each place keeps the order."""
    subscriber = client.receiver("topic://a/>", credit=100)
    relay = client.sender(None)
    for i in range(30):
        relay.send(message_to(("queue://q1", "/queues/q2", "topic://a/b")[i % 3], i), settled=settled)
    assert texts(client.receiver("q1", credit=10).take(10)) == numbered(0, 30, 3)
    assert texts(client.receiver("q2", credit=10).take(10)) == numbered(1, 30, 3)
    assert texts(subscriber.take(10)) == numbered(2, 30, 3)


def test_the_relay_rejects_a_bad_to(client: Client) -> None:
    """A message on the relay whose `to` is no address to send to is rejected, and the relay goes on."""
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


def test_without_a_log_too(start: Start, connect: Connect) -> None:
    """With the replay log off, all that does not need it works: queues, topics, dynamic nodes, the relay."""
    client = connect(start(Vpn(replay_log=ReplayLog(enabled=False))))
    receivers = [
        client.receiver("orders", credit=1),
        client.receiver("topic://a/*", credit=1),
        client.receiver(None, dynamic=True, credit=1),
    ]
    client.sender(None).send_all(
        [message_to("orders", "q"), message_to("topic://a/b", "t"), message_to(receivers[2].address, "d")]
    )
    assert [texts(receiver.take_and_accept(1)) for receiver in receivers] == [["q"], ["t"], ["d"]]


START = "rewind:replay-start"


def again(client: Client, receiver: Receiver) -> Receiver:
    """The same link, detached without closing, with all of its source as it was answered (section 2.6.3)."""
    answered = receiver.link.remote_source
    link_name = receiver.link.name
    held = client.session.receiver("to hold what was answered")
    held.source.copy(answered)
    receiver.detach()

    def set_up(link: Link) -> None:
        link.source.copy(held.source)

    return client.receiver(None, name=link_name, set_up=set_up)


def test_a_consumer_goes_on_and_rewinds_nothing(client: Client) -> None:
    """Who consumes from a queue, beside others, asked for no replay, and by attaching again does not ask for one."""
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
        # A start `live` is no replay, whatever offset it was when the link was attached.
        ("orders", {"filters": {START: "live"}}, 0),
        # A browser cannot ask for a replay; its answer says nothing that it could not ask for.
        ("orders", {"set_up": browsing}, 0),
        # The start that was asked for is there again, or the offset that it was resolved to, or both, which is one.
        *(
            (address, {"filters": {key: SECOND}}, 1)
            for address in ("log://>", "orders")
            for key in (START, "x")
        ),
        # A filter of another dialect stays beside the resolved start, and counts.
        ("orders", {"capabilities": ["stream"], "filters": {"rabbitmq:stream-offset-spec": "first"}}, 0),
    ],
)
def test_what_is_in_place_is_in_place_again(
    client: Client, address: str, options: dict[str, Any], first: int
) -> None:
    """A link that is attached again with the source of its answer gets what it got before, and what came since."""
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
    """A bare address that is a topic, and a subscription that is shared, are so in the answer, too."""
    first = client.receiver("a/>", name="sub|1", capabilities=["topic", "shared"])
    client.sender("topic://a/b").send_all([data(0)])
    second = again(client, client.receiver("a/>", name="sub|2", capabilities=["topic", "shared"]))
    first.close()
    assert texts(second.drain()) == ["0"]
