"""A queue's own limits on the size of messages, the number of consumers, and unsettled deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Limits, Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, browsing, numbered, refusal, texts
from tests.support.messages import content_of, data
from tests.support.running import RunningGateway

LARGE = data(b"x" * 100)
"""Too large for a queue with a limit of 50 bytes."""

QUEUES = {
    "small": Queue(max_message_bytes=50, subscriptions=("t/>",)),
    "any": Queue(subscriptions=("t/>",)),
}


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with a queue for small messages, and one for messages of any size."""
    return start(vpn=Vpn(queues=QUEUES))


# --- max_message_bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["small", "topic://t/a"])
def test_a_message_larger_than_a_queue_takes_is_rejected_alone(
    gateway: RunningGateway, client: Client, address: str
) -> None:
    """Only the large ones of a burst are rejected; they are in no queue and not in the log, and the link goes on."""
    sender = client.sender(address)
    burst = [data(1), data(2), LARGE, LARGE, data(3), LARGE, data(4)]
    deliveries = [sender.send(raw) for raw in burst]
    for raw, delivery in zip(burst, deliveries, strict=True):
        if raw is not LARGE:
            assert sender.outcome(delivery) == "ACCEPTED"
            continue
        refused = sender.rejection(delivery)
        assert refused.name == "amqp:resource-limit-exceeded"
        assert "at most 50 bytes" in refused.text
        assert refused.info["rewind:reason"] == "endpoint-message-size"
        assert refused.info["rewind:endpoint"] == "small"
    fits = data(b"5" * (50 - len(data(b""))))
    assert len(fits) == 50
    sender.send(LARGE, settled=True)  # Nobody waits for an outcome.
    sender.send_all([fits])
    assert texts(client.receiver("small").drain()) == ["1", "2", "3", "4", content_of(fits)]
    assert gateway.depth("any") == (5 if address.startswith("topic:") else 0)
    assert texts(client.read_log()) == ["1", "2", "3", "4", content_of(fits)]


def test_a_sender_is_told_the_smaller_limit(start: Start, connect: Connect) -> None:
    """The attach's max-message-size is the queue's limit or the gateway's, whichever is smaller."""
    queues = {"small": Queue(max_message_bytes=50), "large": Queue(max_message_bytes=10_000), "any": Queue()}
    client = connect(start(vpn=Vpn(queues=queues), limits=Limits(max_message_bytes=5_000)))
    sizes = {
        address: client.sender(address).link.remote_max_message_size
        for address in ("small", "large", "any", "topic://t", None)
    }
    assert sizes == {"small": 50, "large": 5_000, "any": 5_000, "topic://t": 5_000, None: 5_000}


# --- max_flows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", ["none", "wait"])
def test_a_consumer_too_many_is_refused(start: Start, connect: Connect, exclusive: Any) -> None:
    """
    Past `max_flows` an attach is refused with the limit's name until a consumer leaves; a waiting consumer counts, too.
    Browsers and log readers do not count as consumers, and are not refused.
    """
    gateway = start(vpn=Vpn(queues={"q": Queue(exclusive=exclusive, max_flows=2)}))
    client = connect(gateway)
    client.receiver("q", set_up=browsing)
    first, second = client.receiver("q"), client.receiver("q")
    refused = refusal(client.receiver, "q")
    assert "'q' has 2 consumers, as many as it may have (max_flows)" in refused.text
    assert refused.name == "amqp:resource-limit-exceeded"
    assert refused.info["rewind:reason"] == "endpoint-flows"
    client.receiver("q", set_up=browsing)
    client.receiver("log://#queue/q")
    client.sender("q").send_all([data(1)])
    second.close()
    client.receiver("q")
    assert gateway.flows("q") == 2
    first.close()


def test_who_steals_takes_the_place_of_another(start: Start, connect: Connect) -> None:
    """On an exclusive=steal queue with room for one consumer, a newcomer displaces it, as it does without a limit."""
    gateway = start(vpn=Vpn(queues={"q": Queue(exclusive="steal", max_flows=1)}))
    client = connect(gateway)
    holder = client.receiver("q")
    client.receiver("q")
    assert holder.detached_by_peer().name == "amqp:link:stolen"
    assert gateway.flows("q") == 1


# --- max_unsettled ----------------------------------------------------------------------------------------------------

BOUNDED = Vpn(queues={"few": Queue(max_unsettled=3), "more": Queue(max_unsettled=8), "default": Queue()})
"""Queues with bounds of their own, and one with the gateway's, which the tests set to 5."""


@pytest.mark.parametrize(("queue", "bound"), [("few", 3), ("more", 8), ("default", 5)])
def test_a_queues_bound_of_unsettled_deliveries_is_its_own(
    start: Start, connect: Connect, queue: str, bound: int
) -> None:
    """
    A consumer gets as many messages as its queue lets it leave unsettled, below or above the gateway's bound. Until it
    settles, a drain is answered as if the queue had no more.
    """
    client = connect(start(vpn=BOUNDED, limits=Limits(max_unsettled_per_flow=5)))
    client.sender(queue).send_all(map(data, range(20)))
    receiver = client.receiver(queue, credit=20)
    taken = receiver.take(bound)
    client.open_session()
    assert not receiver.arrived
    receiver.settle(taken[:2])
    taken = taken[2:] + receiver.take(2)
    assert texts(taken[-2:]) == [str(bound), str(bound + 1)]
    client.open_session()
    assert not receiver.arrived
    assert receiver.drain(0) == []
    receiver.settle(taken)
    assert texts(receiver.drain(2)) == [str(bound + 2), str(bound + 3)]


def test_a_replay_puts_no_more_ahead_than_the_queues_bound(start: Start, connect: Connect) -> None:
    """With a consumer attached, the window of a replay is the queue's bound of unsettled deliveries."""
    gateway = start(vpn=BOUNDED)
    client = connect(gateway)
    client.sender("more").send_all(data(i) for i in range(100))
    receiver = client.receiver("more?replay-start=beginning")
    client.wait(lambda: gateway.depth("more") == 8, "the window is full")
    receiver.collect(taken := [], 100, credit=10)
    assert texts(taken) == numbered(100)
