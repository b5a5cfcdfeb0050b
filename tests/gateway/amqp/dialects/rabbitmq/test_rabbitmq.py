"""RabbitMQ's dialect: its management over AMQP, and its queues."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import pytest
from proton import Delivery

from gateway.amqp.dialects import rabbitmq
from gateway.config import Listener, User
from tests.gateway.amqp.conftest import Connect, Start
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support.client import Client, refusal, texts, with_properties
from tests.support.log_lines import kept_lines
from tests.support.management import Pair, declaration
from tests.support.messages import data, message_to
from tests.support.running import RunningGateway

# --- RabbitMQ's `/management` over real sockets, by a client that pairs its links as RabbitMQ's do --------------------


RABBITMQ = (Listener(port=0, rabbitmq_mode=True),)


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    return start(listeners=RABBITMQ)


def test_the_virtual_host_of_who_names_none_is_the_default_vpn(gateway: RunningGateway) -> None:
    """`vhost:/`, as Java's and Go's clients open, is `default`; the open frame introduces the listener as RabbitMQ."""
    with Client(gateway.address, hostname="vhost:/") as client:
        said = client.connection.remote_properties
        assert (said["product"], said["version"], said["node"]) == ("RabbitMQ", "4.2.0", "rewind")
        assert "LINK_PAIR_V1_0" in list(client.connection.remote_offered_capabilities)
        status, found = Pair(client).ask("PUT", "/queues/orders", declaration())
    assert (status, found["vhost"]) == (201, "default")
    with Client(gateway.address, hostname="vhost:/other") as client:
        assert client.closed_by_peer().name == "amqp:not-found"


def test_a_declaration_that_contradicts_is_a_conflict(client: Client) -> None:
    """Another kind, or another value of an argument, is 409 and names both; what is left out is not compared."""
    pair = Pair(client)
    assert pair.ask("PUT", "/queues/q", declaration(x_message_ttl=5_000, x_max_length=10))[0] == 201
    assert pair.ask("PUT", "/queues/q", declaration())[0] == 200
    status, text = pair.ask("PUT", "/queues/q", declaration(x_message_ttl=6_000))
    assert (status, "5000" in text, "6000" in text) == (409, True, True)
    status, text = pair.ask("PUT", "/queues/q", declaration(x_queue_type="stream"))
    assert (status, "kind=queue" in text) == (409, True)


def test_arguments_are_in_force(gateway: RunningGateway, client: Client) -> None:
    """A queue declared with a maximum length rejects messages beyond it, and its description has its arguments."""
    pair = Pair(client)
    _, made = pair.ask("PUT", "/queues/q", declaration(x_max_length=2, x_single_active_consumer=True))
    assert made["arguments"] == {
        "x-queue-type": "quorum",
        "x-max-length": 2,
        "x-single-active-consumer": True,
    }
    sender = client.sender("/queues/q")
    outcomes = [sender.outcome(sender.send(data("x"))) for _ in range(3)]
    assert outcomes == ["ACCEPTED", "ACCEPTED", "REJECTED"]
    assert pair.ask("GET", "/queues/q")[1]["message_count"] == 2
    assert pair.ask("DELETE", "/queues/q/messages") == (200, {"message_count": 2})
    assert gateway.depth("q") == 0


def test_an_exchange_is_a_name_in_front_of_topics(gateway: RunningGateway, client: Client) -> None:
    """A message sent to an exchange reaches the queues that are bound to it, and subscribers of its topic."""
    pair = Pair(client)
    pair.ask("PUT", "/queues/q")
    assert pair.ask("PUT", "/exchanges/orders", {"type": "topic"})[0] == 204
    assert pair.ask("PUT", "/exchanges/orders", {"type": "fanout"})[0] == 409
    binding = {"source": "orders", "destination_queue": "q", "binding_key": "eu.#"}
    assert pair.ask("POST", "/bindings", binding)[0] == 204
    assert gateway.subscriptions("q") == ["orders/eu", "orders/eu/>"]
    subscriber = client.receiver("topic://orders/eu/*", credit=10)
    queue = client.receiver("/queues/q", credit=10)
    client.sender("/exchanges/orders/eu.new").send_all([data("one")])
    client.sender(None).send_all([message_to("/exchanges/orders/eu", "two")])
    assert texts(queue.take(2)) == ["one", "two"]
    assert texts(subscriber.take(1)) == ["one"]
    (listed,) = pair.ask("GET", "/bindings?src=orders&dstq=q&key=eu.%23")[1]
    assert pair.ask("DELETE", listed["location"])[0] == 204
    assert pair.ask("GET", "/bindings?src=orders&dstq=q&key=eu.%23") == (200, [])
    assert gateway.subscriptions("q") == []


def test_a_deleted_exchange_is_bound_to_nothing(gateway: RunningGateway, client: Client) -> None:
    """Its bindings are deleted with it; those of other exchanges stay."""
    pair = Pair(client)
    pair.ask("PUT", "/queues/q")
    for name in ("one", "other"):
        pair.ask("PUT", f"/exchanges/{name}", {"type": "fanout"})
        pair.ask("POST", "/bindings", {"source": name, "destination_queue": "q"})
    assert pair.ask("DELETE", "/exchanges/one")[0] == 204
    assert gateway.subscriptions("q") == ["other", "other/>"]
    status, text = pair.ask("POST", "/bindings", {"source": "one", "destination_queue": "q"})
    assert (status, "'one'" in text) == (404, True)
    assert pair.ask("DELETE", "/exchanges/amq.topic")[0] == 400


def test_exchanges_are_few_and_have_short_names(
    guarded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user declares half of all at most, so that others can declare some, too."""
    monkeypatch.setattr(rabbitmq, "MAX_EXCHANGES", 8)
    for name, statuses in (("ann", [204] * 4 + [400]), ("root", [204, 400])):
        with Client(guarded.url, user=(name, PASSWORD)) as client:
            pair = Pair(client)
            declared = [pair.ask("PUT", f"/exchanges/{name}{n}", EXCHANGE)[0] for n in range(len(statuses))]
            assert declared == statuses
            assert pair.ask("PUT", f"/exchanges/{'x' * 256}", EXCHANGE)[0] == 400


def test_a_dynamic_queue_has_an_address_that_clients_can_send_to(client: Client) -> None:
    """In RabbitMQ mode, the address of a dynamic queue is in RabbitMQ's form."""
    receiver = client.receiver(None, dynamic=True, credit=1, capabilities=["rabbitmq:volatile-queue"])
    assert receiver.address.startswith("/queues/%23P2P%2F")
    client.sender(receiver.address).send_all([data("back")])
    assert texts(receiver.take(1)) == ["back"]


def dead_letters_to(queue: str) -> dict[str, Any]:
    """The body of a declaration of a queue whose dead letters go to another."""
    return declaration(x_dead_letter_exchange="", x_dead_letter_routing_key=queue)


def test_a_declaration_survives_a_restart(gateway: RunningGateway, connect: Connect) -> None:
    """So does its dead letter queue, whose name can be neither the gateway's own nor invalid."""
    pair = Pair(connect(gateway))
    for name in ("#own", "a//b", "a*"):
        assert pair.ask("PUT", "/queues/q", dead_letters_to(name))[0] in (400, 403, 409), name
    assert gateway.endpoints() == set()
    assert pair.ask("PUT", "/queues/q", dead_letters_to("dead"))[0] == 201
    gateway.restart()
    pair = Pair(connect(gateway))
    assert pair.ask("GET", "/queues/q")[1]["arguments"]["x-dead-letter-routing-key"] == "dead"
    assert pair.ask("GET", "/queues/dead")[0] == 200


@pytest.fixture
def guarded(start: Start) -> RunningGateway:
    """A gateway with a user who may publish to queues named `a…` and consume `b…`, and an administrator of `c…`."""
    users = {
        "ann": User(password=HASH, publish=("queue://a*",), consume=("queue://b*", "topic://open/>")),
        "root": User(password=HASH, administer=("queue://c*",)),
    }
    return start(listeners=(Listener(port=0, rabbitmq_mode=True, sasl=("PLAIN",)),), users=users)


EXCHANGE = {"type": "topic", "durable": True, "arguments": {}}
BINDING = {"source": "open", "destination_queue": "b1", "binding_key": "x"}
ASKED: list[tuple[str, str, str, Any, int]] = [
    ("ann", "PUT", "/queues/a1", None, 201),
    ("ann", "PUT", "/queues/b1", None, 201),
    ("ann", "PUT", "/queues/c1", None, 403),
    ("ann", "GET", "/queues/c1", None, 403),
    ("ann", "PUT", "/queues/a2", dead_letters_to("c2"), 403),
    # Dead letters are published: the permission to consume from their queue is not enough.
    ("ann", "PUT", "/queues/a2", dead_letters_to("b1"), 403),
    ("ann", "PUT", "/queues/a2", dead_letters_to("b2"), 403),
    ("ann", "PUT", "/queues/b3", dead_letters_to("a3"), 201),
    ("ann", "DELETE", "/queues/a1", None, 403),
    ("ann", "DELETE", "/queues/a1/messages", None, 403),
    # Others' bindings depend on an exchange: a user who did not declare it must administer its topics to delete it.
    ("ann", "PUT", "/exchanges/open", EXCHANGE, 204),
    ("root", "PUT", "/exchanges/open", EXCHANGE, 204),
    ("root", "DELETE", "/exchanges/open", None, 403),
    ("ann", "POST", "/bindings", {**BINDING, "destination_queue": "a1"}, 403),
    ("ann", "POST", "/bindings", BINDING, 204),
    ("ann", "POST", "/bindings", {**BINDING, "source": "amq.topic"}, 403),
    ("root", "PUT", "/queues/c1", None, 201),
    ("root", "DELETE", "/queues/c1", None, 200),
    ("root", "DELETE", "/queues/b1", None, 403),
]


def test_what_is_asked_needs_the_permission_for_it(guarded: RunningGateway, connect: Connect) -> None:
    """
    Whoever may publish to a queue or consume from it may declare it; a binding needs `consume` on the topics; a
    deletion needs `administer`, except for an exchange that the user declared.
    """
    pairs = {name: Pair(connect(guarded, user=(name, PASSWORD))) for name in ("ann", "root")}
    for name, method, path, body, status in ASKED:
        assert pairs[name].ask(method, path, body)[0] == status, (name, method, path, body)
    assert pairs["ann"].ask("PUT", "/queues/a4", dead_letters_to("#own"))[0] in (400, 403)
    assert "a2" not in guarded.endpoints()
    assert guarded.subscriptions("b1") == ["open/x"]
    for path in ("/bindings/src=open;dstq=b1;key=x;args=", "/exchanges/open"):
        assert pairs["ann"].ask("DELETE", path)[0] == 204


def test_what_clients_change_leaves_a_line(gateway: RunningGateway, connect: Connect) -> None:
    """Changes are logged, like those by administrators over HTTP; a read, or a declaration without effect, is not."""
    with kept_lines(logging.INFO, "administered") as lines:
        pair = Pair(connect(gateway))
        for asked in ("PUT q", "PUT q", "GET q", "DELETE q/messages", "DELETE q"):
            method, path = asked.split()
            assert pair.ask(method, f"/queues/{path}", declaration() if method == "PUT" else None)[0] < 300
    operations = [line["operation"].partition("(")[0] for line in lines]
    assert operations == ["DeclareQueue", "PurgeQueue", "DeleteQueue"]
    assert all(line["user"] == "anonymous" and "'q'" in line["operation"] for line in lines)


# --- Exclusive and auto-delete queues that RabbitMQ's clients declare -------------------------------------------------

BOTH = {"exclusive": True, "auto_delete": True}


def is_gone(gateway: RunningGateway, client: Client, queue: str) -> None:
    """Wait until the queue does not exist."""
    client.wait(lambda: queue not in gateway.endpoints(), f"{queue} is gone")


def declare(client: Client, queue: str, **fields: bool) -> dict[str, Any]:
    """Declare a queue that does not exist yet; its description."""
    status, found = Pair(client).ask("PUT", f"/queues/{queue}", declaration() | fields)
    assert status == 201, found
    return dict(found)


def test_an_exclusive_queue_is_for_its_connection(gateway: RunningGateway, connect: Connect) -> None:
    """
    It is described as exclusive, anybody may send to it, and it is deleted with its connection. Until then, another
    connection cannot consume from it, bind, purge, delete or declare it.
    """
    client, other = connect(gateway), connect(gateway)
    exclusive = declaration() | {"exclusive": True}
    own, pair = Pair(client), Pair(other)
    status, found = own.ask("PUT", "/queues/mine", exclusive)
    assert (status, found["exclusive"], found["auto_delete"], found["type"]) == (201, True, False, "classic")
    assert pair.ask("GET", "/queues/mine")[1]["exclusive"] is True
    other.sender("/queues/mine").send_all([data("x")])
    assert refusal(other.receiver, "/queues/mine").name == "amqp:resource-locked"
    binding = {"source": "amq.topic", "destination_queue": "mine", "binding_key": "a"}
    for method, path, body in (
        ("PUT", "/queues/mine", exclusive),
        ("PUT", "/queues/mine", declaration()),
        ("DELETE", "/queues/mine/messages", None),
        ("DELETE", "/queues/mine", None),
        ("POST", "/bindings", binding),
        ("DELETE", "/bindings/src=amq.topic;dstq=mine;key=a;args=", None),
    ):
        status, text = pair.ask(method, path, body)
        assert status == 409, (method, path)
        assert "cannot obtain exclusive access to locked queue" in text
    receiver = client.receiver("/queues/mine", credit=1)
    assert texts(receiver.take_and_accept(1)) == ["x"]
    receiver.close()
    assert own.ask("PUT", "/queues/mine", exclusive)[0] == 200
    assert own.ask("POST", "/bindings", binding)[0] == 204
    assert own.ask("DELETE", "/queues/mine") == (200, {"message_count": 0})
    assert own.ask("PUT", "/queues/mine", exclusive)[0] == 201
    client.cut()
    is_gone(gateway, other, "mine")
    assert pair.ask("PUT", "/queues/mine", declaration())[0] == 201


def test_an_ordinary_queue_is_not_made_exclusive(client: Client) -> None:
    """To declare an existing queue as exclusive or as auto-delete is a conflict."""
    declare(client, "ours")
    for field, named in (("exclusive", "does not match"), ("auto_delete", "auto_delete = False")):
        status, text = Pair(client).ask("PUT", "/queues/ours", declaration() | {field: True})
        assert (status, named in text) == (409, True)


def test_an_auto_delete_queue_goes_with_its_last_consumer(gateway: RunningGateway) -> None:
    """Not before its first consumer, not with its publishers, not while another consumer is there; exclusive or not."""
    for queue, fields in (("shared", {"auto_delete": True}), ("own", BOTH)):
        with Client(gateway.address) as client:
            assert declare(client, queue, **fields)["auto_delete"] is True
            publisher = client.sender(f"/queues/{queue}")
            publisher.send_all([data("x")])
            publisher.close()
            first, second = client.receiver(f"/queues/{queue}"), client.receiver(f"/queues/{queue}")
            first.close()
            assert gateway.endpoints() >= {queue}
            second.close()
            is_gone(gateway, client, queue)
            declare(client, queue, **fields)


def test_an_auto_delete_queue_survives_a_restart(gateway: RunningGateway) -> None:
    """The restart detaches its consumer, and its messages stay; an exclusive queue is deleted with its connection."""
    with Client(gateway.address) as client:
        declare(client, "shared", auto_delete=True)
        declare(client, "own", exclusive=True)
        client.receiver("/queues/shared")
        client.sender("/queues/shared").send_all([data("kept")])
        gateway.restart()
    assert gateway.endpoints() == {"shared"}
    with Client(gateway.address) as again:
        assert again.receiver("/queues/shared", credit=1).take(1)[0].text == "kept"
    with Client(gateway.address) as other:
        is_gone(gateway, other, "shared")


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_what_goes_is_no_quorum_queue_and_no_stream(client: Client, kind: str) -> None:
    """As in RabbitMQ, only classic queues can be exclusive or auto-delete."""
    for field in BOTH:
        body = declaration(x_queue_type=kind) | {field: True}
        status, text = Pair(client).ask("PUT", "/queues/q", body)
        assert (status, "classic" in text) == (400, True)


def test_a_consumer_of_higher_priority_is_given_messages_first(client: Client) -> None:
    """`rabbitmq:priority` of a consumer's link: while it has credit, consumers of lower priority get nothing."""
    low = client.receiver("/queues/q", credit=10)
    high = client.receiver("/queues/q", credit=2, set_up=with_properties({"rabbitmq:priority": 5}))
    client.sender("/queues/q").send_all([data(str(number)) for number in range(4)])
    assert texts(high.take(2)) == ["0", "1"]
    assert texts(low.take(2)) == ["2", "3"]
    refused = refusal(client.receiver, "/queues/q", set_up=with_properties({"rabbitmq:priority": "high"}))
    assert (refused.name, "a whole number, not 'high'" in refused.text) == ("amqp:invalid-field", True)


def test_a_consumer_or_its_queue_says_how_long_deliveries_are_locked(
    client: Client, gateway: RunningGateway
) -> None:
    """
    `rabbitmq:consumer-timeout` of a consumer's link overrides the queue's `x-consumer-timeout`, whether longer or
    shorter.
    """
    status, _ = Pair(client).ask("PUT", "/queues/q", declaration(x_consumer_timeout=50))
    assert status == 201
    client.sender("/queues/q").send_all([data("0")])
    patient = {"rabbitmq:consumer-timeout": 2**32 - 1}
    for properties, is_released in ((patient, False), ({"rabbitmq:consumer-timeout": 20}, True), ({}, True)):
        consumer = client.receiver("/queues/q", credit=1, set_up=with_properties(properties))
        taken = consumer.take(1)
        if is_released:
            (delivery,) = (message.delivery for message in taken)
            client.wait(partial(_is_released, delivery), "it is released")
        else:
            end_ms = gateway.ask(lambda vpn: vpn.broker.endpoints["q"].next_lock_end_ms)
            assert end_ms is not None and end_ms > time.time() * 1_000 + 2**31
        consumer.close()
    for bad in (0, -1, "long", True):
        refused = refusal(
            client.receiver, "/queues/q", set_up=with_properties({"rabbitmq:consumer-timeout": bad})
        )
        assert (refused.name, "at least 1" in refused.text) == ("amqp:invalid-field", True)


def _is_released(delivery: Delivery) -> bool:
    return bool(delivery.remote_state == Delivery.RELEASED)
