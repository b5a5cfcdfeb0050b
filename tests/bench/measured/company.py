"""What rate publishers and consumers keep during reads, copies, trims, purges and listings."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.bench import administrators
from tests.bench.administrators import console, copy, purge
from tests.bench.filled import QUEUE, fill, numbered, publish_into
from tests.bench.measured.rates import charged
from tests.bench.processes import FROM_BEGINNING, Load, LoadFailed, gateway, recv, send
from tests.support.administration import Administration

from .sizes import Figures, Sizes

CONSOLES = 5

PACE = 10_000
"""The rate that a paced replay requests, in messages a second."""


def beside(folder: Path, sizes: Sizes) -> Figures:
    """A queue's live traffic, alone and while a log reader reads the history again and again."""
    count = sizes.history
    with gateway(folder / "data") as server:
        send(server.address, "topic://bench/history", count)
    with gateway(folder / "data") as server:
        alone = live(server.address, count)
        # A reader is slow next to live traffic on purpose. Each of its runs reads a part, so that some end in time.
        options = {"filters": FROM_BEGINNING, "forever": True}
        reader = Load("receive", server.address, "log://bench/history", count // 4, **options).attached()
        accompanied = live(server.address, count)
        reader.stop()
    return {"live-alone": alone, "live-beside": accompanied}


def copying(folder: Path, sizes: Sizes) -> Figures:
    """Copying history into a queue, and the rate of publishers to another queue, alone and during such copies."""
    publish_into(folder / "data", numbered("bench/history", 0, sizes.copied))
    with gateway(folder / "data") as server:
        # Warm up: the first messages of a process are slower.
        send(server.address, "queue://warm", sizes.bulk // 4)
        alone = send(server.address, "queue://calm", sizes.bulk)["rate"]
        history = (server.admin, "bench/history", "queue://copies")
        figures = charged(server, "copy", sizes.copied, lambda: {"rate": copy(*history)})
        with administrators.beside(administrators.copying(*history)):
            accompanied = send(server.address, "queue://busy", sizes.bulk)["rate"]
    return figures | {"publish-before-copy": alone, "publish-copying": accompanied}


def paced(folder: Path, sizes: Sizes) -> Figures:
    """A replay and a copy that request a rate: what rate they reach."""
    count = min(sizes.history, 5 * PACE)
    publish_into(folder / "data", numbered("bench/history", 0, count))
    with gateway(folder / "data") as server:
        history = f"log://bench/history?replay-start=beginning&rate={PACE}"
        return {
            "pace": PACE,
            "paced-replay": recv(server.address, history, count)["rate"],
            "paced-copy": copy(server.admin, "bench/history", "queue://copies", PACE),
        }


def trimming(folder: Path, sizes: Sizes) -> Figures:
    """Publishing before and during a trim of a million messages."""
    fill(folder / "data", 1, sizes.trimmed)
    count = sizes.trimmed // 10
    with gateway(folder / "data") as server:
        # Warm up: the first messages of a process are slower.
        send(server.address, "topic://bench/warm", count)
        alone = send(server.address, "topic://bench/alone", count)["rate"]
        with administrators.beside(administrators.trimming(server.admin)) as [trimmed]:
            accompanied = send(server.address, "topic://bench/beside", count)["rate"]
            if trimmed.done():
                raise LoadFailed("the log was trimmed before as much was published as was to be measured")
    return {"publish-before-trim": alone, "publish-trimming": accompanied, "trim": trimmed.result()}


def listing(folder: Path, sizes: Sizes) -> Figures:
    """Publishing to one of many queues, alone and while all queues are listed over HTTP without a pause."""
    config = "".join(f"[vpn.default.queue.q{number:05}]\n" for number in range(sizes.queues))
    with gateway(folder / "data", config) as server:
        # Warm up: the first messages of a process are slower.
        send(server.address, "queue://q00000", sizes.bulk // 4)
        alone = send(server.address, "queue://q00001", sizes.bulk)["rate"]
        with administrators.beside(administrators.listing(server.admin)) as [listed]:
            accompanied = send(server.address, "queue://q00003", sizes.bulk)["rate"]
    return {"before-listing": alone, "publish-listing": accompanied, "listing": listed.result()}


def consoles(folder: Path, sizes: Sizes) -> Figures:
    """Publishing alone, and while consoles are open, each with a live tail of the messages."""
    with gateway(folder / "data") as server:

        def publish() -> float:
            # Long enough for several of the consoles' polls, which come every few seconds.
            return float(send(server.address, "topic://bench/live", 5 * sizes.bulk)["rate"])

        publish()  # warm up: the first messages of a process are slower
        alone = publish()
        opened = threading.Barrier(2 * CONSOLES + 1)
        works = [work for _ in range(CONSOLES) for work in console(server.admin, opened)]
        with administrators.beside(*works) as ended:
            opened.wait(administrators.OPEN_SECONDS)
            accompanied = publish()
        if not any(one.result() for one in ended):
            raise LoadFailed("no message came on a live tail")
    return {"before-consoles": alone, "publish-consoles": accompanied}


def purging(folder: Path, sizes: Sizes) -> Figures:
    """A purge of a long queue, and publishing to another queue meanwhile with one message outstanding."""
    fill(folder / "data", sizes.purged, sizes.purged)
    count = 2 * sizes.single
    with gateway(folder / "data") as server, Administration(server.admin) as administration:
        administration.get("/readyz")  # load the administration's modules
        send(server.address, "queue://warm", count, outstanding=1)
        calm = send(server.address, "queue://calm", count, outstanding=1)["p99_ms"]
        publisher = Load("send", server.address, "queue://busy", count, outstanding=1)
        publisher.attached()
        purged, milliseconds = purge(administration, QUEUE)
        busy = publisher.result()["p99_ms"]
        if purged != sizes.purged:
            raise LoadFailed(f"{purged} of {sizes.purged} messages were purged")
    return {"purge": milliseconds, "p99-before-purge": calm, "purge-p99": busy}


def live(server: str, count: int) -> float:
    """Messages a second from the first publish to the last receipt, with publisher and consumer at work."""
    consumer = Load("receive", server, "queue://live", count).attached()
    send(server, "queue://live", count)
    received: dict[str, Any] = consumer.result()
    return count / float(received["through_seconds"])
