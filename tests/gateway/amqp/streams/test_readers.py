"""Whose turn it is on a stream: one reader and those that wait, are refused, or steal; and each one's own start."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Limits, Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import (
    BEGINNING,
    MESSAGE_UNAVAILABLE,
    SELECTOR,
    Client,
    Receiver,
    numbered,
    refusal,
    texts,
    with_properties,
)
from tests.support.messages import data
from tests.support.running import RunningGateway, trim_before

EPOCH = "com.microsoft:epoch"


def audit(exclusive: Any, **more: Any) -> Vpn:
    """A Message VPN with a stream `audit`."""
    return Vpn(queues={"audit": Queue(kind="stream", exclusive=exclusive, **more)})


def settle_down(*receivers: Receiver) -> None:
    """A round trip on each: what the gateway had for them by now has arrived."""
    for receiver in receivers:
        receiver.client.open_session()


@pytest.fixture
def waiting(start: Start) -> RunningGateway:
    """A gateway whose stream has ten messages, 0 to 9 with the ids 1 to 10, and one reader at a time."""
    gateway = start(audit("wait"))
    with Client(gateway.url) as client:
        client.sender("audit").send_all(map(data, range(10)))
        client.close()
    return gateway


# --- wait ---------------------------------------------------------------------------------------------------------


def test_readers_take_over_in_order_each_from_its_own_start(
    waiting: RunningGateway, connect: Connect
) -> None:
    """The first is active, the others get nothing until their turn, and then all from where they asked to start."""
    starts = ["beginning", "%237", "last"]
    first, second, third = (
        connect(waiting).receiver(f"audit?replay-start={start}", credit=100) for start in starts
    )
    assert texts(first.take(10)) == numbered(10)
    settle_down(second, third)
    assert not second.arrived
    assert second.start["offset"] == 7
    first.close()
    assert texts(second.take(4)) == ["6", "7", "8", "9"]
    settle_down(third)
    assert not third.arrived
    second.client.cut()
    assert texts(third.take(1)) == ["9"]
    assert waiting.flows("audit") == 1


def test_a_waiting_live_reader_misses_nothing(waiting: RunningGateway, connect: Connect) -> None:
    """A reader's start is resolved at its attach: what is published while it waits, it gets when its turn comes."""
    active = connect(waiting).receiver("audit", credit=100)
    waits = connect(waiting).receiver("audit", credit=100)
    sender = connect(waiting).sender("audit")
    sender.send_all([data("meanwhile 1"), data("meanwhile 2")])
    assert texts(active.take(2)) == ["meanwhile 1", "meanwhile 2"]
    active.close()
    sender.send_all([data("after")])
    taken = waits.take(3)
    assert texts(taken) == ["meanwhile 1", "meanwhile 2", "after"]
    assert not any(message.is_end for message in taken), "it was live all the time"


def test_a_waiting_reader_that_fell_out_of_memory(start: Start, connect: Connect) -> None:
    """However much is published while a reader waits, it gets all of it, from disk."""
    gateway = start(audit("wait"), Limits(tail_bytes=20_000, read_page_rows=50))
    active = connect(gateway).receiver("audit")
    waits = connect(gateway).receiver("audit")
    connect(gateway).sender("audit").send_all(map(data, range(1_500)))
    active.close()
    waits.collect(taken := [], 1_500)
    assert texts(taken) == numbered(1_500)


def test_a_waiting_reader_can_drain(waiting: RunningGateway, connect: Connect) -> None:
    """A reader that waits for its turn is told that there is nothing for it, before and after others leave."""
    active, middle, last, leaves = (connect(waiting).receiver("audit", filters=BEGINNING) for _ in range(4))
    assert last.drain(5) == []
    active.close()
    assert last.drain(5) == []
    leaves.close()
    assert waiting.flows("audit") == 2
    middle.close()
    assert len(last.drain(20)) == 10


def test_the_end_of_a_bounded_reader_is_the_next_ones_turn(waiting: RunningGateway, connect: Connect) -> None:
    """A reader that comes to its `until` is detached, and the next one begins."""
    bounded = connect(waiting).receiver("audit?replay-start=beginning&until=%233")
    waits = connect(waiting).receiver("audit", filters=BEGINNING, credit=100)
    assert texts(bounded.take_to_end()) == ["0", "1", "2"]
    assert len(waits.take(10)) == 10


def test_a_waiting_reader_whose_start_is_trimmed(start: Start, connect: Connect) -> None:
    """When its turn comes and its start is gone, a reader is told so (140), and the next has its turn."""
    gateway = start(audit("wait"), Limits(tail_bytes=1))
    sender = connect(gateway).sender("audit")
    sender.send_all(map(data, range(10)))
    active = connect(gateway).receiver("audit", filters=BEGINNING, credit=100)
    active.take(10)
    trimmed = connect(gateway).receiver("audit?replay-start=%233", credit=100)
    live = connect(gateway).receiver("audit", credit=100)
    trim_before(gateway, 8)
    active.client.close()
    assert trimmed.detached_by_peer().replay_refusal == MESSAGE_UNAVAILABLE
    sender.send_all([data("new")])
    assert texts(live.take(1)) == ["new"]


# --- refuse -------------------------------------------------------------------------------------------------------


def test_exclusive_refuse(start: Start, connect: Connect) -> None:
    """
    On a stream that is exclusive=refuse a second reader is refused as locked, until the first is gone. One that is
    refused its start or its filter leaves the stream free for the next.
    """
    gateway = start(audit("refuse"))
    first, second = connect(gateway), connect(gateway)
    first.sender("audit").send_all([data("x")])
    assert refusal(second.receiver, "audit?replay-start=%2399").subcode == 156
    assert refusal(second.receiver, "audit", filters={SELECTOR: "n ="}).name == "amqp:invalid-field"
    reader = first.receiver("audit", filters=BEGINNING)
    assert refusal(second.receiver, "audit", filters=BEGINNING).name == "amqp:resource-locked"
    assert gateway.log_readers() == 1
    reader.close()
    assert texts(second.receiver("audit", filters=BEGINNING, credit=1).take(1)) == ["x"]


# --- steal --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holder", "newcomer"), [(None, None), (1, 1), (1, 2), (0, 5), (None, 0)])
def test_exclusive_steal(start: Start, connect: Connect, holder: int | None, newcomer: int | None) -> None:
    """A reader of an equal or higher epoch takes over, from its own start, and the first is told."""
    gateway = start(audit("steal"))
    first, second = connect(gateway), connect(gateway)
    first.sender("audit").send_all(map(data, range(3)))
    robbed = first.receiver("audit", filters=BEGINNING, credit=2, set_up=with_properties({EPOCH: holder}))
    robbed.take(2)
    thief = second.receiver("audit", filters=BEGINNING, credit=3, set_up=with_properties({EPOCH: newcomer}))
    assert robbed.detached_by_peer().name == "amqp:link:stolen"
    assert texts(thief.take(3)) == ["0", "1", "2"]
    assert (gateway.flows("audit"), gateway.log_readers()) == (1, 1)
    lower = with_properties({EPOCH: -1})
    assert refusal(first.receiver, "audit", set_up=lower).name == "amqp:link:stolen"
    first.sender("audit").send_all([data("x")])
    thief.flow(1)
    assert texts(thief.take(1)) == ["x"], "a lower epoch steals nothing"


# --- none ---------------------------------------------------------------------------------------------------------


def test_a_bound_on_readers(start: Start, connect: Connect) -> None:
    """With max_flows, as many readers as that attach, and the next is refused with the limit's name."""
    gateway = start(audit("none", max_flows=2))
    readers = [connect(gateway).receiver("audit") for _ in range(2)]
    refused = refusal(connect(gateway).receiver, "audit")
    assert refused.name == "amqp:resource-limit-exceeded"
    assert "max_flows" in refused.text
    readers[0].close()
    connect(gateway).receiver("audit")
