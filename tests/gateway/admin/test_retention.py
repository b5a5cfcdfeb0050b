"""What the monitor says of rules of retention."""

from __future__ import annotations

from pathlib import Path

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
        client.sender("topic://debug/a").send_all(data(b"x" * 1_000) for _ in range(2_000))
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
        assert debug["wholeFromMsgId"] == 2_004 - debug["msgCount"]
        assert log["msgSpoolUsage"] == orders["msgSpoolUsage"] + debug["msgSpoolUsage"]
