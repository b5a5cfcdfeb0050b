"""Administration while a publisher goes on at full speed."""

from __future__ import annotations

from tests.gateway.admin.conftest import Api
from tests.support.client import Client
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway


def test_a_queue_is_made_and_replayed_while_publishing_runs(
    api: Api, client: Client, gateway: RunningGateway
) -> None:
    """Made, subscribed, purged and replayed in mid-traffic, the queue gets every message once, and in order."""
    with Publishing(gateway.url, "topic://a/1", limit=8_000) as publishing:
        publishing.wait_for(500)
        api.done("POST", "config", "/queues", {"queueName": "q"})
        api.done("POST", "config", "/queues/q/subscriptions", {"subscriptionTopic": "a/>"})
        publishing.wait_for(1_000)
        assert api.done("PUT", "action", "/queues/q/previewReplay", {})["msgCount"] >= 1_000
        api.done("PUT", "action", "/queues/q/deleteMsgs", {})
        for i in range(200):
            api.done("POST", "config", "/queues", {"queueName": f"other{i}"})
        assert len(api.done("GET", "monitor", "/queues", count=500)) == 201
        api.done("PUT", "action", "/queues/q/startReplay", {})
        assert api.http.get("/metrics").status_code == 200
    ids = [received.id for received in client.receiver("q").drain(9_000)]
    assert ids == list(range(1, publishing.next + 1))
