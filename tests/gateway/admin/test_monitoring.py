"""The dashboard is valid for Grafana; each rule fires when it should and not before, and each says what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gateway.admin.monitoring import dashboard, rules
from gateway.cli import main
from gateway.core.alarms import AlarmKind

ROOT = Path(__file__).resolve().parents[3]
ALARMS = (ROOT / "docs" / "guides" / "alarms.md").read_text(encoding="utf-8")
RULES = {rule["alert"]: rule for group in yaml.safe_load(rules())["groups"] for rule in group["rules"]}

GATEWAY = 'instance="a:8672",job="rewind"'
OF_VPN = f'{GATEWAY},vpn="default"'
OF_QUEUE = f'{OF_VPN},endpoint="q"'

Series = dict[str, str]


def of(name: str, labels: str, values: str) -> Series:
    return {f"{name}{{{labels}}}": values}


def either(name: str, labels: str, fires: str, quiet: str) -> tuple[Series, Series]:
    """One series with values that make a rule fire, and with values that do not."""
    return of(name, labels, fires), of(name, labels, quiet)


def late(name: str, labels: str, share: int) -> Series:
    """A histogram in which this percentage is above a second, and the rest below a hundredth."""
    return {
        f'{name}_bucket{{{labels},le="{bound}"}}': f"0+{count}x60"
        for bound, count in (("0.01", 100 - share), ("1.0", 100 - share), ("+Inf", 100))
    }


ACTIVE, PASSIVE = (of("rewind_vpn_active", OF_VPN, f"{value}x60") for value in (1, 0))
HELD_HALF = of("rewind_held_limit_bytes", GATEWAY, "100x60") | of(
    "rewind_held_bytes", f'{GATEWAY},kind="a"', "50x60"
)
WANTED = of("rewind_endpoint_messages", OF_QUEUE, "5x60") | of(
    "rewind_endpoint_demand_messages", OF_QUEUE, "10x60"
)


def files(labels: str) -> Series:
    """A process that has nearly as many files open as it may."""
    return of("process_open_fds", labels, "95x60") | of("process_max_fds", labels, "100x60")


FIRES: dict[str, tuple[Series, Series]] = {
    "RewindNotScraped": ({}, ACTIVE),
    "RewindNobodyActive": (PASSIVE, PASSIVE | of("rewind_vpn_active", OF_VPN.replace("a:", "b:"), "1x60")),
    "RewindStoreDown": either("rewind_store_up", OF_VPN, "0x60", "1x60"),
    "RewindStoreUnconfirmed": either("rewind_store_confirmed_age_seconds", OF_VPN, "1+30x60", "2x60"),
    "RewindStoreDamaged": either("rewind_alarms", f'{OF_VPN},alarm="store-damage"', "1x60", "0x60"),
    "RewindOneMachine": either("rewind_alarms", f'{OF_VPN},alarm="one-machine"', "1x60", "0x58 1x2"),
    "RewindLoopLate": (
        late("rewind_loop_lag_seconds", GATEWAY, 5),
        late("rewind_loop_lag_seconds", GATEWAY, 0),
    ),
    "RewindCommitsSlow": (late("rewind_commit_seconds", OF_VPN, 5), late("rewind_commit_seconds", OF_VPN, 0)),
    "RewindDiskFills": (
        of("rewind_store_disk_full_seconds", OF_VPN, "80000x60"),
        of("rewind_store_disk_full_seconds", OF_VPN, " +Inf" * 61)
        | of("rewind_store_disk_full_seconds", GATEWAY, " NaN" * 61),
    ),
    "RewindDiskNearlyFull": either("rewind_store_disk_full_seconds", OF_VPN, "10000x60", "80000x60"),
    "RewindLogOverfull": (
        of("rewind_log_bytes", OF_VPN, "98x60") | of("rewind_log_quota_bytes", OF_VPN, "100x60"),
        of("rewind_log_bytes", OF_VPN, "98x60") | of("rewind_log_quota_bytes", OF_VPN, "0x60"),
    ),
    "RewindMemoryFull": (
        HELD_HALF | of("rewind_held_bytes", f'{GATEWAY},kind="b"', "45x60"),
        HELD_HALF,
    ),
    "RewindFilesNearlyOut": (
        files(GATEWAY) | of("rewind_held_limit_bytes", GATEWAY, "1x60"),
        files('instance="other"'),
    ),
    "RewindConsumerStuck": either("rewind_endpoint_oldest_unsettled_seconds", OF_QUEUE, "0+60x60", "600x60"),
    "RewindNobodyWantsThem": (
        WANTED | of("rewind_endpoint_settled_messages_total", OF_QUEUE, "7x60"),
        WANTED | of("rewind_endpoint_settled_messages_total", OF_QUEUE, "7+1x60"),
    ),
    "RewindReplayFailed": either("rewind_replay_failures_total", OF_QUEUE, "0x55 1x5", "3x60"),
    "RewindReplayStands": either("rewind_replay_remaining_ids", OF_QUEUE, "50x70", "500-1x70"),
    "RewindManyRefusals": either(
        "rewind_refusals_total", f'{GATEWAY},condition="amqp:not-found"', "0+120x60", "0+20x60"
    ),
    "RewindConnectionsRefused": either(
        "rewind_refused_connections_total", f'{GATEWAY},limit="max_connections"', "0+5x60", "5x60"
    ),
    "RewindAlarm": (
        of("rewind_alarms", f'{OF_VPN},alarm="clock"', "1x60"),
        of("rewind_alarms", f'{OF_VPN},alarm="store"', "1x60"),
    ),
}
"""For each alert, an hour of series (a value a minute) that make it fire, and some that do not."""  # fmt: skip


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool", path=f"{ROOT / 'build' / 'tools'}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("there is no promtool here; `python3 .package/chart.py` brings it, on Debian")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def case(alert: str, series: Series, fires: bool) -> dict[str, Any]:
    """A test for promtool: whether the alert fires at the end of the hour."""
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert}, {'firing' if fires else 'quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0',
                "eval_time": "60m",
                "exp_samples": expected,
            }
        ],
    }


def test_each_rule_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """Run by promtool's own unit tests of rules."""
    assert FIRES.keys() == RULES.keys()
    (tmp_path / "rules.yaml").write_text(rules())
    cases = [case(alert, series[k], k == 0) for alert, series in FIRES.items() for k in (0, 1)]
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(json.dumps(tests))  # JSON is YAML, too
    promtool("check", "rules", str(tmp_path / "rules.yaml"))
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


def test_prometheus_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """As expressions of rules, with values for Grafana's variables."""
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    records = [
        {"record": f"of:{k}", "expr": re.sub(r"\$__rate_interval", "5m", target["expr"]).replace("$", "x")}
        for k, target in enumerate(targets)
    ]
    assert len(records) > 60
    (tmp_path / "queries.yaml").write_text(json.dumps({"groups": [{"name": "q", "rules": records}]}))
    promtool("check", "rules", str(tmp_path / "queries.yaml"))


@pytest.mark.parametrize("alert", RULES)
def test_each_alert_says_how_bad_it_is_and_what_to_do(alert: str) -> None:
    """In a section of the guide to alarms, to which its link leads; in the published documentation, too."""
    rule = RULES[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/guides/alarms.md#{alert.lower()}"
    section = ALARMS.partition(f"### {alert}\n")[2].partition("\n#")[0]
    assert len(section.split()) > 10
    published = yaml.safe_load(rules("https://docs.example.com/r/"))["groups"]
    links = [one["annotations"]["runbook_url"] for group in published for one in group["rules"]]
    assert f"https://docs.example.com/r/guides/alarms.html#{alert.lower()}" in links


def test_the_page_knows_every_alert_and_alarm() -> None:
    """The guide has exactly those that exist."""
    assert re.findall(r"^### (\w+)$", ALARMS, re.MULTILINE) == list(RULES)
    table = ALARMS.partition("| Alarm |")[2]
    assert set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))) == {
        kind.value for kind in AlarmKind
    }


def test_panels_lie_beside_each_other() -> None:
    """No two overlap, and none is too wide; each panel has its own id, and each query of a panel its own letter."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        assert any(
            one[way] + one[size] <= other[way]
            for one, other in ((a, b), (b, a))
            for way, size in (("x", "w"), ("y", "h"))
        )
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert letters == sorted(set(letters))
        assert "@" not in json.dumps(panel)


def test_the_command_prints_both() -> None:
    """In the format that Grafana and Prometheus read."""
    printed = {what: CliRunner().invoke(main, ["metrics", what]).output for what in ("dashboard", "rules")}
    assert json.loads(printed["dashboard"]) == dashboard()
    assert printed["rules"] == rules()
