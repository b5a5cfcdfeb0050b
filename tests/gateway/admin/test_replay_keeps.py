"""A replay that is told to keep what the log does not have drops none of it, and brings nothing twice."""

from __future__ import annotations

import pytest
from proton import Message

from tests.gateway.admin.conftest import LOG, Api, stop_and_check
from tests.support.client import Client, texts
from tests.support.messages import data

START = "/queues/q/startReplay"
PREVIEW = "/queues/q/previewReplay"
KEEP = {"keepUnlogged": True}


def unlogged(api: Api, *, is_on: bool = True) -> None:
    """From now on the log takes nothing that is sent to the queue; or all again."""
    topics = f"{LOG}/topicFilterSubscriptions"
    if is_on and not api.done("GET", "config", topics):
        api.make(topics, {"topicFilterSubscription": "elsewhere/>"})
    api.change(LOG, {"topicFilterEnabled": is_on})


def send(client: Client, *numbers: int) -> None:
    client.sender("q").send_all([data(i) for i in numbers])


def fill(api: Api, client: Client) -> None:
    """The log has 0, 1 and 4; 2 and 3 are on the queue alone."""
    send(client, 0, 1)
    unlogged(api)
    send(client, 2, 3)
    unlogged(api, is_on=False)
    send(client, 4)


def complete(api: Api, client: Client) -> None:
    """All is settled, and the replay over."""
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 0, "settlements arrive")
    shown = api.queue("q")
    assert (shown["replayState"], shown["msgSpoolUsage"]) == ("complete", 0)


def replayed(api: Api, client: Client, place: str = "beginning") -> None:
    """A replay that keeps what the log does not have, with all of it on the queue."""
    api.act(START, {**KEEP, "start": place})
    client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "all was read")


def test_what_the_log_does_not_have_is_delivered_in_its_place(api: Api, client: Client) -> None:
    """All as they were sent, in the order in which they were, once; then what is live. Nothing is lost by it."""
    fill(api, client)
    receiver = client.receiver("q", credit=4)
    receiver.take_and_accept(1)
    receiver.take(3)
    shown = api.act(PREVIEW, KEEP)
    assert (shown["msgCount"], shown["lossMsgCount"], shown["droppedMsgCount"]) == (3, 0, 2)
    assert (shown["keptMsgCount"], shown["keptMsgSpoolUsage"]) == (2, 2 * len(data(2)))
    api.act(START, {**KEEP, "expectedMsgCount": 3, "ifLossAtMost": 0})
    assert receiver.detached_by_peer().subcode == 141
    send(client, 5)
    receiver = client.receiver("q", credit=9)
    found = receiver.take(6)
    assert texts(found) == ["0", "1", "2", "3", "4", "5"]
    # Nobody may have had these yet, and the last is live.
    named = ["x-opt-replay-name" in one.annotations for one in found]
    assert named == [True, True, False, False, True, False]
    assert api.act(PREVIEW, {})["lossMsgCount"] == 2
    receiver.settle(found)
    complete(api, client)


@pytest.mark.parametrize("place", ["#4", "live"])
def test_what_is_older_than_the_start_comes_first(api: Api, client: Client, place: str) -> None:
    """The replay brings what comes after its start alone, and what it was told to keep besides."""
    fill(api, client)
    api.act(START, {**KEEP, "start": place})
    send(client, 5)
    receiver = client.receiver("q", credit=9)
    found = receiver.take(3 if place == "live" else 4)
    assert texts(found) == ["2", "3", *(["4"] if place == "#4" else []), "5"]
    receiver.settle(found)
    complete(api, client)


def test_what_was_settled_is_not_kept(api: Api, client: Client) -> None:
    """Only what lies there still is; how often its delivery failed is known afterwards."""
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
    """One replay after the other keeps what the one before it kept; a cancelled one takes with it what it had put."""
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
    The log has dropped it, and the queue has it still. What an earlier replay has put, and the log has dropped, is not
    kept: nothing is done.
    """
    fill(api, client)
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#2"})
    replayed(api, client)
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["0", "1", "2", "3", "4"]
    receiver.close()
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#3"})
    assert "these are not kept" in api.why("PUT", "action", START, KEEP)
    assert texts(client.receiver("q").drain()) == ["0", "1", "2", "3", "4"]


def test_by_priority(api: Api, client: Client) -> None:
    """A queue that delivers by priority has what is kept in its place by that, after a restart, too."""
    api.make("/queues", {"queueName": "p", "respectMsgPriorityEnabled": True})
    sender = client.sender("p")
    sender.send_all([data(0), data(1)])
    unlogged(api)
    sender.send_all([Message(body=b"2", priority=9).encode(), data(3)])
    api.act("/queues/p/startReplay", KEEP)
    client.wait(lambda: api.queue("p")["replayState"] == "pending-complete", "all was read")
    found = client.receiver("p").drain()
    assert len(found) == 4
    assert found[0].header[1] == 9


def test_more_than_is_kept_is_refused(api: Api, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a bound on it: nothing is done."""
    monkeypatch.setattr("gateway.vpn.replay_preview.MOST_MESSAGES", 1)
    fill(api, client)
    error = api.refused("PUT", "action", START, KEEP)
    assert "more than 1 messages lie" in error["description"]
    assert api.queue("q")["spooledMsgCount"] == 5
