"""Rates, refusals and depths over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.vpn.runtime import Tuning
from tests.gateway.admin.conftest import Administer, Api
from tests.support.client import Client, Refused
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway of short intervals."""
    tuning = Tuning(rates_seconds=0.05, depths_seconds=0.05)
    with RunningGateway(settings_for(tmp_path / "data"), tuning=tuning) as gateway:
        yield gateway


def test_rates_are_what_was_done(quick: RunningGateway, administer: Administer) -> None:
    """Published, settled and refused: in some interval each, none twice."""
    api = administer(quick)
    before = sum(one["count"] for one in api.done("GET", "monitor", "/refusals", count=100))
    with Client(quick.url) as client:
        client.sender("q").send_all(data(i) for i in range(7))
        client.wait(
            lambda: api.done("GET", "monitor", "/queues/q/depths")["msgCounts"][-1] == 7, "it is deep"
        )
        receiver = client.receiver("q")
        receiver.settle(receiver.drain()[:3])
        with pytest.raises(Refused):
            client.receiver("log://>?replay-start=%2399")

        def sums() -> tuple[int, ...]:
            found = api.done("GET", "monitor", "/rates")
            assert found["intervalMs"] == 50
            assert len({len(found[name]) for name in ("publishedMsgs", "publishedBytes", "refusals")}) == 1
            return sum(found["publishedMsgs"]), sum(found["settledMsgs"])

        client.wait(lambda: sums() == (7, 3), "all is counted")
        client.wait(
            lambda: api.done("GET", "monitor", "/queues/q/depths")["msgCounts"][-1] == 4, "it is less deep"
        )
    found = api.done("GET", "monitor", "/refusals", count=100)
    assert sum(one["count"] for one in found) > before
    assert "amqp:" in found[0]["reason"]


def test_depths_are_those_of_endpoints_that_are_there(api: Api) -> None:
    """Of a queue, of a topic endpoint, and of neither by the other's name."""
    api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    assert set(api.done("GET", "monitor", "/topicEndpoints/te/depths")["msgCounts"]) <= {0}
    assert api.refused("GET", "monitor", "/queues/te/depths")["status"] == "NOT_FOUND"
    assert api.refused("GET", "monitor", "/queues/q/depths")["status"] == "NOT_FOUND"
