"""
What to watch of ``/metrics``: a dashboard for Grafana, and alerting rules for Prometheus.

The rules are in ``rules.yaml`` next to this module, because operators read and change them. Each rule names the section
of ``docs/guides/alarms.md`` that says what to do. The dashboard is generated from ``dashboard.toml``, which says what
differs between panels; Grafana's JSON repeats the rest for every panel.

Source: Grafana, "Dashboard JSON model"; Prometheus, "Alerting rules".
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from itertools import count
from typing import Any, Final, NamedTuple

DOCS: Final = "docs/"
"""The beginning of a rule's ``runbook_url``: where the documentation is in a checkout."""

SELECTORS: Final = {
    "@gateway": 'instance=~"$instance"',
    "@vpn": 'instance=~"$instance",vpn=~"$vpn"',
    "@endpoint": 'instance=~"$instance",vpn=~"$vpn",endpoint=~"$endpoint"',
}
"""What these words in an expression stand for: selectors of labels, by the variables at the top of the dashboard."""


class Panel(NamedTuple):
    """A panel of the dashboard, as ``dashboard.toml`` describes it."""

    title: str
    unit: str
    queries: list[tuple[str, str]]
    """Each a legend made of labels (``{{vpn}}``), and its expression."""
    about: str = ""
    """What the panel shows, and when to worry."""
    kind: str = "timeseries"
    width: int = 8
    """In columns; a row has 24."""
    bad: float | None = None
    """The panel is red from this value on. Where higher is better, it is negative: red below its absolute value."""


def dashboard() -> dict[str, Any]:
    """The dashboard, to be imported by Grafana or given to it as a file."""
    said = tomllib.loads(_text("dashboard.toml"))
    numbers, panels, top = count(1), [], 0
    for row in said["row"]:
        panels.append(
            {"id": next(numbers), "type": "row", "title": row["title"], "collapsed": False, "panels": [],
             "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}
        )  # fmt: skip
        top, left = top + 1, 0
        height = 4 if row["title"] == "Now" else 8
        for panel in (Panel(**told) for told in row["panel"]):
            if left + panel.width > 24:
                top, left = top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append({"id": next(numbers), **_panel(panel), "gridPos": place})
            left += panel.width
        top += height
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    for name, variable in said["variables"].items():
        query = {"query": {"query": variable["query"], "refId": name}, "definition": variable["query"]}
        variables.append(
            {
                **said["each_variable"],
                "name": name,
                "label": variable["label"],
                "datasource": _SOURCE,
                **query,
            }
        )
    return {**said["dashboard"], "templating": {"list": variables}, "panels": panels}


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def expression(text: str) -> str:
    """A query with its selectors put in, as Prometheus takes it."""
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
            for number, (legend, query) in enumerate(panel.queries)
        ],
    }


def rules(docs: str | None = None) -> str:
    """
    The rules, in YAML.

    Args:
        docs: The URL at which this documentation is published; ``runbook_url`` then leads there.
    """
    text = _text("rules.yaml")
    if docs is None:
        return text
    return text.replace(f"runbook_url: {DOCS}", f"runbook_url: {docs.rstrip('/')}/").replace(".md#", ".html#")


def _text(name: str) -> str:
    return files("gateway.admin").joinpath(name).read_text(encoding="utf-8")
