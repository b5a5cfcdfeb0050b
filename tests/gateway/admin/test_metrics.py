"""`/metrics`: what Prometheus reads, against what was done."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.amqp.engine.loops import CHOSEN
from tests.gateway.admin.conftest import Api
from tests.support.client import Client, Refused
from tests.support.messages import data

ROOT = Path(__file__).resolve().parents[3]
LABELS = ("vpn", "endpoint", "state", "generation", "condition", "le", "engine", "loops")


def scrape(api: Api) -> dict[tuple[str, ...], float]:
    """Samples by name and by the values of their labels."""
    answer = api.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_numbers_follow_what_is_done(api: Api, client: Client) -> None:
    """Publishing, settling and replaying move the numbers by exactly what was done."""
    before = scrape(api)
    assert before["rewind_published_messages_total", "default"] == 0
    assert before["rewind_store_up", "default"] == 1
    client.sender("q").send_all([data(i) for i in range(5)])
    receiver = client.receiver("q")
    receiver.flow(2)
    assert len(receiver.take_and_accept(2)) == 2
    client.wait(lambda: scrape(api)["rewind_endpoint_messages", "default", "q"] == 3, "settled")
    found = scrape(api)
    assert found["rewind_published_messages_total", "default"] == 5
    assert found["rewind_settled_messages_total", "default"] == 2
    assert found["rewind_connections", "default"] == 1
    assert found["rewind_endpoint_flows", "default", "q"] == 1
    assert found["rewind_log_last_id", "default"] == 5
    assert 0 < found["rewind_commits_total", "default"] <= found["rewind_commit_batches_total", "default"]
    api.done("PUT", "action", "/queues/q/startReplay", {})
    found = scrape(api)
    assert found["rewind_replay_starts_total", "default", "q"] == 1
    assert sum(value for name, value in found.items() if name[0] == "rewind_replays") == 1


def test_the_store_s_engine_is_a_label(api: Api) -> None:
    """What keeps the data, with its version, as a series that is always 1: a query finds gateways that are behind."""
    [(version,)] = apsw.Connection(":memory:").execute("select sqlite_version()")
    assert scrape(api)["rewind_store_info", "default", f"SQLite {version}"] == 1
    assert api.http.get("/readyz").json() == {"status": "ok", "engine": [f"SQLite {version}"]}


def test_what_runs_once_a_message_is_a_label(api: Api) -> None:
    """Whether it is C or Python, and why: the same in the metrics and in what a Message VPN says of itself."""
    assert scrape(api)["rewind_wire_loops_info", str(CHOSEN)] == 1
    assert api.done("GET", "monitor", "")["wireLoops"] == str(CHOSEN)


def test_histograms_and_refusals_follow_what_is_done(api: Api, client: Client) -> None:
    """Commits are counted by time and by messages, refusals by condition, the loop's lateness from a scrape on."""
    before = scrape(api)
    client.sender("q").send_all([data(i) for i in range(5)])
    with pytest.raises(Refused) as refused:
        client.receiver("elsewhere://q/")
    key = ("rewind_refusals_total", refused.value.name)
    assert scrape(api)[key] == before.get(key, 0) + 1
    found = scrape(api)
    assert found["rewind_commit_messages_sum", "default"] == 5
    assert (
        found["rewind_commit_messages_bucket", "default", "+Inf"] == found["rewind_commits_total", "default"]
    )
    assert found["rewind_commit_seconds_count", "default"] >= found["rewind_commits_total", "default"]
    assert found["rewind_log_oldest_message_timestamp_seconds", "default"] > 0
    client.wait(lambda: scrape(api)[("rewind_loop_lag_seconds_count",)] > 0, "a look at the loop")


def test_the_documentation_names_what_there_is(api: Api, client: Client) -> None:
    """Every metric of ours is in the documentation's table, and every one in the table is there."""
    client.sender("q").send_all([data(0)])
    api.done("PUT", "action", "/queues/q/startReplay", {})
    with pytest.raises(Refused):
        client.receiver("elsewhere://q/")
    families = text_string_to_metric_families(api.http.get("/metrics").text)
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if family.name.startswith("rewind_")
    }
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    table = page.partition("| Metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(rewind_\w+)`", table)) == found
