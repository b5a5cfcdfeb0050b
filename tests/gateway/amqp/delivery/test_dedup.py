"""Publisher deduplication over the wire: of messages with the same id one is stored, whoever repeats it, and when."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Symbol, ULong
from gateway.config import Queue, Vpn
from gateway.core.effects import Publication
from tests.gateway.amqp.conftest import Clock, Connect, Start, Telling
from tests.support.client import Client, texts
from tests.support.messages import MESSAGE_ANNOTATIONS, PROPERTIES, data, section
from tests.support.running import RunningGateway
from tests.support.transactions import Controller, publish


def named(one: Any, text: str = "x", annotation: Any = None) -> bytes:
    """A message with this message-id, and with `x-opt-dedup-id` if an annotation is given."""
    front = (
        b"" if annotation is None else section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-dedup-id"): annotation})
    )
    return front + section(PROPERTIES, [one]) + data(text)


@pytest.fixture
def vpn() -> Vpn:
    return Vpn(
        queues={
            "once": Queue(dedup_window=3, dedup_window_ms=60_000, subscriptions=("t/>",)),
            "view": Queue(kind="stream", dedup_window=10, subscriptions=("s/>",)),
            "also": Queue(subscriptions=("t/>",)),
        }
    )


def lying(client: Client, name: str = "once") -> list[str]:
    return texts(client.receiver(name, credit=50).drain(50))


def duplicates(gateway: RunningGateway) -> int:
    return gateway.call(lambda g: g.vpns["default"].counters.duplicate_messages)


def test_a_duplicate_is_accepted_and_stored_once(start: Start, connect: Connect, vpn: Vpn) -> None:
    """In the queue, in the log, and on other endpoints of the topic; within one batch, too, and from another link."""
    gateway = start(vpn)
    client, other = connect(gateway), connect(gateway)
    messages = [named("a", "1"), named("a", "2"), named(None, "3"), named(None, "4"), named(ULong(1), "5")]
    assert client.sender("topic://t/x").outcomes([*messages, named("a", "6")]) == ["ACCEPTED"] * 6
    assert other.sender("once").outcomes([named("a", "7"), named("b", "8", "a")]) == ["ACCEPTED"] * 2
    assert client.sender("topic://s/x").outcomes([named("a", "9"), named("a", "10")]) == ["ACCEPTED"] * 2
    assert lying(client) == ["1", "3", "4", "5"]
    assert lying(client, "also") == ["1", "3", "4", "5"]
    assert [message.text for message in client.read_log()] == ["1", "3", "4", "5", "9"]
    assert duplicates(gateway) == 5
    other.sender("once").send(named("a"), settled=True)
    other.wait(lambda: duplicates(gateway) == 6, "a direct one is dropped")
    assert gateway.depth("once") == 4


def test_ids_of_64_kb_and_those_of_others(start: Start, connect: Connect, vpn: Vpn) -> None:
    """Of each id 17 bytes are kept. All publishers to the queue share its window; ids of different types differ."""
    gateway = start(vpn)
    long, sent = "i" * 65_536, [named(f"{number}" + "i" * 65_535) for number in range(5)]
    one, other = connect(gateway).sender("once"), connect(gateway).sender("topic://t/y")
    assert one.outcomes([*sent, named(long, "first"), named(long.encode(), "bytes")]) == ["ACCEPTED"] * 7
    assert other.outcomes([named(long, "second")]) == ["ACCEPTED"]
    assert "annotations" in other.rejection(other.send(named("x", "third", long))).text
    assert (
        other.outcomes([named("x", "third", long[:1_000]), named(long[:1_000], "fourth")]) == ["ACCEPTED"] * 2
    )
    assert duplicates(gateway) == 2
    (window,) = gateway.ask(lambda vpn: [w for w in vpn.broker.dedup.windows.values() if len(w)])
    assert {len(kept) for _, _, ids in window._batches for kept in ids} == {17}
    assert len(window) == 3


def test_ids_leave_the_window(start: Start, connect: Connect, clock: Clock, vpn: Vpn) -> None:
    """By count and by age; a clock that goes back removes none."""
    gateway = start(vpn)
    client = connect(gateway)
    sender = client.sender("once")
    for one in "abcd":
        sender.send_all([named(one, one)])
    sender.send_all([named("b", "again"), named("a", "left")])
    clock.ms -= 3_600_000
    sender.send_all([named("a", "still there")])
    clock.ms += 2 * 3_600_000
    sender.send_all([named("a", "old")])
    assert lying(client) == ["a", "b", "c", "d", "left", "old"]


def test_a_restart_forgets_nothing(start: Start, connect: Connect, vpn: Vpn) -> None:
    """Ids of consumed messages are remembered, too, and the window is no larger than before."""
    gateway = start(vpn)
    client = connect(gateway)
    client.sender("once").send_all([named("a", "1"), named("b", "2"), named("c", "3"), named("d", "4")])
    client.receiver("once", credit=10).take_and_accept(4)
    client.wait(lambda: gateway.depth("once") == 0, "all is settled")
    gateway.stop()
    gateway.start()
    client = connect(gateway)
    client.sender("once").send_all([named("b", "5"), named("d", "6"), named("a", "7")])
    assert lying(client) == ["7"]


def test_two_on_their_way_stand_and_fall_together(
    start: Start, connect: Connect, telling: Telling, vpn: Vpn, full_disk: Any
) -> None:
    """
    A duplicate is accepted only after the first message is durable; if that cannot be stored, the id is forgotten.
    """
    gateway = start(vpn)
    one, two = connect(gateway), connect(gateway)
    first, second = one.sender("once"), two.sender("once")
    telling.hold(Publication)
    sent = first.send(named("a", "1"))
    one.wait(
        lambda: gateway.call(lambda g: any(map(len, g.vpns["default"].broker.dedup.windows.values()))),
        "it came",
    )
    again = second.send(named("a", "2"))
    two.wait(lambda: duplicates(gateway) == 1, "it was looked at")
    assert not again.remote_state
    telling.go_on()
    assert (first.outcome(sent), second.outcome(again)) == ("ACCEPTED", "ACCEPTED")
    with full_disk():
        assert first.outcomes([named("z", "3"), named("z", "4")]) == ["REJECTED"] * 2
    assert first.outcomes([named("z", "5")]) == ["ACCEPTED"]
    assert lying(one) == ["1", "5"]


def test_in_a_transaction(start: Start, connect: Connect, vpn: Vpn) -> None:
    """Of two with one id in a transaction one is stored; a rollback leaves no id."""
    gateway = start(vpn)
    client = connect(gateway)
    controller, sender = Controller(client), client.sender("once")
    for end, said in ((controller.roll_back, "12"), (controller.commit, "34"), (controller.commit, "56")):
        txn_id = controller.declare()
        for text in said:
            publish(sender, named("a", text), txn_id)
        assert end(txn_id) == "ACCEPTED"
    assert lying(client) == ["3"]
