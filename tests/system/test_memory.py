"""Memory: bounded, whatever lies on a queue and however slow a consumer is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.bench.filled_store import QUEUE, fill
from tests.support.peer import Peer
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess

MEGABYTE = 2**20
HEAP_BYTES = 64 * MEGABYTE
"""What glibc reserves for the heap of a thread (``HEAP_MAX_SIZE``)."""
SPOOLED = 2_000_000


def consume(gateway: GatewayProcess, queue: str, count: int) -> None:
    """Attach, take and accept this many messages."""
    with Peer.opened(gateway.address) as peer:
        peer.attach_receiver(f"queue://{queue}", credit=count)
        for _ in range(count):
            peer.receive()


def heaps_of_threads(gateway: GatewayProcess) -> int:
    """glibc's heaps beside the first one: each is the writable beginning of 64 MiB at a multiple of that."""
    mappings = [line.split() for line in Path(f"/proc/{gateway.pid}/maps").read_text().splitlines()]
    spans = [
        (int(first, 16), int(end, 16), access)
        for span, access, *_ in mappings
        for first, _, end in [span.partition("-")]
    ]
    return sum(
        start % HEAP_BYTES == 0 and access == "rw-p" and after == (end, start + HEAP_BYTES, "---p")
        for (start, end, access), after in pairwise(spans)
    )


def test_threads_share_one_heap(start: Start) -> None:
    """The writer, the readers and the loop have one heap, so that what one of them frees serves the others."""
    gateway = start()
    with Peer.opened(gateway.address) as publisher:
        publisher.attach_sender("queue://q")
        publisher.publish_all([b"x" * 8_000] * 1_000)
    consume(gateway, "q", 500)
    assert heaps_of_threads(gateway) == 0


def test_a_queue_of_two_million_messages_costs_a_window_of_ids(start: Start, tmp_path: Path) -> None:
    """With 2,000,000 messages on a queue the gateway holds less than 300 MB, before and after some are consumed."""
    data = tmp_path / "data"
    fill(data, SPOOLED, SPOOLED)
    gateway = start(data=data)
    assert gateway.resident_bytes() < 300 * MEGABYTE
    consume(gateway, QUEUE, 5_000)
    assert gateway.resident_bytes() < 300 * MEGABYTE


def test_a_consumer_that_stops_reading_costs_a_bounded_amount_and_nobody_else(start: Start) -> None:
    """100,000 credit and no reading: 64 MiB at most, while another consumer gets all that is published."""
    gateway = start()
    with Peer.opened(gateway.address) as publisher, Peer.opened(gateway.address) as stuck:
        publisher.attach_sender("queue://backlog")
        publisher.publish_all([b"x" * 16_000] * 8_000)
        before = gateway.peak_bytes()
        stuck.attach_receiver("queue://backlog", credit=100_000)
        publisher.attach_sender("queue://other")
        for _ in range(3):
            publisher.publish_all([b"for the other"] * 100, handle=1)
            consume(gateway, "other", 100)
        consume(gateway, "backlog", 100)
        assert gateway.peak_bytes() - before < 64 * MEGABYTE


def test_a_queue_that_nobody_consumes_from_costs_no_more_the_longer_it_gets(start: Start) -> None:
    """
    Once the tail's 64 MiB and what goes with them are taken, publishing as much again costs next to nothing.

    What is on its way in and waits for the disk makes the peak differ by 20 MB from run to run; the second half is 160.
    """
    gateway = start()
    before = gateway.resident_bytes()
    with Peer.opened(gateway.address) as publisher:
        publisher.attach_sender("queue://spool")
        publisher.publish_all([b"x" * 8_000] * 20_000, outstanding=1_500)
        filled = gateway.peak_bytes()
        publisher.publish_all([b"x" * 8_000] * 20_000, outstanding=1_500)
    consume(gateway, "spool", 1_000)
    assert filled - before < 192 * MEGABYTE
    assert gateway.peak_bytes() - filled < 64 * MEGABYTE
