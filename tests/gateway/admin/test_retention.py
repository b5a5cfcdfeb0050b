"""What the monitor says of rules of retention."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.config import ReplayLog, Vpn
from gateway.config.vpn import Retention
from tests.gateway.admin.test_archived import administration
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

LOG = "/replayLogs/default"


def test_the_monitor_says_what_each_rule_keeps(tmp_path: Path) -> None:
    """Messages and bytes of its topics, and from where on they are whole; the log's own is another thing."""
    rules = (Retention(topics=("orders/>",), max_age_hours=9), Retention(topics=("debug/>",), quota_mb=1))
    settings = settings_for(tmp_path, Vpn(replay_log=ReplayLog(retention=rules)))
    with RunningGateway(settings) as gateway, Client(gateway.url) as client, administration(gateway) as api:
        client.sender("topic://orders/a").send_all(data(i) for i in range(3))
        client.sender("topic://debug/a").send_all(data(b"x" * 20_000) for _ in range(100))
        client.wait(
            lambda: api.done("GET", "monitor", LOG)["retention"][1]["msgSpoolUsage"] <= 1 << 20,
            "it is trimmed",
        )
        log = api.done("GET", "monitor", LOG)
        orders, debug = log["retention"]
        assert (orders["topics"], orders["maxAgeHours"], orders["msgCount"]) == (["orders/>"], 9, 3)
        assert orders["wholeFromMsgId"] == log["firstMsgId"] == 1
        assert orders["wholeFromTimeMs"] == log["wholeFromTimeMs"] < debug["wholeFromTimeMs"]
        assert debug["maxSpoolUsage"] == 1
        assert debug["wholeFromMsgId"] == 104 - debug["msgCount"]
        assert log["msgSpoolUsage"] == orders["msgSpoolUsage"] + debug["msgSpoolUsage"]
        planned = api.done("GET", "monitor", f"{LOG}/plan")["retention"]
        for said, found in zip(planned, (orders, debug), strict=True):
            for name in ("topics", "maxAgeHours", "maxSpoolUsage", "msgSpoolUsage", "wholeFromTimeMs"):
                assert said[name] == found[name]
        assert planned[0]["lastsMs"] == 9 * 3_600_000
        assert planned[1]["lastingSpoolUsage"] == pytest.approx(1 << 20, abs=1)
        ran = CliRunner().invoke(main, ["log", "plan", "--admin", str(api.http.base_url)])
        assert re.search(
            r"^Of debug/> it holds .* of a quota of 1\.0 MB, .* of which it keeps ", ran.stdout, re.M
        )


def test_a_rule_s_quota_has_alarms_like_the_log_s(tmp_path: Path) -> None:
    """At each threshold one, named by its topics; over once the rule is another."""
    log = ReplayLog(retention=(Retention(topics=("debug/>", "!debug/b"), quota_mb=1),))
    settings = settings_for(tmp_path, Vpn(replay_log=log))
    with RunningGateway(settings) as gateway, Client(gateway.url) as client, administration(gateway) as api:
        client.sender("topic://debug/a").send_all([data(b"x" * 1_000)] * 640)
        gateway.call(lambda g: g.vpns["default"].alarms.check())
        (alarm,) = api.done("GET", "monitor", "/alarms")
        assert (alarm["alarm"], alarm["thresholdPercent"]) == ("replay-log-retention-use", 80)
        assert alarm["endpointName"] == ""
        assert alarm["description"].startswith("'debug/>, !debug/b' uses 8")
        other = replace(log, retention=(Retention(topics=("debug/>", "!debug/b"), quota_mb=2),))
        gateway.call(lambda g: g.vpns["default"].reconfigure(Vpn(replay_log=other)))
        counted = lambda: gateway.call(lambda g: g.vpns["default"].broker.retention.is_counted)  # noqa: E731
        client.wait(counted, "it is counted")
        gateway.call(lambda g: g.vpns["default"].alarms.check())
        assert api.done("GET", "monitor", "/alarms") == []
