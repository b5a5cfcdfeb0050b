"""Copies of logged messages on a deep queue, of which only a window is in memory."""

from __future__ import annotations

import pytest

from gateway.config import Limits
from gateway.core.endpoint.ready_queue import ReadyQueue
from tests.gateway.admin.conftest import Administer, Start
from tests.support.client import Client
from tests.support.messages import data


@pytest.mark.parametrize("has_priorities", [False, True])
def test_copies_take_their_places_in_a_deep_queue(
    start: Start, administer: Administer, has_priorities: bool
) -> None:
    """Copied to the front, to what only the store knows, to the newest and behind: each comes once, in its place."""
    gateway = start(limits=Limits(endpoint_window=20, read_page_rows=10))
    api = administer(gateway)
    api.done("POST", "config", "/queues", {"queueName": "q", "respectMsgPriorityEnabled": has_priorities})
    api.done("POST", "config", "/queues/q/subscriptions", {"subscriptionTopic": "a"})
    with Client(gateway.url) as client:
        for _ in range(100):
            client.sender("topic://a").send_all([data("lies there")])
            client.sender("topic://b").send_all([data("copied")])
        first = client.receiver("q")
        first.flow(2)
        taken = [received.id for received in first.take(2)]
        logged = api.done("GET", "monitor", "/replayLogs/default/msgs", topic="b", count=1000)
        copied = [one for one in logged if one["msgId"] in (2, 4, 40, 100, 180, 198, 200)]
        for one in reversed(copied):
            wanted = {"replicationGroupMsgId": one["replicationGroupMsgId"]}
            api.done("PUT", "action", "/queues/q/copyMsgFromReplayLog", wanted)
        assert api.queue("q")["spooledMsgCount"] == 107
        first.close()
        found = [received.id for received in client.receiver("q").drain()]
    assert taken == [1, 3]
    assert found == sorted([*range(1, 200, 2), *(one["msgId"] for one in copied)])


def test_a_copy_has_one_place() -> None:
    """Known to be in memory it is given back, beyond all it is among the newest, between them the store has it."""
    queue = ReadyQueue(window=3)
    for message in range(0, 40, 2):
        queue.add_committed([message])
    assert queue.has_more
    for message in (1, queue.stored_up_to - 1, queue.stored_up_to + 1):
        queue.insert(message)
    assert queue.given_back == [1]
    assert queue.newest[0] == queue.stored_up_to + 1
    assert queue.stored_up_to - 1 not in {*queue.oldest, *queue.newest, *queue.given_back}
