"""Guaranteed and Direct: what becomes of messages that come unsettled or settled, by who is there to take them."""

from __future__ import annotations

import pytest

from gateway.config import Queue, ReplayLog, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, numbered, texts
from tests.support.messages import data, message_to
from tests.support.running import RunningGateway, no_log


def dropped(gateway: RunningGateway) -> int:
    """Direct messages that came to nothing so far."""
    return gateway.call(lambda running: running.vpns["default"].counters.direct_dropped_messages)


def logged(client: Client) -> list[str]:
    """All that the replay log has."""
    return texts(client.receiver("log://>?replay-start=beginning&until=now").take_to_end())


# --- Direct -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promotes", [False, True])
def test_direct_and_replay(start: Start, connect: Connect, promotes: bool) -> None:
    """
    A replay brings Direct messages back only where the log promotes them, and then in publish order. Else those that
    nobody takes are dropped and counted, and what follows on the link is not affected.
    """
    vpn = Vpn(replay_log=ReplayLog(promote_direct=promotes), queues={"q": Queue(subscriptions=("news",))})
    gateway = start(vpn=vpn)
    client = connect(gateway)
    other = client.sender("topic://other")
    other.send(data("direct to nobody"), settled=True)
    other.send_all([data("guaranteed")])
    assert logged(client) == ["direct to nobody"] * promotes + ["guaranteed"]
    assert dropped(gateway) == (0 if promotes else 1)
    receiver = client.receiver("topic://other", credit=5)
    other.send(data("in time"), settled=True)
    assert texts(receiver.take(1)) == ["in time"]
    assert dropped(gateway) == (0 if promotes else 1)
    sender, subscriber = client.sender("topic://news"), client.receiver("topic://news")
    for i in range(20):
        if i % 2:
            sender.send_all([data(i)])
        else:
            sender.send(data(i), settled=True)
    live = client.receiver("q", credit=50)
    assert texts(live.take_and_accept(20)) == numbered(20)
    live.close()
    expected = [str(i) for i in range(20) if promotes or i % 2]
    replaying = client.receiver("q?replay-start=beginning", credit=50)
    assert texts(replaying.take_and_accept(len(expected))) == expected
    assert logged(client)[-len(expected) :] == expected
    assert texts(subscriber.drain()) == numbered(20), "held while there was no credit"


def test_direct_to_a_durable_topic_endpoint(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """Promoted where it lands: kept while the subscriber is away, over a restart, redelivered until it is accepted."""
    client.receiver("topic://news/*", name="durable", durable=True).detach()
    sender = client.sender("topic://news/a")
    for i in range(5):
        sender.send(data(i), settled=True)
    client.wait(lambda: gateway.depth("durable") == 5, "they lie on the endpoint")
    client.close()
    gateway.restart()
    client = connect(gateway)
    receiver = client.receiver("topic://news/*", name="durable", durable=True, credit=5)
    receiver.take(5)
    receiver.detach()
    receiver = client.receiver("topic://news/*", name="durable", durable=True, credit=5)
    again = receiver.take_and_accept(5)
    assert texts(again) == numbered(5)
    assert {message.delivery_count for message in again} == {1}


def test_direct_and_guaranteed_stay_in_order(start: Start, connect: Connect) -> None:
    """
    On one link settled and unsettled messages in turns lie on a queue as they were sent. What is beyond its quota is
    gone and counted where there is nobody to be told, and the link goes on.
    """
    gateway = start(vpn=Vpn(queues={"q": Queue(quota_messages=300)}))
    client = connect(gateway)
    sender = client.sender("q")
    deliveries = [sender.send(data(i), settled=i % 3 == 0) for i in range(300)]
    for i, delivery in enumerate(deliveries):
        if i % 3:
            assert sender.outcome(delivery) == "ACCEPTED"
    for i in range(2):
        sender.send(data(i), settled=True)
    refused = sender.rejection(sender.send(data(5)))
    assert refused.info["rewind:reason"] == "endpoint-quota"
    assert dropped(gateway) == 2
    assert texts(client.receiver("q", credit=300).take_and_accept(300)) == numbered(300)
    client.wait(lambda: gateway.depth("q") == 0, "there is room again")
    sender.send_all([data(6)])


# --- Guaranteed, and nobody there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["topic://news", None], ids=["by its link", "by the relay"])
def test_unsettled_without_endpoint_and_log_is_released(
    start: Start, connect: Connect, address: str | None
) -> None:
    """With the log off and no endpoint a message is released, not accepted and not rejected; later ones can arrive."""
    client = connect(start(vpn=no_log()))
    sender = client.sender(address)

    def message(text: str) -> bytes:
        return data(text) if address else message_to("topic://news", text)

    assert sender.outcome(sender.send(message("to nobody"))) == "RELEASED"
    receiver = client.receiver("topic://news", credit=1)
    sender.send_all([message("to somebody")])
    assert texts(receiver.take(1)) == ["to somebody"]


def test_the_relay_to_an_unknown_queue_without_auto_create(start: Start, connect: Connect) -> None:
    """
    Rejected as not-found, message by message: others of the link arrive, no queue is made, the log has none. For one
    that came settled, the link is detached.
    """
    gateway = start(vpn=Vpn(create_queues=False, queues={"known": Queue()}))
    client = connect(gateway)
    sender = client.sender(None)
    deliveries = [sender.send(message_to("known" if i % 2 else f"unknown{i}", i)) for i in range(10)]
    for i, delivery in enumerate(deliveries):
        if i % 2:
            assert sender.outcome(delivery) == "ACCEPTED"
        else:
            refused = sender.rejection(delivery)
            assert refused.name == "amqp:not-found"
            assert f"'unknown{i}'" in refused.text
    sender.send(message_to("unknown", "settled"), settled=True)
    assert sender.detached_by_peer().name == "amqp:not-found"
    client.sender(None).send_all([message_to("known", 11)])
    assert gateway.endpoints() == {"known"}
    assert logged(client) == ["1", "3", "5", "7", "9", "11"]
