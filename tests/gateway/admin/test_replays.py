"""Replays and the log over HTTP, as an AMQP client sees them."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from proton import Message

from tests.gateway.admin.conftest import LOG, Api, stop_and_check
from tests.support.client import Client, texts
from tests.support.messages import data, trade

# --- Replays and the log over HTTP, as an AMQP client sees them -------------------------------------------------------


def test_a_replay_is_cancelled_and_counted(api: Api, client: Client) -> None:
    """The monitor shows states and counters; a cancel without a replay is refused with the state."""
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
    """A start that is invalid, given twice, or not in the log is refused with the subcode that AMQP clients get."""
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
    """A trim removes only older messages of the log; those on a queue are still delivered."""
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
    assert "Give either olderThanTime or before" in api.why("PUT", "action", path, {})
    api.act(path, {"before": "live"})
    assert api.seen(f"{LOG}/msgs") == []
    assert len(client.receiver("q").drain()) == 6
    client.close()
    stop_and_check(api, client)


def test_messages_of_the_log_are_paged_from_either_end(api: Api, client: Client) -> None:
    """For every query, newest first is the reverse of oldest first: each message once, page by page."""
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
    for count, (query, expected) in itertools.product((2, 5, 1_000), asked):
        oldest, newest = (
            api.all_of("monitor", f"{LOG}/msgs", "msgId", count=count, order=order, **query)
            for order in ("oldest", "newest")
        )
        assert (oldest, newest) == (expected, expected[::-1]), query


def test_messages_between_two_ids_are_what_is_left_of_them(api: Api, client: Client) -> None:
    """Ids that are trimmed or not assigned yet are left out, not refused; ids together with a start are refused."""
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
    """A query that cannot be parsed is status 400."""
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
    """A topic filter, or ingress disabled, decides what is logged from then on."""
    sub = f"{LOG}/topicFilterSubscriptions"
    for topic in ("a/>", "!a/no"):
        api.make(sub, {"topicFilterSubscription": topic})
        assert not api.done("GET", "config", LOG)["topicFilterEnabled"], "the list may not be complete yet"
    api.change(LOG, {"topicFilterEnabled": True})
    api.make_queue("all", ">")
    for topic in ("a/yes", "a/no", "b"):
        client.sender(f"topic://{topic}").send_all([data(topic)])
    api.change(LOG, {"ingressEnabled": False})
    client.sender("topic://a/yes").send_all([data("late")])
    logged = api.seen(f"{LOG}/msgs")
    assert [one["topic"] for one in logged] == ["a/yes"]
    assert api.queue("all")["spooledMsgCount"] == 4


# --- A preview says what a replay would deliver and lose; a replay can be told what to expect -------------------------

START = "/queues/q/startReplay"
PREVIEW = "/queues/q/previewReplay"


def unlogged(api: Api) -> None:
    """From now on, the log takes no messages of the queue."""
    api.make(f"{LOG}/topicFilterSubscriptions", {"topicFilterSubscription": "elsewhere/>"})
    api.change(LOG, {"topicFilterEnabled": True})


def fill_in_part(api: Api, client: Client) -> None:
    """Put three logged and two unlogged messages on a queue."""
    client.sender("q").send_all([data(i) for i in range(3)])
    unlogged(api)
    client.sender("q").send_all([data(i) for i in range(3, 5)])


def counts(preview: dict[str, Any]) -> list[int]:
    names = ("msgCount", "droppedMsgCount", "lossMsgCount", "lossMsgSpoolUsage", "detachedClientCount")
    return [preview[name] for name in names]


def test_a_preview_says_what_is_lost_for_good(api: Api, client: Client) -> None:
    """A loss is a message on the queue that was never logged, or was trimmed; a settled one is no loss."""
    fill_in_part(api, client)
    size = len(data(0))
    assert counts(api.act(PREVIEW, {})) == [3, 5, 2, 2 * size, 0]
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#3"})
    shown = api.act(PREVIEW, {})
    assert counts(shown) == [1, 5, 4, 4 * size, 0]
    assert shown["topics"] == [{"topic": "#queue/q", "msgCount": 1, "msgSpoolUsage": size}]
    assert shown["firstMsgTimeMs"] <= shown["lastMsgTimeMs"]
    receiver = client.receiver("q", credit=5)
    receiver.take_and_accept(4)
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 1, "settlements arrive")
    shown = api.act(PREVIEW, {})
    assert counts(shown) == [1, 1, 1, size, 1]
    assert shown["detachedClients"] == [client.connection.container]


def test_a_replay_that_is_not_what_was_expected_does_nothing(api: Api, client: Client) -> None:
    """It is refused with the actual numbers; queue, consumer and deliveries stay as they were."""
    fill_in_part(api, client)
    receiver = client.receiver("q", credit=1)
    (first,) = receiver.take(1)
    error = api.refused("PUT", "action", START, {"expectedMsgCount": 4, "ifLossAtMost": 9})
    assert "would bring 3 messages" in error["description"]
    error = api.refused("PUT", "action", START, {"expectedMsgCount": 3, "ifLossAtMost": 1})
    assert "2 messages (10 bytes) are on 'q'" in error["description"].replace(
        f"{2 * len(data(0))} bytes", "10 bytes"
    )
    assert (api.queue("q")["replayState"], api.queue("q")["spooledMsgCount"]) == ("n/a", 5)
    assert api.seen("/replays") == []
    receiver.settle([first])
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 4, "the consumer goes on")
    api.act(START, {"expectedMsgCount": 3, "ifLossAtMost": 2})
    assert receiver.detached_by_peer().subcode == 141
    assert texts(client.receiver("q").drain()) == ["0", "1", "2"]


def test_what_is_lost_is_counted_beside_a_replay(api: Api, client: Client) -> None:
    """During a replay its messages are in the log, and no loss; those trimmed meanwhile are a loss."""
    client.sender("q").send_all([data(i) for i in range(6)])
    api.act(START, {})
    client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "all was read")
    assert counts(api.act(PREVIEW, {}))[:3] == [6, 6, 0]
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#5"})
    assert counts(api.act(PREVIEW, {}))[:3] == [2, 6, 4]


# --- A replay that keeps unlogged messages drops none of them, and delivers nothing twice -----------------------------


KEEP = {"keepUnlogged": True}


def fill(api: Api, client: Client) -> None:
    """Put 0 to 4 on the queue; the log has 0, 1 and 4 only."""
    sender = client.sender("q")
    sender.send_all([data(0), data(1)])
    unlogged(api)
    sender.send_all([data(2), data(3)])
    api.change(LOG, {"topicFilterEnabled": False})
    sender.send_all([data(4)])


def replayed(api: Api, client: Client, place: str = "beginning") -> None:
    """Start a replay that keeps unlogged messages, and wait until it has put all of its messages on the queue."""
    api.act(START, {**KEEP, "start": place})
    client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "all was read")


def test_what_the_log_does_not_have_is_delivered_in_its_place(api: Api, client: Client) -> None:
    """All messages come once, in the order in which they were sent, and then live ones; none is lost."""
    fill(api, client)
    receiver = client.receiver("q", credit=4)
    receiver.take_and_accept(1)
    receiver.take(3)
    shown = api.act(PREVIEW, KEEP)
    assert (shown["msgCount"], shown["lossMsgCount"], shown["droppedMsgCount"]) == (3, 0, 2)
    assert (shown["keptMsgCount"], shown["keptMsgSpoolUsage"]) == (2, 2 * len(data(2)))
    api.act(START, {**KEEP, "expectedMsgCount": 3, "ifLossAtMost": 0})
    assert receiver.detached_by_peer().subcode == 141
    client.sender("q").send_all([data(5)])
    receiver = client.receiver("q", credit=9)
    found = receiver.take(6)
    assert texts(found) == ["0", "1", "2", "3", "4", "5"]
    # The kept messages are not replayed ones, and the last is live.
    named = ["x-opt-replay-name" in one.annotations for one in found]
    assert named == [True, True, False, False, True, False]
    assert api.act(PREVIEW, {})["lossMsgCount"] == 2
    receiver.settle(found)
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 0, "settlements arrive")
    shown = api.queue("q")
    assert (shown["replayState"], shown["msgSpoolUsage"]) == ("complete", 0)


def test_what_was_settled_is_not_kept(api: Api, client: Client) -> None:
    """Only unsettled messages are kept, and each keeps its delivery count."""
    fill(api, client)
    receiver = client.receiver("q", credit=4)
    found = receiver.take(4)
    receiver.settle(found[:3])
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 2, "settlements arrive")
    receiver.modify([found[3]], failed=True)
    client.wait(lambda: api.queue("q")["txUnackedMsgCount"] == 0, "it comes back")
    receiver.detach()
    api.act(START, KEEP)
    again = client.receiver("q", credit=9).take(4)
    assert texts(again) == ["0", "1", "3", "4"]
    assert [one.delivery_count for one in again] == [0, 0, 1, 0]
    stop_and_check(api, client)


def test_what_was_kept_stays_and_can_be_kept_again(api: Api, client: Client) -> None:
    """A later replay keeps what an earlier one kept; a cancelled replay removes only the messages that it put."""
    fill(api, client)
    for place in ("beginning", "#4", "beginning"):
        replayed(api, client, place)
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["0", "1", "2", "3", "4"]
    receiver.close()
    for place in ("beginning", "#4"):
        replayed(api, client, place)
        api.act("/queues/q/cancelReplay", {})
        receiver = client.receiver("q")
        assert texts(receiver.drain()) == ["2", "3"]
        receiver.close()


def test_what_was_trimmed_while_it_lay_there_is_kept_but_for_references(api: Api, client: Client) -> None:
    """
    A message that is still on the queue after the log trimmed it is kept. Messages that an earlier replay put there,
    and that were trimmed since, are not kept: the replay is refused.
    """
    fill(api, client)
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#2"})
    replayed(api, client)
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["0", "1", "2", "3", "4"]
    receiver.close()
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#3"})
    assert "these cannot be kept" in api.why("PUT", "action", START, KEEP)
    assert texts(client.receiver("q").drain()) == ["0", "1", "2", "3", "4"]


def test_by_priority(api: Api, client: Client) -> None:
    """A queue that delivers by priority puts kept messages in order by it."""
    api.make("/queues", {"queueName": "p", "respectMsgPriorityEnabled": True})
    sender = client.sender("p")
    sender.send_all([data(0), data(1)])
    unlogged(api)
    sender.send_all([Message(body=b"2", priority=9).encode(), data(3)])
    api.act("/queues/p/startReplay", KEEP)
    client.wait(lambda: api.queue("p")["replayState"] == "pending-complete", "all was read")
    found = client.receiver("p").drain()
    assert found[0].header[1] == 9
    assert texts(found[1:]) == ["0", "1", "3"]


def test_more_than_is_kept_is_refused(api: Api, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept messages is limited; with more, the replay is refused."""
    monkeypatch.setattr("gateway.vpn.replay_preview.MOST_MESSAGES", 1)
    fill(api, client)
    error = api.refused("PUT", "action", START, KEEP)
    assert "more than 1 messages are" in error["description"]
    assert api.queue("q")["spooledMsgCount"] == 5
