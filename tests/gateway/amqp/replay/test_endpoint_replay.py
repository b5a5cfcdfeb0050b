"""Replay onto queues and topic endpoints: history comes again in order, then live messages, without a gap."""

from __future__ import annotations

import pytest

from gateway.config import Limits, Queue, Vpn
from gateway.vpn.replays import STEP_ROWS
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Received, numbered, texts
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway

FROM_BEGINNING = "orders?replay-start=beginning"


# --- what a replay brings -----------------------------------------------------------------------------------------


def test_a_subscription_that_changes_on_the_way(start: Start, connect: Connect) -> None:
    """The new subscriptions choose what the replay has not put yet, including live messages that wait in the log."""
    gateway = start(Vpn(queues={"orders": Queue(subscriptions=("a/>",), max_unsettled=3)}))
    client = connect(gateway)
    old, new = client.sender("topic://a/1"), client.sender("topic://b/1")
    for i in range(4):
        old.send_all([data(f"a{i}")])
        new.send_all([data(f"b{i}")])
    receiver = client.receiver(FROM_BEGINNING, credit=100)
    first = receiver.take(3)
    assert texts(first) == ["a0", "a1", "a2"]
    assert gateway.replay_state("orders") == "active"
    gateway.subscribe("orders", ["b/>"])
    new.send_all([data("live")])
    old.send_all([data("unwanted")])
    receiver.settle(first)
    rest = receiver.take_and_accept(2)
    assert texts(rest) == ["b3", "live"]
    assert [message.is_end for message in rest] == [False, True]
    new.send_all([data("later")])
    assert texts(receiver.take(1)) == ["later"]


def test_failed_deliveries_are_forgotten(client: Client) -> None:
    """A replayed message is not marked redelivered even if it had failed before the replay."""
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders", credit=1)
    receiver.modify(receiver.take(1), failed=True)
    receiver.close()
    receiver = client.receiver(FROM_BEGINNING, credit=1)
    (message,) = receiver.take(1)
    assert message.delivery_count == 0
    receiver.modify([message], failed=True)
    receiver.flow(1)
    (again,) = receiver.take(1)
    assert again.delivery_count == 1, "but what fails after the replay is"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("beginning", ["a/b", "a/c", "by name"]),
        ("last", ["by name"]),
        ("match:JMSPriority = 4", ["a/b", "a/c", "by name"]),
    ],
)
def test_only_the_endpoints_own_topics_are_replayed(
    gateway: RunningGateway, client: Client, asked: str, expected: list[str]
) -> None:
    """
    What the queue's subscriptions match now, less its exceptions, and what was sent to it by name; the start is
    searched for among these alone. A new subscription brings its history.
    """
    client.sender("other").send_all([data("not mine")])
    for topic in ("a/secret", "b", "a/b", "a/c"):
        client.sender(f"topic://{topic}").send_all([data(topic)])
    client.sender("orders").send_all([data("by name")])
    client.sender("topic://a/secret").send_all([data("a/secret")])
    client.sender("other").send_all([data("not mine")])
    gateway.subscribe("orders", ["a/>", "!a/secret"])
    assert texts(client.receiver("orders", filters={"rewind:replay-start": asked}).drain()) == expected


def test_the_endpoints_default_start(start: Start, connect: Connect) -> None:
    """
    A consumer that asks for no start replays a queue from its default start; one that attaches while another is there
    just joins.
    """
    client = connect(start(Vpn(queues={"orders": Queue(default_start="beginning")})))
    client.sender("orders").send_all([data(i) for i in range(3)])
    for _ in range(2):
        receivers = [client.receiver("orders", credit=3) for _ in range(2)]
        assert texts(receivers[0].take_and_accept(3)) == ["0", "1", "2"]
        assert receivers[1].start["offset"] == 4
        for receiver in receivers:
            receiver.close()
    receiver = client.receiver("orders?replay-start=live")
    assert receiver.drain() == []


# --- states and windows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_consumer", [False, True])
def test_what_is_ready_ahead_of_consumers(
    gateway: RunningGateway, client: Client, has_consumer: bool
) -> None:
    """
    Without a consumer at most 1,000 messages are put ahead; with one that takes nothing a step of the log, whatever its
    bound of unsettled deliveries. A consumer gets them all.
    """
    client.sender("orders").send_all([data(i) for i in range(3_000)])
    receiver = client.receiver(FROM_BEGINNING) if has_consumer else None
    if receiver is None:
        gateway.start_replay("orders", "beginning")
    # The last of a step is held back: it may be the last before live.
    ahead = STEP_ROWS - 1 if has_consumer else 1_000
    client.wait(lambda: gateway.depth("orders") == ahead, "the window is full")
    client.sender("elsewhere").send_all([data("x")])  # By now an excess would show.
    assert gateway.depth("orders") == ahead
    assert gateway.replay_state("orders") == "active"
    (receiver or client.receiver("orders")).collect(taken := [], 3_000, credit=100)
    assert texts(taken) == numbered(3_000)


# --- who else is there --------------------------------------------------------------------------------------------


def test_an_administrators_replay_detaches_consumers(gateway: RunningGateway, connect: Connect) -> None:
    """
    Attached consumers are detached and told why, and can attach again to the replay. Outcomes that they send meanwhile
    for messages that it has dropped change nothing.
    """
    clients = [connect(gateway) for _ in range(3)]
    clients[0].sender("orders").send_all([data(i) for i in range(10)])
    receivers = [client.receiver("orders", credit=2) for client in clients]
    taken = [receiver.take(2) for receiver in receivers]
    for receiver, messages in zip(receivers, taken, strict=True):
        receiver.settle(messages[:1])
    gateway.start_replay("orders", "beginning")
    for receiver, messages in zip(receivers, taken, strict=True):
        receiver.settle(messages[1:])
        refused = receiver.detached_by_peer()
        assert refused.name == "amqp:link:detach-forced"
        assert (refused.replay_error, refused.subcode) == ("started", 141)
    assert texts(clients[1].receiver("orders").drain()) == numbered(10)


# --- live traffic meanwhile ---------------------------------------------------------------------------------------


SMALL_TAIL = Limits(tail_bytes=50_000, read_page_rows=100, endpoint_window=300)


@pytest.mark.parametrize("credit", [7, 500])
@pytest.mark.parametrize("limits", [None, SMALL_TAIL], ids=["from memory", "from disk"])
def test_a_replay_catches_up_while_a_publisher_goes_on(
    start: Start, connect: Connect, limits: Limits | None, credit: int
) -> None:
    """A queue replayed while a publisher is at full speed delivers every message once, in order, one end marked."""
    gateway = start(limits=limits)
    with Publishing(gateway.url, "orders", limit=4_000) as publishing:
        publishing.wait_for(1_000)
        receiver = connect(gateway).receiver(FROM_BEGINNING)
        receiver.collect(taken := [], 1_500, credit)
        publishing.stop()
        receiver.collect(taken, publishing.next, credit)
    assert texts(taken) == numbered(publishing.next)
    assert [message.id for message in taken] == list(range(1, publishing.next + 1))
    ends = [number for number, message in enumerate(taken) if message.is_end]
    assert len(ends) == 1
    assert ends[0] >= 999
    assert receiver.drain(0) == []
    receiver.client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")


def test_a_replay_of_one_topic_among_many(gateway: RunningGateway, connect: Connect) -> None:
    """
    An endpoint of one topic is replayed while other topics are published: each message once, in order, one end marked.
    """
    with Publishing(gateway.url, "topic://a/1", "topic://b/2", "topic://b/3", limit=3_000) as publishing:
        publishing.wait_for(1_000)
        receiver = connect(gateway).receiver("topic://a/>?replay-start=beginning")
        receiver.collect(taken := [], 500)
        publishing.stop()
        receiver.collect(taken, (publishing.next + 2) // 3)
    assert texts(taken) == numbered(0, publishing.next, 3)
    assert sum(message.is_end for message in taken) == 1


# --- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [None, SMALL_TAIL], ids=["from memory", "from disk"])
@pytest.mark.parametrize("stops", [[0], [1_499], [150] * 5], ids=str)
def test_a_replay_survives_restarts(
    start: Start, connect: Connect, stops: list[int], limits: Limits | None
) -> None:
    """
    A gateway that stops in mid-replay, each time after that many more messages were accepted, goes on with it: the rest
    comes once, in order, then live messages.
    """
    gateway = start(limits=limits)
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(1_500)])
    receiver = client.receiver(FROM_BEGINNING)
    taken: list[Received] = []
    published = 1_500
    for more in stops:
        receiver.collect(taken, len(taken) + more, credit=min(100, 1_500 - more))
        client = connect.again(gateway, client)
        client.sender("orders").send_all([data(i) for i in range(published, published + 50)])
        published += 50
        receiver = client.receiver("orders")
    receiver.collect(taken, published)
    assert texts(taken) == numbered(published)
    assert receiver.drain(0) == []


@pytest.mark.parametrize("limits", [None, SMALL_TAIL], ids=["from memory", "from disk"])
@pytest.mark.parametrize("taken_before", [None, 0, 500])
def test_direct_messages_during_a_replay(
    start: Start, connect: Connect, limits: Limits | None, taken_before: int | None
) -> None:
    """
    Direct messages, which are not logged, reach a replaying queue behind its history, none lost; also if the gateway is
    restarted (unless None) after that many messages were consumed.
    """
    gateway = start(limits=limits)
    client = connect(gateway)
    sender = client.sender("orders")
    sender.send_all([data(i) for i in range(1_500)])
    receiver = client.receiver("orders", credit=1_500)
    receiver.take_and_accept(1_500)
    receiver.close()
    gateway.start_replay("orders", "beginning")
    for i in range(10):
        sender.send(data(f"direct {i}"), settled=True)
    client.open_session()
    taken: list[Received] = []
    if taken_before:
        client.receiver("orders").collect(taken, taken_before, credit=50)
    if taken_before is not None:
        client = connect.again(gateway, client)
    client.receiver("orders").collect(taken, 1_510)
    assert texts(taken) == numbered(1_500) + [f"direct {i}" for i in range(10)]
