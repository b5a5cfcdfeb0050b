"""Copies of logged messages on a deep queue, of which only a window is in memory."""

from __future__ import annotations

import pytest

from gateway.config import Limits
from gateway.core.endpoint.cursor import Cursor
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


def test_a_copy_waits_for_what_only_the_store_has() -> None:
    """What is given back in front of messages that are in the store is ready; what belongs behind them waits."""
    queue = ReadyQueue(window=3, cursor=Cursor(0))
    for message in range(0, 40, 2):
        queue.add_committed([message + 2])
    queue.hand_out(queue.peek(10))
    assert queue.has_more
    queue.give_back([1, 39])
    assert queue.peek(10) == [1]
    queue.add_page(range(8, 42, 2), 42)
    assert queue.peek(20) == [1]
    queue.hand_out([1])
    assert queue.peek(20) == [*range(8, 35, 2)]
