"""Retention by topic and trimming: what leaves the log and what stays; starts, queues, replays, readers, publishers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from gateway.config import Limits, ReplayLog, Vpn
from gateway.config.vpn import Retention
from gateway.core.broker import Broker
from gateway.vpn.runtime import Tuning
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import MESSAGE_UNAVAILABLE, Client, Sender, numbered, refusal, texts
from tests.support.messages import data
from tests.support.running import RunningGateway, trim_before

T = TypeVar("T")

HOUR_MS = 3_600_000
KILOBYTE = b"x" * 1_000

DEBUG = Retention(topics=("debug/>",), quota_mb=1)
NO_MESSAGE = ("amqp:precondition-failed", "start-message-unavailable", 156)
NO_TIME = ("amqp:precondition-failed", "start-time-not-available", 143)
NARROW = Limits(tail_bytes=10_000, max_unsettled_per_flow=20, read_page_rows=10)
"""So little memory that readers read from the store."""

by_rule_or_whole = pytest.mark.parametrize("by_rule", [True, False], ids=["by a rule", "trimmed"])


def keeping(*rules: Retention, **more: Any) -> Vpn:
    """A Message VPN whose log has these rules and settings."""
    return Vpn(replay_log=ReplayLog(retention=rules, **more))


def of_broker(gateway: RunningGateway, ask: Callable[[Broker], T]) -> T:
    return gateway.ask(lambda vpn: ask(vpn.broker))


def messages_kept(gateway: RunningGateway, place: int = 0) -> int:
    """How many messages a rule counts."""
    return of_broker(gateway, lambda broker: broker.retention.rules[place].messages)


def counted(gateway: RunningGateway) -> tuple[int, int, int]:
    """Messages and bytes of the first rule, and bytes of the log."""

    def ask(broker: Broker) -> tuple[int, int, int]:
        rule = broker.retention.rules[0]
        return rule.messages, rule.size_bytes, broker.log.size_bytes

    return of_broker(gateway, ask)


def is_counted(gateway: RunningGateway) -> bool:
    return of_broker(gateway, lambda broker: broker.retention.is_counted)


def fill(client: Client, rounds: int = 40) -> None:
    """In each round, 50 kB on the topic of the rule, and a small message on another."""
    debug, orders = client.sender("topic://debug/a"), client.sender("topic://orders/a")
    for i in range(rounds):
        debug.send_all(data(KILOBYTE) for _ in range(50))
        orders.send_all([data(f"order {i}")])


def trimmed(gateway: RunningGateway, client: Client, place: int = 0) -> None:
    """Wait until a rule's topics are within their quota."""

    def is_kept_to(broker: Broker) -> bool:
        return broker.retention.is_counted and broker.retention.rules[place].size_bytes <= 1 << 20

    client.wait(lambda: of_broker(gateway, is_kept_to), "the rule is kept to")


def ids(messages: list[Any]) -> list[int]:
    return [message.id for message in messages]


def is_sound(gateway: RunningGateway) -> bool:
    """Stop the gateway; whether its file is sound."""
    gateway.stop()
    return check(gateway.settings.data / "default.db") == []


# --- Retention by topic ---------------------------------------------------------------------------------------------


def test_a_rule_s_topics_are_trimmed_and_others_stay(start: Start, connect: Connect) -> None:
    """
    The oldest messages of its topics leave the log, between others that stay; the counts agree with the log. Messages
    that queues need, or that a replay has put on one, are held and delivered once, whatever the queue subscribes to
    since. All of that over a restart as well.
    """
    gateway = start(vpn=keeping(DEBUG))
    client = connect(gateway)
    for name in ("replayed", "all", "again"):
        client.receiver(name).detach()
        gateway.subscribe(name, ["debug/>", "orders/>"])
    client.sender("topic://debug/a").send_all(map(data, range(10)))
    assert len(client.receiver("replayed?replay-start=beginning", credit=10).take(10)) == 10
    gateway.subscribe("replayed", ["other"])
    fill(client)
    trimmed(gateway, client)
    assert len(client.receiver("all", credit=2_100).take_and_accept(2_050)) == 2_050
    assert texts(client.read_log("orders/>")) == [f"order {i}" for i in range(40)]
    left = ids(client.read_log("debug/>"))
    assert 700 < len(left) < 1_000
    assert left[0] > 10
    before = counted(gateway)
    assert before[0] == len(left)
    client = connect.again(gateway, client)
    client.wait(lambda: is_counted(gateway), "it is counted again")
    assert counted(gateway) == before
    assert ids(client.read_log("debug/>")) == left
    for name, count in (("again", 2_050), ("replayed", 10)):
        taken = client.receiver(name, credit=2_100).take_and_accept(count)
        assert ids(taken) == list(range(1, count + 1))
        client.wait(lambda name=name: gateway.depth(name) == 0, "all is settled")
    assert is_sound(gateway)


def first_moment(client: Client) -> str:
    """When the log's first message arrived, as a date."""
    (first,) = client.receiver("log://>?replay-start=beginning&until=%231").take_to_end()
    return quote(datetime.fromtimestamp(first.annotations["x-opt-enqueued-time"] / 1_000, UTC).isoformat())


def test_a_start_where_messages_were_taken_out_is_refused(start: Start, connect: Connect) -> None:
    """
    For the rule's topics and for all topics, after a restart and without the rule, too; for other topics it is granted.
    """
    gateway = start(vpn=keeping(DEBUG))
    client = connect(gateway)
    client.sender("topic://orders/a").send_all([data("first")])
    fill(client, 1)
    gateway.run_coroutine(lambda g: g.vpns["default"].log.create_point("debugging", None))
    starts = {"%232": NO_MESSAGE, first_moment(client): NO_TIME, "point:debugging": NO_MESSAGE}
    fill(client)
    trimmed(gateway, client)
    for rules in ((DEBUG,), ()):
        client = connect.again(gateway, client, keeping(*rules))
        for text, error in starts.items():
            for pattern in ("debug/>", ">", "debug/a"):
                asked = refusal(client.receiver, f"log://{pattern}?replay-start={text}")
                assert asked.replay_refusal == error
                assert len(client.read_log(pattern, text, "&missing=clamp")) > 700
            assert len(client.read_log("orders/>", text)) >= 40


def test_what_is_too_old_leaves_the_log(
    clock: Clock, given: dict[str, Any], start: Start, connect: Connect
) -> None:
    """By the age in the rule of its topics, whatever their size; the rest of the log stays."""
    given["tuning"] = Tuning(ageing_seconds=0.05)
    gateway = start(vpn=keeping(Retention(topics=("debug/>",), max_age_hours=1)))
    client = connect(gateway)
    fill(client, 3)
    clock.ms += HOUR_MS - 1_000
    fill(client, 1)
    clock.ms += 2_000
    client.wait(lambda: messages_kept(gateway) == 50, "those that are older are gone")
    assert len(client.read_log("debug/>")) == 50
    assert len(client.read_log("orders/>")) == 4


@by_rule_or_whole
def test_a_reader_that_was_to_read_it_is_told(start: Start, connect: Connect, *, by_rule: bool) -> None:
    """It is detached with 140, not ended early in silence; if a rule took it out, a reader of other topics goes on."""
    gateway = start(vpn=keeping(DEBUG), limits=NARROW)
    client = connect(gateway)
    fill(client, 10)
    slow, other = (client.receiver(f"log://{topics}?until=now") for topics in (">", "orders/>"))
    for reader in (slow, other):
        reader.flow(5)
        reader.take_and_accept(5)
    if by_rule:
        fill(client)
    else:
        trim_before(gateway, 300)
        slow.flow(400)
    assert slow.detached_by_peer().replay_refusal == MESSAGE_UNAVAILABLE
    assert ids(list(slow.arrived)) == list(range(6, 6 + len(slow.arrived)))
    if by_rule:
        other.flow(5)
        assert len(other.take(5)) == 5


@by_rule_or_whole
def test_an_endpoint_replay_that_was_to_put_it_fails(
    start: Start, connect: Connect, *, by_rule: bool
) -> None:
    """With 140. What its consumer had not acknowledged is gone, and the queue is live again."""
    gateway = start(vpn=keeping(DEBUG), limits=NARROW)
    client = connect(gateway)
    client.receiver("q").detach()
    gateway.subscribe("q", ["debug/>"])
    fill(client, 10)
    replaying = client.receiver("q?replay-start=beginning", credit=500)
    taken = replaying.take(20)
    if by_rule:
        fill(client)
    else:
        trim_before(gateway, 400)
        replaying.settle(taken)
    assert replaying.detached_by_peer().replay_refusal == MESSAGE_UNAVAILABLE
    assert gateway.replay_state("q") == "failed"
    if not by_rule:
        client.sender("topic://debug/a").send_all([data("live")])
        assert texts(client.receiver("q").drain()) == ["live"]


def test_nothing_leaves_that_is_not_archived(start: Start, connect: Connect) -> None:
    """With `keep_until_archived`, a rule's quota waits for the archiver."""
    gateway = start(vpn=keeping(DEBUG, keep_until_archived=True))
    client = connect(gateway)
    fill(client)
    assert len(client.read_log("debug/>")) == 2_000
    of_broker(gateway, lambda broker: setattr(broker.log, "archived_id", 1_000))
    client.wait(lambda: messages_kept(gateway) == 2_000 - 981, "what is archived leaves")


def test_rules_change_while_it_runs(start: Start, connect: Connect) -> None:
    """A new rule holds immediately: what the log has of its topics is counted, and the excess is trimmed."""
    gateway = start(vpn=keeping())
    client = connect(gateway)
    fill(client)
    assert len(client.read_log("debug/>")) == 2_000
    gateway.ask(lambda vpn: vpn.reconfigure(keeping(DEBUG)))
    trimmed(gateway, client)
    left = len(client.read_log("debug/>"))
    assert 700 < left < 1_000
    gateway.ask(lambda vpn: vpn.reconfigure(keeping()))
    client.sender("topic://debug/a").send_all([data(KILOBYTE)] * 500)
    assert len(client.read_log("debug/>")) == left + 500


# --- Trimming -------------------------------------------------------------------------------------------------------


def first_id(gateway: RunningGateway) -> int:
    return of_broker(gateway, lambda broker: broker.log.first_id)


def size_bytes(gateway: RunningGateway) -> int:
    return of_broker(gateway, lambda broker: broker.log.size_bytes)


def usage(gateway: RunningGateway) -> float:
    return of_broker(gateway, lambda broker: broker.trimming.usage)


@pytest.mark.parametrize(("kilobytes", "at_once"), [(1, 50), (32, 1)])
def test_the_log_trims_its_oldest_messages_near_its_quota(
    start: Start, connect: Connect, kilobytes: int, at_once: int
) -> None:
    """
    Past 90 % of the quota the oldest messages are trimmed, unnoticed by publishers. The newest stay, without a gap:
    most of the log, also where a few dozen messages fill it.
    """
    gateway = start(vpn=keeping(quota_mb=1))
    client = connect(gateway)
    sender = client.sender("topic://a")
    for _ in range(50):
        sender.send_all([data(KILOBYTE * kilobytes)] * at_once)
    client.wait(lambda: usage(gateway) <= 0.9, "the oldest are trimmed")
    assert usage(gateway) > 0.7
    kept, count = ids(client.read_log("a")), 50 * at_once
    assert len(kept) > 500 // kilobytes
    assert kept == list(range(count + 1 - len(kept), count + 1))


def test_what_was_trimmed_is_nowhere_but_on_queues(gateway: RunningGateway, connect: Connect) -> None:
    """
    Trimming takes a message from the log, not from a queue; once consumed it is gone. A start before the log, as an
    offset or a date, is refused; with clamp the replay has what is there. After a restart the log begins where it was
    trimmed to, its size is right, and ids go on.
    """
    client, sizes = connect(gateway), []
    for address in ("orders", "topic://a"):
        client.sender(address).send_all(map(data, range(10)))
        sizes.append(size_bytes(gateway))
    trim_before(gateway, 16)
    for start, error in (("%2313", NO_MESSAGE), ("1970-01-01T00:00:00Z", NO_TIME)):
        assert refusal(client.receiver, f"log://a?replay-start={start}").replay_refusal == error
        assert ids(client.read_log("a", start, "&missing=clamp")) == [16, 17, 18, 19, 20]
    assert texts(client.receiver("orders", credit=10).take_and_accept(10)) == numbered(10)
    assert texts(client.read_log()) == ["5", "6", "7", "8", "9"]
    client = connect.again(gateway, client)
    assert first_id(gateway) == 16
    assert size_bytes(gateway) == (sizes[1] - sizes[0]) // 2
    client.sender("topic://a").send_all([data("next")])
    assert ids(client.read_log("a", "last")) == [21]


# --- Publishers at the log's quota wait while trimming makes room, in order -----------------------------------------


def pending_bytes(gateway: RunningGateway) -> int:
    """Bytes of content that are not committed yet."""
    return gateway.ask(lambda vpn: vpn.committer.pending_bytes)


def hold_trimming(gateway: RunningGateway) -> None:
    """From now on nothing is trimmed, as while a transaction is about to settle the oldest message."""
    # A trim under way is waited for: it would make room.
    gateway.run_coroutine(lambda g: g.vpns["default"].trimmer.take_turn())


def nearly_full(client: Client, count: int = 700) -> Sender:
    """A publisher that has left little room in a megabyte, and none for half a megabyte."""
    sender = client.sender("topic://a")
    sender.send_all([data(KILOBYTE)] * count)
    return sender


LARGE = data(KILOBYTE * 500)


def test_a_burst_of_many_quotas_is_taken_whole_and_in_order(start: Start, connect: Connect) -> None:
    """
    Several times the quota at full speed, large messages among small: none is refused, and the queue has all in order.
    """
    count = 6_000
    gateway = start(vpn=keeping(quota_mb=1))
    client = connect(gateway)
    consumer = client.receiver("orders")
    sent = [data(b"%06d" % i + KILOBYTE * (1 if i % 97 else 40)) for i in range(count)]
    assert client.sender("orders").outcomes(sent) == ["ACCEPTED"] * count
    consumer.collect(taken := [], count)
    assert [message.text[:6] for message in taken] == [f"{i:06d}" for i in range(count)]
    assert pending_bytes(gateway) == 0
    assert usage(gateway) <= 1


def test_a_link_s_messages_keep_their_order_behind_one_that_waits(start: Start, connect: Connect) -> None:
    """While a large message waits, later small ones do not overtake it, neither on its link nor on others."""
    client = connect(start(vpn=keeping(quota_mb=1)))
    sender, other = nearly_full(client, 850), client.sender("topic://b")
    sent = [(sender, sender.send(data(KILOBYTE * 400))), (sender, sender.send(data("behind")))]
    sent.append((other, other.send(data("other"))))
    assert [link.outcome(delivery) for link, delivery in sent] == ["ACCEPTED"] * 3
    kept = texts(client.read_log())
    assert kept[-2:] == ["behind", "other"]
    assert len(kept[-3]) == 400_000


def test_what_the_log_does_not_take_waits_for_nobody(start: Start, connect: Connect) -> None:
    """
    With nothing to trim, a publisher on a topic that is not logged is not held up by one whose message is refused.
    """
    client = connect(start(vpn=keeping(quota_mb=1, topics=("a",), keep_until_archived=True)))
    assert nearly_full(client).outcomes([LARGE]) == ["REJECTED"]
    client.sender("orders").send_all([data("not logged")])


def test_a_message_larger_than_the_quota_is_refused_at_once(start: Start, connect: Connect) -> None:
    """
    No trimming makes room for it, and it holds nobody up; the rejection has the reason, and no queue has the message.
    """
    gateway = start(vpn=keeping(quota_mb=1))
    sender = connect(gateway).sender("orders")
    before, large, behind = (sender.send(data(KILOBYTE * size)) for size in (1, 1_200, 1))
    assert [sender.outcome(before), sender.outcome(behind)] == ["ACCEPTED", "ACCEPTED"]
    told = sender.rejection(large)
    assert told.name == "amqp:resource-limit-exceeded"
    assert told.info["rewind:reason"] == "replay-log-quota"
    assert gateway.depth("orders") == 2


def test_who_waits_goes_on_when_the_quota_is_raised(start: Start, connect: Connect) -> None:
    """
    An open transaction keeps trimming from making room: the publisher waits without an outcome, until a higher quota
    lets it go on.
    """
    gateway = start(vpn=keeping(quota_mb=1, wait_for_room_seconds=600))
    client = connect(gateway)
    sender = nearly_full(client)
    hold_trimming(gateway)
    delivery = sender.send(LARGE)
    client.wait(lambda: pending_bytes(gateway) > 500_000, "it waits")
    assert delivery.remote_state == 0
    gateway.ask(lambda vpn: vpn.reconfigure(keeping(quota_mb=2, wait_for_room_seconds=600)))
    assert sender.outcome(delivery) == "ACCEPTED"
    assert pending_bytes(gateway) == 0


@pytest.mark.parametrize("seconds", [0, 1])
def test_who_waits_in_vain_is_refused(start: Start, connect: Connect, seconds: int) -> None:
    """
    If there is no room within the time that a publisher waits, each waiting message is refused with the reason;
    immediately if that time is zero.
    """
    gateway = start(vpn=keeping(quota_mb=1, wait_for_room_seconds=seconds))
    sender = nearly_full(connect(gateway))
    if seconds:
        hold_trimming(gateway)
    deliveries = [sender.send(LARGE) for _ in range(3 if seconds else 1)]
    told = [sender.rejection(delivery) for delivery in deliveries]
    assert {one.info["rewind:reason"] for one in told} == {"replay-log-quota"}
    assert pending_bytes(gateway) == 0
