"""Messages that expire, are rejected, or are redelivered too often; and where they go."""

from __future__ import annotations

import pytest
from proton import Delivery

from gateway.app import Gateway
from gateway.config import Queue, Vpn
from gateway.core.alarms import AlarmKind
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.gateway.amqp.upkeep.test_expiry import with_ttl
from tests.support.client import Client, numbered, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

DEAD = Vpn(queues={"orders": Queue(max_redelivery=2, dead_message_queue="dead"), "plain": Queue()})


@pytest.fixture
def gateway(clock: Clock, start: Start) -> RunningGateway:
    """A gateway with a dead message queue, whose clock is the test's."""
    return start(vpn=DEAD)


def test_an_expired_message_goes_to_the_dead_message_queue(
    gateway: RunningGateway, client: Client, clock: Clock
) -> None:
    """
    After its ttl a message is not delivered. Its copy has the reason and the same bare message, and its ttl no longer
    applies. Without a dead message queue it is discarded; the log still has it.
    """
    for queue in ("orders", "plain"):
        client.sender(queue).send_all([with_ttl(1, 1_000), data(2), with_ttl(3, 60_000)])
    clock.ms += 1_001
    for queue in ("orders", "plain"):
        assert texts(client.receiver(queue).drain()) == ["2", "3"]
        client.wait(lambda name=queue: gateway.depth(name) == 2, "what expired has left the queue")
    clock.ms += 1_000_000
    (dead,) = client.receiver("dead").drain()
    assert dead.bare == data(1)
    assert dead.annotations["x-opt-dead-reason"] == "expired"
    assert dead.annotations["x-opt-dead-endpoint"] == "orders"
    assert dead.annotations["x-opt-dead-sequence-number"] == 1
    log = client.receiver("log://#queue/plain?replay-start=beginning&until=now")
    assert texts(log.take_to_end()) == ["1", "2", "3"]


def test_messages_that_are_rejected_or_fail_too_often_are_dead(
    gateway: RunningGateway, client: Client
) -> None:
    """
    With max_redelivery 2 the third failed delivery is the last. Rejected messages go to the dead message queue in
    order, and leave the queue in the same commit.
    """
    client.sender("orders").send_all(data(i) for i in range(10))
    consumer = client.receiver("orders", credit=1)
    for failures in range(3):
        (message,) = consumer.take(1)
        assert (message.text, message.delivery_count) == ("0", failures)
        consumer.modify([message], failed=True)
        consumer.flow(1)
    consumer.flow(8)
    consumer.settle(consumer.take(9), Delivery.REJECTED)
    dead = client.receiver("dead", credit=10).take_and_accept(10)
    reasons = [(message.text, message.annotations["x-opt-dead-reason"]) for message in dead]
    assert reasons == [("0", "max-redelivery"), *((text, "rejected") for text in numbered(1, 10))]
    assert gateway.depth("orders") == 0


def test_what_the_dead_message_queue_does_not_take_is_counted(
    clock: Clock, start: Start, connect: Connect
) -> None:
    """It is gone from both queues, and reported by a counter, and by an alarm for an hour."""
    full = Vpn(queues={"orders": Queue(dead_message_queue="dead"), "dead": Queue(quota_messages=1)})
    gateway = start(vpn=full)
    client = connect(gateway)
    client.sender("orders").send_all(data(i) for i in range(3))
    consumer = client.receiver("orders", credit=3)
    consumer.settle(consumer.take(3), Delivery.REJECTED)
    client.wait(lambda: gateway.depth("orders") == 0, "they left")
    assert gateway.depth("dead") == 1

    def seen() -> tuple[int, list[str]]:
        def look(running: Gateway) -> tuple[int, list[str]]:
            vpn = running.vpns["default"]
            vpn.alarms.check()
            texts = [a.text for a in vpn.alarms.active() if a.kind is AlarmKind.DISCARDED]
            return vpn.counters.dead_discarded_messages, texts

        return gateway.call(look)

    count, (text,) = seen()
    assert (count, text[:48]) == (2, "dead messages are discarded, because 'dead' does")
    assert "quota" in text
    clock.ms += 3_599_000
    assert len(seen()[1]) == 1
    clock.ms += 1_001
    assert seen() == (2, [])
