"""Publishers at the log's quota wait while trimming makes room, in order; where it makes none they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config import ReplayLog, Vpn
from tests.gateway.amqp.conftest import Start
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

KILOBYTE = b"x" * 1_000


def pending_bytes(gateway: RunningGateway) -> int:
    """Content that was taken and is not committed."""
    return gateway.call(lambda g: g.vpns["default"].committer.pending_bytes)


def hold_trimming(gateway: RunningGateway) -> None:
    """From now on nothing is trimmed, as while a transaction is about to settle the oldest message."""
    # What is on its way is waited for: it would make room.
    gateway.run_coroutine(lambda g: g.vpns["default"].trimmer.take_turn())


@pytest.mark.parametrize(("quota_mb", "count"), [(1, 6_000), (5, 12_000)])
def test_a_burst_of_many_quotas_is_taken_whole_and_in_order(start: Start, quota_mb: int, count: int) -> None:
    """Several times the quota at full speed, large messages among small: none refused, each queue's in order."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=quota_mb)))
    with Client(gateway.url) as client:
        consumer = client.receiver("orders")
        sender = client.sender("orders")
        sent = [data(b"%06d" % i + KILOBYTE * (1 if i % 97 else 40)) for i in range(count)]
        deliveries = [sender.send(message) for message in sent]
        outcomes = [sender.outcome(delivery) for delivery in deliveries]
        assert outcomes == ["ACCEPTED"] * count
        taken = []
        consumer.collect(taken, count)
        assert [message.text[:6] for message in taken] == [f"{i:06d}" for i in range(count)]
        assert pending_bytes(gateway) == 0
        assert gateway.call(lambda g: g.vpns["default"].broker.trimming.usage) <= 1


def test_a_link_s_messages_keep_their_order_behind_one_that_waits(start: Start) -> None:
    """A large message waits; small ones behind it, on its link and on others, do not overtake it."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1)))
    with Client(gateway.url) as client:
        sender, other = client.sender("topic://a"), client.sender("topic://b")
        sender.send_all(data(KILOBYTE) for _ in range(850))
        large = sender.send(data(KILOBYTE * 400))
        behind = [sender.send(data("behind")), other.send(data("other"))]
        assert sender.outcome(large) == "ACCEPTED"
        assert [sender.outcome(behind[0]), other.outcome(behind[1])] == ["ACCEPTED", "ACCEPTED"]
        kept = client.receiver("log://>?replay-start=beginning&until=now").take_to_end()
        assert [message.text for message in kept[-2:]] == ["behind", "other"]
        assert len(kept[-3].text) == 400_000


def test_what_the_log_does_not_take_waits_for_nobody(start: Start) -> None:
    """Where nothing may be trimmed, a publisher of a topic that is not logged is not held up by one that is refused."""
    log = ReplayLog(quota_mb=1, topics=("a",), keep_until_archived=True)
    gateway = start(vpn=Vpn(replay_log=log))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        sender.send_all(data(KILOBYTE) for _ in range(700))
        assert sender.outcome(sender.send(data(KILOBYTE * 500))) == "REJECTED"
        client.sender("orders").send_all([data("not logged")])


def test_without_waiting_a_burst_is_refused(start: Start) -> None:
    """``wait_for_room_seconds = 0``: what finds no room is refused at once, as the log says why."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1, wait_for_room_seconds=0)))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        sender.send_all(data(KILOBYTE) for _ in range(700))
        told = sender.rejection(sender.send(data(KILOBYTE * 500)))
        assert told.info["rewind:reason"] == "replay-log-quota"


def test_a_message_larger_than_the_quota_is_refused_at_once(start: Start) -> None:
    """No trimming makes room for it, and it holds nobody up."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1)))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        deliveries = [sender.send(data(KILOBYTE * size)) for size in (1, 1_200, 1)]
        assert [sender.outcome(one) for one in deliveries] == ["ACCEPTED", "REJECTED", "ACCEPTED"]


def test_who_waits_goes_on_when_the_quota_is_raised(start: Start) -> None:
    """An open transaction keeps trimming from making room: the publisher waits, is told nothing, and a higher quota
    lets it go on."""
    log = ReplayLog(quota_mb=1, wait_for_room_seconds=600)
    gateway = start(vpn=Vpn(replay_log=log))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        sender.send_all(data(KILOBYTE) for _ in range(700))
        hold_trimming(gateway)
        delivery = sender.send(data(KILOBYTE * 500))
        client.wait(lambda: pending_bytes(gateway) > 500_000, "it waits")
        assert delivery.remote_state == 0

        def raise_quota(g: object) -> None:
            vpn = g.vpns["default"]  # type: ignore[attr-defined]
            vpn.reconfigure(replace(vpn.settings, replay_log=replace(log, quota_mb=2)))

        gateway.call(raise_quota)
        assert sender.outcome(delivery) == "ACCEPTED"
        assert pending_bytes(gateway) == 0


def test_who_waits_in_vain_is_refused(start: Start) -> None:
    """Where no room comes for as long as a publisher waits, each that waits is refused with the reason."""
    gateway = start(vpn=Vpn(replay_log=ReplayLog(quota_mb=1, wait_for_room_seconds=1)))
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        sender.send_all(data(KILOBYTE) for _ in range(700))
        hold_trimming(gateway)
        deliveries = [sender.send(data(KILOBYTE * 500)) for _ in range(3)]
        told = [sender.rejection(delivery) for delivery in deliveries]
        assert {one.info["rewind:reason"] for one in told} == {"replay-log-quota"}
        assert pending_bytes(gateway) == 0
