"""What a replay would bring and cost is said before it drops anything, and it can be told what it must be."""

from __future__ import annotations

from typing import Any

from tests.gateway.admin.conftest import LOG, Api
from tests.support.client import Client, texts
from tests.support.messages import data

START = "/queues/q/startReplay"
PREVIEW = "/queues/q/previewReplay"


def fill(api: Api, client: Client) -> None:
    """Three messages that the log has, and two that it did not take, on a queue."""
    client.sender("q").send_all([data(i) for i in range(3)])
    topics = f"{LOG}/topicFilterSubscriptions"
    api.make(topics, {"topicFilterSubscription": "elsewhere/>"})
    api.change(LOG, {"topicFilterEnabled": True})
    client.sender("q").send_all([data(i) for i in range(3, 5)])


def counts(preview: dict[str, Any]) -> list[int]:
    names = ("msgCount", "droppedMsgCount", "lossMsgCount", "lossMsgSpoolUsage", "detachedClientCount")
    return [preview[name] for name in names]


def test_a_preview_says_what_is_lost_for_good(api: Api, client: Client) -> None:
    """What the log did not take, and what was trimmed of it while it lay there; consumed, it is no loss any more."""
    fill(api, client)
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
    """Refused with what there is: the queue, its consumer and what it was given stay as they were."""
    fill(api, client)
    receiver = client.receiver("q", credit=1)
    (first,) = receiver.take(1)
    error = api.refused("PUT", "action", START, {"expectedMsgCount": 4, "ifLossAtMost": 9})
    assert "would bring 3 messages" in error["description"]
    error = api.refused("PUT", "action", START, {"expectedMsgCount": 3, "ifLossAtMost": 1})
    assert "2 messages (10 bytes) lie on 'q'" in error["description"].replace(
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
    """What a replay has put is in the log, and no loss; what was trimmed under it is one."""
    client.sender("q").send_all([data(i) for i in range(6)])
    api.act(START, {})
    client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "all was read")
    assert counts(api.act(PREVIEW, {}))[:3] == [6, 6, 0]
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#5"})
    assert counts(api.act(PREVIEW, {}))[:3] == [2, 6, 4]
