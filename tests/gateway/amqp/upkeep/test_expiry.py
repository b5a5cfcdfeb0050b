"""Messages that expire by their header's ttl or their queue's max_ttl_ms, also where nobody consumes."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import UByte, UInt
from gateway.config import Limits, Queue, Vpn
from gateway.vpn.runtime import Tuning
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import Client, texts
from tests.support.messages import HEADER, data, section
from tests.support.running import RunningGateway

QUEUES = {
    "timed": Queue(max_ttl_ms=1_000, dead_message_queue="dead"),
    "plain": Queue(dead_message_queue="dead"),
    "brief": Queue(max_ttl_ms=10, dead_message_queue="aging"),
    "aging": Queue(max_ttl_ms=5_000),
    "dead": Queue(),
}


def with_ttl(number: int, ttl_ms: int) -> bytes:
    return section(HEADER, [True, UByte(4), UInt(ttl_ms)]) + data(number)


@pytest.fixture
def gateway(clock: Clock, start: Start) -> RunningGateway:
    """A gateway whose clock is the test's."""
    return start(vpn=Vpn(queues=QUEUES))


def empties(gateway: RunningGateway, client: Client, queue: str, depth: int = 0) -> None:
    """Wait until a queue has ``depth`` messages."""
    client.wait(lambda: gateway.depth(queue) == depth, f"{queue} has {depth} messages")


# --- at delivery ------------------------------------------------------------------------------------------------------


def test_a_queues_limit_counts_beside_the_headers(client: Client, clock: Clock) -> None:
    """Whichever is shorter ends a message's life, with a header or without one, and its copy says so."""
    consumer = client.receiver("timed")
    client.sender("timed").send_all([data(1), with_ttl(2, 500), with_ttl(3, 60_000)])
    clock.ms += 600
    client.sender("timed").send_all([data(4)])
    clock.ms += 401
    assert texts(consumer.drain()) == ["4"]
    dead = client.receiver("dead", credit=10).take(3)
    assert sorted(texts(dead)) == ["1", "2", "3"]
    assert {m.annotations["x-opt-dead-reason"] for m in dead} == {"expired"}


# --- where nobody consumes --------------------------------------------------------------------------------------------


@pytest.fixture
def _swept_often(given: dict[str, Any]) -> None:
    """Request it before a gateway, which then sweeps its queues twenty times a second instead of once."""
    given["tuning"] = Tuning(expiry_sweep_seconds=0.05)


@pytest.mark.parametrize(
    ("queue", "messages"),
    [
        ("timed", [data(i) for i in range(300)]),
        ("plain", [with_ttl(i, 1_000) for i in range(300)]),
        ("timed", [with_ttl(i, 10 + i) for i in range(300)]),
    ],
    ids=["by the queue", "by the header", "by both"],
)
@pytest.mark.usefixtures("_swept_often")
def test_messages_nobody_consumes_expire(
    gateway: RunningGateway, client: Client, clock: Clock, queue: str, messages: list[bytes]
) -> None:
    """At the head of a queue without consumers, expired messages are moved to the dead message queue."""
    client.sender(queue).send_all(messages)
    clock.ms += 2_001
    client.sender(queue).send_all([data("later")])
    empties(gateway, client, queue, depth=1)
    dead = client.receiver("dead", credit=600).take(300)
    assert texts(dead) == [str(i) for i in range(300)]
    assert {m.annotations["x-opt-dead-reason"] for m in dead} == {"expired"}
    assert texts(client.receiver(queue).drain()) == ["later"]


@pytest.mark.usefixtures("_swept_often")
def test_a_head_that_lives_longer_keeps_those_behind_it(
    gateway: RunningGateway, client: Client, clock: Clock
) -> None:
    """An expired message behind the head is moved when it gets to the head."""
    client.sender("plain").send_all([data("for ever"), with_ttl(1, 10)])
    client.sender("timed").send_all([data(2)])
    clock.ms += 1_001
    empties(gateway, client, "timed")
    assert gateway.depth("plain") == 2
    consumer = client.receiver("plain", credit=1)
    consumer.take_and_accept(1)
    consumer.close()
    empties(gateway, client, "plain")
    assert sorted(texts(client.receiver("dead", credit=5).take(2))) == ["1", "2"]


@pytest.mark.usefixtures("_swept_often")
def test_what_a_consumer_holds_does_not_expire(gateway: RunningGateway, client: Client, clock: Clock) -> None:
    """
    An unsettled message stays its consumer's. Expired ones behind it are moved, also those that another consumer's
    selector leaves; that consumer is not harmed.
    """
    client.sender("timed").send_all([data(1)])
    consumer = client.receiver("timed", credit=1)
    (held,) = consumer.take(1)
    selecting = client.receiver("timed", filters={"apache.org:selector-filter:string": "n = 1"}, credit=5)
    client.sender("timed").send_all(data(i) for i in range(2, 12))
    clock.ms += 1_001
    empties(gateway, client, "timed", depth=1)
    consumer.settle([held])
    empties(gateway, client, "timed")
    assert not selecting.arrived
    assert sorted(map(int, texts(client.receiver("dead", credit=20).take(10)))) == list(range(2, 12))


@pytest.mark.parametrize("queue", ["timed", "plain"], ids=["by the queue", "by the header"])
@pytest.mark.usefixtures("_swept_often")
def test_a_backlog_on_disk_expires_after_a_restart(
    start: Start, connect: Connect, clock: Clock, queue: str
) -> None:
    """Messages that are only in the store are read and moved to the dead message queue, a page at a time."""
    limits = Limits(tail_bytes=10_000, read_page_rows=50, endpoint_window=100)
    gateway = start(vpn=Vpn(queues=QUEUES), limits=limits)
    client = connect(gateway)
    client.sender(queue).send_all(with_ttl(i, 1_000) if queue == "plain" else data(i) for i in range(1_500))
    client = connect.again(gateway, client)
    clock.ms += 1_001
    empties(gateway, client, queue)
    assert gateway.depth("dead") == 1_500


@pytest.mark.usefixtures("_swept_often")
def test_replayed_history_is_not_swept(gateway: RunningGateway, client: Client, clock: Clock) -> None:
    """
    A replay that nobody consumes yet keeps what it has put, though the sweep moves another queue's messages meanwhile.
    """
    client.sender("timed").send_all([data(1)])
    clock.ms += 1_001
    empties(gateway, client, "timed")
    gateway.start_replay("timed", "beginning")
    client.sender("plain").send_all([with_ttl(2, 10)])
    clock.ms += 1_001
    empties(gateway, client, "plain")
    assert texts(client.receiver("timed", credit=5).take_and_accept(1)) == ["1"]


@pytest.mark.usefixtures("_swept_often")
def test_the_dead_expire_only_by_their_own_queue(
    gateway: RunningGateway, client: Client, clock: Clock
) -> None:
    """
    On a dead message queue the header's ttl no longer applies; a max_ttl_ms of that queue does, from arrival there.
    """
    client.sender("brief").send_all([with_ttl(1, 5)])
    clock.ms += 11
    empties(gateway, client, "aging", depth=1)
    clock.ms += 5_000
    client.sender("plain").send_all([with_ttl(2, 1)])
    clock.ms += 2
    empties(gateway, client, "plain")
    clock.ms += 5_000
    empties(gateway, client, "aging")
    assert gateway.depth("dead") == 1
