"""Consumers of one queue: fair turns, exclusivity, and what becomes of messages when a consumer is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest
from proton import Link, symbol

from gateway.config import Limits, Queue, Vpn
from gateway.core.effects import OpenCursor
from tests.gateway.amqp.conftest import Connect, Start, Telling
from tests.support.client import Client, Received, Receiver, Refused, texts
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway


def with_epoch(epoch: int) -> Any:
    """Sets up a link with Event Hubs' epoch."""

    def set_up(link: Link) -> None:
        link.properties = {symbol("com.microsoft:epoch"): epoch}

    return set_up


# --- several consumers --------------------------------------------------------------------------------------------


def test_consumers_share_what_is_on_a_queue(gateway: RunningGateway, connect: Connect) -> None:
    """Each message goes to one of the consumers, each consumer's come in order, and nobody goes hungry."""
    publisher = connect(gateway)
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


def test_consumers_take_turns_with_little_credit(gateway: RunningGateway, connect: Connect) -> None:
    """Consumers with equal credit get equal numbers."""
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(50)])
    receivers = [connect(gateway).receiver("orders", credit=10) for _ in range(5)]
    taken = [text for receiver in receivers for text in texts(receiver.take(10))]
    assert sorted(map(int, taken)) == list(range(50))


def test_consumers_on_one_connection_share_too(client: Client) -> None:
    """Consumers on the same session share a queue as those of several connections do."""
    receivers = [client.receiver("orders", credit=100) for _ in range(3)]
    client.open_session()
    client.sender("orders").send_all([data(i) for i in range(90)])
    client.wait(lambda: sum(len(r.arrived) for r in receivers) == 90, "all arrive")
    assert sorted(int(m.text) for r in receivers for m in r.arrived) == list(range(90))
    assert all(r.arrived for r in receivers)


def test_a_consumer_without_credit_holds_nobody_up(gateway: RunningGateway, connect: Connect) -> None:
    """A consumer that gives no credit gets nothing, and the other gets it all."""
    connect(gateway).receiver("orders")
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(100)])
    assert texts(client.receiver("orders", credit=100).take(100)) == [str(i) for i in range(100)]


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


def test_a_lost_connection_gives_its_messages_back_in_order(
    gateway: RunningGateway, connect: Connect
) -> None:
    """What a lost connection had not settled is delivered to the next one, in order, before what comes after it."""
    client, lost = connect(gateway), connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(10)])
    receiver = lost.receiver("orders", credit=6)
    receiver.settle(receiver.take(6)[1:3])
    lost.open_session()
    lost.cut()
    next_one = client.receiver("orders", credit=8)
    assert texts(next_one.take_and_accept(8)) == ["0", "3", "4", "5", "6", "7", "8", "9"]


def test_redelivery_after_a_lost_connection_is_marked(gateway: RunningGateway, connect: Connect) -> None:
    """What a lost connection may have seen comes again with a raised delivery-count, all else with none (3.2.1)."""
    client, lost = connect(gateway), connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(4)])
    lost.receiver("orders", credit=2).take(2)
    lost.cut()
    taken = client.receiver("orders", credit=4).take(4)
    assert [(message.text, message.delivery_count) for message in taken] == [
        ("0", 1),
        ("1", 1),
        ("2", 0),
        ("3", 0),
    ]


def test_a_waiting_consumer_gets_what_a_lost_one_had(gateway: RunningGateway, connect: Connect) -> None:
    """A consumer that is bound already is given what another one's lost connection leaves."""
    publisher, lost, waiting = connect(gateway), connect(gateway), connect(gateway)
    publisher.sender("orders").send_all([data(i) for i in range(20)])
    lost.receiver("orders", credit=20).take(20)
    receiver = waiting.receiver("orders", credit=20)
    lost.cut()
    assert texts(receiver.take_and_accept(20)) == [str(i) for i in range(20)]


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
    assert texts(publisher.receiver("orders").drain()) == [str(i) for i in range(40)]


def test_unsettled_messages_survive_a_restart(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """What was delivered and not settled when the gateway stopped is delivered again after it, in order."""
    client.sender("orders").send_all([data(i) for i in range(10)])
    receiver = client.receiver("orders", credit=5)
    receiver.settle(receiver.take(5)[:2])
    client.close()
    gateway.restart()
    assert texts(connect(gateway).receiver("orders").drain()) == [str(i) for i in range(2, 10)]


def test_failed_attempts_survive_a_restart(gateway: RunningGateway, client: Client, connect: Connect) -> None:
    """A message that failed keeps its delivery-count over a restart: a poisonous one stays known as such."""
    client.sender("orders").send_all([data(i) for i in range(3)])
    receiver = client.receiver("orders")
    for _ in range(2):
        receiver.flow(1)
        receiver.modify(receiver.take(1), failed=True)
    client.close()
    gateway.restart()
    taken = connect(gateway).receiver("orders", credit=3).take(3)
    assert [message.delivery_count for message in taken] == [2, 0, 0]


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
    assert texts(receiver.take_and_accept(12)) == [str(i) for i in range(12)]
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
    assert texts(client.receiver("orders?replay-start=beginning", credit=5).take(5)) == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]


# --- exclusive queues ---------------------------------------------------------------------------------------------


def test_exclusive_wait(gateway: RunningGateway, connect: Connect) -> None:
    """On an exclusive=wait queue a second consumer attaches, gets nothing, and takes over when the first is gone."""
    first, second = connect(gateway), connect(gateway)
    active = first.receiver("orders?exclusive=wait", credit=10)
    waiting = second.receiver("orders?exclusive=wait", credit=10)
    second.open_session()
    first.sender("orders").send_all([data(i) for i in range(4)])
    active.settle(active.take(4)[:1])
    second.open_session()
    assert not waiting.arrived
    first.open_session()
    first.cut()
    assert texts(waiting.take(3)) == ["1", "2", "3"]


def test_a_waiting_consumer_can_drain(gateway: RunningGateway, connect: Connect) -> None:
    """A consumer that waits for its turn is told that there is nothing for it, whatever the active one does."""
    active, waiting = connect(gateway), connect(gateway)
    active.sender("orders?exclusive=wait").send_all([data("x")])
    holder = active.receiver("orders")
    receiver = waiting.receiver("orders")
    assert receiver.drain(5) == []
    holder.flow(10)
    holder.take(1)
    assert receiver.drain(5) == []


def test_exclusive_wait_is_first_come_first_served(gateway: RunningGateway, connect: Connect) -> None:
    """Waiting consumers become active in the order of their attaches."""
    connect(gateway).sender("orders?exclusive=wait").send_all([data(i) for i in range(3)])
    receivers = [connect(gateway).receiver("orders", credit=1) for _ in range(3)]
    for i, receiver in enumerate(receivers):
        assert texts(receiver.take_and_accept(1)) == [str(i)]
        receiver.close()


def test_exclusive_refuse(gateway: RunningGateway, connect: Connect) -> None:
    """On a queue that is exclusive=refuse, a second consumer is refused as locked, until the first is gone."""
    first, second = connect(gateway), connect(gateway)
    receiver = first.receiver("orders?exclusive=refuse")
    with pytest.raises(Refused) as refused:
        second.receiver("orders")
    assert refused.value.name == "amqp:resource-locked"
    receiver.close()
    second.sender("orders").send_all([data("x")])
    assert texts(second.receiver("orders", credit=1).take(1)) == ["x"]


@pytest.mark.parametrize(("holder", "newcomer"), [(None, None), (1, 1), (1, 2), (0, 5)])
def test_exclusive_steal(
    gateway: RunningGateway, connect: Connect, holder: int | None, newcomer: int | None
) -> None:
    """On a queue that is exclusive=steal, a consumer of an equal or higher epoch takes over, and the first is told."""
    first, second = connect(gateway), connect(gateway)
    first.sender("orders?exclusive=steal").send_all([data(i) for i in range(3)])
    set_up = None if holder is None else with_epoch(holder)
    robbed = first.receiver("orders", credit=2, set_up=set_up)
    robbed.take(2)
    set_up = None if newcomer is None else with_epoch(newcomer)
    thief = second.receiver("orders", credit=3, set_up=set_up)
    told = robbed.detached_by_peer()
    assert told.name == "amqp:link:stolen"
    assert told.text.startswith(
        "a consumer took" if newcomer is None else f"a consumer of epoch {newcomer} took"
    )
    assert texts(thief.take(3)) == ["0", "1", "2"]


def test_a_lower_epoch_steals_nothing(gateway: RunningGateway, connect: Connect) -> None:
    """On a queue that is exclusive=steal, a consumer of a lower epoch is refused, and the holder stays."""
    first, second = connect(gateway), connect(gateway)
    holder = first.receiver("orders?exclusive=steal", credit=1, set_up=with_epoch(5))
    with pytest.raises(Refused) as refused:
        second.receiver("orders", set_up=with_epoch(4))
    assert refused.value.name == "amqp:link:stolen"
    first.sender("orders").send_all([data("x")])
    assert texts(holder.take(1)) == ["x"]


def test_an_epoch_in_the_address(gateway: RunningGateway, connect: Connect) -> None:
    """Clients that set no link properties say their epoch in the address; two that differ are refused."""
    first, second = connect(gateway), connect(gateway)
    holder = first.receiver("orders?exclusive=steal&epoch=5", credit=1)
    with pytest.raises(Refused, match="epoch 5"):
        second.receiver("orders?epoch=4")
    with pytest.raises(Refused, match="say it once"):
        second.receiver("orders?epoch=6", set_up=with_epoch(7))
    with pytest.raises(Refused, match="whole number"):
        second.receiver("orders?epoch=-1")
    second.receiver("orders?epoch=6")
    assert holder.detached_by_peer().name == "amqp:link:stolen"


@pytest.mark.parametrize("existing", ["none", "wait", "refuse", "steal"])
@pytest.mark.parametrize("asked", ["wait", "refuse", "steal"])
@pytest.mark.parametrize("end", ["receiver", "sender"])
def test_an_option_that_contradicts_the_queue(
    start: Start, connect: Connect, existing: str, asked: str, end: str
) -> None:
    """An `exclusive` option that is not what the queue is, is refused with both values named; the same is welcome."""
    vpn = Vpn(queues={"orders": Queue(exclusive=existing)})  # type: ignore[arg-type]
    client = connect(start(vpn))
    attach = getattr(client, end)
    if existing == asked:
        attach(f"orders?exclusive={asked}")
        return
    with pytest.raises(Refused) as refused:
        attach(f"orders?exclusive={asked}")
    assert refused.value.name == "amqp:precondition-failed"
    assert f"exclusive={existing}" in refused.value.text
    assert f"exclusive={asked}" in refused.value.text


def test_a_queue_stays_what_its_first_attach_made_it(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """Exclusivity given by the attach that made the queue holds after a restart."""
    client.sender("orders?exclusive=refuse")
    client.close()
    gateway.restart()
    holder, other = connect(gateway), connect(gateway)
    holder.receiver("orders")
    with pytest.raises(Refused, match="resource-locked"):
        other.receiver("orders")


def test_without_an_option_a_new_queue_is_shared(gateway: RunningGateway, connect: Connect) -> None:
    """A queue made on first use is non-exclusive: its consumers compete."""
    receivers = [connect(gateway).receiver("orders", credit=1) for _ in range(2)]
    for receiver in receivers:
        receiver.client.open_session()
    connect(gateway).sender("orders").send_all([data("a"), data("b")])
    assert Counter(text for receiver in receivers for text in texts(receiver.take(1))) == {"a": 1, "b": 1}


def test_a_default_start_refuses_nobody_who_asked_for_nothing(start: Start) -> None:
    """On a shared queue with default_start the first consumer rewinds it, and a second one just joins."""
    gateway = start(vpn=Vpn(queues={"orders": Queue(default_start="beginning")}))
    with Client(gateway.url) as client:
        client.sender("orders").send_all([data(1)])
        first = client.receiver("orders", credit=1)
        assert texts(first.take_and_accept(1)) == ["1"]
        second = client.receiver("orders", credit=1)
        assert second.start["offset"] == 2
