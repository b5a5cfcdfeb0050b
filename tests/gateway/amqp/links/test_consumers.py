"""Consumers of one queue: fair turns, exclusivity, and what becomes of messages when a consumer is lost."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import apsw
import pytest

from gateway.config import Limits, Queue, Vpn
from gateway.core.effects import OpenCursor
from tests.gateway.amqp.conftest import Connect, Start, Telling
from tests.support.client import Client, Received, Receiver, numbered, refusal, texts, with_properties
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway

EPOCH = "com.microsoft:epoch"


# --- several consumers --------------------------------------------------------------------------------------------


def test_consumers_share_what_is_on_a_queue(gateway: RunningGateway, connect: Connect) -> None:
    """
    Each message goes to one of the consumers, each consumer's come in order, and nobody goes hungry, but who gives no
    credit, and holds nobody up.
    """
    publisher = connect(gateway)
    connect(gateway).receiver("orders")
    receivers = [connect(gateway).receiver("orders", credit=1_000) for _ in range(4)]
    for receiver in receivers:
        receiver.client.open_session()  # A round trip: the credit has arrived.
    publisher.sender("orders").send_all([data(i) for i in range(1_000)])
    taken: list[list[int]] = []
    for receiver in receivers:
        receiver.client.open_session()
        taken.append([int(message.text) for message in receiver.arrived])
    assert sorted(number for own in taken for number in own) == list(range(1_000))
    assert all(own == sorted(own) for own in taken)
    assert min(map(len, taken)) >= 100, [len(own) for own in taken]


def test_a_consumer_that_settles_nothing_gets_no_more_than_its_bound(start: Start, connect: Connect) -> None:
    """Past `max_unsettled_per_flow` unsettled messages a consumer gets no more, but can drain, and then goes on."""
    client = connect(start(limits=Limits(max_unsettled_per_flow=5)))
    client.sender("orders").send_all([data(i) for i in range(20)])
    receiver = client.receiver("orders", credit=10)
    taken = receiver.take(5)
    client.open_session()
    assert not receiver.arrived
    assert receiver.drain(0) == []
    receiver.settle(taken)
    receiver.flow(10)
    assert texts(receiver.take_and_accept(5)) == ["5", "6", "7", "8", "9"]


# --- consumers that are lost --------------------------------------------------------------------------------------


def test_a_lost_connection_gives_its_messages_back(gateway: RunningGateway, connect: Connect) -> None:
    """
    What it had not settled goes to one that waits, in order, before what comes after it; with a raised delivery-count,
    as it may have been seen (3.2.1).
    """
    client, lost = connect(gateway), connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(10)])
    receiver = lost.receiver("orders", credit=6)
    receiver.settle(receiver.take(6)[1:3])
    lost.open_session()
    waiting = client.receiver("orders", credit=4)
    assert texts(waiting.take_and_accept(4)) == numbered(6, 10)
    waiting.flow(4)
    client.open_session()
    lost.cut()
    assert [(m.text, m.delivery_count) for m in waiting.take(4)] == [("0", 1), ("3", 1), ("4", 1), ("5", 1)]


def test_messages_given_back_by_two_consumers_are_in_order(gateway: RunningGateway, connect: Connect) -> None:
    """What several lost consumers held among them comes back as one row, in the order of the queue."""
    publisher = connect(gateway)
    publisher.sender("orders").send_all([data(i) for i in range(40)])
    held: list[Receiver] = [connect(gateway).receiver("orders", credit=10) for _ in range(3)]
    for receiver in held:
        receiver.take(10)
    for receiver in held:
        receiver.client.cut()
    publisher.wait(lambda: gateway.flows("orders") == 0, "the gateway notices")
    assert texts(publisher.receiver("orders").drain()) == numbered(40)


def test_unsettled_messages_survive_a_restart(gateway: RunningGateway, connect: Connect) -> None:
    """In order, and with their failed attempts: a poisonous message stays known as such."""
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(10)])
    receiver = client.receiver("orders", credit=5)
    taken = receiver.take(5)
    receiver.settle(taken[:2])
    receiver.modify(taken[2:3], failed=True)
    receiver.flow(1)
    receiver.modify(receiver.take(1), failed=True)
    client.close()
    gateway.restart()
    again = connect(gateway).receiver("orders").drain()
    assert [(m.text, m.delivery_count) for m in again[:2]] == [("2", 2), ("3", 0)]
    assert texts(again) == numbered(2, 10)


def test_a_backlog_on_disk_meets_live_messages(start: Start, connect: Connect) -> None:
    """A consumer works through a backlog that is paged in from disk while a publisher goes on: all once, in order."""
    gateway = start(limits=Limits(endpoint_window=200, tail_bytes=20_000, read_page_rows=50))
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(2_000)])
    client.close()
    gateway.restart()
    receiver = connect(gateway).receiver("orders")
    with Publishing(gateway.url, "orders", first=2_000) as publishing:
        taken: list[Received] = []
        receiver.collect(taken, 6_000, credit=200)
        publishing.stop()
        # In portions: the publisher can be further ahead than a consumer may leave unsettled.
        receiver.collect(taken, publishing.next, credit=200)
    assert texts(taken) == [str(i) for i in range(len(taken))]
    assert receiver.drain() == []


def test_a_page_from_disk_is_never_ahead_of_what_was_told(
    telling: Telling, start: Start, connect: Connect, tmp_path: Path
) -> None:
    """What is in the file already, but not yet told to anybody, is not delivered with a page, and not twice either."""
    gateway = start(limits=Limits(read_page_rows=5))
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(12)])
    client.close()
    gateway.restart()
    client, publisher = connect(gateway), connect(gateway)
    receiver = client.receiver("orders")
    sender = publisher.sender("orders")
    telling.hold()
    large = [data(b"\x55" * 100_000) for _ in range(20)]
    for raw in large:
        sender.send(raw)
    connection = apsw.Connection(str(tmp_path / "data" / "default.db"), apsw.SQLITE_OPEN_READONLY)
    publisher.wait(lambda: connection.execute("select max(id) from message").fetchone()[0] > 12, "a commit")
    connection.close()
    receiver.flow(100)
    client.wait(lambda: len(receiver.arrived) >= 12, "the backlog arrives")
    client.open_session()
    assert texts(receiver.take_and_accept(12)) == numbered(12)
    assert not receiver.arrived, "delivered before it was told"
    telling.go_on()
    assert [message.bare for message in receiver.take_and_accept(20)] == large
    assert receiver.drain(0) == []


def test_a_consumer_lost_while_its_replay_starts_is_not_bound(
    telling: Telling, gateway: RunningGateway, connect: Connect
) -> None:
    """A connection that is lost between the start of its replay and the answer leaves the queue free for the next."""
    client, lost = connect(gateway), connect(gateway)
    client.sender("orders?exclusive=refuse").send_all([data(i) for i in range(5)])
    telling.hold(OpenCursor)
    link = lost.session.receiver("lost")
    link.source.address = "orders?replay-start=beginning"
    link.open()
    lost.wait(lambda: gateway.replay_state("orders") == "initializing", "the replay starts")
    lost.cut()
    client.wait(lambda: gateway.connections() == 1, "the gateway notices")
    telling.go_on()
    client.wait(lambda: gateway.flows("orders") == 0, "nobody is bound")
    assert texts(client.receiver("orders?replay-start=beginning", credit=5).take(5)) == numbered(5)


# --- exclusive queues ---------------------------------------------------------------------------------------------


def test_exclusive_wait(gateway: RunningGateway, connect: Connect) -> None:
    """One is active; others attach, get nothing and can drain, and take over in the order of their attaches."""
    client = connect(gateway)
    active, second, third = (connect(gateway).receiver("orders?exclusive=wait", credit=10) for _ in range(3))
    client.sender("orders").send_all([data(i) for i in range(4)])
    active.settle(active.take(4)[:1])
    assert second.drain(0) == third.drain(0) == []
    for waiting in (second, third):
        waiting.flow(10)
        waiting.client.open_session()
    active.client.open_session()
    active.client.cut()
    assert texts(second.take_and_accept(3)) == ["1", "2", "3"]
    client.sender("orders").send_all([data(4)])
    assert texts(second.take(1)) == ["4"]
    assert not third.arrived
    second.close()
    assert texts(third.take(1)) == ["4"]


@pytest.mark.parametrize(("holder", "newcomer"), [(None, None), (1, 1), (1, 2), (0, 5), (5, 4)])
@pytest.mark.parametrize("in_address", [False, True])
def test_exclusive_steal(
    gateway: RunningGateway, connect: Connect, holder: int | None, newcomer: int | None, in_address: bool
) -> None:
    """
    On a queue that is exclusive=steal, a consumer of an equal or higher epoch takes over, and the first is told; one of
    a lower is refused, and the holder stays. Clients that set no link properties say it in the address.
    """
    first, second = connect(gateway), connect(gateway)
    first.sender("orders?exclusive=steal").send_all([data(i) for i in range(3)])

    def attach(client: Client, epoch: int | None, credit: int) -> Receiver:
        if in_address and epoch is not None:
            return client.receiver(f"orders?epoch={epoch}", credit=credit)
        return client.receiver("orders", credit=credit, set_up=with_properties({EPOCH: epoch}))

    held = attach(first, holder, 2)
    held.take(2)
    if (newcomer or 0) < (holder or 0):
        refused = refusal(attach, second, newcomer, 3)
        assert (refused.name, f"epoch {holder}" in refused.text) == ("amqp:link:stolen", True)
        held.flow(1)
        assert texts(held.take(1)) == ["2"]
        return
    thief = attach(second, newcomer, 3)
    told = held.detached_by_peer()
    assert told.name == "amqp:link:stolen"
    who = "a consumer" if newcomer is None else f"a consumer of epoch {newcomer}"
    assert told.text.startswith(f"{who} took")
    assert texts(thief.take(3)) == ["0", "1", "2"]


def test_an_epoch_is_said_once(client: Client) -> None:
    """Address and property that differ are refused, and so is what is no whole number."""
    refused = refusal(client.receiver, "orders?epoch=6", set_up=with_properties({EPOCH: 7}))
    assert "say it once" in str(refused)
    assert "whole number" in str(refusal(client.receiver, "orders?epoch=-1"))


@pytest.mark.parametrize("end", ["receiver", "sender"])
def test_an_option_that_contradicts_the_queue(start: Start, connect: Connect, end: str) -> None:
    """An `exclusive` option that is not what the queue is, is refused with both values named; the same is welcome."""
    kinds = ("none", "wait", "refuse", "steal")
    client = connect(start(Vpn(queues={kind: Queue(exclusive=kind) for kind in kinds})))  # type: ignore[arg-type]
    attach = getattr(client, end)
    for existing, asked in product(kinds, kinds[1:]):
        if existing == asked:
            attach(f"{existing}?exclusive={asked}").close()
            continue
        refused = refusal(attach, f"{existing}?exclusive={asked}")
        assert refused.name == "amqp:precondition-failed"
        assert f"exclusive={existing}" in refused.text
        assert f"exclusive={asked}" in refused.text


def test_exclusive_refuse(gateway: RunningGateway, connect: Connect) -> None:
    """
    A second consumer is refused as locked until the first is gone; given by the attach that made the queue, that holds
    after a restart.
    """
    connect(gateway).sender("orders?exclusive=refuse").send_all([data("x")])
    for _ in range(2):
        holder = connect(gateway).receiver("orders")
        assert refusal(connect(gateway).receiver, "orders").name == "amqp:resource-locked"
        gateway.restart()
    holder = connect(gateway).receiver("orders")
    holder.close()
    assert texts(connect(gateway).receiver("orders", credit=1).take(1)) == ["x"]


def test_a_default_start_refuses_nobody_who_asked_for_nothing(start: Start) -> None:
    """On a shared queue with default_start the first consumer rewinds it, and a second one just joins."""
    gateway = start(vpn=Vpn(queues={"orders": Queue(default_start="beginning")}))
    with Client(gateway.url) as client:
        client.sender("orders").send_all([data(1)])
        first = client.receiver("orders", credit=1)
        assert texts(first.take_and_accept(1)) == ["1"]
        second = client.receiver("orders", credit=1)
        assert second.start["offset"] == 2
