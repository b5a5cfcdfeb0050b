"""What the forms of addresses reach: queues, dynamic nodes, the anonymous relay, Event Hubs' and RabbitMQ's forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.config import Queue, ReplayLog, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Refused, texts
from tests.support.messages import PROPERTIES, data, message_to, section
from tests.support.running import RunningGateway

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


@pytest.mark.parametrize("name", ["a/b/c", "with space", "käse/ñ", "a#b", "1"])
def test_names_of_queues(client: Client, name: str) -> None:
    """A queue's name may have levels, spaces and any letters; `/queues/` takes it percent-encoded."""
    client.sender(f"queue://{name}").send_all([data("x")])
    encoded = "".join(f"%{byte:02X}" for byte in name.encode())
    assert texts(client.receiver(f"/queues/{encoded}").drain()) == ["x"]


@pytest.mark.parametrize(
    "address", ["a//b", "/queues/", "queue://", "nonsense://a", "a<b", "/exchanges/e", "x" * 300]
)
def test_addresses_that_name_nothing(gateway: RunningGateway, client: Client, address: str) -> None:
    """An address that names nothing is refused as an invalid field, on either end, and makes no queue."""
    for attach in (client.sender, client.receiver):
        with pytest.raises(Refused) as refused:
            attach(address)
        assert refused.value.name == "amqp:invalid-field"
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


def test_an_event_hub_has_one_partition(client: Client) -> None:
    """Another partition than 0 is refused: whoever reads several would get every message several times."""
    client.sender("hub").send_all([data("a")])
    with pytest.raises(Refused, match="no partition '1'") as refused:
        client.receiver("hub/ConsumerGroups/$Default/Partitions/1")
    assert refused.value.name == "amqp:not-found"


def test_the_topic_of_a_queue_needs_the_queue(client: Client) -> None:
    """The topic of a queue is a way to send to it, where it is; where it is not, the attach is refused."""
    with pytest.raises(Refused, match="queue://orders") as refused:
        client.sender("topic://#queue/orders")
    assert refused.value.name == "amqp:not-found"
    receiver = client.receiver("orders")
    client.sender("topic://#queue/orders").send_all([data("a")])
    assert texts(receiver.drain()) == ["a"]


def test_sending_to_a_log_is_not_allowed(client: Client) -> None:
    """A log cannot be sent to: a target `log://…` is refused as not allowed."""
    with pytest.raises(Refused) as refused:
        client.sender("log://a/>")
    assert refused.value.name == "amqp:not-allowed"


def test_a_source_needs_an_address(client: Client) -> None:
    """A null source that is not dynamic is refused."""
    with pytest.raises(Refused) as refused:
        client.receiver(None)
    assert refused.value.name.startswith("amqp:")


@pytest.mark.parametrize("end", ["sender", "receiver"])
@pytest.mark.parametrize("by", ["configuration", "option"])
def test_queues_are_not_always_made(start: Start, connect: Connect, end: str, by: str) -> None:
    """With `create_queues = false`, or `?create=never`, an unknown queue is refused as not found and not made."""
    gateway = start(Vpn(create_queues=by == "option"))
    client = connect(gateway)
    with pytest.raises(Refused) as refused:
        getattr(client, end)("orders" if by == "configuration" else "orders?create=never")
    assert refused.value.name == "amqp:not-found"
    assert gateway.endpoints() == set()


# --- dynamic nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "cut"])
def test_a_dynamic_queue_as_source(gateway: RunningGateway, connect: Connect, end: str) -> None:
    """A dynamic source is a temporary queue with a name of its own; it is deleted with the link that asked for it."""
    owner, other = connect(gateway), connect(gateway)
    receiver = owner.receiver(None, dynamic=True, credit=10)
    name = receiver.address
    assert name
    assert name != owner.receiver(None, dynamic=True).address
    other.sender(name).send_all([data("reply")])
    assert texts(receiver.take_and_accept(1)) == ["reply"]
    if end == "close":
        receiver.close()
    else:
        owner.cut()
    other.wait(lambda: name not in gateway.endpoints(), "the queue is deleted")


def test_a_dynamic_queue_as_target(gateway: RunningGateway, client: Client, connect: Connect) -> None:
    """A dynamic target is a temporary queue that others can consume from; it is deleted with the link."""
    sender = client.sender(None, dynamic=True)
    name = sender.address
    sender.send_all([data("a")])
    consumer = connect(gateway)
    assert texts(consumer.receiver(name).drain()) == ["a"]
    sender.close()
    client.wait(lambda: name not in gateway.endpoints(), "the queue is deleted")


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_temporary_queue_that_is_gone_is_not_made_again(client: Client, end: str) -> None:
    """The name of a temporary queue that was deleted is not found: nobody waits behind it any more."""
    receiver = client.receiver(None, dynamic=True)
    name = receiver.address
    receiver.close()
    with pytest.raises(Refused) as refused:
        getattr(client, end)(name)
    assert refused.value.name == "amqp:not-found"


def test_a_temporary_queue_does_not_survive_a_restart(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """A stop of the gateway ends all connections, and with them their temporary queues and topic endpoints."""
    client.receiver(None, dynamic=True)
    client.receiver("topic://a")
    client.close()
    gateway.restart()
    connect(gateway)
    assert gateway.endpoints() == set()


def test_a_temporary_topic_as_target(client: Client, connect: Connect, gateway: RunningGateway) -> None:
    """A dynamic target with the capability `temporary-topic` is a topic of its own, for others to subscribe to."""
    sender = client.sender(None, dynamic=True, capabilities=("temporary-topic",))
    assert sender.address.startswith("topic://")
    receivers = [connect(gateway).receiver(sender.address, credit=5) for _ in range(2)]
    sender.send_all([data("to all")])
    assert [texts(receiver.take(1)) for receiver in receivers] == [["to all"], ["to all"]]


def test_a_temporary_topic_as_source(client: Client, connect: Connect, gateway: RunningGateway) -> None:
    """A dynamic source with the capability `temporary-topic` is an endpoint on a topic of its own, for replies."""
    receiver = client.receiver(None, dynamic=True, capabilities=("temporary-topic",), credit=5)
    assert receiver.address.startswith("topic://")
    connect(gateway).sender(receiver.address).send_all([data("reply")])
    assert texts(receiver.take(1)) == ["reply"]
    receiver.close()
    client.wait(lambda: gateway.endpoints() == set(), "the endpoint is deleted")


def test_who_uses_a_temporary_queue_is_told_when_it_goes(gateway: RunningGateway, connect: Connect) -> None:
    """When a temporary queue is deleted, others' links to it are detached as `amqp:resource-deleted`."""
    owner, other = connect(gateway), connect(gateway)
    queue = owner.receiver(None, dynamic=True)
    consumer = other.receiver(queue.address, credit=5)
    sender = other.sender(queue.address)
    queue.close()
    assert consumer.detached_by_peer().name == "amqp:resource-deleted"
    assert sender.detached_by_peer().name == "amqp:resource-deleted"
    assert client_reads_log(other) == []


def _open_receiver(client: Client, address: str, *, dynamic: bool = False) -> None:
    link = client.session.receiver("hasty")
    link.source.address, link.source.dynamic = address or None, dynamic
    link.open()
    client.wait(lambda: True, "the attach is written")


def _open_sender(client: Client) -> None:
    link = client.session.sender("hasty")
    link.target.dynamic = True
    link.open()
    client.wait(lambda: True, "the attach is written")


def client_reads_log(client: Client) -> list[str]:
    """All that is in the log."""
    return texts(client.receiver("log://>?replay-start=beginning").drain())


@pytest.mark.parametrize(
    "hasty",
    [
        pytest.param(lambda c: _open_receiver(c, "", dynamic=True), id="dynamic source"),
        pytest.param(_open_sender, id="dynamic target"),
        pytest.param(lambda c: _open_receiver(c, "topic://a/b"), id="topic"),
        pytest.param(lambda c: _open_receiver(c, "topic://a/b?replay-start=beginning"), id="topic replay"),
    ],
)
def test_a_client_that_is_gone_before_its_attach_is_answered(
    gateway: RunningGateway, connect: Connect, hasty: Callable[[Client], None]
) -> None:
    """A connection that is lost while its attach is under way leaves no temporary endpoint behind."""
    for _ in range(30):
        client = connect(gateway)
        hasty(client)
        client.cut()
    client = connect(gateway)
    client.wait(lambda: gateway.endpoints() == set(), "nothing is left")


# --- the anonymous relay ------------------------------------------------------------------------------------------


def test_the_relay_delivers_by_to(client: Client) -> None:
    """On the anonymous relay each message goes where its `to` says, queue or topic, and each place keeps the order."""
    subscriber = client.receiver("topic://a/>", credit=100)
    relay = client.sender(None)
    relay.send_all(message_to(("queue://q1", "/queues/q2", "topic://a/b")[i % 3], i) for i in range(30))
    assert texts(client.receiver("q1").drain()) == [str(i) for i in range(0, 30, 3)]
    assert texts(client.receiver("q2").drain()) == [str(i) for i in range(1, 30, 3)]
    assert texts(subscriber.take(10)) == [str(i) for i in range(2, 30, 3)]


def test_the_relay_takes_settled_messages(client: Client) -> None:
    """Messages that come settled on the anonymous relay go where their `to` says."""
    relay = client.sender(None)
    for i in range(10):
        relay.send(message_to(f"q{i % 2}", i), settled=True)
    assert texts(client.receiver("q0", credit=5).take(5)) == ["0", "2", "4", "6", "8"]
    assert texts(client.receiver("q1", credit=5).take(5)) == ["1", "3", "5", "7", "9"]


def test_the_relay_rejects_what_has_nowhere_to_go(start: Start, connect: Connect) -> None:
    """On the relay an unknown queue that may not be made is rejected as not found; the messages around it arrive."""
    gateway = start(Vpn(create_queues=False, queues={"known": Queue()}))
    client = connect(gateway)
    relay = client.sender(None)
    deliveries = [relay.send(message_to(to, to)) for to in ("known", "unknown", "topic://a/b", "unknown")]
    assert relay.outcome(deliveries[0]) == "ACCEPTED"
    assert relay.rejection(deliveries[1]).name == "amqp:not-found"
    assert relay.outcome(deliveries[2]) == "ACCEPTED"
    assert relay.rejection(deliveries[3]).name == "amqp:not-found"
    assert texts(client.receiver("known").drain()) == ["known"]
    assert gateway.endpoints() == {"known"}


@pytest.mark.parametrize(
    ("raw", "condition"),
    [
        pytest.param(data("x"), "amqp:invalid-field", id="no properties"),
        pytest.param(section(PROPERTIES, ["id"]) + data("x"), "amqp:invalid-field", id="no to"),
        pytest.param(message_to("", "x"), "amqp:invalid-field", id="empty"),
        pytest.param(message_to("a//b", "x"), "amqp:invalid-field", id="no address"),
        pytest.param(message_to("log://a", "x"), "amqp:not-allowed", id="log"),
        pytest.param(message_to("topic://#queue/nobody", "x"), "amqp:not-found", id="topic of no queue"),
    ],
)
def test_the_relay_rejects_a_bad_to(client: Client, raw: bytes, condition: str) -> None:
    """A message on the relay whose `to` is no address to send to is rejected, and the relay goes on."""
    relay = client.sender(None)
    assert relay.rejection(relay.send(raw)).name == condition
    relay.send_all([message_to("orders", "fine")])
    assert texts(client.receiver("orders").drain()) == ["fine"]


def test_the_relay_notices_that_a_reply_queue_is_gone(
    client: Client, connect: Connect, gateway: RunningGateway
) -> None:
    """A reply to a temporary queue is delivered while it is there and rejected as not found once it is gone."""
    asking = connect(gateway)
    receiver = asking.receiver(None, dynamic=True, credit=1)
    relay = client.sender(None)
    relay.send_all([message_to(receiver.address, "reply")])
    assert texts(receiver.take(1)) == ["reply"]
    name = receiver.address
    receiver.close()
    assert relay.rejection(relay.send(message_to(name, "late"))).name == "amqp:not-found"


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
