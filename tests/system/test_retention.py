"""Rules of retention in a process that is killed in their middle: nothing accepted is lost."""

from __future__ import annotations

from store.sqlite.check import check
from tests.support.client import Client
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.system.conftest import Start

RULES = """
[[vpn.default.replay_log.retention]]
topics = ["debug/>"]
quota_mb = 1

[vpn.default.queue.all]
subscriptions = ["debug/>", "orders/>"]
"""


def test_what_was_accepted_lies_on_its_queue_though_the_gateway_is_killed_while_rules_trim(
    start: Start,
) -> None:
    """Killed three times under load: the queue has all of it in order, the log all of other topics."""
    accepted = 0
    for _ in range(3):
        gateway = start(RULES)
        url = gateway.ready["amqp"][0]
        with Client(url) as client, Publishing(url, "topic://orders/a", first=accepted) as publishing:
            sender = client.sender("topic://debug/a")
            for _ in range(30):
                sender.send_all(data(b"x" * 1_000) for _ in range(100))
            publishing.expect_an_end()
            gateway.kill()
            client.cut()
        accepted = publishing.accepted
    assert check(gateway.data / "default.db") == []
    gateway = start(RULES)
    with Client(gateway.ready["amqp"][0]) as client:
        orders = client.receiver("log://orders/>?replay-start=beginning&until=now").take_to_end()
        debug = client.receiver("log://debug/>?replay-start=beginning&until=now").take_to_end()
        assert {int(message.text) for message in orders} >= set(range(accepted))
        assert 9_000 > len(debug) > 700
        queue = client.receiver("all")
        taken = []
        queue.collect(taken, 9_000 + len(orders))
        assert [m.id for m in taken] == sorted(
            {m.id for m in taken} | {m.id for m in orders} | {m.id for m in debug}
        )
    gateway.stop()
    assert check(gateway.data / "default.db") == []
