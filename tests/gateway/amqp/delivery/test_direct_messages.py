"""Guaranteed and Direct messages, with and without an endpoint; and how selectors share the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from amqp_ext.message.sections import MessageView
from gateway.config import Queue, ReplayLog, Vpn
from gateway.core.replay import reading
from gateway.vpn.runtime import Runtime, SystemClock
from gateway.vpn.turns import SelectionTurns
from tests.gateway.amqp.conftest import Connect, Start
from tests.gateway.core.machines.step_loop import StepLoop
from tests.support.client import SELECTOR, browsing, numbered, texts
from tests.support.messages import data, message_to, selectable
from tests.support.running import RunningGateway, no_log

# --- Guaranteed and Direct --------------------------------------------------------------------------------------------


def dropped(gateway: RunningGateway) -> int:
    """How many Direct messages were dropped so far."""
    return gateway.call(lambda running: running.vpns["default"].counters.direct_dropped_messages)


@pytest.mark.parametrize("promotes", [False, True])
def test_direct_and_replay(start: Start, connect: Connect, promotes: bool) -> None:
    """
    A replay brings Direct messages back, in publish order, only if the log promotes them. Otherwise those without an
    endpoint are dropped and counted, and later messages on the link are not affected.
    """
    vpn = Vpn(replay_log=ReplayLog(promote_direct=promotes), queues={"q": Queue(subscriptions=("news",))})
    gateway = start(vpn=vpn)
    client = connect(gateway)
    other = client.sender("topic://other")
    other.send(data("direct to nobody"), settled=True)
    other.send_all([data("guaranteed")])
    assert texts(client.read_log()) == ["direct to nobody"] * promotes + ["guaranteed"]
    assert dropped(gateway) == (0 if promotes else 1)
    receiver = client.receiver("topic://other", credit=5)
    other.send(data("in time"), settled=True)
    assert texts(receiver.take(1)) == ["in time"]
    assert dropped(gateway) == (0 if promotes else 1)
    sender, subscriber = client.sender("topic://news"), client.receiver("topic://news")
    for i in range(20):
        if i % 2:
            sender.send_all([data(i)])
        else:
            sender.send(data(i), settled=True)
    live = client.receiver("q", credit=50)
    assert texts(live.take_and_accept(20)) == numbered(20)
    live.close()
    expected = [str(i) for i in range(20) if promotes or i % 2]
    replaying = client.receiver("q?replay-start=beginning", credit=50)
    assert texts(replaying.take_and_accept(len(expected))) == expected
    assert texts(client.read_log())[-len(expected) :] == expected
    assert texts(subscriber.drain()) == numbered(20), "held while there was no credit"


def test_direct_and_guaranteed_stay_in_order(start: Start, connect: Connect) -> None:
    """
    Settled and unsettled messages of one link stay in order on the queue. Direct messages beyond its quota are dropped
    and counted, and the link stays attached.
    """
    gateway = start(vpn=Vpn(queues={"q": Queue(quota_messages=300)}))
    client = connect(gateway)
    sender = client.sender("q")
    deliveries = [sender.send(data(i), settled=i % 3 == 0) for i in range(300)]
    for i, delivery in enumerate(deliveries):
        if i % 3:
            assert sender.outcome(delivery) == "ACCEPTED"
    for i in range(2):
        sender.send(data(i), settled=True)
    refused = sender.rejection(sender.send(data(5)))
    assert refused.info["rewind:reason"] == "endpoint-quota"
    assert dropped(gateway) == 2
    assert texts(client.receiver("q", credit=300).take_and_accept(300)) == numbered(300)
    client.wait(lambda: gateway.depth("q") == 0, "there is room again")
    sender.send_all([data(6)])


# --- Guaranteed, and nobody there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["topic://news", None], ids=["by its link", "by the relay"])
def test_unsettled_without_endpoint_and_log_is_released(
    start: Start, connect: Connect, address: str | None
) -> None:
    """With the log off and no endpoint, a message is released, neither accepted nor rejected; later ones can arrive."""
    client = connect(start(vpn=no_log()))
    sender = client.sender(address)

    def message(text: str) -> bytes:
        return data(text) if address else message_to("topic://news", text)

    assert sender.outcome(sender.send(message("to nobody"))) == "RELEASED"
    receiver = client.receiver("topic://news", credit=1)
    sender.send_all([message("to somebody")])
    assert texts(receiver.take(1)) == ["to somebody"]


def test_the_relay_to_an_unknown_queue_without_auto_create(start: Start, connect: Connect) -> None:
    """
    Each message is rejected as not-found on its own: others of the link are accepted, no queue is made, and the log has
    none of those. A settled one detaches the link.
    """
    gateway = start(vpn=Vpn(create_queues=False, queues={"known": Queue()}))
    client = connect(gateway)
    sender = client.sender(None)
    deliveries = [sender.send(message_to("known" if i % 2 else f"unknown{i}", i)) for i in range(10)]
    for i, delivery in enumerate(deliveries):
        if i % 2:
            assert sender.outcome(delivery) == "ACCEPTED"
        else:
            refused = sender.rejection(delivery)
            assert refused.name == "amqp:not-found"
            assert f"'unknown{i}'" in refused.text
    sender.send(message_to("unknown", "settled"), settled=True)
    assert sender.detached_by_peer().name == "amqp:not-found"
    client.sender(None).send_all([message_to("known", 11)])
    assert gateway.endpoints() == {"known"}
    assert texts(client.read_log()) == ["1", "3", "5", "7", "9", "11"]


# --- Selectors use a bounded time of each turn of the loop, and nobody waits forever ----------------------------------

MESSAGES = 300


class SlowClock(SystemClock):
    """A clock that only the evaluation of a selector moves, and then by more than a turn may last."""

    def __init__(self) -> None:
        self.now = 100.0

    def seconds(self) -> float:  # type: ignore[override]
        return self.now


@pytest.fixture
def asked(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many messages selectors were evaluated on, by turns of the loop; each evaluation uses up a turn."""
    clock = given["clock"] = SlowClock()
    asked: Counter[int] = Counter()
    turn = 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    class SlowView(MessageView):
        def __init__(self, content: bytes, bare: int) -> None:
            if not turn:
                next_turn()
            clock.now += 1.0
            asked[turn] += 1
            super().__init__(content, bare)

    monkeypatch.setattr(reading, "MessageView", SlowView)
    return asked


def test_a_slow_selector_is_asked_once_in_a_turn(start: Start, connect: Connect, asked: Counter[int]) -> None:
    """A consumer, a log reader and a browser share the turns, and each gets all of its messages in order."""
    gateway = start()
    client = connect(gateway)
    client.sender("orders").send_all(selectable(i) for i in range(MESSAGES))
    options: dict[str, Any] = {"filters": {SELECTOR: "n >= 100"}, "credit": MESSAGES}
    reader = client.receiver("log://>?replay-start=beginning", **options)
    viewer = client.receiver("orders", set_up=browsing, **options)
    consumer = client.receiver("orders", **options)
    for link in (reader, viewer, consumer):
        assert texts(link.take(200)) == numbered(100, MESSAGES)
    assert asked.total() >= 3 * MESSAGES
    # One evaluation begins in time; another may begin in the same turn before the overrun is noticed.
    assert max(asked.values()) <= 2


def test_feeds_take_turns() -> None:
    """Of many feeds that each use up a turn, each gets one before any gets two."""
    loop, clock = StepLoop(), SlowClock()
    turns = SelectionTurns(Runtime(loop, None, clock))
    ran: list[str] = []

    def feed(name: str) -> None:
        if turns.is_over():
            turns.wait(lambda: feed(name))
            return
        ran.append(name)
        clock.now += 1.0
        if len(ran) < 12:
            turns.wait(lambda: feed(name))

    with loop.running():
        for name in "abcd":
            feed(name)
    loop.run()
    # The first one had a turn before the others came.
    assert ran[0] == "a"
    assert [sorted(ran[i : i + 4]) for i in (1, 5)] == [list("abcd")] * 2


def test_what_takes_too_long_is_told_once_for_each_link(start: Start, connect: Connect) -> None:
    """
    Messages for which a selector is too costly to decide stay in place; a log line says so once, with the link's name.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    client = connect(start())
    client.sender("orders").send_all(selectable(i, x="ab" * 150_000) for i in range(3))
    client.sender("orders").send_all([selectable(3, x="acb")])
    with capture_logs() as lines:
        consumer = client.receiver("orders", filters={SELECTOR: "x LIKE '%a_b%'"}, credit=10)
        assert texts(consumer.take(1)) == ["3"]
    told = [line for line in lines if line["event"] == "selection_too_costly"]
    assert [line["first"] for line in told] == [1]
    assert told[0]["link"] == consumer.link.name
