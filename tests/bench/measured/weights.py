"""A gateway's resources: memory when idle and after much work, idle connections, starts and queues of a large store."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path
from statistics import mean, median

from amqp_ext.addresses.address import queue_topic
from tests.bench.administrators import LOG
from tests.bench.crowds import allow_files, open_connections, waiting_readers
from tests.bench.filled import QUEUE, numbered, publish_into
from tests.bench.measured.rates import EXCLUSIVE
from tests.bench.measured.sizes import Figures, Sizes
from tests.bench.processes import FROM_BEGINNING, MEGABYTE, LoadFailed, ServerProcess, gateway, recv, send
from tests.soak.client import Run
from tests.soak.traffic import read, start_pairs
from tests.support.administration import Administration

EACH = 5
"""This many times ``Sizes.single`` messages are published to many endpoints."""
QUEUES, READERS = 20, 2
RATE = 3_000.0
"""The rate of the mixed load, in messages a second over all queues."""
BODY_BYTES = (40, 2_000)
SAMPLE_SECONDS = 1.0
QUOTA_MB = 300
"""The quota of the log under mixed load: small, so that it is trimmed, too."""


def worked(folder: Path, sizes: Sizes) -> Figures:
    """Memory when empty and idle, and after many messages were published, consumed and replayed in both ways."""
    count = sizes.worked
    with gateway(folder / "data", EXCLUSIVE) as server:
        empty = _resident(server)
        send(server.address, "queue://bench", count)
        recv(server.address, "queue://bench", count)
        recv(server.address, "log://>", count, filters=FROM_BEGINNING)
        recv(server.address, "queue://bench?replay-start=beginning", count)
        return {"memory": empty, "memory-worked": _resident(server)}


def endpoints(folder: Path, sizes: Sizes) -> Figures:
    """Memory of many endpoints on one topic with messages."""
    config = "".join(f'[vpn.default.queue.q{n}]\nsubscriptions = ["all"]\n' for n in range(sizes.subscribers))
    with gateway(folder / "data", config) as server:
        send(server.address, "topic://all", EACH * sizes.single)
        return {"memory-endpoints": _resident(server)}


def mixed(folder: Path, sizes: Sizes) -> Figures:
    """
    Minutes of mixed load: many queues, bodies of all sizes, replays, clients that die; every message is accounted for.
    """
    names = [f"mixed{number}" for number in range(QUEUES)]
    tables = "".join(f'[vpn.default.queue.{name}]\nexclusive = "wait"\n' for name in names)
    config = f"[vpn.default.replay_log]\nquota_mb = {QUOTA_MB}\n{tables}"
    with gateway(folder / "data", config) as server:
        host, _, port = server.address.rpartition(":")
        run = Run((host, int(port)), body_bytes=BODY_BYTES)
        began, peak = time.monotonic(), 0.0
        publishers, consumers = start_pairs(run, names, RATE)
        publishers += [run.start(read, number) for number in range(READERS)]
        while time.monotonic() - began < sizes.minutes * 60 and not run.faults():
            time.sleep(SAMPLE_SECONDS)
            peak = max(peak, _resident(server))
        seconds = time.monotonic() - began
        run.end(publishers, consumers)
        run.close_accounts()
        if faults := run.faults():
            raise LoadFailed(faults[0])
        accepted = sum(account.accepted_count for account in run.accounts)
        return {
            "memory-mixed": _resident(server),
            "memory-mixed-peak": peak,
            "mixed-rate": accepted / seconds,
            **{f"mixed-{name}": count for name, count in run.counts.items()},
        }


def _resident(server: ServerProcess) -> float:
    return server.resident_bytes() / MEGABYTE


SILENCE = "[limits]\nidle_timeout_ms = 3600000\n"
"""Idle clients send no heartbeats here."""


def idle(folder: Path, sizes: Sizes) -> Figures:
    """Memory of an idle connection with a session."""
    allow_files(sizes.connections)
    with gateway(folder / "data") as server:
        before = server.resident_bytes()
        with open_connections(server.address, sizes.connections):
            held = server.resident_bytes() - before
    return {"idle": held / sizes.connections / 1024}


def idle_readers(folder: Path, sizes: Sizes) -> Figures:
    """Latency with one message outstanding, with and without very many log readers on a topic without messages."""
    count = sizes.single
    with gateway(folder / "data", SILENCE) as server:
        send(server.address, "queue://commits", count, outstanding=1)
        without = send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]
        with waiting_readers(server.address, sizes.readers):
            beside = send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]
        without = mean((without, send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]))
    return {"readers": beside, "without-readers": without}


def deep(folder: Path, sizes: Sizes) -> Figures:
    """A very deep queue and a shallow one, both on disk: consuming rate, start, memory."""
    count, data = sizes.bulk, folder / "data"
    shallow = numbered(queue_topic("shallow"), 0, count)
    publish_into(data, chain(shallow, numbered(queue_topic(QUEUE), 0, sizes.deep)), [QUEUE, "shallow"])
    seconds, resident, histograms = [], [], list[float]()
    rates: dict[str, list[float]] = {"shallow": [], QUEUE: []}
    for _ in range(sizes.restarts):
        with gateway(data) as server:
            seconds.append(server.ready_seconds)
            histograms.append(histogram_ms(server.admin))
            for name, found in rates.items():
                found.append(recv(server.address, f"queue://{name}", count // sizes.restarts)["rate"])
            resident.append(server.resident_bytes() / MEGABYTE)
    return {
        "deep": median(rates[QUEUE]),
        "shallow": median(rates["shallow"]),
        "deep-memory": max(resident),
        "deep-start": median(seconds),
        "histogram": median(histograms),
    }


def histogram_ms(admin: str) -> float:
    """Milliseconds until an administrator gets the histogram of the whole log."""
    with Administration(admin) as administration:
        administration.monitor(LOG)  # the first request loads the administration's modules
        started = time.perf_counter()
        found = administration.monitor(f"{LOG}/histogram?buckets=200")
        taken = (time.perf_counter() - started) * 1_000
    if sum(bucket["msgCount"] for bucket in found["buckets"]) != found["lastMsgId"]:
        raise LoadFailed("the histogram has not all messages")
    return taken
