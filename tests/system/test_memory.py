"""Memory: bounded, whatever lies on a queue and however slow a consumer is."""

from __future__ import annotations

from pathlib import Path

from tests.bench.filled_store import QUEUE, fill
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess, wait_until
from tests.system.peer import Peer

MEGABYTE = 2**20
SPOOLED = 2_000_000


def consume(gateway: GatewayProcess, queue: str, count: int) -> None:
    """Attach, take and accept this many messages."""
    with Peer.opened(gateway.address) as peer:
        peer.begin()
        peer.attach_receiver(f"queue://{queue}", credit=count)
        for _ in range(count):
            peer.receive()


def test_a_queue_of_two_million_messages_costs_a_window_of_ids(start: Start, tmp_path: Path) -> None:
    """With 2,000,000 messages on a queue the gateway holds less than 300 MB, before and after some are consumed."""
    data = tmp_path / "data"
    fill(data, SPOOLED, SPOOLED)
    gateway = start(data=data)
    assert gateway.resident_bytes() < 300 * MEGABYTE
    consume(gateway, QUEUE, 5_000)
    assert gateway.resident_bytes() < 300 * MEGABYTE


def test_a_consumer_that_stops_reading_costs_a_bounded_amount_and_nobody_else(start: Start) -> None:
    """100,000 credit and no reading: some 64 MiB at most, while another consumer gets all that is published."""
    gateway = start()
    body = b"x" * 16_000
    with Peer.opened(gateway.address) as publisher, Peer.opened(gateway.address) as stuck:
        publisher.begin()
        publisher.attach_sender("queue://backlog")
        for _ in range(5_000):
            publisher.publish(body)
        before = gateway.resident_bytes()
        stuck.begin()
        stuck.attach_receiver("queue://backlog", credit=100_000)
        publisher.attach_sender("queue://other")
        for _ in range(100):
            publisher.publish(b"for the other", handle=1)
        consume(gateway, "other", 100)
        wait_until(lambda: gateway.resident_bytes() - before < 64 * MEGABYTE, "memory is bounded")
        consume(gateway, "backlog", 100)
        assert gateway.resident_bytes() - before < 64 * MEGABYTE
