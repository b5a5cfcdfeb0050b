"""Alarms as an administrator sees them: in the monitor tree and in the gateway's log."""

from __future__ import annotations

from structlog.testing import CapturingLogger

from gateway.app import Gateway
from gateway.config import AlarmThresholds, ReplayLog, Vpn
from store.errors import WriteFailed
from tests.gateway.admin.conftest import Api, Serve
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until


def shown(api: Api) -> list[tuple[str, str, int]]:
    """The alarms that hold: what about, of which endpoint, at what threshold."""
    return [(one["alarm"], one["endpointName"], one["thresholdPercent"]) for one in api.seen("/alarms")]


Lines = list[tuple[str, str, str, int]]


def look(gateway: RunningGateway) -> Lines:
    """Have everything looked at now; the log lines of that: level, event, what about, at what threshold."""

    def check(running: Gateway) -> CapturingLogger:
        watch = running.vpns["default"].alarms
        watch._log = CapturingLogger()
        watch.check()
        return watch._log

    return [
        (one.method_name, one.args[0], one.kwargs["alarm"], one.kwargs["threshold_percent"])
        for one in gateway.call(check).calls
    ]


def test_a_filling_queue_is_told_of_once_at_each_threshold(
    api: Api, gateway: RunningGateway, client: Client
) -> None:
    """Raised at 80 and at 90 percent, cleared once it is consumed, with one log line each."""
    api.make("/queues", {"queueName": "q", "maxMsgCount": 10})
    sender = client.sender("q")
    sender.send_all([data(i) for i in range(7)])
    wait_until(lambda: gateway.depth("q") == 7, "they are there")
    assert shown(api) == []
    sender.send_all([data(i) for i in range(2)])
    wait_until(lambda: len(shown(api)) == 2, "by itself, within a second or so")
    assert shown(api) == [("endpoint-use", "q", 80), ("endpoint-use", "q", 90)]
    assert "'q' uses 90% of its quota" in api.http.get("/SEMP/v2/monitor/msgVpns/default/alarms").text
    assert look(gateway) == []
    api.act("/queues/q/deleteMsgs", {})
    wait_until(lambda: shown(api) == [], "they are over by themselves")


def test_the_log_s_use_is_told_of(serve: Serve) -> None:
    """The replay log raises an alarm at its threshold, in a line with all that a search needs, and clears it."""
    api = serve(Vpn(replay_log=ReplayLog(quota_mb=1)), alarms=AlarmThresholds(log_percent=(50,)))
    api.gateway.call(lambda g: g.vpns["default"].alarms.close())  # so that this test alone looks
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data("x" * 60_000) for _ in range(10)])
    raised = look(api.gateway)
    assert raised == [("warning", "alarm_raised", "replay-log-use", 50)]
    assert shown(api) == [("replay-log-use", "", 50)]
    api.act("/replayLogs/default/trimLoggedMsgs", {"before": "live"})
    assert look(api.gateway) == [("info", "alarm_cleared", "replay-log-use", 50)]
    assert (shown(api), look(api.gateway)) == ([], [])


def test_a_store_that_cannot_be_written_is_an_alarm(
    api: Api, gateway: RunningGateway, client: Client
) -> None:
    """It is raised by the first write that fails, once, and cleared by the first that does not."""

    def fail(running: Gateway) -> None:
        vpn = running.vpns["default"]
        vpn.alarms.close()  # so that nothing is written but what this test writes
        for _ in range(2):
            vpn.committer._not_committed([], WriteFailed("disk is full"))

    gateway.call(fail)
    assert shown(api) == [("store", "", 0)]
    assert api.http.get("/readyz").status_code == 503
    client.sender("q").send_all([data(1)])
    assert shown(api) == []


def test_deleting_a_queue_ends_its_alarms(api: Api, gateway: RunningGateway, client: Client) -> None:
    """What is gone is over its quota no longer; neither is what has none any more."""
    for name in ("gone", "free"):
        api.make("/queues", {"queueName": name, "maxMsgCount": 1})
        client.sender(name).send_all([data(1)])
    look(gateway)
    assert {name for _, name, _ in shown(api)} == {"gone", "free"}
    api.delete("/queues/gone")
    api.change("/queues/free", {"maxMsgCount": 0})
    look(gateway)
    assert shown(api) == []
