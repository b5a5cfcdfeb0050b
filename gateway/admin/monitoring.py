"""
What is to be watched of ``/metrics``: a dashboard for Grafana, made of the panels below, and rules for Prometheus.

The rules are in ``rules.yaml`` beside this module, because operators read and change them; each names the section of
``docs/guides/alarms.md`` that says what to do. A dashboard is for looking on, so it is made: its JSON says the same
thing of every panel.

Source: Grafana, "Dashboard JSON model"; Prometheus, "Alerting rules".
"""

from __future__ import annotations

from importlib.resources import files
from itertools import count
from typing import Any, Final, NamedTuple

DOCS: Final = "docs/"
"""How ``runbook_url`` of a rule begins: where the documentation is in a checkout."""

SELECTORS: Final = {
    "@gateway": 'instance=~"$instance"',
    "@vpn": 'instance=~"$instance",vpn=~"$vpn"',
    "@endpoint": 'instance=~"$instance",vpn=~"$vpn",endpoint=~"$endpoint"',
}
"""What an expression says of a metric's labels: the variables at the head of the dashboard."""

SECONDS: Final = "s"
BYTES: Final = "bytes"
BYTES_A_SECOND: Final = "Bps"
A_SECOND: Final = "cps"
PERCENT: Final = "percentunit"
NUMBER: Final = "short"


class Panel(NamedTuple):
    """Some queries in one picture."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Each an expression, and its legend in labels (``{{vpn}}``)."""
    about: str = ""
    """What one sees, and when to worry."""
    kind: str = "timeseries"
    width: int = 8
    """Of 24."""
    bad: float | None = None
    """Red from there on; for a ``stat`` whose good value is higher, negative: red below."""


def _stat(title: str, unit: str, expression: str, about: str, bad: float | None = None) -> Panel:
    return Panel(title, unit, ((expression, "{{vpn}}"),), about, "stat", 4, bad)


def _quantiles(metric: str, selector: str, by: str) -> tuple[tuple[str, str], ...]:
    rate = f"sum by (le, instance{by}) (rate({metric}_bucket{{{selector}}}[$__rate_interval]))"
    return tuple(
        (f"histogram_quantile({quantile}, {rate})", f"{{{{instance}}}} {100 * quantile:g} %")
        for quantile in (0.5, 0.99)
    )


def _top(expression: str) -> tuple[tuple[str, str], ...]:
    """The ten endpoints with the most."""
    return ((f"topk(10, {expression})", "{{vpn}} {{endpoint}}"),)


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Now",
        (
            _stat(
                "Active gateways",
                NUMBER,
                "sum by (vpn) (rewind_vpn_active{@vpn})",
                "Of each Message VPN: exactly one.",
                -1,
            ),
            _stat("Store", NUMBER, "min by (vpn) (rewind_store_up{@vpn})", "0: it cannot be written.", -1),
            _stat("Alarms", NUMBER, "sum by (vpn) (rewind_alarms{@vpn})", "`rewind alarms` lists them.", 1),
            _stat(
                "History reaches back",
                SECONDS,
                "time() - min by (vpn) (rewind_log_oldest_message_timestamp_seconds{@vpn})",
                "How old the oldest message is that a replay can begin with.",
            ),
            _stat(
                "Disk full in",
                SECONDS,
                "min by (vpn) (rewind_store_disk_full_seconds{@vpn})",
                "At the rate of the last week.",
                -86_400,
            ),
            _stat("Clients", NUMBER, "sum by (vpn) (rewind_connections{@vpn})", "Connections."),
        ),
    ),
    (
        "Messages",
        (
            Panel(
                "In and out",
                A_SECOND,
                (
                    (
                        "sum by (vpn) (rate(rewind_published_messages_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} published",
                    ),
                    (
                        "sum by (vpn) (rate(rewind_settled_messages_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} settled",
                    ),
                    (
                        "sum by (vpn) (rate(rewind_logged_messages_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} logged",
                    ),
                ),
                "Settled lies below published where queues grow, and above where a message goes to several.",
            ),
            Panel(
                "Content in",
                BYTES_A_SECOND,
                (
                    (
                        "sum by (vpn) (rate(rewind_published_bytes_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} published",
                    ),
                    (
                        "sum by (vpn) (rate(rewind_logged_bytes_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} log on disk",
                    ),
                ),
            ),
            Panel(
                "Not delivered",
                A_SECOND,
                (
                    (
                        "sum by (vpn) (rate(rewind_dead_discarded_messages_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} dead, discarded",
                    ),
                    (
                        "sum by (vpn) (rate(rewind_direct_dropped_messages_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} direct, dropped",
                    ),
                    (
                        "sum by (vpn) (rate(rewind_duplicate_messages_total{@vpn}[$__rate_interval]))",
                        "{{vpn}} duplicate",
                    ),
                ),
                "Dead messages that are discarded are lost: see to their dead message queue.",
            ),
        ),
    ),
    (
        "Replay log",
        (
            Panel(
                "Fill",
                PERCENT,
                (("rewind_log_bytes{@vpn} / (rewind_log_quota_bytes{@vpn} > 0)", "{{vpn}}"),),
                "Of its quota. The log trims itself from 90 % on; above that for long, trimming does not keep up.",
                bad=0.95,
            ),
            Panel(
                "How far back",
                SECONDS,
                (
                    ("time() - rewind_log_oldest_message_timestamp_seconds{@vpn}", "{{vpn}} there is"),
                    ("rewind_log_quota_lasts_seconds{@vpn} < Inf", "{{vpn}} the quota holds"),
                ),
                "How old the oldest message is, and what the quota holds at the rate of the last week.",
            ),
            Panel(
                "Disk",
                BYTES,
                (
                    ("rewind_store_bytes{@vpn}", "{{vpn}} store"),
                    ("rewind_log_bytes{@vpn}", "{{vpn}} log"),
                    ("rewind_store_disk_free_bytes{@vpn}", "{{vpn}} free"),
                ),
            ),
            Panel(
                "Ids given out and trimmed",
                A_SECOND,
                (
                    ("rate(rewind_log_last_id{@vpn}[$__rate_interval])", "{{vpn}} given out"),
                    ("rate(rewind_trimmed_ids_total{@vpn}[$__rate_interval])", "{{vpn}} trimmed"),
                ),
            ),
            Panel(
                "Ids that it spans",
                NUMBER,
                (("rewind_log_last_id{@vpn} - rewind_log_first_id{@vpn} + 1", "{{vpn}}"),),
                "Messages in the log, but for those that rules or an erasure took out.",
            ),
            Panel("Readers of the log", NUMBER, (("rewind_log_readers{@vpn}", "{{vpn}}"),)),
            Panel(
                "Archive",
                A_SECOND,
                (
                    (
                        "rate(rewind_archive_read_messages_total{@vpn}[$__rate_interval])",
                        "{{vpn}} messages read",
                    ),
                    ("rate(rewind_archive_read_failures_total{@vpn}[$__rate_interval])", "{{vpn}} failures"),
                ),
                "Replays and readers that reach beyond the log.",
            ),
            Panel(
                "Reads of the archive take",
                SECONDS,
                _quantiles("rewind_archive_read_seconds", "@vpn", ", vpn"),
            ),
        ),
    ),
    (
        "Endpoints",
        (
            Panel(
                "Depth",
                NUMBER,
                _top("rewind_endpoint_messages{@endpoint}"),
                "Messages on the ten deepest queues and topic endpoints.",
            ),
            Panel(
                "Lag",
                SECONDS,
                _top("rewind_endpoint_lag_seconds{@endpoint}"),
                "How old the oldest message is: how far its consumers are behind.",
            ),
            Panel(
                "Settled",
                A_SECOND,
                _top("rate(rewind_endpoint_settled_messages_total{@endpoint}[$__rate_interval])"),
            ),
            Panel("Content", BYTES, _top("rewind_endpoint_bytes{@endpoint}")),
            Panel(
                "Held by consumers",
                NUMBER,
                _top("rewind_endpoint_unsettled_messages{@endpoint}"),
                "Deliveries that are not settled yet.",
            ),
            Panel(
                "Held for",
                SECONDS,
                _top("rewind_endpoint_oldest_unsettled_seconds{@endpoint}"),
                "How long a consumer has had the delivery that is unsettled longest.",
            ),
            Panel(
                "Consumers, and their room",
                NUMBER,
                (
                    *_top("rewind_endpoint_flows{@endpoint}"),
                    ("topk(10, rewind_endpoint_demand_messages{@endpoint})", "{{vpn}} {{endpoint}} room"),
                ),
                "Room and depth both above zero for long: no consumer's selector wants the messages.",
            ),
            Panel(
                "Waiting for their time",
                NUMBER,
                _top("rewind_endpoint_delayed_messages{@endpoint}"),
                "Delayed messages, and retries.",
            ),
            Panel(
                "Endpoints, and ids remembered",
                NUMBER,
                (
                    ("rewind_endpoints{@vpn}", "{{vpn}} endpoints"),
                    ("rewind_dedup_ids{@vpn}", "{{vpn}} ids against duplicates"),
                ),
            ),
        ),
    ),
    (
        "Replays",
        (
            Panel(
                "By state",
                NUMBER,
                (('sum by (vpn, state) (rewind_replays{@vpn,state!="none"})', "{{vpn}} {{state}}"),),
            ),
            Panel(
                "To go",
                NUMBER,
                _top("rewind_replay_remaining_ids{@endpoint}"),
                "Ids that each replay has to look at still.",
            ),
            Panel(
                "Replayed",
                A_SECOND,
                _top("rate(rewind_replayed_messages_total{@endpoint}[$__rate_interval])"),
            ),
            Panel(
                "Begun and ended",
                NUMBER,
                tuple(
                    (
                        f"sum by (vpn) (increase(rewind_replay_{what}_total{{@endpoint}}[$__rate_interval]))",
                        f"{{{{vpn}}}} {what}",
                    )
                    for what in ("starts", "successes", "failures")
                ),
                width=24,
            ),
        ),
    ),
    (
        "Clients",
        (
            Panel(
                "Refusals",
                A_SECOND,
                (
                    (
                        "sum by (condition) (rate(rewind_refusals_total{@gateway}[$__rate_interval]))",
                        "{{condition}}",
                    ),
                ),
                "Of connections, links and deliveries, by AMQP condition.",
            ),
            Panel(
                "Connections refused",
                A_SECOND,
                (
                    (
                        "sum by (limit) (rate(rewind_refused_connections_total{@gateway}[$__rate_interval]))",
                        "{{limit}}",
                    ),
                    (
                        "sum(rate(rewind_relieved_connections_total{@gateway}[$__rate_interval]))",
                        "closed to make room",
                    ),
                ),
                "By the limit that was reached.",
            ),
            Panel(
                "Held for clients",
                BYTES,
                (
                    ("rewind_held_bytes{@gateway}", "{{instance}} {{kind}}"),
                    ("rewind_held_limit_bytes{@gateway}", "{{instance}} bound"),
                ),
                "Near the bound publishers wait, and connections that hold the most are closed.",
            ),
        ),
    ),
    (
        "Gateway and store",
        (
            Panel(
                "Event loop late by",
                SECONDS,
                _quantiles("rewind_loop_lag_seconds", "@gateway", ""),
                "Above some 100 ms every client waits.",
                bad=0.2,
            ),
            Panel(
                "Commits take",
                SECONDS,
                _quantiles("rewind_commit_seconds", "@vpn", ", vpn"),
                "With their sync: what a publisher waits for.",
                bad=0.5,
            ),
            Panel(
                "Commits",
                A_SECOND,
                (
                    ("rate(rewind_commits_total{@vpn}[$__rate_interval])", "{{vpn}} commits"),
                    ("rate(rewind_commit_batches_total{@vpn}[$__rate_interval])", "{{vpn}} batches in them"),
                    ("rate(rewind_commit_failures_total{@vpn}[$__rate_interval])", "{{vpn}} failures"),
                    (
                        "rate(rewind_commit_messages_sum{@vpn}[$__rate_interval]) / "
                        "rate(rewind_commit_messages_count{@vpn}[$__rate_interval])",
                        "{{vpn}} messages in each",
                    ),
                ),
            ),
            Panel("Not durable yet", BYTES, (("rewind_pending_bytes{@vpn}", "{{vpn}}"),)),
            Panel(
                "Durability",
                SECONDS,
                (
                    ("rewind_store_confirmed_age_seconds{@vpn}", "{{vpn}} {{instance}} newest commit"),
                    ("rewind_store_on_two_machines{@vpn}", "{{vpn}} {{instance}} on two machines"),
                ),
                "Beyond lease_seconds another gateway may take over.",
            ),
            Panel(
                "Processor",
                NUMBER,
                (("rate(process_cpu_seconds_total{@gateway}[$__rate_interval])", "{{instance}}"),),
                "Cores: one serves the event loop, and each Message VPN's writer has a thread.",
            ),
            Panel("Memory", BYTES, (("process_resident_memory_bytes{@gateway}", "{{instance}}"),)),
            Panel(
                "Files, lines and spans",
                NUMBER,
                (
                    (
                        "process_open_fds{@gateway} / process_max_fds{@gateway}",
                        "{{instance}} share of descriptors",
                    ),
                    (
                        "increase(rewind_log_lines_dropped_total{@gateway}[$__rate_interval])",
                        "{{instance}} log lines dropped",
                    ),
                    (
                        "increase(rewind_log_lines_held_back_total{@gateway}[$__rate_interval])",
                        "{{instance}} log lines held back",
                    ),
                    (
                        "increase(rewind_telemetry_spans_total{@gateway}[$__rate_interval])",
                        "{{instance}} spans {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Store",
                NUMBER,
                (("rewind_store_info{@vpn}", "{{vpn}} {{engine}}"),),
                "What keeps the data.",
                "stat",
                12,
            ),
            Panel(
                "Loops",
                NUMBER,
                (("rewind_wire_loops_info{@gateway}", "{{instance}} {{loops}}"),),
                "What runs for each message.",
                "stat",
                12,
            ),
        ),
    ),
)
"""Of the dashboard, from its head down."""


def dashboard() -> dict[str, Any]:
    """The dashboard, to be imported by Grafana or given to it as a file."""
    numbers, panels, top = count(1), [], 0
    for title, row in ROWS:
        panels.append(
            {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "panels": [],
             "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}
        )  # fmt: skip
        top, left = top + 1, 0
        height = 4 if title == "Now" else 8
        for panel in row:
            if left + panel.width > 24:
                top, left = top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append({"id": next(numbers), **_panel(panel), "gridPos": place})
            left += panel.width
        top += height
    return {
        "title": "Rewind",
        "uid": "rewind-gateway",
        "description": "AMQP gateways that can replay: messages, the replay log, queues, replays, clients, stores.",
        "tags": ["rewind", "amqp"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("instance", "Gateway", "label_values(rewind_vpn_active, instance)"),
                _variable(
                    "vpn", "Message VPN", 'label_values(rewind_vpn_active{instance=~"$instance"}, vpn)'
                ),
                _variable(
                    "endpoint", "Endpoint", 'label_values(rewind_endpoint_messages{vpn=~"$vpn"}, endpoint)'
                ),
            ]
        },
        "panels": panels,
    }


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def expression(text: str) -> str:
    """A query as Prometheus is asked it."""
    for name, selector in SELECTORS.items():
        text = text.replace(name, selector)
    return text


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps = (
            [*steps, {"color": "red", "value": panel.bad}]
            if panel.bad >= 0
            else [{"color": "red", "value": None}, {"color": "green", "value": -panel.bad}]
        )
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi"},
    }
    if panel.kind == "stat":
        is_text = panel.title in ("Store", "Loops") and panel.width == 12
        options = {"colorMode": "background", "textMode": "name" if is_text else "auto", "graphMode": "none"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                **({"custom": {"thresholdsStyle": {"mode": "line"}}} if panel.bad is not None else {}),
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression(query),
                "legendFormat": legend,
            }
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def rules(docs: str | None = None) -> str:
    """
    The rules, in YAML.

    Args:
        docs: Where this documentation is published, a URL: what ``runbook_url`` then leads to.
    """
    text = files("gateway.admin").joinpath("rules.yaml").read_text(encoding="utf-8")
    if docs is None:
        return text
    return text.replace(f"runbook_url: {DOCS}", f"runbook_url: {docs.rstrip('/')}/").replace(".md#", ".html#")
