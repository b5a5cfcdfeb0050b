"""Replays and the log over HTTP, and what an AMQP client sees of it."""

from __future__ import annotations

import itertools
import time
from typing import Any

from tests.gateway.admin.conftest import LOG, Api, stop_and_check
from tests.support.client import Client
from tests.support.messages import data, trade


def test_a_replay_is_cancelled_and_counted(api: Api, client: Client) -> None:
    """States and counters are in the monitor; a cancel without a replay is refused with the state."""
    client.sender("q").send_all([data(i) for i in range(3)])
    assert api.queue("q")["replayState"] == "n/a"
    api.act("/queues/q/startReplay", {})
    client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "read")
    api.act("/queues/q/cancelReplay", {})
    shown = api.queue("q")
    assert (shown["replayState"], shown["replayFailureCount"]) == ("failed", 1)
    assert shown["lastReplayFailureReason"] == "it was cancelled"
    error = api.refused("PUT", "action", "/queues/q/cancelReplay", {})
    assert error["status"] == "NOT_ALLOWED"
    assert "its state is failed" in error["description"]


def test_a_start_that_cannot_be_is_refused_with_its_subcode(api: Api, client: Client) -> None:
    """Starts that are none, or two, or not in the log are told apart as over AMQP."""
    client.sender("q").send_all([data(0)])
    path = "/queues/q/startReplay"
    assert api.refused("PUT", "action", path, {"start": "#99"})["subcode"] == 156
    assert api.refused("PUT", "action", path, {"fromTime": 1})["subcode"] == 143
    assert api.refused("PUT", "action", path, {"fromTime": int(time.time()) + 9_999})["subcode"] == 139
    both = api.refused("PUT", "action", path, {"fromTime": 1, "start": "last"})
    assert "fromTime and start" in both["description"]
    assert "afterMsg" in api.why("PUT", "action", path, {"afterMsg": "rmid1:x"})
    assert "no replay log" in api.why("PUT", "action", path, {"replayLogName": "x"})
    assert api.queue("q")["replayStartCount"] == 0


def test_the_log_is_trimmed_by_place_and_by_time(api: Api, client: Client) -> None:
    """Trimming takes what is older and nothing else; what lies on a queue is delivered all the same."""
    sender = client.sender("q")
    sender.send_all([data(i) for i in range(3)])
    api.make("/replayPoints", {"replayPointName": "p"})
    sender.send_all([data(i) for i in range(3, 6)])
    path = f"{LOG}/trimLoggedMsgs"
    assert api.act(path, {"before": "point:p"}) == {"firstMsgId": 4}
    shown = api.seen(LOG)
    assert (shown["firstMsgId"], shown["lastMsgId"]) == (4, 6)
    assert shown["oldestMsgTimeMs"] <= shown["newestMsgTimeMs"]
    assert api.act(path, {"olderThanTime": 1})["firstMsgId"] == 4
    assert "future" in api.why("PUT", "action", path, {"olderThanTime": int(time.time()) + 999})
    assert api.refused("PUT", "action", path, {"before": "#99"})["subcode"] == 156
    assert "one of" in api.why("PUT", "action", path, {})
    api.act(path, {"before": "live"})
    assert api.seen(f"{LOG}/msgs") == []
    assert len(client.receiver("q").drain()) == 6
    client.close()
    stop_and_check(api, client)


def test_messages_of_the_log_are_paged_from_either_end(api: Api, client: Client) -> None:
    """Whatever is asked for, newest first is oldest first, turned round: each message once, page by page."""
    for topic in ("a/1", "b/1", "a/2"):
        client.sender(f"topic://{topic}").send_all([trade(n, {"n": n}) for n in range(4)])
    asked: list[tuple[dict[str, Any], list[int]]] = [
        ({}, list(range(1, 13))),
        ({"subscribe": ["a/>", "!a/2"]}, [1, 2, 3, 4]),
        ({"topic": "a/>", "start": "#2", "until": "#10"}, [2, 3, 4, 9, 10]),
        ({"selector": "n > 1"}, [3, 4, 7, 8, 11, 12]),
        ({"selector": "n = 3", "subscribe": ["b/1", "a/2"]}, [8, 12]),
        ({"start": "last:3", "subscribe": "a/1"}, [2, 3, 4]),
        ({"start": "last:3", "until": "#6"}, [4, 5, 6]),
        ({"start": "live"}, []),
        ({"topic": "none"}, []),
        ({"firstMsgId": 3, "lastMsgId": 5}, [3, 4, 5]),
        ({"firstMsgId": 9, "subscribe": "a/>"}, [9, 10, 11, 12]),
        ({"lastMsgId": 6, "selector": "n > 1"}, [3, 4]),
        ({"firstMsgId": 100, "lastMsgId": 200}, []),
    ]
    for count, (query, expected) in itertools.product((1, 2, 3, 1_000), asked):
        oldest, newest = (
            api.all_of("monitor", f"{LOG}/msgs", "msgId", count=count, order=order, **query)
            for order in ("oldest", "newest")
        )
        assert (oldest, newest) == (expected, expected[::-1]), query


def test_messages_between_two_ids_are_what_is_left_of_them(api: Api, client: Client) -> None:
    """Nothing is refused for what the log has no more, or not yet; a start beside them is."""
    client.sender("topic://a").send_all([trade(n) for n in range(8)])
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#4"})
    for order, expected in (("oldest", [4, 5]), ("newest", [5, 4])):
        found = api.seen(f"{LOG}/msgs", firstMsgId=1, lastMsgId=5, order=order)
        assert [one["msgId"] for one in found] == expected
    assert api.seen(f"{LOG}/msgs", firstMsgId=1, lastMsgId=2) == []
    for beside in ({"start": "#4"}, {"until": "#5"}):
        error = api.refused("GET", "monitor", f"{LOG}/msgs", lastMsgId=5, **beside)
        assert error["description"] == "Give ids, or `start` and `until`, not both."


def test_a_list_that_makes_no_sense_is_refused(api: Api) -> None:
    """What cannot be read is the client's mistake, said with 400."""
    for query in (
        {"selector": "n >"},
        {"order": "backwards"},
        {"subscribe": ""},
        {"until": "2999-01-01T00:00:00Z"},
        {"start": "last:0"},
        {"subscribe": ["a"] * 101},
    ):
        answer = api.ask("GET", "monitor", f"{LOG}/msgs", **query)
        assert answer.status_code == 400, query


def test_the_log_is_filtered_and_shut_live(api: Api, client: Client) -> None:
    """A topic filter, and then no ingress at all, decide what is logged from then on."""
    sub = f"{LOG}/topicFilterSubscriptions"
    for topic in ("a/>", "!a/no"):
        api.make(sub, {"topicFilterSubscription": topic})
        assert not api.done("GET", "config", LOG)["topicFilterEnabled"], "the list may not be complete yet"
    api.change(LOG, {"topicFilterEnabled": True})
    api.make("/queues", {"queueName": "all"})
    api.make("/queues/all/subscriptions", {"subscriptionTopic": ">"})
    for topic in ("a/yes", "a/no", "b"):
        client.sender(f"topic://{topic}").send_all([data(topic)])
    api.change(LOG, {"ingressEnabled": False})
    client.sender("topic://a/yes").send_all([data("late")])
    logged = api.seen(f"{LOG}/msgs")
    assert [one["topic"] for one in logged] == ["a/yes"]
    assert api.queue("all")["spooledMsgCount"] == 4
