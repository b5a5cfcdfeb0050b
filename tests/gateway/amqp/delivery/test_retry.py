"""Delayed retry: a message that a consumer gives back waits, as the queue's settings or the consumer say."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, timestamp, ulong

from gateway.config import Queue, ReplayLog, Vpn
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.gateway.amqp.delivery.test_delayed import HOUR_MS, listed, waiting
from tests.support.client import BEGINNING, SELECTOR, Client, Receiver, numbered, texts
from tests.support.messages import data
from tests.support.running import RunningGateway, trim_before

SECOND_MS = 1_000
"""The retry delay of a queue that does not set one."""


def fail(receiver: Receiver, again: Any = None, *, count: int = 1) -> list[int]:
    """Take messages and modify them as failed; the delivery-counts that they had."""
    taken = receiver.take(count)
    receiver.modify(taken, failed=True, again=again)
    return [message.delivery_count for message in taken]


def wait_for(client: Client, gateway: RunningGateway, count: int, name: str = "orders") -> None:
    client.wait(lambda: waiting(gateway, name) == count, f"{count} wait to be tried again")


# --- when they are delivered again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry_type", "waits_failed", "waits_returned"),
    [("disabled", False, False), ("failed", True, False), ("returned", False, True), ("all", True, True)],
)
def test_what_waits_is_the_queues_to_say(
    start: Start, connect: Connect, clock: Clock, retry_type: Any, waits_failed: bool, waits_returned: bool
) -> None:
    """
    Failed deliveries wait, returned ones, both or neither. What does not wait is back immediately; nothing is lost.
    """
    gateway = start(Vpn(queues={"orders": Queue(retry_type=retry_type)}))
    client = connect(gateway)
    client.sender("orders").send_all([data("failed"), data("released"), data("modified")])
    receiver = client.receiver("orders", credit=3)
    failed, released, modified = receiver.take(3)
    receiver.modify([failed], failed=True)
    receiver.settle([released], Delivery.RELEASED)
    receiver.modify([modified])
    expected = waits_failed + 2 * waits_returned
    wait_for(client, gateway, expected)
    receiver.flow(5)
    back = receiver.take_and_accept(3 - expected)
    clock.ms += SECOND_MS - 1
    assert receiver.drain(1) == []
    clock.ms += 1
    receiver.flow(5)
    back += receiver.take_and_accept(expected)
    assert {message.text: message.delivery_count for message in back} == {
        "failed": 1,
        "released": 0,
        "modified": 0,
    }


@pytest.mark.parametrize(
    ("settings", "delays"),
    [
        ({}, [1_000, 2_000, 4_000, 8_000]),
        ({"retry_factor": 1}, [1_000, 1_000, 1_000, 1_000]),
        ({"retry_factor": 0, "retry_delay_ms": 300}, [300, 600, 900, 1_200]),
        ({"retry_factor": 10, "retry_max_ms": 50_000}, [1_000, 10_000, 50_000, 50_000]),
    ],
    ids=["doubled", "constant", "linear", "bounded"],
)
def test_each_try_waits_longer(
    start: Start, connect: Connect, clock: Clock, settings: dict[str, int], delays: list[int]
) -> None:
    """The delay grows by the factor, or linearly, up to the maximum; the delivery-count is the number of attempts."""
    gateway = start(Vpn(queues={"orders": Queue(retry_type="failed", **settings)}))
    client = connect(gateway)
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders", credit=10)
    for attempts, delay_ms in enumerate(delays):
        assert fail(receiver) == [attempts]
        wait_for(client, gateway, 1)
        (message,) = listed(gateway, "orders")
        assert (message.due_ms - clock.ms, message.attempts, message.is_retry) == (
            delay_ms,
            attempts + 1,
            True,
        )
        clock.ms += delay_ms
    assert receiver.take_and_accept(1)[0].delivery_count == len(delays)


@pytest.mark.parametrize("kind", [timestamp, ulong, int])
def test_a_consumer_says_when(clock: Clock, gateway: RunningGateway, connect: Connect, kind: Any) -> None:
    """
    With ``x-opt-delivery-time`` in modified, on any queue; a time in the past has no effect. Other messages go on.
    """
    client = connect(gateway)
    client.sender("orders").send_all(data(i) for i in range(3))
    receiver = client.receiver("orders", credit=9)
    taken = receiver.take(3)
    receiver.modify(taken[:1], again=kind(clock.ms + HOUR_MS))
    receiver.modify(taken[1:2], again=kind(clock.ms), failed=True)
    receiver.settle(taken[2:])
    again = receiver.take_and_accept(1)
    assert [(message.text, message.delivery_count) for message in again] == [("1", 1)]
    wait_for(client, gateway, 1)
    assert [message.due_ms for message in listed(gateway, "orders")] == [clock.ms + HOUR_MS]
    clock.ms += HOUR_MS
    assert [(m.text, m.delivery_count) for m in receiver.take_and_accept(1)] == [("0", 0)]


def test_what_is_no_time_detaches_its_link(client: Client) -> None:
    """The error names the annotation; the message goes to the next consumer."""
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders", credit=1)
    receiver.modify(receiver.take(1), again="tomorrow", failed=True)
    refused = receiver.detached_by_peer()
    assert refused.name == "amqp:invalid-field" and "x-opt-delivery-time in modified" in refused.text
    assert texts(client.receiver("orders", credit=1).take_and_accept(1)) == ["x"]


def test_a_link_that_ends_makes_nothing_wait(start: Start, connect: Connect) -> None:
    """It may not have tried all that it had. Its messages are ready immediately, with the delivery-count raised."""
    gateway = start(Vpn(queues={"orders": Queue(retry_type="all")}))
    client = connect(gateway)
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders", credit=1)
    receiver.take(1)
    receiver.close()
    assert [m.delivery_count for m in client.receiver("orders", credit=1).take_and_accept(1)] == [1]


def test_one_that_failed_too_often_is_dead_at_once(start: Start, connect: Connect, clock: Clock) -> None:
    """A retry delay comes before each attempt, and not before the move to the dead message queue."""
    queue = Queue(retry_type="all", max_redelivery=1, dead_message_queue="dead")
    gateway = start(Vpn(queues={"orders": queue, "dead": Queue()}))
    client = connect(gateway)
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders", credit=5)
    fail(receiver)
    wait_for(client, gateway, 1)
    clock.ms += SECOND_MS
    assert fail(receiver) == [1]
    assert texts(client.receiver("dead", credit=1).take_and_accept(1)) == ["x"]
    assert waiting(gateway, "orders") == 0


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict_order", [False, True])
@pytest.mark.parametrize("selector", [None, "1 = 1"])
def test_whether_others_overtake_it(
    start: Start, connect: Connect, clock: Clock, strict_order: bool, selector: str | None
) -> None:
    """
    They do, unless the queue keeps strict order: then they wait until all failed ones are due, after a restart too.
    """
    gateway = start(Vpn(queues={"orders": Queue(retry_type="failed", strict_order=strict_order)}))
    client = connect(gateway)
    client.sender("orders").send_all(data(i) for i in range(4))
    filters = None if selector is None else {SELECTOR: selector}
    receiver = client.receiver("orders", credit=2, filters=filters)
    first, second = receiver.take(2)
    receiver.modify([second], failed=True, again=clock.ms + 500)
    receiver.modify([first], failed=True, again=clock.ms + 700)
    wait_for(client, gateway, 2)
    client = connect.again(gateway, client)
    receiver = client.receiver("orders", credit=9, filters=filters)
    clock.ms += 500
    wait_for(client, gateway, 1)
    if strict_order:
        assert receiver.drain(1) == []
        receiver.flow(9)
    else:
        assert sorted(texts(receiver.take_and_accept(3))) == ["1", "2", "3"]
    clock.ms += 200
    assert texts(receiver.take_and_accept(4 if strict_order else 1)) == (
        numbered(4) if strict_order else ["0"]
    )


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_logged", [True, False])
def test_what_waits_survives(start: Start, connect: Connect, clock: Clock, is_logged: bool) -> None:
    """
    A waiting message survives a restart, and a log that is trimmed or off; its delivery-count stays, and it comes once.
    """
    vpn = Vpn(replay_log=ReplayLog(enabled=is_logged), queues={"orders": Queue(retry_type="all")})
    gateway = start(vpn)
    client = connect(gateway)
    client.sender("orders").send_all(data(i) for i in range(3))
    receiver = client.receiver("orders", credit=3)
    fail(receiver, count=2)
    wait_for(client, gateway, 2)
    receiver.take_and_accept(1)
    clock.ms += SECOND_MS
    receiver.flow(1)
    assert fail(receiver) == [1]
    wait_for(client, gateway, 1)
    if is_logged:
        trim_before(gateway, 4)
    client = connect.again(gateway, client)
    receiver = client.receiver("orders", credit=9)
    (message,) = receiver.take_and_accept(1)
    assert (message.text, message.delivery_count) == ("1", 1)
    clock.ms += 2 * SECOND_MS
    (message,) = receiver.take_and_accept(1)
    assert (message.text, message.delivery_count) == ("0", 2)
    assert receiver.drain(1) == []
    gateway.stop()
    assert check(gateway.settings.data / "default.db") == []


def test_a_replay_drops_what_waits_and_tries_again_what_it_brings(
    start: Start, connect: Connect, clock: Clock
) -> None:
    """
    A replayed message that fails waits for its retry; the replay is complete when all is settled, and none comes twice.
    """
    gateway = start(Vpn(queues={"orders": Queue(retry_type="all", strict_order=True)}))
    client = connect(gateway)
    client.sender("orders").send_all(data(i) for i in range(4))
    consumer = client.receiver("orders", credit=1)
    fail(consumer)
    wait_for(client, gateway, 1)
    consumer.close()
    receiver = client.receiver("orders", filters=BEGINNING, credit=1)
    assert fail(receiver) == [0]
    wait_for(client, gateway, 1)
    receiver.flow(9)
    assert receiver.drain(1) == []
    assert gateway.replay("orders").is_under_way
    clock.ms += SECOND_MS
    receiver.flow(9)
    again = receiver.take_and_accept(4)
    assert [(message.text, message.delivery_count) for message in again] == [
        ("0", 1), ("1", 0), ("2", 0), ("3", 0),
    ]  # fmt: skip
    client.wait(lambda: not gateway.replay("orders").is_under_way, "the replay is complete")
    assert receiver.drain(1) == []


def test_a_backlog_of_retries_is_not_in_memory(
    clock: Clock, gateway: RunningGateway, connect: Connect
) -> None:
    """Even if each has a time of its own, the gateway keeps only their number in memory."""
    count = 1_000
    client = connect(gateway)
    client.sender("orders").send_all(data(i) for i in range(count))
    receiver = client.receiver("orders", credit=count)
    for k, message in enumerate(receiver.take(count)):
        receiver.modify([message], again=clock.ms + HOUR_MS + k)
    wait_for(client, gateway, count)

    def held(running: Any) -> int:
        orders = running.vpns["default"].endpoints.by_name["orders"]
        kept = (
            orders.attempts,
            orders.withdrawn,
            orders.held_up,
            orders.backlog.put.ids,
            orders.ready.oldest,
        )
        return sum(map(len, kept)) + orders.holding_back + len(orders.backlog.parts[-1].ranges)

    assert gateway.call(held) == 0
    clock.ms += HOUR_MS + 9
    receiver.flow(20)
    assert texts(receiver.take_and_accept(10)) == numbered(10)
