"""
Delivery locks through real sockets: a message that a consumer keeps past its lock is given to others, and a later
outcome from that consumer has no effect. The clock is the test's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from proton import Delivery, Terminus

from gateway.config import Limits, Queue, Vpn
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import Client, Received, numbered, texts
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.transactions import Controller, acknowledge

LOCK_MS = 60_000

QUEUES = {
    "work": Queue(lock_timeout_ms=LOCK_MS),
    "prioritized": Queue(lock_timeout_ms=LOCK_MS, priorities=True),
    "single": Queue(lock_timeout_ms=LOCK_MS, exclusive="wait"),
    "dying": Queue(lock_timeout_ms=LOCK_MS, max_redelivery=1, dead_message_queue="dead"),
    "dead": Queue(),
    "free": Queue(),
}


@pytest.fixture
def gateway(clock: Clock, start: Start) -> RunningGateway:
    """A gateway whose queues lock deliveries for a minute."""
    return start(vpn=Vpn(queues=QUEUES))


def fill(client: Client, address: str, count: int) -> None:
    client.sender(address).send_all(map(data, range(count)))


def are_released(client: Client, messages: list[Received]) -> None:
    """Wait until the gateway has released these deliveries to the consumer, without settling them."""
    client.wait(
        lambda: all(message.delivery.remote_state == Delivery.RELEASED for message in messages),
        "the sender releases",
    )
    assert not any(message.delivery.settled for message in messages)


def end_locks(clock: Clock, client: Client, messages: list[Received], after_ms: int = LOCK_MS) -> None:
    clock.ms += after_ms
    are_released(client, messages)


@pytest.mark.parametrize(
    ("address", "outcome", "settles"),
    [
        *(
            ("work", outcome, True)
            for outcome in (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.MODIFIED, None)
        ),
        *(("work", outcome, False) for outcome in (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.MODIFIED)),
        *(
            (address, Delivery.REJECTED, settles)
            for address in ("prioritized", "dying")
            for settles in (True, False)
        ),
    ],
)
def test_what_is_held_too_long_is_given_to_others(
    gateway: RunningGateway,
    client: Client,
    connect: Connect,
    clock: Clock,
    address: str,
    outcome: Any,
    settles: bool,
) -> None:
    """
    Another consumer gets it immediately, with the same delivery-count. A later outcome of the first consumer does not
    apply to the message: it only lets that consumer get messages again.
    """
    fill(client, address, 3)
    slow = client.receiver(address, credit=2)
    taken = slow.take(2)
    clock.ms += LOCK_MS - 1
    other = connect(gateway)
    quick = other.receiver(address, credit=10)
    assert texts(quick.take_and_accept(1)) == ["2"]
    end_locks(clock, client, taken, 1)
    again = quick.take(2)
    assert texts(again) == ["0", "1"] and [message.delivery_count for message in again] == [0, 0]
    slow.flow(10)
    fill(other, address, 1)
    assert texts(quick.take_and_accept(1)) == ["0"], "the stuck one is given nothing"
    if settles:
        slow.settle(taken, outcome)
    else:
        slow.update(taken, outcome)
        client.wait(lambda: all(message.delivery.settled for message in taken), "the sender settles")
    quick.close()
    came = slow.take(2)
    assert texts(came) == ["0", "1"]
    assert [message.delivery_count for message in came] == [1, 1], "for a consumer that went, as ever"
    slow.settle(came)
    client.wait(lambda: gateway.depth(address) == 0, "all is consumed")
    assert gateway.depth("dead") == 0


def test_a_lock_is_renewed_by_the_state_received(
    gateway: RunningGateway, client: Client, clock: Clock
) -> None:
    """Any number of times, and for each delivery separately."""
    fill(client, "work", 2)
    slow = client.receiver("work", credit=2)
    kept, lost = slow.take(2)
    for _ in range(3):
        clock.ms += LOCK_MS // 2
        slow.update([kept], Delivery.RECEIVED)
        client.wait(
            lambda: gateway.ask(_renewed_ms("work", kept.id)) == clock.ms, "the gateway has heard of it"
        )
    are_released(client, [lost])
    assert kept.delivery.remote_state != Delivery.RELEASED
    slow.settle([lost])
    assert texts(slow.drain()) == ["1"]
    slow.settle([kept])
    client.wait(lambda: gateway.depth("work") == 1, "its outcome holds")


def _renewed_ms(address: str, message_id: int) -> Callable[[Any], int | None]:
    def ask(vpn: Any) -> int | None:
        flow = next(iter(vpn.broker.endpoints[address].flows))
        return (flow.unsettled._locks or {}).get(message_id)

    return ask


def test_a_setting_holds_for_what_is_handed_out_already(
    gateway: RunningGateway, client: Client, clock: Clock
) -> None:
    """
    A lock that is set, shortened or removed holds for earlier deliveries, too, counted from when they were handed out.
    """

    def change(lock_timeout_ms: int) -> None:
        def order(running: Any) -> None:
            vpn = running.vpns["default"]
            endpoint = vpn.endpoints.by_name["free"]
            vpn.endpoints.change(endpoint, replace(endpoint.settings, lock_timeout_ms=lock_timeout_ms))
            vpn.endpoints.changed(endpoint)

        gateway.call(order)

    fill(client, "free", 2)
    consumer = client.receiver("free", credit=2)
    taken = consumer.take(2)
    clock.ms += 100 * LOCK_MS
    change(2**31 - 1)
    change(101 * LOCK_MS)
    end_locks(clock, client, taken)
    consumer.settle(taken)
    consumer.flow(2)
    taken = consumer.take(2)
    change(0)
    clock.ms += 10_000 * LOCK_MS
    consumer.settle(taken)
    client.wait(lambda: gateway.depth("free") == 0, "it was the consumer's all the time")


def test_an_exclusive_queue_goes_on_with_the_next(
    gateway: RunningGateway, client: Client, connect: Connect, clock: Clock
) -> None:
    """
    The next consumer is active once the active one holds nothing under a lock, not while it renews one delivery. Then
    that consumer is the last to wait.
    """
    fill(client, "single", 4)
    slow = client.receiver("single", credit=2)
    first = slow.take(1)
    second = slow.take(1)
    waiting = [connect(gateway).receiver("single", credit=2) for _ in range(2)]
    clock.ms += LOCK_MS // 2
    slow.update(second, Delivery.RECEIVED)
    client.wait(lambda: gateway.ask(_renewed_ms("single", 2)) == clock.ms, "it is renewed")
    end_locks(clock, client, first, LOCK_MS // 2)
    slow.settle(second)
    client.wait(lambda: gateway.depth("single") == 3, "that was in time")
    assert texts(waiting[0].take(2)) == ["0", "2"]
    slow.settle(first)
    slow.flow(5)
    assert slow.drain() == [], "it waits for its turn"
    slow.flow(5)
    waiting[0].client.cut()
    assert texts(waiting[1].take_and_accept(2)) == ["0", "2"]
    waiting[1].client.wait(lambda: gateway.depth("single") == 1, "they are consumed")
    waiting[1].client.cut()
    assert texts(slow.take(1)) == ["3"]


@pytest.mark.parametrize("settle", [True, False])
def test_a_transaction_that_acknowledged_it_is_rolled_back(
    gateway: RunningGateway, client: Client, connect: Connect, clock: Clock, settle: bool
) -> None:
    """Whether acknowledged before the lock ends or after; a transaction that is committed in time holds."""
    controller = Controller(client)
    fill(client, "work", 3)
    consumer = client.receiver("work", credit=3)
    early, in_time, late = consumer.take(3)
    transactions = [controller.declare() for _ in range(3)]
    acknowledge(early, transactions[0], settle=settle)
    acknowledge(in_time, transactions[1], settle=settle)
    assert controller.commit(transactions[1]) == "ACCEPTED"
    end_locks(clock, client, [late])
    acknowledge(late, transactions[2], settle=settle)
    assert controller.commit(transactions[0]) == "amqp:transaction:rollback"
    assert controller.commit(transactions[2]) == "amqp:transaction:rollback"
    assert texts(connect(gateway).receiver("work", credit=3).take_and_accept(2)) == ["0", "2"]


def test_a_detached_consumer_keeps_its_deliveries_no_longer(
    gateway: RunningGateway, client: Client, connect: Connect, clock: Clock
) -> None:
    """The lock also ends for deliveries of a link that is detached and not closed."""

    def lasting(link: Any) -> None:
        link.source.expiry_policy = Terminus.EXPIRE_NEVER

    fill(client, "work", 1)
    consumer = client.receiver("work", credit=1, set_up=lasting)
    consumer.take(1)
    consumer.detach()
    client.wait(lambda: gateway.flows("work") == 0, "it is suspended")
    clock.ms += LOCK_MS
    assert texts(connect(gateway).receiver("work", credit=1).take_and_accept(1)) == ["0"]


def test_a_drain_is_answered_while_a_consumer_is_stuck(client: Client, clock: Clock) -> None:
    """The consumer gets nothing, and its credit is used up."""
    fill(client, "work", 1)
    consumer = client.receiver("work", credit=1)
    taken = consumer.take(1)
    end_locks(clock, client, taken)
    assert consumer.drain() == []
    consumer.settle(taken)
    assert texts(consumer.drain()) == ["0"]


def test_very_many_are_taken_back(clock: Clock, start: Start, connect: Connect) -> None:
    """
    Six thousand locks end together: deliveries are taken back in turns, and remembered until the consumer confirms.
    """
    count = 6_000
    limits = Limits(max_unsettled_per_flow=count, connection_bytes=2**31)
    gateway = start(vpn=Vpn(queues=QUEUES), limits=limits)
    client = connect(gateway)
    fill(client, "work", count)
    slow = client.receiver("work", credit=count)
    taken = slow.take(count)
    end_locks(clock, client, taken)
    slow.settle(taken, None)
    quick = connect(gateway).receiver("work")
    came: list[Received] = []
    quick.collect(came, count, credit=5_000)
    assert texts(came) == numbered(count)
