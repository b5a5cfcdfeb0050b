"""What is watched, as an administrator sees it: alarms, stuck consumers, and how large the log must be."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import CapturingLogger

from gateway.app import Gateway
from gateway.config import AlarmThresholds, Queue, ReplayLog, Vpn
from gateway.config.vpn import Retention
from gateway.vpn.upkeep import lag
from store.errors import WriteFailed
from store.ports import DiskUse
from tests.gateway.admin.conftest import LOG, Administer, Api, Serve
from tests.gateway.amqp.conftest import Clock
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for
from tests.support.waiting import wait_until

# --- Alarms as an administrator sees them: in the monitor tree and in the gateway's log -------------------------------


def shown(api: Api) -> list[tuple[str, str, int]]:
    """The alarms that are raised: name, endpoint, threshold."""
    return [(one["alarm"], one["endpointName"], one["thresholdPercent"]) for one in api.seen("/alarms")]


Lines = list[tuple[str, str, str, int]]


def look(gateway: RunningGateway) -> Lines:
    """Have everything checked now; return the log lines of that: level, event, alarm, threshold."""

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
    """Raised at 80 and at 90 percent, cleared once the queue is consumed, with one log line each."""
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
    """The log raises one alarm at its threshold, and clears it; the line has all fields that a search needs."""
    api = serve(Vpn(replay_log=ReplayLog(quota_mb=1)), alarms=AlarmThresholds(log_percent=(50,)))
    api.gateway.call(lambda g: g.vpns["default"].alarms.close())  # so that only this test checks
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
    """The first write that fails raises it, once; the first that succeeds clears it."""

    def fail(running: Gateway) -> None:
        vpn = running.vpns["default"]
        vpn.alarms.close()  # so that this test alone writes
        for _ in range(2):
            vpn.committer._not_committed([], WriteFailed("disk is full"))

    gateway.call(fail)
    assert shown(api) == [("store", "", 0)]
    ready = api.http.get("/readyz")
    assert (ready.status_code, ready.json()["reason"]) == (
        503,
        "Message VPN 'default': the last write failed: disk is full",
    )
    client.sender("q").send_all([data(1)])
    assert shown(api) == []


def test_deleting_a_queue_ends_its_alarms(api: Api, gateway: RunningGateway, client: Client) -> None:
    """The alarm ends when its queue is deleted, and when the queue no longer has a quota."""
    for name in ("gone", "free"):
        api.make("/queues", {"queueName": name, "maxMsgCount": 1})
        client.sender(name).send_all([data(1)])
    look(gateway)
    assert {name for _, name, _ in shown(api)} == {"gone", "free"}
    api.delete("/queues/gone")
    api.change("/queues/free", {"maxMsgCount": 0})
    look(gateway)
    assert shown(api) == []


# --- A stuck consumer: what it holds, since when, how far behind its queue is, the alarm ------------------------------


@pytest.fixture
def _lag_is_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "LOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("_lag_is_looked_at_often")
def test_a_stuck_consumer_is_seen(api: Api, gateway: RunningGateway, client: Client) -> None:
    """The message that is unsettled longest, its consumer and since when; the lag in messages and in time."""
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


@pytest.mark.usefixtures("_lag_is_looked_at_often")
def test_a_lag_beyond_its_bound_is_an_alarm(serve: Serve) -> None:
    """
    In messages and in time. It is cleared once the lag is some percent below the bound. A dead message queue raises no
    such alarm.
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


def test_of_more_endpoints_than_one_look_asks_for_each_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest messages of all endpoints change before each check, which reads only some of them."""
    monkeypatch.setattr(lag, "LOOK_SECONDS", 3_600)
    monkeypatch.setattr(lag, "READS", 1)
    clock, names = Clock(), ("a", "b", "c")
    vpn = Vpn(queues=dict.fromkeys(names, Queue()))
    with (
        RunningGateway(settings_for(tmp_path / "data", vpn), clock=clock) as gateway,
        Client(gateway.url) as client,
    ):
        senders = [client.sender(name) for name in names]
        consumers = [client.receiver(name, credit=10) for name in names]
        for hour in range(7):
            clock.ms += HOUR_MS
            for sender in senders:
                sender.send_all([data(hour)])
            if hour:
                for consumer in consumers:
                    consumer.take_and_accept(1)
                client.wait(
                    lambda: [gateway.depth(name) for name in names] == [1, 1, 1], "the older are gone"
                )
            gateway.run_coroutine(lambda running: running.vpns["default"].lag.look())
        ages = gateway.ask(lambda vpn: [vpn.lag.lag_ms(vpn.endpoints.by_name[name]) for name in names])
    assert ages == [0, 2 * HOUR_MS, HOUR_MS]


# --- How large the log must be, as an administrator is told it ------------------------------------------------------

HOUR_MS = 3_600_000
MEGABYTE = 1 << 20
PLAN = f"{LOG}/plan"


def published(gateway: RunningGateway, clock: Clock, hours: int) -> None:
    """Publish ten messages of 10,000 bytes at the end of each of so many hours."""
    with Client(gateway.url) as client:
        sender = client.sender("topic://a")
        for _ in range(hours):
            clock.ms += HOUR_MS
            sender.send_all([data("x" * 10_000) for _ in range(10)])


def logged_bytes(api: Api) -> int:
    """The size of the log."""
    size: int = api.seen(LOG)["msgSpoolUsage"]
    return size


def test_a_plan_follows_from_what_was_published_and_outlives_the_gateway(
    tmp_path: Path, administer: Administer
) -> None:
    """The rate is the bytes logged, divided by the time. After a restart it is computed from the log itself."""
    clock = Clock()
    vpn = Vpn(replay_log=ReplayLog(quota_mb=100))
    with RunningGateway(settings_for(tmp_path / "data", vpn), clock=clock) as gateway:
        api = administer(gateway)
        assert api.seen(PLAN)["bytesPerSecond"] is None
        published(gateway, clock, hours=10)
        found = api.seen(PLAN, keepHours=24 * 30)
        size = logged_bytes(api)
        assert size > 1_000_000
        assert found["ratePeriodMs"] == 10 * HOUR_MS
        assert found["msgsPerSecond"] == pytest.approx(100 / 36_000, abs=0.001)
        assert found["bytesPerSecond"] == pytest.approx(size / 36_000, rel=0.01)
        assert found["quotaLastsMs"] == pytest.approx(0.88 * 100 * MEGABYTE / size * 10 * HOUR_MS, rel=0.01)
        assert found["keepNeedsSpoolUsage"] == pytest.approx(size * 72 / 0.88 / MEGABYTE, abs=1)
        assert found["trimmedFromTimeMs"] == pytest.approx(
            clock.ms + (0.9 * 100 * MEGABYTE - size) / size * 10 * HOUR_MS, abs=HOUR_MS
        )
        assert found["diskFreeBytes"] > 0
        assert found["storeBytes"] >= size * 0.9
        api.restart()
        again = api.seen(PLAN)
        # The oldest message came at the end of the first hour, so the rate is that of the nine hours since.
        assert again["ratePeriodMs"] == pytest.approx(9 * HOUR_MS, rel=0.01)
        assert again["bytesPerSecond"] == pytest.approx(size / (9 * 3_600), rel=0.02)


def test_a_time_that_runs_out_is_an_alarm(tmp_path: Path, administer: Administer) -> None:
    """A disk that will be full too soon, and a quota that keeps too few hours; cleared once there is room."""
    clock = Clock()
    thresholds = AlarmThresholds(disk_hours_left=24, log_hours_kept=1_000)
    vpn = Vpn(replay_log=ReplayLog(quota_mb=50))
    settings = settings_for(tmp_path / "data", vpn, alarms=thresholds)
    free = [10**6]

    def narrow(running: Gateway) -> None:
        vpn = running.vpns["default"]
        vpn.reader.disk = lambda: DiskUse(10**6, 0, free[0])  # type: ignore[method-assign]

    def looked(gateway: RunningGateway) -> set[str]:
        gateway.run_coroutine(lambda running: running.vpns["default"].sizing.look())
        return {one["alarm"] for one in api.seen("/alarms")}

    with RunningGateway(settings, clock=clock) as gateway:
        api = administer(gateway)
        gateway.call(narrow)
        assert looked(gateway) == set()
        published(gateway, clock, hours=2)
        assert looked(gateway) == {"disk-time-left", "replay-log-time-kept"}
        texts = [one["description"] for one in api.seen("/alarms")]
        assert any("the disk is full in" in text and "hours" in text for text in texts)
        free[0] = 10**12
        assert looked(gateway) == {"replay-log-time-kept"}
        api.change(LOG, {"maxSpoolUsage": 10**6})
        assert looked(gateway) == set()


def test_what_nobody_knows_is_not_guessed(api: Api, gateway: RunningGateway) -> None:
    """Free space of a disk on another machine is shown as unknown, and Prometheus gets no number."""

    def elsewhere(running: Gateway) -> None:
        running.vpns["default"].reader.disk = lambda: DiskUse(12, 0, None)  # type: ignore[method-assign]

    gateway.call(elsewhere)
    found = api.seen(PLAN)
    assert (found["diskFreeBytes"], found["diskFullTimeMs"], found["storeBytes"]) == (None, None, 12)
    text = api.http.get("/metrics").text
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert math.isnan(samples["rewind_store_disk_free_bytes"])
    assert math.isnan(samples["rewind_store_disk_full_seconds"])
    assert samples["rewind_store_bytes"] == 12
    ran = api.rewind("log", "plan")
    assert "The free space on the disk is unknown" not in ran.stdout  # as there is no rate yet
    assert "No message was logged in the time that was measured" in ran.stdout


def test_many_who_ask_at_once_have_one_look(gateway: RunningGateway) -> None:
    """The disk is checked once for all requests that wait, and each of them is answered."""
    looks: list[int] = []

    async def ask(running: Gateway) -> None:
        vpn = running.vpns["default"]
        look = vpn.reader.disk
        vpn.reader.disk = lambda: looks.append(1) or look()  # type: ignore[func-returns-value, method-assign]
        await asyncio.gather(*(vpn.sizing.look() for _ in range(50)))

    gateway.run_coroutine(ask)
    assert len(looks) <= 2


def test_the_verb_says_it_in_sentences(api: Api, client: Client) -> None:
    """It prints what was published, what keeping 30 days takes, with the command to type, and the disk."""
    sender = client.sender("topic://a")
    sender.send_all([data("x" * 1_000) for _ in range(100)])
    wait_until(
        lambda: (api.seen(PLAN)["ratePeriodMs"] or 0) > 0,
        "a moment has passed since the first",
    )
    ran = api.rewind("log", "plan", "--keep", "30D")
    assert ran.exit_code == 0, ran.output
    assert "without a limit" in ran.stdout
    assert "30 days need a quota of" in ran.stdout
    assert "`rewind log quota" in ran.stdout
    assert "The disk has" in ran.stdout
    wrong = api.rewind("log", "plan", "--keep", "30")
    assert wrong.exit_code == 2
    assert "write hours, days or weeks, as 12h, 30D or 8W" in wrong.stderr
    assert api.refused("GET", "monitor", PLAN, keepHours=-1)["status"] == "INVALID_PARAMETER"


# --- What the monitor says of rules of retention --------------------------------------------------------------------


def test_the_monitor_says_what_each_rule_keeps(serve: Serve) -> None:
    """The messages and bytes of its topics, and the id from which they are complete; the log's are separate."""
    rules = (Retention(topics=("orders/>",), max_age_hours=9), Retention(topics=("debug/>",), quota_mb=1))
    api = serve(Vpn(replay_log=ReplayLog(retention=rules)))
    with Client(api.gateway.url) as client:
        client.sender("topic://orders/a").send_all(data(i) for i in range(3))
        client.sender("topic://debug/a").send_all(data(b"x" * 20_000) for _ in range(100))
        client.wait(
            lambda: api.seen(LOG)["retention"][1]["msgSpoolUsage"] <= 1 << 20,
            "it is trimmed",
        )
        log = api.seen(LOG)
        orders, debug = log["retention"]
        assert (orders["topics"], orders["maxAgeHours"], orders["msgCount"]) == (["orders/>"], 9, 3)
        assert orders["wholeFromMsgId"] == log["firstMsgId"] == 1
        assert orders["wholeFromTimeMs"] == log["wholeFromTimeMs"] < debug["wholeFromTimeMs"]
        assert debug["maxSpoolUsage"] == 1
        assert debug["wholeFromMsgId"] == 104 - debug["msgCount"]
        assert log["msgSpoolUsage"] == orders["msgSpoolUsage"] + debug["msgSpoolUsage"]
        planned = api.seen(f"{LOG}/plan")["retention"]
        for said, found in zip(planned, (orders, debug), strict=True):
            for name in ("topics", "maxAgeHours", "maxSpoolUsage", "msgSpoolUsage", "wholeFromTimeMs"):
                assert said[name] == found[name]
        assert planned[0]["lastsMs"] == 9 * 3_600_000
        assert planned[1]["lastingSpoolUsage"] == pytest.approx(1 << 20, abs=1)
        ran = api.rewind("log", "plan")
        assert re.search(
            r"^Of debug/> it holds .* of a quota of 1\.0 MB, .* of which it keeps ", ran.stdout, re.M
        )


def test_a_rule_s_quota_has_alarms_like_the_log_s(serve: Serve) -> None:
    """One at each threshold, named by the rule's topics; cleared once the rule is changed."""
    log = ReplayLog(retention=(Retention(topics=("debug/>", "!debug/b"), quota_mb=1),))
    api = serve(Vpn(replay_log=log))
    gateway = api.gateway
    with Client(gateway.url) as client:
        client.sender("topic://debug/a").send_all([data(b"x" * 1_000)] * 640)
        gateway.call(lambda g: g.vpns["default"].alarms.check())
        (alarm,) = api.seen("/alarms")
        assert (alarm["alarm"], alarm["thresholdPercent"]) == ("replay-log-retention-use", 80)
        assert alarm["endpointName"] == ""
        assert alarm["description"].startswith("'debug/>, !debug/b' uses 8")
        other = replace(log, retention=(Retention(topics=("debug/>", "!debug/b"), quota_mb=2),))
        gateway.call(lambda g: g.vpns["default"].reconfigure(Vpn(replay_log=other)))
        counted = lambda: gateway.call(lambda g: g.vpns["default"].broker.retention.is_counted)  # noqa: E731
        client.wait(counted, "it is counted")
        gateway.call(lambda g: g.vpns["default"].alarms.check())
        assert api.seen("/alarms") == []
