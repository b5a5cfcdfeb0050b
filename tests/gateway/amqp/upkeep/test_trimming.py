"""Trimming: by itself near the quota, by order, and what it does to replays under way and to messages on queues."""

from __future__ import annotations

import pytest

from gateway.config import Limits, ReplayLog, Vpn
from tests.gateway.amqp.conftest import Start
from tests.support.client import MESSAGE_UNAVAILABLE, Client, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway, trim_before

KILOBYTE = b"x" * 1_000


def first_id(gateway: RunningGateway) -> int:
    return gateway.call(lambda g: g.vpns["default"].broker.log.first_id)


def usage(gateway: RunningGateway) -> float:
    return gateway.call(lambda g: g.vpns["default"].broker.trimming.usage)


def test_the_log_trims_its_oldest_messages_near_its_quota(start: Start) -> None:
    """Past 90 % of the quota the oldest go, publishers notice nothing, and what is left is the newest, whole."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1)))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        for _ in range(50):
            sender.send_all(data(KILOBYTE) for _ in range(50))
        client.wait(lambda: usage(gateway) <= 0.9, "the oldest are trimmed")
        assert usage(gateway) > 0.7
        kept = client.receiver("log://a?replay-start=beginning&until=now").take_to_end()
        assert len(kept) > 500
        assert [m.id for m in kept] == list(range(2_501 - len(kept), 2_501))


def test_a_log_of_large_messages_is_not_emptied_for_one_too_many(start: Start) -> None:
    """Where a few dozen fill it, some go and most stay."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1)))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        for _ in range(50):
            sender.send_all([data(KILOBYTE * 32)])
        client.wait(lambda: usage(gateway) <= 0.9, "the oldest are trimmed")
        assert usage(gateway) > 0.7


def test_a_trimmed_message_on_a_queue_is_delivered(gateway: RunningGateway, client: Client) -> None:
    """Trimming takes a message from the log, not from a queue; once consumed it is nowhere."""
    client.sender("orders").send_all(data(i) for i in range(10))
    client.sender("topic://a").send_all(data(i) for i in range(10))
    trim_before(gateway, 16)
    assert texts(client.receiver("orders").take_and_accept(0)) == []
    consumer = client.receiver("orders", credit=10)
    assert texts(consumer.take_and_accept(10)) == [str(i) for i in range(10)]
    logged = client.receiver("log://>?replay-start=beginning&until=now").take_to_end()
    assert texts(logged) == ["5", "6", "7", "8", "9"]


def test_a_full_log_rejects_and_stores_nothing_of_it(start: Start) -> None:
    """What would take the log over its quota is rejected with the reason, and is in no queue."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1)))
    with Client(gateway.url) as client:
        sender = client.sender("orders")
        told = sender.rejection(sender.send(data(b"x" * 2_000_000)))
        assert told.name == "amqp:resource-limit-exceeded"
        assert told.info["rewind:reason"] == "replay-log-quota"
        assert gateway.depth("orders") == 0


def test_trimming_survives_a_restart(gateway: RunningGateway, client: Client) -> None:
    """After a restart the log begins where it was trimmed to, its size is right, and ids go on."""
    client.sender("topic://a").send_all(data(i) for i in range(10))
    size = gateway.call(lambda g: g.vpns["default"].broker.log.size_bytes)
    trim_before(gateway, 6)
    gateway.restart()
    assert first_id(gateway) == 6
    assert gateway.call(lambda g: g.vpns["default"].broker.log.size_bytes) == size // 2
    with Client(gateway.url) as again:
        again.sender("topic://a").send_all([data("next")])
        assert again.receiver("log://a?replay-start=last", credit=1).take(1)[0].id == 11


@pytest.mark.parametrize(
    ("start_text", "expected"),
    [
        ("%233", ("amqp:precondition-failed", "start-message-unavailable", 156)),
        ("1970-01-01T00:00:00Z", ("amqp:precondition-failed", "start-time-not-available", 143)),
    ],
)
def test_a_start_that_was_trimmed_is_refused(
    gateway: RunningGateway, client: Client, start_text: str, expected: tuple[str, str, int]
) -> None:
    """An offset, or a date, before what is left of the log is refused; with clamp the replay has what is there."""
    client.sender("topic://a").send_all(data(i) for i in range(10))
    trim_before(gateway, 6)
    with pytest.raises(Refused) as refused:
        client.receiver(f"log://a?replay-start={start_text}")
    assert refused.value.replay_refusal == expected
    clamped = client.receiver(f"log://a?replay-start={start_text}&missing=clamp&until=now").take_to_end()
    assert [m.id for m in clamped] == [6, 7, 8, 9, 10]


def test_a_log_reader_whose_next_message_was_trimmed_is_told(start: Start) -> None:
    """amqp:resource-deleted, message-unavailable, 140: it is never short in silence."""
    gateway = start(limits=Limits(tail_bytes=10_000, read_page_rows=10))
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all(data(KILOBYTE) for _ in range(500))
        reader = client.receiver("log://a?replay-start=beginning", credit=5)
        reader.take_and_accept(5)
        trim_before(gateway, 300)
        reader.flow(400)
        told = reader.detached_by_peer()
        assert told.replay_refusal == MESSAGE_UNAVAILABLE
        ids = [m.id for m in reader.arrived]
        assert ids == list(range(6, 6 + len(ids)))


def test_an_endpoint_replay_whose_next_message_was_trimmed_fails(start: Start) -> None:
    """The consumer is detached with 140, what it had not acknowledged is gone, and the queue is live again."""
    gateway = start(limits=Limits(tail_bytes=10_000, max_unsettled_per_flow=20, read_page_rows=10))
    with Client(gateway.url) as client:
        sender = client.sender("orders")
        sender.send_all(data(KILOBYTE) for _ in range(500))
        replaying = client.receiver("orders?replay-start=beginning", credit=500)
        taken = replaying.take(20)
        trim_before(gateway, 400)
        replaying.settle(taken)
        told = replaying.detached_by_peer()
        assert told.replay_refusal == MESSAGE_UNAVAILABLE
        assert gateway.replay_state("orders") == "failed"
        sender.send_all([data("live")])
        assert texts(client.receiver("orders").drain()) == ["live"]


def test_publishing_goes_on_while_the_log_is_trimmed(gateway: RunningGateway, client: Client) -> None:
    """Messages published meanwhile are accepted and logged, and nothing newer than was asked for is trimmed."""
    sender = client.sender("topic://a")
    sender.send_all(data(i) for i in range(3_000))
    trim_before(gateway, 2_000)
    sender.send_all(data(i) for i in range(3_000, 4_000))
    assert first_id(gateway) == 2_000
    assert len(client.receiver("log://a?replay-start=beginning&until=now").take_to_end()) == 2_001
