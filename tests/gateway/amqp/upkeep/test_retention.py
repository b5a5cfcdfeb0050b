"""Retention by topic: what leaves the log and what stays, what a start is told; queues, replays, readers beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import Limits, ReplayLog, Vpn
from gateway.config.vpn import Retention
from gateway.vpn.runtime import Tuning
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Clock, Start
from tests.support.client import MESSAGE_UNAVAILABLE, Client, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway, trim_before

# --- Retention by topic ---------------------------------------------------------------------------------------------

HOUR_MS = 3_600_000
KILOBYTE = b"x" * 1_000

DEBUG = Retention(topics=("debug/>",), quota_mb=1)


def retaining(*rules: Retention, **more: Any) -> Vpn:
    """A Message VPN whose log has these rules."""
    return Vpn(replay_log=ReplayLog(retention=rules, **more))


def kept(gateway: RunningGateway, place: int = 0) -> tuple[int, int, bool]:
    """Messages and bytes that a rule knows of, and whether it has counted them."""

    def ask(g: Any) -> tuple[int, int, bool]:
        retention = g.vpns["default"].broker.retention
        found = retention.rules[place]
        return found.messages, found.size_bytes, retention.is_counted

    return gateway.call(ask)


def size_bytes(gateway: RunningGateway) -> int:
    return gateway.call(lambda g: g.vpns["default"].broker.log.size_bytes)


def read(client: Client, pattern: str, start: str = "beginning", more: str = "") -> list[Any]:
    """All that the log has of some topics."""
    return client.receiver(f"log://{pattern}?replay-start={start}&until=now{more}").take_to_end()


def fill(client: Client, rounds: int = 40) -> None:
    """Messages of two topics, one of which is over its megabyte."""
    debug, orders = client.sender("topic://debug/a"), client.sender("topic://orders/a")
    for i in range(rounds):
        debug.send_all(data(KILOBYTE) for _ in range(50))
        orders.send_all([data(f"order {i}")])


def trimmed(gateway: RunningGateway, client: Client) -> None:
    """Wait until the rule's topics are within their quota."""
    client.wait(lambda: kept(gateway)[2] and kept(gateway)[1] <= 1 << 20, "the rule is kept to")


def test_a_rule_s_topics_are_trimmed_and_others_stay(start: Start) -> None:
    """The oldest of its topics go, between others that stay; what is counted is what is there, after a restart, too."""
    gateway = start(vpn=retaining(DEBUG))
    with Client(gateway.url) as client:
        fill(client)
        trimmed(gateway, client)
        assert texts(read(client, "orders/>")) == [f"order {i}" for i in range(40)]
        left = [message.id for message in read(client, "debug/>")]
        assert 700 < len(left) < 1_000
        before, whole = kept(gateway), size_bytes(gateway)
        assert before[0] == len(left)
    gateway.restart()
    with Client(gateway.url) as client:
        client.wait(lambda: kept(gateway)[2], "it is counted again")
        assert (kept(gateway), size_bytes(gateway)) == (before, whole)
        assert [message.id for message in read(client, "debug/>")] == left
    gateway.stop()
    assert check(gateway.settings.data / "default.db") == []


def first_moment(client: Client) -> str:
    """When the log's first message arrived, as a date."""
    (first,) = client.receiver("log://>?replay-start=beginning&until=%231").take_to_end()
    return f"{datetime.fromtimestamp(first.annotations['x-opt-enqueued-time'] / 1_000, UTC).isoformat()}".replace(
        "+", "%2B"
    )


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("offset", ("amqp:precondition-failed", "start-message-unavailable", 156)),
        ("date", ("amqp:precondition-failed", "start-time-not-available", 143)),
        ("point", ("amqp:precondition-failed", "start-message-unavailable", 156)),
    ],
)
def test_a_start_where_messages_were_taken_out_is_refused(
    start: Start, kind: str, error: tuple[str, str, int]
) -> None:
    """For its topics and for all topics, after a restart and without the rule, too; for other topics it is granted."""
    gateway = start(vpn=retaining(DEBUG))

    def make_point(g: Any) -> None:
        vpn = g.vpns["default"]
        _, effects = vpn.broker.points.create("early", 1, vpn.broker.log.last_time_ms, 1)
        vpn.committer.commit(effects)

    with Client(gateway.url) as client:
        client.sender("topic://orders/a").send_all([data("first")])
        gateway.call(make_point)
        text = {"offset": "%232", "date": first_moment(client), "point": "point:early"}[kind]
        fill(client)
        trimmed(gateway, client)
    for rules in ((DEBUG,), ()):
        gateway.settings = replace(gateway.settings, vpns={"default": retaining(*rules)})
        gateway.restart()
        with Client(gateway.url) as client:
            for pattern in ("debug/>", ">", "debug/a"):
                with pytest.raises(Refused) as refused:
                    client.receiver(f"log://{pattern}?replay-start={text}")
                assert refused.value.replay_refusal == error
                assert len(read(client, pattern, text, "&missing=clamp")) > 700
            assert len(read(client, "orders/>", text)) >= 40


def test_the_first_rule_that_matches_holds(start: Start) -> None:
    """What an earlier rule is about is not trimmed by a later one, and a start there is granted."""
    every = Retention(topics=(">",), quota_mb=1)
    gateway = start(vpn=retaining(Retention(topics=("orders/>",)), every))
    with Client(gateway.url) as client:
        client.sender("topic://orders/a").send_all([data("first")])
        text = first_moment(client)
        fill(client)
        client.wait(lambda: kept(gateway, 1)[2] and kept(gateway, 1)[1] <= 1 << 20, "the rule is kept to")
        assert len(read(client, "orders/>", text)) == 41
        assert kept(gateway, 0)[0] == 41


def test_what_is_too_old_leaves_the_log(start: Start, clock: Clock, given: dict[str, Any]) -> None:
    """By its own topics' age, whatever the size; the rest of the log stays."""
    given["tuning"] = Tuning(ageing_seconds=0.05)
    gateway = start(vpn=retaining(Retention(topics=("debug/>",), max_age_hours=1)))
    with Client(gateway.url) as client:
        fill(client, 3)
        clock.ms += HOUR_MS - 1_000
        fill(client, 1)
        clock.ms += 2_000
        client.wait(lambda: kept(gateway)[0] == 50, "those that are older are gone")
        assert len(read(client, "debug/>")) == 50
        assert len(read(client, "orders/>")) == 4


def test_what_lies_on_a_queue_is_delivered(start: Start) -> None:
    """A message taken out of the log is held by the queues that need it, once each, over a restart, too."""
    gateway = start(vpn=retaining(DEBUG))
    with Client(gateway.url) as client:
        for name in ("all", "again"):
            client.receiver(name).detach()
            gateway.subscribe(name, ["debug/>", "orders/>"])
        fill(client)
        trimmed(gateway, client)
        assert len(client.receiver("all", credit=2_100).take_and_accept(2_040)) == 2_040
    gateway.restart()
    with Client(gateway.url) as client:
        taken = client.receiver("again", credit=2_100).take_and_accept(2_040)
        assert [message.id for message in taken] == list(range(1, 2_041))
        client.wait(lambda: gateway.depth("again") == 0, "all is settled")
    gateway.stop()
    assert check(gateway.settings.data / "default.db") == []


def test_a_reader_that_was_to_read_it_is_told(start: Start) -> None:
    """140 for one of the rule's topics; one of other topics goes on."""
    gateway = start(vpn=retaining(DEBUG), limits=Limits(tail_bytes=10_000, read_page_rows=10))
    with Client(gateway.url) as client:
        fill(client, 10)
        slow = client.receiver("log://>?replay-start=beginning", credit=5)
        slow.take_and_accept(5)
        other = client.receiver("log://orders/>?replay-start=beginning", credit=5)
        other.take_and_accept(5)
        fill(client)
        told = slow.detached_by_peer()
        assert told.replay_refusal == MESSAGE_UNAVAILABLE
        other.flow(45)
        assert len(other.take(45)) == 45


def test_an_endpoint_replay_that_was_to_put_it_fails(start: Start) -> None:
    """With 140, as when the log is trimmed under it; the queue is live again."""
    limits = Limits(tail_bytes=10_000, max_unsettled_per_flow=20, read_page_rows=10)
    gateway = start(vpn=retaining(DEBUG), limits=limits)
    with Client(gateway.url) as client:
        client.receiver("q").detach()
        gateway.subscribe("q", ["debug/>"])
        fill(client, 10)
        replaying = client.receiver("q?replay-start=beginning", credit=500)
        replaying.take(20)
        fill(client)
        told = replaying.detached_by_peer()
        assert told.replay_refusal == MESSAGE_UNAVAILABLE
        assert gateway.replay_state("q") == "failed"


def test_what_a_replay_has_put_is_delivered_though_it_leaves_the_log(start: Start) -> None:
    """It was put and not acknowledged: it lies there, over a restart, too, and leaves nothing behind."""
    gateway = start(vpn=retaining(DEBUG))
    with Client(gateway.url) as client:
        client.receiver("q").detach()
        gateway.subscribe("q", ["debug/>"])
        sender = client.sender("topic://debug/a")
        sender.send_all(data(i) for i in range(10))
        replaying = client.receiver("q?replay-start=beginning", credit=10)
        assert len(replaying.take(10)) == 10
        gateway.subscribe("q", ["other"])
        fill(client)
        trimmed(gateway, client)
        assert read(client, "debug/>")[0].id > 10
    gateway.restart()
    with Client(gateway.url) as client:
        taken = client.receiver("q", credit=10).take_and_accept(10)
        assert [message.id for message in taken] == list(range(1, 11))
        client.wait(lambda: gateway.depth("q") == 0, "all is settled")
    gateway.stop()
    assert check(gateway.settings.data / "default.db") == []


def test_nothing_leaves_that_is_not_archived(start: Start) -> None:
    """Where the log keeps what is not archived, a rule's quota waits for the archiver."""
    gateway = start(vpn=retaining(DEBUG, keep_until_archived=True))
    with Client(gateway.url) as client:
        fill(client)
        assert len(read(client, "debug/>")) == 2_000
        gateway.call(lambda g: setattr(g.vpns["default"].broker.log, "archived_id", 1_000))
        client.wait(lambda: kept(gateway)[0] == 2_000 - 981, "what is archived leaves")


def test_rules_change_while_it_runs(start: Start) -> None:
    """Another rule holds at once: what the log has of its topics is counted, and what is too much goes."""
    gateway = start(vpn=retaining())
    with Client(gateway.url) as client:
        fill(client)
        assert len(read(client, "debug/>")) == 2_000

        def change(*rules: Retention) -> None:
            gateway.call(lambda g: g.vpns["default"].reconfigure(retaining(*rules)))

        change(DEBUG)
        trimmed(gateway, client)
        left = len(read(client, "debug/>"))
        assert 700 < left < 1_000
        change()
        client.sender("topic://debug/a").send_all(data(KILOBYTE) for _ in range(500))
        assert len(read(client, "debug/>")) == left + 500


# --- Trimming -------------------------------------------------------------------------------------------------------


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


# --- Publishers at the log's quota wait while trimming makes room, in order -----------------------------------------


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
