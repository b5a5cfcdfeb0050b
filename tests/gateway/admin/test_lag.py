"""A stuck consumer as an administrator sees it: what it holds, since when, how far behind its queue is, the alarm."""

from __future__ import annotations

from gateway.config import AlarmThresholds, Queue, Vpn
from tests.gateway.admin.conftest import Api, Serve
from tests.gateway.admin.test_alarms import look, shown
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until


def test_a_stuck_consumer_is_seen(api: Api, gateway: RunningGateway, client: Client) -> None:
    """Which of several messages is held longest, by whom, since when; how many left, and how old the oldest is."""
    api.make("/queues", {"queueName": "q"})
    (queue,) = api.seen("/queues")
    assert (queue["oldestUnackedMsgId"], queue["lagMs"]) == (None, 0)
    client.sender("q").send_all(map(data, range(4)))
    consumer = client.receiver("q", credit=2)
    first, second = consumer.take(2)
    consumer.settle([second])
    client.wait(lambda: gateway.depth("q") == 3, "one is consumed")
    consumer.flow(1)
    consumer.take(1)

    def known() -> bool:
        return api.seen("/queues")[0]["lagMs"] is not None

    wait_until(known, "it is looked at by itself")
    (queue,) = api.seen("/queues")
    (flow,) = api.seen("/queues/q/txFlows")
    assert queue["oldestUnackedMsgId"] == flow["oldestUnackedMsgId"] == first.id
    assert queue["oldestUnackedTimeMs"] == flow["oldestUnackedTimeMs"]
    assert 0 <= gateway.ask(lambda vpn: vpn.clock.now_ms()) - flow["oldestUnackedTimeMs"] < 60_000
    for name in ("clientId", "clientName", "clientUsername", "clientAddress"):
        assert queue[f"oldestUnacked{name[0].upper()}{name[1:]}"] == flow[name]
    assert flow["clientName"] == client.connection.container
    assert (queue["lagMsgCount"], queue["settledMsgCount"]) == (3, 1)
    assert (flow["lockTimeoutMs"], flow["isStalled"]) == (0, False)
    assert 0 <= queue["lagMs"] < 60_000
    metrics = api.http.get("/metrics").text
    for line in (
        'settled_messages_total{vpn="default",endpoint="q"} 1',
        "oldest_unsettled_seconds",
        "lag_seconds",
    ):
        assert f"rewind_endpoint_{line}" in metrics


def test_a_lag_beyond_its_bound_is_an_alarm(serve: Serve) -> None:
    """
    In messages and in time; it is cleared once the lag has fallen some percent below the bound. A dead message queue
    raises none.
    """
    queues = {"q": Queue(dead_message_queue="dead"), "dead": Queue()}
    bounds = AlarmThresholds(lag_messages=10, lag_seconds=1, hysteresis_percent=20)
    api = serve(Vpn(queues=queues), alarms=bounds)
    gateway = api.gateway
    with Client(gateway.url) as client:
        for address, count in (("q", 10), ("dead", 20)):
            client.sender(address).send_all(map(data, range(count)))
        wait_until(
            lambda: shown(api) == [("endpoint-lag", "q", 0), ("endpoint-lag-time", "q", 0)], "both are raised"
        )
        consumer = client.receiver("q", credit=10)
        consumer.take_and_accept(1)
        client.wait(lambda: gateway.depth("q") == 9, "one is consumed")
        assert look(gateway) == []
        consumer.take_and_accept(9)
        client.wait(lambda: gateway.depth("q") == 0, "all are consumed")
        wait_until(lambda: shown(api) == [], "they are over by themselves")
