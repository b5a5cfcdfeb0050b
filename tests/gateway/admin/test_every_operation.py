"""Every operation that Solace's documentation of replay names, on a running gateway under load, over HTTP and by verbs.

Publishing goes on all the while; what was done is looked at with an AMQP client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from store.sqlite.check import check
from tests.gateway.admin.conftest import Api
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until


class OverHttp:
    """The operations as requests."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def make_queue(self, name: str, topic: str, exception: str) -> None:
        self._api.done("POST", "config", "/queues", {"queueName": name, "accessType": "exclusive"})
        for one in (topic, f"!{exception}"):
            self._api.done("POST", "config", f"/queues/{name}/subscriptions", {"subscriptionTopic": one})

    def make_topic_endpoint(self, name: str, topic: str) -> None:
        self._api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": name, "topic": topic})

    def replay(self, collection: str, name: str, start: dict[str, Any]) -> None:
        self._api.done("PUT", "action", f"/{collection}/{name}/startReplay", start)

    def preview(self, name: str, start: dict[str, Any]) -> int:
        found = self._api.done("PUT", "action", f"/queues/{name}/previewReplay", start)
        return int(found["msgCount"])

    def cancel(self, collection: str, name: str, force_complete: bool) -> None:
        body = {"forceComplete": force_complete}
        self._api.done("PUT", "action", f"/{collection}/{name}/cancelReplay", body)

    def purge(self, name: str) -> None:
        self._api.done("PUT", "action", f"/queues/{name}/deleteMsgs", {})

    def copy(self, name: str, replay_id: str) -> None:
        body = {"replicationGroupMsgId": replay_id}
        self._api.done("PUT", "action", f"/queues/{name}/copyMsgFromReplayLog", body)

    def mark(self, name: str) -> None:
        self._api.done("POST", "config", "/replayPoints", {"replayPointName": name})

    def trim(self, point: str) -> int:
        body = {"before": f"point:{point}"}
        found = self._api.done("PUT", "action", "/replayLogs/default/trimLoggedMsgs", body)
        return int(found["firstMsgId"])

    def log_takes(self, wanted: bool) -> None:
        self._api.done("PATCH", "config", "/replayLogs/default", {"ingressEnabled": wanted})

    def quota(self, megabytes: int) -> None:
        self._api.done("PATCH", "config", "/replayLogs/default", {"maxSpoolUsage": megabytes})

    def take_only(self, topic: str) -> None:
        path = "/replayLogs/default"
        self._api.done(
            "POST", "config", f"{path}/topicFilterSubscriptions", {"topicFilterSubscription": topic}
        )
        self._api.done("PATCH", "config", path, {"topicFilterEnabled": True})

    def take_all(self, topic: str) -> None:
        path = "/replayLogs/default"
        self._api.done("PATCH", "config", path, {"topicFilterEnabled": False})
        self._api.done("DELETE", "config", f"{path}/topicFilterSubscriptions/{topic}")

    def state(self, collection: str, name: str) -> str:
        return str(self._api.done("GET", "monitor", f"/{collection}/{name}")["replayState"])

    def disconnect(self, container: str) -> None:
        self._api.done("PUT", "action", f"/clients/{container}/disconnect", {})

    def delete(self, name: str) -> None:
        self._api.done("DELETE", "config", f"/queues/{name}")


class ByVerbs:
    """The operations as verbs of `rewind`."""

    def __init__(self, api: Api) -> None:
        self._admin = str(api.http.base_url)

    def _run(self, *words: str) -> Any:
        ran = CliRunner().invoke(main, [*words, "--json", "--admin", self._admin])
        assert ran.exit_code == 0, (words, ran.output)
        return json.loads(ran.stdout.splitlines()[-1])

    @staticmethod
    def _start(start: dict[str, Any]) -> list[str]:
        (said,) = start.values() or ("beginning",)
        return ["--from", str(said)]

    @staticmethod
    def _kind(collection: str) -> list[str]:
        return ["--topic-endpoint"] if collection == "topicEndpoints" else []

    def make_queue(self, name: str, topic: str, exception: str) -> None:
        self._run("queue", "create", name, "--set", "accessType=exclusive")
        for one in (topic, f"!{exception}"):
            self._run("subscription", "add", name, one)

    def make_topic_endpoint(self, name: str, topic: str) -> None:
        self._run("topic-endpoint", "create", name, topic)

    def replay(self, collection: str, name: str, start: dict[str, Any]) -> None:
        self._run("replay", "start", name, *self._start(start), *self._kind(collection))

    def preview(self, name: str, start: dict[str, Any]) -> int:
        return int(self._run("replay", "preview", name, *self._start(start))["msgCount"])

    def cancel(self, collection: str, name: str, force_complete: bool) -> None:
        force = ["--force-complete"] if force_complete else []
        self._run("replay", "cancel", name, *force, *self._kind(collection))

    def purge(self, name: str) -> None:
        self._run("queue", "purge", name)

    def copy(self, name: str, replay_id: str) -> None:
        self._run("queue", "copy", name, replay_id)

    def mark(self, name: str) -> None:
        self._run("point", "create", name)

    def trim(self, point: str) -> int:
        return int(self._run("log", "trim", f"point:{point}")["firstMsgId"])

    def log_takes(self, wanted: bool) -> None:
        self._run("log", "enable" if wanted else "disable")

    def quota(self, megabytes: int) -> None:
        self._run("log", "quota", str(megabytes))

    def take_only(self, topic: str) -> None:
        self._run("log", "filter", "add", topic)
        self._run("log", "filter", "on")

    def take_all(self, topic: str) -> None:
        self._run("log", "filter", "off")
        self._run("log", "filter", "remove", topic)

    def state(self, collection: str, name: str) -> str:
        return str(self._run("replay", "show", name, *self._kind(collection))["replayState"])

    def disconnect(self, container: str) -> None:
        self._run("client", "disconnect", container)

    def delete(self, name: str) -> None:
        self._run("queue", "delete", name)


@pytest.fixture
def publishing(api: Api, gateway: RunningGateway) -> Iterator[Publishing]:
    """Load beside everything that the test does, with a queue that takes it while the log takes nothing."""
    api.done("POST", "config", "/queues", {"queueName": "load"})
    api.done("POST", "config", "/queues/load/subscriptions", {"subscriptionTopic": "load/>"})
    with Publishing(gateway.url, "topic://load/1", limit=60_000) as publishing:
        publishing.wait_for(500)
        yield publishing


@pytest.mark.parametrize("way", [OverHttp, ByVerbs])
def test_every_operation_is_done_under_load(
    way: Callable[[Api], OverHttp | ByVerbs],
    api: Api,
    client: Client,
    gateway: RunningGateway,
    publishing: Publishing,
) -> None:
    """Each one does what it says while a publisher goes on, and an AMQP client sees it."""
    do = way(api)

    # Endpoints: a queue with a subscription and an exception, a topic endpoint.
    do.make_queue("q", "a/>", "a/no")
    do.make_topic_endpoint("te", "a/>")
    sender, unwanted = client.sender("topic://a/1"), client.sender("topic://a/no")
    sender.send_all([data(i) for i in range(3)])
    unwanted.send_all([data("no")])
    do.mark("release")
    sender.send_all([data(i) for i in range(3, 6)])
    receiver = client.receiver("q")
    first = receiver.drain()
    assert texts(first) == ["0", "1", "2", "3", "4", "5"]
    receiver.settle(first)
    receiver.close()
    ids = [str(one.annotations["x-opt-replay-id"]) for one in first]

    # Replays: all, after a message, from a point; the preview had said how many.
    after = {"afterMsg": ids[1]} if way is OverHttp else {"start": ids[1]}
    for start, expected in (({}, 6), (after, 4), ({"start": "point:release"}, 3)):
        assert do.preview("q", start) == expected
        do.replay("queues", "q", start)
        receiver = client.receiver("q")
        replayed = receiver.drain()
        assert texts(replayed) == [str(i) for i in range(6 - expected, 6)]
        assert do.state("queues", "q") in ("active", "pending-complete")
        receiver.settle(replayed)
        receiver.close()
        wait_until(lambda: do.state("queues", "q") == "complete", "acknowledged")

    # One consumer is told that a replay was started, and comes again; cancelled and kept, cancelled and gone.
    receiver = client.receiver("q", credit=10)
    do.replay("queues", "q", {"start": "point:release"})
    assert receiver.detached_by_peer().subcode == 141
    wait_until(lambda: do.state("queues", "q") == "pending-complete", "all is on the queue")
    do.cancel("queues", "q", force_complete=True)
    assert do.state("queues", "q") == "complete"
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["3", "4", "5"]
    receiver.close()
    do.replay("topicEndpoints", "te", {})
    wait_until(lambda: do.state("topicEndpoints", "te") == "pending-complete", "all is on it")
    do.cancel("topicEndpoints", "te", force_complete=False)
    assert do.state("topicEndpoints", "te") == "failed"
    assert gateway.depth("te") == 0

    # What lies on a queue: dropped; and one message of the log put on it.
    do.purge("q")
    assert gateway.depth("q") == 0
    do.copy("q", ids[2])
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["2"]
    receiver.close()
    do.purge("q")

    # The log: what it takes, how much, and from where on it holds it.
    do.log_takes(False)
    sender.send_all([data("not logged")])
    do.log_takes(True)
    do.take_only("a/1")
    client.sender("topic://a/2").send_all([data("filtered out")])
    do.take_all("a%2F1" if way is OverHttp else "a/1")
    do.quota(500)
    sender.send_all([data("logged")])
    assert do.trim("release") > 1
    log = client.receiver("log://a/>", filters={"rewind:replay-start": "beginning"})
    assert texts(log.drain()) == ["3", "4", "5", "logged"]
    log.close()

    # Clients, and the end of it.
    with Client(gateway.url) as other:
        clients = api.done("GET", "monitor", "/clients", count=100)
        name = other.connection.container
        assert name in [one["clientName"] for one in clients]
        do.disconnect(name)
        other.wait(lambda: other.connection.remote_condition, "closed by the gateway")
    do.delete("q")
    assert "q" not in gateway.endpoints()
    publishing.stop()
    assert publishing.accepted == publishing.next == gateway.depth("load")
    client.cut()
    file = Path(gateway.call(lambda running: running.vpns["default"].place))
    gateway.stop()
    assert check(file) == []
