"""What a large store costs: how long a start takes, and how fast a deep queue is consumed."""

from __future__ import annotations

import json
import time
from itertools import chain
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from amqp_ext.addresses.address import queue_topic
from tests.bench.filled_store import QUEUE, fill, numbered, publish_into
from tests.bench.load import LoadFailed, recv
from tests.bench.server_process import MEGABYTE, gateway

from .sizes import Figures, Sizes

RESTARTS = 3


def recovery(folder: Path, sizes: Sizes) -> Figures:
    """From exec to the ready line, on an empty folder and on a well-filled one."""
    with gateway(folder / "empty") as server:
        empty = server.ready_seconds
    fill(folder / "data", sizes.spooled, sizes.logged)
    seconds = []
    for _ in range(RESTARTS):
        with gateway(folder / "data") as server:
            seconds.append(server.ready_seconds)
            recv(server.address, "queue://spooled", 1)
    return {"recovery": median(seconds), "start_empty": empty}


def deep(folder: Path, sizes: Sizes) -> Figures:
    """A very deep queue and a shallow one, both on disk: how fast they are consumed, start, memory."""
    count, data = sizes.bulk, folder / "data"
    shallow = numbered(queue_topic("shallow"), 0, count)
    publish_into(data, chain(shallow, numbered(queue_topic(QUEUE), 0, sizes.deep)), [QUEUE, "shallow"])
    seconds, resident, histograms = [], [], list[float]()
    rates: dict[str, list[float]] = {"shallow": [], QUEUE: []}
    for _ in range(RESTARTS):
        with gateway(data) as server:
            seconds.append(server.ready_seconds)
            histograms.append(histogram_ms(server.admin))
            for name, found in rates.items():
                found.append(recv(server.address, f"queue://{name}", count // RESTARTS)["rate"])
            resident.append(server.resident_bytes() / MEGABYTE)
    return {
        "deep": median(rates[QUEUE]),
        "shallow": median(rates["shallow"]),
        "deep_resident": max(resident),
        "deep_start": median(seconds),
        "histogram": median(histograms),
    }


def histogram_ms(admin: str) -> float:
    """How long an administrator waits for a picture of the whole log."""
    log = f"{admin}/SEMP/v2/monitor/msgVpns/default/replayLogs/default"
    # The administration itself begins with its first request.
    with urlopen(log) as answer:
        answer.read()
    started = time.perf_counter()
    with urlopen(f"{log}/histogram?buckets=200") as answer:
        found = json.load(answer)["data"]
    taken = (time.perf_counter() - started) * 1_000
    if sum(bucket["msgCount"] for bucket in found["buckets"]) != found["lastMsgId"]:
        raise LoadFailed("the histogram has not all messages")
    return taken
