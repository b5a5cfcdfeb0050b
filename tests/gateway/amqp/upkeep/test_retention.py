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
from tests.support.running import RunningGateway

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
