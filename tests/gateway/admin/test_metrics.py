"""`/metrics`: what Prometheus reads, compared with what was done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin import monitoring
from gateway.admin.metrics import PIECE, EndpointSeries
from gateway.amqp.engine.loops import CHOSEN
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.model import WHOLE
from gateway.vpn.runtime import Tuning
from tests.gateway.admin.conftest import LOG, Administer, Api
from tests.support.client import Client, Refused
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

# --- `/metrics` -----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
NOT_ALWAYS = {"rewind_telemetry_spans_total"}
"""Metrics that only a gateway that sends spans has."""
LABELS = ("vpn", "endpoint", "state", "generation", "condition", "le", "engine", "loops")


def scrape(api: Api) -> dict[tuple[str, ...], float]:
    """The samples, by name and label values."""
    answer = api.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_numbers_follow_what_is_done(api: Api, client: Client) -> None:
    """
    Publishing, settling, refusing and replaying change the numbers by exactly what was done. Commits are counted by
    duration and by messages; the event loop's delay is measured from the first scrape on.
    """
    before = scrape(api)
    assert before["rewind_published_messages_total", "default"] == 0
    assert before["rewind_store_up", "default"] == 1
    client.sender("q").send_all([data(i) for i in range(5)])
    receiver = client.receiver("q", credit=2)
    assert len(receiver.take_and_accept(2)) == 2
    client.wait(lambda: scrape(api)["rewind_endpoint_messages", "default", "q"] == 3, "settled")
    with pytest.raises(Refused) as refused:
        client.receiver("elsewhere://q/")
    found = scrape(api)
    key = ("rewind_refusals_total", refused.value.name)
    assert found[key] == before.get(key, 0) + 1
    commits = found["rewind_commits_total", "default"]
    assert found["rewind_commit_messages_sum", "default"] == 5
    assert found["rewind_commit_messages_bucket", "default", "+Inf"] == commits
    assert found["rewind_commit_seconds_count", "default"] >= commits
    assert found["rewind_log_oldest_message_timestamp_seconds", "default"] > 0
    assert found["rewind_published_messages_total", "default"] == 5
    assert found["rewind_settled_messages_total", "default"] == 2
    assert found["rewind_connections", "default"] == 1
    assert found["rewind_endpoint_flows", "default", "q"] == 1
    assert found["rewind_log_last_id", "default"] == 5
    assert 0 < commits <= found["rewind_commit_batches_total", "default"]
    api.act("/queues/q/startReplay", {})
    found = scrape(api)
    assert found["rewind_replay_starts_total", "default", "q"] == 1
    assert sum(value for name, value in found.items() if name[0] == "rewind_replays") == 1
    client.wait(lambda: scrape(api)[("rewind_loop_lag_seconds_count",)] > 0, "a look at the loop")


def test_what_the_gateway_runs_on_is_a_label(api: Api) -> None:
    """
    Info series that are always 1: the store with its version, so that a query finds outdated gateways; and whether the
    code that runs for each message is C or Python, and why. Health and the monitor show the same.
    """
    [(version,)] = apsw.Connection(":memory:").execute("select sqlite_version()")
    found = scrape(api)
    assert found["rewind_store_info", "default", f"SQLite {version}"] == 1
    assert found["rewind_wire_loops_info", str(CHOSEN)] == 1
    assert api.http.get("/readyz").json() == {"status": "ok", "engine": [f"SQLite {version}"]}
    assert api.seen()["wireLoops"] == str(CHOSEN)


def test_documentation_dashboard_and_rules_name_what_there_is(api: Api, client: Client) -> None:
    """
    Every metric of ours is in the documentation's table and on the dashboard; the dashboard and the rules use no other.
    Legends use labels that their metrics have.
    """
    client.sender("q").send_all([data(0)])
    api.act("/queues/q/startReplay", {})
    with pytest.raises(Refused):
        client.receiver("elsewhere://q/")
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(api.http.get("/metrics").text)
    }
    found = {name for name in families if name.startswith("rewind_")}
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    table = page.partition("| Metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(rewind_\w+)`", table)) == found
    shown = set()
    for panel in monitoring.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            names = named(target["expr"])
            shown |= names
            samples = [sample for name in names - NOT_ALWAYS for sample in families[name].samples]
            labels = {"instance"}.union(*(sample.labels for sample in samples))
            assert not samples or set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, target
    assert shown >= found and shown <= families.keys() | NOT_ALWAYS
    assert named(monitoring.rules()) <= families.keys()


def named(expressions: str) -> set[str]:
    """The metrics that expressions name; bucket, sum and count are those of one histogram."""
    names = set(re.findall(r"\b(?:rewind|process)_\w+", expressions))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


# --- The text of the endpoints' series, read by Prometheus' own parser ----------------------------------------------


def endpoint(name: str, depth: int) -> Endpoint:
    """A queue of which only name and depth matter."""
    backlog = Backlog(1, 2, {WHOLE: Cursor(0, messages=depth)})
    return Endpoint(1, name, EndpointKind.QUEUE, EndpointSettings(), 100, backlog)


def depths(series: EndpointSeries) -> list[tuple[str, float]]:
    """Names and depths in the order in which a scraper reads them."""
    families = {family.name: family for family in text_string_to_metric_families("".join(series.text()))}
    found = families["rewind_endpoint_messages"].samples
    assert {sample.labels["vpn"] for sample in found} == {"v"}
    return [(sample.labels["endpoint"], sample.value) for sample in found]


@given(st.lists(st.tuples(st.text(min_size=1), st.integers(0, 2**63)), min_size=1))
def test_every_name_comes_back_as_it_is(named: list[tuple[str, int]]) -> None:
    """Quotes, backslashes, line ends and any other character of a name are read back by the parser."""
    series = EndpointSeries()
    for name, depth in named:
        series.add("v", endpoint(name, depth), 1, 1, None)
    assert depths(series) == [(name, depth) for name, depth in named]


def test_many_endpoints_come_in_pieces_and_each_once() -> None:
    """With more lines than fit into one piece, all are there, in order, under one header."""
    series = EndpointSeries()
    count = 2 * PIECE + 1
    for number in range(count):
        series.add("v", endpoint(f"q{number}", number), 1, 1, None)
    assert "".join(EndpointSeries().text()) == "", "without an endpoint"
    assert "replay" not in "".join(series.text()), "without a replay"
    assert max(piece.count("\n") for piece in series.text()) == PIECE
    assert depths(series) == [(f"q{number}", float(number)) for number in range(count)]


# --- Rates, refusals and depths over HTTP ---------------------------------------------------------------------------


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway with short intervals."""
    tuning = Tuning(rates_seconds=0.05, depths_seconds=0.05)
    with RunningGateway(settings_for(tmp_path / "data"), tuning=tuning) as gateway:
        yield gateway


def test_rates_are_what_was_done(quick: RunningGateway, administer: Administer) -> None:
    """Messages published, messages settled and requests refused: each is counted in one interval."""
    api = administer(quick)
    before = sum(one["count"] for one in api.seen("/refusals", count=100))
    with Client(quick.url) as client:
        client.sender("q").send_all(data(i) for i in range(7))
        client.wait(lambda: api.seen("/queues/q/depths")["msgCounts"][-1] == 7, "it is deep")
        receiver = client.receiver("q")
        receiver.settle(receiver.drain()[:3])
        with pytest.raises(Refused):
            client.receiver("log://>?replay-start=%2399")

        def sums() -> tuple[int, ...]:
            found = api.seen("/rates")
            assert found["intervalMs"] == 50
            assert len({len(found[name]) for name in ("publishedMsgs", "publishedBytes", "refusals")}) == 1
            return sum(found["publishedMsgs"]), sum(found["settledMsgs"])

        client.wait(lambda: sums() == (7, 3), "all is counted")
        client.wait(lambda: api.seen("/queues/q/depths")["msgCounts"][-1] == 4, "it is less deep")
    found = api.seen("/refusals", count=100)
    assert sum(one["count"] for one in found) > before
    assert "amqp:" in found[0]["reason"]


def test_depths_are_those_of_endpoints_that_are_there(api: Api) -> None:
    """For a queue and for a topic endpoint; neither is found under the other's path."""
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    assert set(api.seen("/topicEndpoints/te/depths")["msgCounts"]) <= {0}
    assert api.refused("GET", "monitor", "/queues/te/depths")["status"] == "NOT_FOUND"
    assert api.refused("GET", "monitor", "/queues/q/depths")["status"] == "NOT_FOUND"


# --- The histogram of the log over HTTP -----------------------------------------------------------------------------

HISTOGRAM = f"{LOG}/histogram"


def test_it_says_when_messages_came(api: Api, client: Client) -> None:
    """The buckets hold every message, and are as many as requested; the ends are those of the log."""
    client.sender("topic://a").send_all([data(i) for i in range(40)])
    oldest, *_ = api.seen(f"{LOG}/msgs", count=1)
    (newest,) = api.seen(f"{LOG}/msgs", count=1, order="newest")
    found = api.seen(HISTOGRAM, buckets=3)
    assert sum(bucket["msgCount"] for bucket in found["buckets"]) == 40
    assert (found["firstMsgId"], found["lastMsgId"]) == (1, 40)
    assert found["fromTimeMs"] == found["buckets"][0]["timeMs"] == oldest["spooledTimeMs"]
    assert found["untilTimeMs"] == newest["spooledTimeMs"] + 1
    assert found["log"] == {
        "oldestMsgId": 1,
        "oldestTimeMs": oldest["spooledTimeMs"],
        "newestMsgId": 40,
        "newestTimeMs": newest["spooledTimeMs"],
    }
    assert found["archive"] is None

    later = newest["spooledTimeMs"] + 1
    empty = api.seen(HISTOGRAM, **{"from": later, "until": later + 1_000, "buckets": 4})
    assert [bucket["msgCount"] for bucket in empty["buckets"]] == [0, 0, 0, 0]
    assert [bucket["timeMs"] - later for bucket in empty["buckets"]] == [0, 250, 500, 750]


def test_of_an_empty_log_there_is_an_empty_one_and_times_that_are_none_are_refused(api: Api) -> None:
    """One empty bucket, for a chart. An end before the start, or a wrong number of buckets, is refused."""
    found = api.seen(HISTOGRAM)
    assert [bucket["msgCount"] for bucket in found["buckets"]] == [0]
    assert found["log"] is None
    for query in ({"from": 5, "until": 5}, {"buckets": 1_001}, {"buckets": 0}, {"from": -1}, {"until": "x"}):
        assert api.refused("GET", "monitor", HISTOGRAM, **query)["status"] == "INVALID_PARAMETER"
