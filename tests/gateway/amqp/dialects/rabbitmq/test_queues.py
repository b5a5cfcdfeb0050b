"""Queues that RabbitMQ's clients declare for a while: exclusive ones and auto-delete ones."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from proton import Delivery

from gateway.config import Listener
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, refusal, texts, with_properties
from tests.support.management import Pair, declaration
from tests.support.messages import data
from tests.support.running import RunningGateway

BOTH = {"exclusive": True, "auto_delete": True}


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    return start(listeners=(Listener(port=0, rabbitmq_mode=True),))


def is_gone(gateway: RunningGateway, client: Client, queue: str) -> None:
    """Wait until there is no such queue."""
    client.wait(lambda: queue not in gateway.endpoints(), f"{queue} is gone")


def declare(client: Client, queue: str, **fields: bool) -> dict[str, Any]:
    """Declare a queue that is made by that; how it is described."""
    status, found = Pair(client).ask("PUT", f"/queues/{queue}", declaration() | fields)
    assert status == 201, found
    return dict(found)


def test_an_exclusive_queue_is_for_its_connection(gateway: RunningGateway, connect: Connect) -> None:
    """
    It is described as what it is, anybody may send to it, and its connection takes it along. Another connection neither
    consumes from it, binds, purges, deletes nor declares it until it is gone.
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
    """Whoever declares a queue that is there as exclusive, or as going with its consumers, is told that it is not."""
    declare(client, "ours")
    for field, named in (("exclusive", "does not match"), ("auto_delete", "auto_delete = False")):
        status, text = Pair(client).ask("PUT", "/queues/ours", declaration() | {field: True})
        assert (status, named in text) == (409, True)


def test_an_auto_delete_queue_goes_with_its_last_consumer(gateway: RunningGateway) -> None:
    """Not before it had one, not with its publishers, not while another is there; exclusive or not."""
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
    """The gateway sends its consumer away and keeps what lies on it; an exclusive one is gone with its connection."""
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
    """As in RabbitMQ, only classic queues are exclusive or deleted by themselves."""
    for field in BOTH:
        body = declaration(x_queue_type=kind) | {field: True}
        status, text = Pair(client).ask("PUT", "/queues/q", body)
        assert (status, "classic" in text) == (400, True)


def test_a_consumer_of_higher_priority_is_given_messages_first(client: Client) -> None:
    """`rabbitmq:priority` of a consumer's link: while it has credit, those of a lower one get none."""
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
    """`x-consumer-timeout` of a queue; `rabbitmq:consumer-timeout` of a consumer's link goes before it, either way."""
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
