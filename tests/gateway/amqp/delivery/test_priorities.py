"""A queue that delivers by priority: the highest first, equal ones in publish order, however deep the queue is."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from proton import Delivery

from amqp_ext.codec import UByte
from gateway.config import Limits, Queue, Vpn
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import SELECTOR, Client, Received, browsing, texts
from tests.support.messages import HEADER, data, section
from tests.support.running import RunningGateway

QUEUES = {
    "urgent": Queue(priorities=True, subscriptions=("t/>",), dead_message_queue="dead"),
    "plain": Queue(subscriptions=("t/>",)),
    "dead": Queue(priorities=True),
}
SMALL = Limits(endpoint_window=20, read_page_rows=10, tail_bytes=2_000)
"""Windows and pages so small that some hundred messages are a deep queue."""

either_depth = pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["wide", "narrow"])


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with a queue that delivers by priority, and one that does not."""
    return start(vpn=Vpn(queues=QUEUES))


def message(number: int, priority: int | None = None) -> bytes:
    """A numbered message; without a priority it has no header."""
    if priority is None:
        return data(number)
    return section(HEADER, [None, UByte(priority)]) + data(number)


def shuffled(count: int, seed: int = 1, first: int = 0) -> list[tuple[int, int]]:
    """(number, priority) of ``count`` messages in publish order, with random priorities."""
    priorities = random.Random(seed)
    return [(first + number, priorities.randrange(10)) for number in range(count)]


def by_priority(numbered: Iterable[tuple[int, int]]) -> list[str]:
    """The numbers in the order of delivery."""
    return [str(number) for number, _ in sorted(numbered, key=lambda one: (-one[1], one[0]))]


def publish(client: Client, numbered: Iterable[tuple[int, int]], address: str = "urgent") -> None:
    sender = client.sender(address)
    sender.send_all(message(number, priority) for number, priority in numbered)
    sender.close()


def collect(client: Client, count: int, address: str = "urgent") -> list[Received]:
    """Exactly ``count`` messages, accepted in small batches."""
    receiver = client.receiver(address)
    taken: list[Received] = []
    while len(taken) < count:
        credit = min(7, count - len(taken))
        receiver.flow(credit)
        taken += receiver.take_and_accept(credit)
    receiver.close()
    return taken


# --- the order --------------------------------------------------------------------------------------------------------


def test_what_no_header_says_is_four_and_above_nine_is_nine(client: Client) -> None:
    """A message without a header comes after priority 5 and before 3; 200 and 9 are the same."""
    client.sender("urgent").send_all(
        [message(1, 3), message(2), message(3, 5), message(4, 9), message(5, 200), message(6, 4)]
    )
    assert texts(client.receiver("urgent").drain()) == ["4", "5", "3", "2", "6", "1"]


# --- deep queues and restarts -----------------------------------------------------------------------------------------


@either_depth
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_deep_queue_keeps_the_order(start: Start, connect: Connect, limits: Limits, restarts: bool) -> None:
    """
    Messages in the store are delivered in their turn, with their own delivery-count, and so are new ones. One that was
    released, has failed, or was left unsettled by a closed consumer returns to its place within its priority.
    """
    gateway = start(vpn=Vpn(queues=QUEUES), limits=limits)
    numbered = shuffled(300)
    order = by_priority(numbered)
    client = connect(gateway)
    publish(client, numbered)
    receiver = client.receiver("urgent", credit=60)
    taken = receiver.take(60)
    assert texts(taken) == order[:60]
    receiver.settle(taken[1:20:2], Delivery.RELEASED)
    receiver.modify(taken[0:20:2], failed=True)
    receiver.settle(taken[30:40])
    receiver.close()
    if restarts:
        gateway.restart()
        client = connect(gateway)
    later = shuffled(100, seed=3, first=1_000)
    publish(client, later)
    left = [one for one in numbered if str(one[0]) not in order[30:40]] + later
    found = collect(client, 390)
    assert texts(found) == by_priority(left)
    # A delivery that a closed consumer left unsettled counts as failed only until a restart.
    failed = {*order[0:20:2], *([] if restarts else order[20:30] + order[40:60])}
    assert {one.text for one in found if one.delivery_count} == failed
    assert gateway.depth("urgent") == 0


@either_depth
def test_a_queue_that_is_configured_anew_keeps_its_messages(
    start: Start, connect: Connect, limits: Limits
) -> None:
    """
    Its messages are delivered by priority after a restart with priorities, and in publish order after one without; the
    file is sound each time, and so it is in the middle of a replay.
    """
    numbered = shuffled(200)
    plain, urgent = Queue(subscriptions=("t/>",)), QUEUES["urgent"]
    gateway = start(vpn=Vpn(queues={"urgent": plain}), limits=limits)
    publish(connect(gateway), numbered, "topic://t/a")
    path = gateway.settings.data / "default.db"

    def again(queue: Queue) -> Client:
        gateway.stop()
        assert check(path) == []
        gateway.restart(Vpn(queues={"urgent": queue}))
        return connect(gateway)

    client = again(urgent)
    assert texts(collect(client, 50)) == by_priority(numbered)[:50]
    client = again(plain)
    rest = sorted(by_priority(numbered)[50:], key=int)
    assert texts(collect(client, 50)) == rest[:50]
    gateway.start_replay("urgent", "beginning")
    client = again(urgent)
    client.wait(lambda: gateway.replay_state("urgent") == "pending-complete", "all is put")
    assert texts(collect(client, 200)) == by_priority(numbered)
    again(plain)


# --- what comes back --------------------------------------------------------------------------------------------------


def test_dead_messages_leave_for_a_queue_by_priority(gateway: RunningGateway, client: Client) -> None:
    """A rejected message goes to the dead message queue with its header, and is delivered there by its priority."""
    publish(client, [(1, 2), (2, 8), (3, 5)])
    receiver = client.receiver("urgent", credit=3)
    taken = receiver.take(3)
    assert texts(taken) == ["2", "3", "1"]
    receiver.settle(reversed(taken), Delivery.REJECTED)
    client.wait(lambda: gateway.depth("dead") == 3, "the copies are there")
    assert texts(client.receiver("dead").drain()) == ["2", "3", "1"]
    assert gateway.depth("urgent") == 0


# --- several consumers, selectors, browsers --------------------------------------------------------------------------


@either_depth
@pytest.mark.parametrize("has_restarted", [False, True], ids=["running", "restarted"])
def test_a_selector_is_served_by_priority(
    start: Start, connect: Connect, limits: Limits, has_restarted: bool
) -> None:
    """A selector's consumer gets its matches by priority, also from the store; other consumers get the rest."""
    gateway = start(vpn=Vpn(queues=QUEUES), limits=limits)
    client = connect(gateway)
    numbered = shuffled(300)
    publish(client, numbered)
    if has_restarted:
        gateway.restart()
        client = connect(gateway)
    wanted = [one for one in numbered if one[1] in (2, 3, 7, 9)]
    choosy = client.receiver("urgent", filters={SELECTOR: "JMSPriority IN (2, 3, 7, 9)"})
    choosy.collect(taken := [], len(wanted), credit=7)
    assert texts(taken) == by_priority(wanted)
    publish(client, [(1_000, 2), (1_001, 5), (1_002, 9)])
    assert sorted(texts(choosy.drain())) == ["1000", "1002"]
    choosy.close()
    rest = [one for one in numbered if one not in wanted]
    assert texts(collect(client, len(rest) + 3)) == by_priority([*rest, (1_000, 2), (1_001, 5), (1_002, 9)])


@either_depth
def test_a_browser_sees_the_order_of_delivery(start: Start, connect: Connect, limits: Limits) -> None:
    """Each message once, the highest priority first, and none is consumed; later ones when they arrive."""
    client = connect(start(vpn=Vpn(queues=QUEUES), limits=limits))
    numbered = shuffled(100)
    publish(client, numbered)
    browser = client.receiver("urgent", set_up=browsing, credit=500)
    assert texts(browser.take(100)) == by_priority(numbered)
    publish(client, [(1_000, 0), (1_001, 9)])
    assert sorted(texts(browser.take(2))) == ["1000", "1001"]
    browser.close()
    assert len(collect(client, 102)) == 102


# --- replay -----------------------------------------------------------------------------------------------------------


def test_what_is_replayed_goes_by_priority(gateway: RunningGateway, client: Client) -> None:
    """Replayed messages are delivered by priority; the newest has the end mark, and the replay completes."""
    numbered = shuffled(200)
    publish(client, numbered)
    collect(client, 200)
    gateway.start_replay("urgent", "beginning")
    client.wait(lambda: gateway.replay_state("urgent") == "pending-complete", "all is put")
    publish(client, [(1_000, 9)])
    again = collect(client, 201)
    assert texts(again) == by_priority([*numbered, (1_000, 9)])
    assert [one.text for one in again if one.is_end] == ["199"]
    client.wait(lambda: gateway.replay_state("urgent") == "complete", "it completes")
    assert gateway.replay("urgent").outstanding == 0


def test_a_replay_goes_on_after_a_restart(start: Start, connect: Connect) -> None:
    """
    Messages that the replay had put, and those that waited behind it, are delivered, each once; the file is sound.
    """
    gateway = start(vpn=Vpn(queues=QUEUES), limits=replace(SMALL, max_unsettled_per_flow=25))
    client = connect(gateway)
    publish(client, shuffled(1_200), "topic://t/a")
    gateway.start_replay("urgent", "beginning")
    client.wait(lambda: gateway.replay("urgent").outstanding >= 1_000, "it waits for a consumer")
    sender = client.sender("topic://t/a")
    for number in range(2_000, 2_010):
        sender.send(message(number, number % 10), settled=True)
    sender.send_all([message(2_010, 9)])
    gateway.stop()
    assert check(gateway.settings.data / "default.db") == []
    gateway.start()
    client = connect(gateway)
    taken = collect(client, 1_211)
    assert {int(one.text) for one in taken} == {*range(1_200), *range(2_000, 2_011)}
    client.wait(lambda: gateway.replay_state("urgent") == "complete", "it completes")


def test_a_cancelled_replay_leaves_what_is_live(start: Start, connect: Connect) -> None:
    """Replayed messages of every priority are dropped; live messages stay, in their order."""
    gateway = start(vpn=Vpn(queues=QUEUES), limits=SMALL)
    client = connect(gateway)
    publish(client, shuffled(100))
    gateway.start_replay("urgent", "beginning")
    client.wait(lambda: gateway.replay_state("urgent") == "pending-complete", "all is put")
    live = shuffled(100, seed=5, first=1_000)
    publish(client, live)
    receiver = client.receiver("urgent", credit=30)
    receiver.take(30)
    gateway.cancel_replay("urgent")
    receiver.detached_by_peer()
    assert texts(collect(client, 100)) == by_priority(live)
    assert gateway.depth("urgent") == 0
