"""Every operation that Solace's documentation of replay names, on a running gateway under load, over HTTP and by verbs.

Publishing goes on all the while; what was done is looked at with an AMQP client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.admin.conftest import Api, stop_and_check
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until

OPERATIONS = {
    "make queue": (
        'POST config /queues {"queueName": "%s", "accessType": "exclusive"}',
        "queue create %s --set accessType=exclusive",
    ),
    "subscribe": (
        'POST config /queues/%s/subscriptions {"subscriptionTopic": "%s"}',
        "subscription add %s %s",
    ),
    "make topic endpoint": (
        'POST config /topicEndpoints {"topicEndpointName": "%s", "topic": "%s"}',
        "topic-endpoint create %s %s",
    ),
    "replay": ('PUT action /queues/%s/startReplay {"start": "%s"}', "replay start %s --from %s"),
    "replay after": ('PUT action /queues/%s/startReplay {"afterMsg": "%s"}', "replay start %s --from %s"),
    "replay to topic endpoint": (
        "PUT action /topicEndpoints/%s/startReplay {}",
        "replay start %s --topic-endpoint",
    ),
    "preview": ('PUT action /queues/%s/previewReplay {"start": "%s"}', "replay preview %s --from %s"),
    "end": (
        'PUT action /queues/%s/cancelReplay {"forceComplete": true}',
        "replay cancel %s --force-complete",
    ),
    "cancel": (
        'PUT action /topicEndpoints/%s/cancelReplay {"forceComplete": false}',
        "replay cancel %s --topic-endpoint",
    ),
    "purge": ("PUT action /queues/%s/deleteMsgs {}", "queue purge %s"),
    "copy": (
        'PUT action /queues/%s/copyMsgFromReplayLog {"replicationGroupMsgId": "%s"}',
        "queue copy %s %s",
    ),
    "mark": ('POST config /replayPoints {"replayPointName": "%s"}', "point create %s"),
    "trim": ('PUT action /replayLogs/default/trimLoggedMsgs {"before": "%s"}', "log trim %s"),
    "log nothing": ('PATCH config /replayLogs/default {"ingressEnabled": false}', "log disable"),
    "log again": ('PATCH config /replayLogs/default {"ingressEnabled": true}', "log enable"),
    "quota": ('PATCH config /replayLogs/default {"maxSpoolUsage": %s}', "log quota %s"),
    "take": (
        'POST config /replayLogs/default/topicFilterSubscriptions {"topicFilterSubscription": "%s"}',
        "log filter add %s",
    ),
    "take only those": ('PATCH config /replayLogs/default {"topicFilterEnabled": true}', "log filter on"),
    "take all": ('PATCH config /replayLogs/default {"topicFilterEnabled": false}', "log filter off"),
    "forget": ("DELETE config /replayLogs/default/topicFilterSubscriptions/%s null", "log filter remove %s"),
    "state": ("GET monitor /queues/%s null", "replay show %s"),
    "state of topic endpoint": ("GET monitor /topicEndpoints/%s null", "replay show %s --topic-endpoint"),
    "disconnect": ("PUT action /clients/%s/disconnect {}", "client disconnect %s"),
    "delete": ("DELETE config /queues/%s null", "queue delete %s"),
}
"""Each as a request and as a verb of `rewind`."""

Do = Callable[..., Any]
"""Does an operation, with names and places; what it answers."""


def over_http(api: Api) -> Do:
    """By requests."""

    def do(operation: str, *named: str) -> Any:
        method, tree, path, body = (OPERATIONS[operation][0] % named).split(" ", 3)
        return api.done(method, tree, path, json.loads(body))

    return do


def by_verbs(api: Api) -> Do:
    """By the command line."""

    def do(operation: str, *named: str) -> Any:
        words = (OPERATIONS[operation][1] % named).split()
        ran = CliRunner().invoke(main, [*words, "--json", "--admin", str(api.http.base_url)])
        assert ran.exit_code == 0, (words, ran.output)
        return json.loads(ran.stdout.splitlines()[-1])

    return do


@pytest.fixture
def publishing(api: Api, gateway: RunningGateway) -> Iterator[Publishing]:
    """Load beside everything that the test does, with a queue that takes it while the log takes nothing."""
    api.make("/queues", {"queueName": "load"})
    api.make("/queues/load/subscriptions", {"subscriptionTopic": "load/>"})
    with Publishing(gateway.url, "topic://load/1", limit=60_000) as publishing:
        publishing.wait_for(500)
        yield publishing


@pytest.mark.parametrize("way", [over_http, by_verbs])
def test_every_operation_is_done_under_load(
    way: Callable[[Api], Do], api: Api, client: Client, gateway: RunningGateway, publishing: Publishing
) -> None:
    """Each one does what it says while a publisher goes on, and an AMQP client sees it."""
    do = way(api)

    # Endpoints: a queue with a subscription and an exception, a topic endpoint.
    do("make queue", "q")
    do("subscribe", "q", "a/>")
    do("subscribe", "q", "!a/no")
    do("make topic endpoint", "te", "a/>")
    sender, unwanted = client.sender("topic://a/1"), client.sender("topic://a/no")
    sender.send_all([data(i) for i in range(3)])
    unwanted.send_all([data("no")])
    do("mark", "release")
    sender.send_all([data(i) for i in range(3, 6)])
    receiver = client.receiver("q")
    first = receiver.drain()
    assert texts(first) == ["0", "1", "2", "3", "4", "5"]
    receiver.settle(first)
    receiver.close()
    ids = [str(one.annotations["x-opt-replay-id"]) for one in first]

    # Replays: all, after a message, from one, from a point; the preview had said how many.
    for operation, start, expected in (
        ("replay", "beginning", 6),
        ("replay after", ids[1], 4),
        ("replay", f"#{first[5].id}", 1),
        ("replay", "point:release", 3),
    ):
        assert do("preview", "q", start)["msgCount"] == expected
        do(operation, "q", start)
        receiver = client.receiver("q")
        replayed = receiver.drain()
        assert texts(replayed) == [str(i) for i in range(6 - expected, 6)]
        assert do("state", "q")["replayState"] in ("active", "pending-complete")
        receiver.settle(replayed)
        receiver.close()
        wait_until(lambda: do("state", "q")["replayState"] == "complete", "acknowledged")

    # One consumer is told that a replay was started, and comes again; cancelled and kept, cancelled and gone.
    receiver = client.receiver("q", credit=10)
    do("replay", "q", "point:release")
    assert receiver.detached_by_peer().subcode == 141
    wait_until(lambda: do("state", "q")["replayState"] == "pending-complete", "all is on the queue")
    do("end", "q")
    assert do("state", "q")["replayState"] == "complete"
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["3", "4", "5"]
    receiver.close()
    do("replay to topic endpoint", "te")
    of_te = "state of topic endpoint"
    wait_until(lambda: do(of_te, "te")["replayState"] == "pending-complete", "all is on it")
    do("cancel", "te")
    assert do(of_te, "te")["replayState"] == "failed"
    assert gateway.depth("te") == 0

    # What lies on a queue: dropped; and one message of the log put on it.
    do("purge", "q")
    assert gateway.depth("q") == 0
    do("copy", "q", ids[2])
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["2"]
    receiver.close()
    do("purge", "q")

    # The log: what it takes, how much, and from where on it holds it.
    do("log nothing")
    sender.send_all([data("not logged")])
    do("log again")
    do("take", "a/1")
    do("take only those")
    client.sender("topic://a/2").send_all([data("filtered out")])
    do("take all")
    do("forget", "a%2F1" if way is over_http else "a/1")
    do("quota", "500")
    sender.send_all([data("logged")])
    assert do("trim", "point:release")["firstMsgId"] > 1
    log = client.receiver("log://a/>", filters={"rewind:replay-start": "beginning"})
    assert texts(log.drain()) == ["3", "4", "5", "logged"]
    log.close()

    # Clients, and the end of it.
    with Client(gateway.url) as other:
        name = other.connection.container
        assert name in [one["clientName"] for one in api.seen("/clients", count=100)]
        do("disconnect", name)
        other.wait(lambda: other.connection.remote_condition, "closed by the gateway")
    do("delete", "q")
    assert "q" not in gateway.endpoints()
    publishing.stop()
    assert publishing.accepted == publishing.next == gateway.depth("load")
    stop_and_check(api, client)
