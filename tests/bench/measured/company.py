"""What publishers and consumers keep of their rate beside others: readers, copies, trimming, purges, listings."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.administrators import Consoles, Copying, Listing, Trimming, purge, wake
from tests.bench.filled import QUEUE, fill, numbered, publish_into
from tests.bench.measured.rates import charged
from tests.bench.processes import Load, LoadFailed, gateway, recv, send

from .sizes import Figures, Sizes

CONSOLES = 5

PACE = 10_000
"""Messages a second that a paced replay is asked for."""


def beside(folder: Path, sizes: Sizes) -> Figures:
    """A queue's live traffic, alone and while a log reader goes through the history again and again."""
    count = sizes.history
    with gateway(folder / "data") as server:
        send(server.address, "topic://bench/history", count)
    with gateway(folder / "data") as server:
        alone = live(server.address, count)
        # A reader beside live traffic is slow on purpose: each of its runs is a part, so that some are through in time.
        options = ("--count", count // 4, "--start", "beginning", "--forever")
        reader = Load("recv", server.address, "log://bench/history", *options).attached()
        accompanied = live(server.address, count)
        read = reader.stop()
    return {"live_alone": alone, "live_beside": accompanied, "reader_beside": read["rate"]}


def copying(folder: Path, sizes: Sizes) -> Figures:
    """History copied into a queue alone, and while others publish to another one; what these keep of their rate."""
    publish_into(folder / "data", numbered("bench/history", 0, sizes.spooled))
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://warm", sizes.bulk // 4)
        alone = send(server.address, "queue://calm", sizes.bulk)["rate"]
        copying = Copying(server.admin, "bench/history", "queue://copies")
        figures = charged(server, "copied", lambda: timed(copying.copy), sizes.spooled)
        with copying:
            beside = send(server.address, "queue://busy", sizes.bulk)["rate"]
    return {**figures, "publish_before_copy": alone, "publish_copying": beside, "copied_beside": copying.rate}


def paced(folder: Path, sizes: Sizes) -> Figures:
    """A replay and a copy at a rate that is asked for: how much of it they keep."""
    count = min(sizes.history, 5 * PACE)
    publish_into(folder / "data", numbered("bench/history", 0, count))
    with gateway(folder / "data") as server:
        history = f"log://bench/history?replay-start=beginning&rate={PACE}"
        copying = Copying(server.admin, "bench/history", "queue://copies", rate=PACE)
        return {
            "pace": PACE,
            "paced_replay": recv(server.address, history, count)["rate"],
            "paced_copy": timed(copying.copy),
        }


def timed(work: Callable[[], int]) -> float:
    """How many a second."""
    started = time.perf_counter()
    return work() / (time.perf_counter() - started)


def trimming(folder: Path, sizes: Sizes) -> Figures:
    """Publishing before a million messages of the log are trimmed, and while they are."""
    fill(folder / "data", 1, sizes.trimmed)
    count = sizes.trimmed // 10
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "topic://bench/warm", count)
        alone = send(server.address, "topic://bench/alone", count)["rate"]
        with Trimming(server.admin) as trimmer:
            beside = send(server.address, "topic://bench/beside", count)["rate"]
            if trimmer.is_done:
                raise LoadFailed("the log was trimmed before as much was published as was to be measured")
    return {"publish_before_trim": alone, "publish_trimming": beside, "trimmed": trimmer.rate}


def listing(folder: Path, sizes: Sizes) -> Figures:
    """Publishing to one of many queues alone, and while all of them are listed over HTTP without a pause."""
    config = folder / "gateway.toml"
    config.write_text("".join(f"[vpn.default.queue.q{number:05}]\n" for number in range(sizes.queues)))
    with gateway(folder / "data", "--config", str(config)) as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://q00000", sizes.bulk // 4)
        alone = send(server.address, "queue://q00001", sizes.bulk)["rate"]
        calm = send(server.address, "queue://q00002", sizes.single, outstanding=1)["p99_ms"]
        with Listing(server.admin) as lister:
            beside = send(server.address, "queue://q00003", sizes.bulk)["rate"]
            busy = send(server.address, "queue://q00004", sizes.single, outstanding=1)["p99_ms"]
    return {
        "publish_before_listing": alone,
        "publish_listing": beside,
        "p99_before_listing": calm,
        "p99_listing": busy,
        "listed": lister.rate,
    }


def consoles(folder: Path, sizes: Sizes) -> Figures:
    """Publishing alone, and while consoles are open, each with a live tail of what is published."""
    # For seconds: so often, and not more often, a console asks for what it shows.
    count = 5 * sizes.bulk
    with gateway(folder / "data") as server:

        def publish() -> float:
            return float(send(server.address, "topic://bench/live", count)["rate"])

        publish()  # The first of a process are slower than those that follow.
        alone = charged(server, "publish_before_consoles", publish, count)
        with Consoles(server.admin, CONSOLES) as opened:
            beside = charged(server, "publish_consoles", publish, count)
        if not opened.tailed_bytes:
            raise LoadFailed("no message came on a live tail")
    return {**alone, **beside}


def purging(folder: Path, sizes: Sizes) -> Figures:
    """A long queue is purged while another is published to, one outstanding."""
    fill(folder / "data", sizes.purged, sizes.purged)
    count = 2 * sizes.single
    with gateway(folder / "data") as server:
        wake(server.admin)
        send(server.address, "queue://warm", count, outstanding=1)
        calm = send(server.address, "queue://calm", count, outstanding=1)["p99_ms"]
        publisher = Load("send", server.address, "queue://busy", "--count", count, "--outstanding", 1)
        publisher.attached()
        purged = purge(server.admin, QUEUE)
        busy = publisher.result()["p99_ms"]
        if purged.count != sizes.purged:
            raise LoadFailed(f"{purged.count} of {sizes.purged} messages were purged")
    return {"purge": purged.milliseconds, "p99_before_purge": calm, "p99_purging": busy}


def live(server: str, count: int) -> float:
    """Messages a second from the first's publishing to the last's receipt, both ends at work."""
    consumer = Load("recv", server, "queue://live", "--count", count).attached()
    send(server, "queue://live", count)
    return count / float(consumer.result()["through_seconds"])
