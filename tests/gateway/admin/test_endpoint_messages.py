"""What lies on endpoints, as an administrator looks at it: all of it, in order, and it stays there."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import UByte
from gateway.config import ReplayLog, Vpn
from tests.gateway.admin.conftest import Administer, Api, Start
from tests.support.client import Client
from tests.support.messages import HEADER, data, section


def on_endpoint(
    api: Api, name: str = "q", count: int = 10, collection: str = "queues"
) -> list[dict[str, Any]]:
    """All of it, page by page."""
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"count": count}
    while True:
        answer = api.ask("GET", "monitor", f"/{collection}/{name}/msgs", **query).json()
        page = answer["data"]
        assert len(page) <= count
        found += page
        paging = answer["meta"].get("paging")
        if paging is None:
            return found
        assert len(page) == count
        query["cursor"] = paging["cursorQuery"]


def ids(api: Api, *more: Any, **query: Any) -> list[int]:
    return [one["msgId"] for one in on_endpoint(api, *more, **query)]


@pytest.mark.parametrize("writes", [True, False])
def test_it_is_all_that_lies_there(start: Start, administer: Administer, *, writes: bool) -> None:
    """Not what was settled in between, but what a consumer has; nothing is gone after it. With and without a log."""
    gateway = start(Vpn(replay_log=ReplayLog(write=writes)))
    api = administer(gateway)
    with Client(gateway.url) as client:
        client.sender("q").send_all(data(i) for i in range(10))
        receiver = client.receiver("q")
        messages = receiver.drain()
        receiver.settle([messages[i] for i in (0, 1, 4, 8)])
        client.wait(lambda: api.queue("q")["spooledMsgCount"] == 6, "they are settled")
        assert [(one["msgId"], one["isUnacked"]) for one in on_endpoint(api, count=2)] == [
            (i, True) for i in (3, 4, 6, 7, 8, 10)
        ]
        receiver.close()
        client.wait(lambda: api.queue("q")["txUnackedMsgCount"] == 0, "they are given back")
        found = on_endpoint(api, count=4)
        assert [(one["msgId"], one["isUnacked"]) for one in found] == [
            (i, False) for i in (3, 4, 6, 7, 8, 10)
        ]
        assert {one["topic"] for one in found} == {"#queue/q"}
        assert found[0]["contentSize"] == len(data(2))
        assert api.queue("q")["spooledMsgCount"] == 6
        assert len(client.receiver("q").drain()) == 6


def test_how_often_delivery_failed_is_told(api: Api, client: Client) -> None:
    """As the header of the next delivery will say."""
    client.sender("q").send_all([data(0), data(1)])
    receiver = client.receiver("q")
    first, second = receiver.drain()
    receiver.modify([first], failed=True)
    receiver.settle([second])
    client.wait(lambda: [one["deliveryCount"] for one in on_endpoint(api)] == [1], "it came back")


def test_it_is_by_age_whatever_the_priorities(api: Api, client: Client) -> None:
    """Each once, the oldest first; also those of which a higher one was settled."""
    api.done("POST", "config", "/queues", {"queueName": "q", "respectMsgPriorityEnabled": True})
    client.sender("q").send_all(section(HEADER, [True, UByte(i % 10)]) + data(i) for i in range(30))
    receiver = client.receiver("q", credit=6)
    receiver.settle(receiver.take(6))
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 24, "they are settled")
    found = on_endpoint(api, count=7)
    assert [one["msgId"] for one in found] == [i for i in range(1, 31) if (i - 1) % 10 not in (9, 8)]
    assert all(one["priority"] == (one["msgId"] - 1) % 10 for one in found)


def test_what_a_replay_or_a_copy_put_there_is_in_its_place(api: Api, client: Client) -> None:
    """Between what came by routes."""
    client.sender("topic://a").send_all(data(i) for i in range(5))
    client.sender("q").send_all([data("q")])
    third = api.done("GET", "monitor", "/replayLogs/default/msgs/3")["replicationGroupMsgId"]
    api.done("PUT", "action", "/queues/q/copyMsgFromReplayLog", {"replicationGroupMsgId": third})
    assert ids(api) == [3, 6]
    api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": "te", "topic": "a"})
    api.done("PUT", "action", "/topicEndpoints/te/startReplay", {})
    client.sender("topic://a").send_all([data("live")])
    client.wait(lambda: len(on_endpoint(api, "te", 10, "topicEndpoints")) == 6, "it was replayed")
    assert ids(api, "te", 2, "topicEndpoints") == [1, 2, 3, 4, 5, 7]


def test_the_oldest_is_known_by_its_time(api: Api, client: Client) -> None:
    """Of what lies there still: by routes, by priority, or put there by a copy; None where nothing does."""
    client.sender("topic://a").send_all([data("old")])
    api.done("POST", "config", "/queues", {"queueName": "p", "respectMsgPriorityEnabled": True})
    times = {}
    for name in ("q", "p"):
        client.sender(name).send_all(section(HEADER, [True, UByte(9 - i)]) + data(i) for i in range(3))
        times[name] = [one["spooledTimeMs"] for one in on_endpoint(api, name)]
        assert api.queue(name)["oldestMsgTimeMs"] == times[name][0]
        receiver = client.receiver(name, credit=1)
        receiver.settle(receiver.take(1))
        client.wait(lambda name=name: api.queue(name)["spooledMsgCount"] == 2, "it is settled")  # type: ignore[misc]
        assert api.queue(name)["oldestMsgTimeMs"] == times[name][1]
        receiver.close()
    old = api.done("GET", "monitor", "/replayLogs/default/msgs/1")
    body = {"replicationGroupMsgId": old["replicationGroupMsgId"]}
    api.done("PUT", "action", "/queues/q/copyMsgFromReplayLog", body)
    assert api.queue("q")["oldestMsgTimeMs"] == old["spooledTimeMs"]
    api.done("PUT", "action", "/queues/q/deleteMsgs", {})
    assert api.queue("q")["oldestMsgTimeMs"] is None


def test_an_endpoint_with_nothing_has_an_empty_list(api: Api, client: Client) -> None:
    """After a purge, too; a stream has none of its own. What is no endpoint has no list."""
    client.sender("q").send_all([data(0)])
    api.done("PUT", "action", "/queues/q/deleteMsgs", {})
    assert on_endpoint(api) == []
    api.done("POST", "config", "/queues", {"queueName": "s", "kind": "stream"})
    assert on_endpoint(api, "s") == []
    assert api.refused("GET", "monitor", "/queues/none/msgs")["status"] == "NOT_FOUND"
    assert api.refused("GET", "monitor", "/topicEndpoints/q/msgs")["status"] == "NOT_FOUND"
    assert api.refused("GET", "monitor", "/queues/q/msgs", where="msgId>1")["status"] == "INVALID_PARAMETER"


def test_one_message_says_all(start: Start, administer: Administer) -> None:
    """Whether the log has it or not; one that lies elsewhere is not told of."""
    gateway = start(Vpn(replay_log=ReplayLog(write=False)))
    api = administer(gateway)
    with Client(gateway.url) as client:
        client.sender("q").send_all([data("mine")])
        client.sender("other").send_all([data("theirs")])
        assert api.done("GET", "monitor", "/queues/q/msgs/1")["body"]["text"] == "mine"
        for message in (2, 3):
            assert api.refused("GET", "monitor", f"/queues/q/msgs/{message}")["status"] == "NOT_FOUND"
