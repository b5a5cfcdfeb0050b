"""
What a gateway weighs: memory with nothing to do and after much, connections that say nothing, starts and queues of a
large store.
"""

from __future__ import annotations

import json
import time
from itertools import chain
from pathlib import Path
from statistics import mean, median
from urllib.request import urlopen

from amqp_ext.addresses.address import queue_topic
from tests.bench.crowds import allow_files, open_connections, waiting_readers
from tests.bench.filled import QUEUE, fill, numbered, publish_into
from tests.bench.measured.sizes import Figures, Sizes
from tests.bench.processes import MEGABYTE, Load, LoadFailed, ServerProcess, gateway, recv, send

EACH = 5
"""Times ``Sizes.single`` that are published to many endpoints."""
QUEUES = 20
SAMPLE_SECONDS = 1.0
QUOTA_MB = 300
"""Of the log under mixed load, so that it is trimmed, too."""


def worked(folder: Path, sizes: Sizes) -> Figures:
    """With nothing in it and nothing to do; after many messages were published, consumed and replayed in both ways."""
    config = folder / "gateway.toml"
    config.write_text('[vpn.default.queue.bench]\nexclusive = "wait"\n')
    count = sizes.worked
    with gateway(folder / "data", "--config", str(config)) as server:
        empty = _resident(server)
        send(server.address, "queue://bench", count)
        recv(server.address, "queue://bench", count)
        recv(server.address, "log://>", count, "--start", "beginning")
        recv(server.address, "queue://bench?replay-start=beginning", count)
        return {"memory_empty": empty, "memory_worked": _resident(server)}


def endpoints(folder: Path, sizes: Sizes) -> Figures:
    """Many endpoints on one topic that was published to."""
    config = folder / "gateway.toml"
    config.write_text(
        "".join(f'[vpn.default.queue.q{n}]\nsubscriptions = ["all"]\n' for n in range(sizes.subscribers))
    )
    with gateway(folder / "data", "--config", str(config)) as server:
        send(server.address, "topic://all", EACH * sizes.single)
        return {"memory_endpoints": _resident(server)}


def mixed(folder: Path, sizes: Sizes) -> Figures:
    """Minutes of mixed load: many queues, bodies of any size, replays, consumers that die; and what is on disk then."""
    config = folder / "gateway.toml"
    queues = "".join(f'[vpn.default.queue.mixed{n}]\nexclusive = "wait"\n' for n in range(QUEUES))
    config.write_text(f"[vpn.default.replay_log]\nquota_mb = {QUOTA_MB}\n{queues}")
    with gateway(folder / "data", "--config", str(config)) as server:
        peak = 0.0
        load = Load(
            server.address,
            "--minutes",
            sizes.minutes,
            "--queues",
            QUEUES,
            module="tests.bench.generator.mixed",
        )
        while not load.is_over(SAMPLE_SECONDS):
            peak = max(peak, _resident(server))
        done = load.result()
        on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return {
            "memory_mixed": _resident(server),
            "memory_mixed_peak": peak,
            "mixed_rate": done["published"] / done["seconds"],
            "mixed_replays": done["replays"],
            "mixed_deaths": done["deaths"],
            "log_quota": QUOTA_MB,
            "log_on_disk": on_disk / MEGABYTE,
        }


def _resident(server: ServerProcess) -> float:
    return server.resident_bytes() / MEGABYTE


SILENCE = "[limits]\nidle_timeout_ms = 3600000\n"
"""Idle clients send no heartbeats here."""


def idle(folder: Path, sizes: Sizes) -> Figures:
    """Memory a connection costs that is open, has a session, and says nothing."""
    allow_files(sizes.connections)
    with gateway(folder / "data") as server:
        before = server.resident_bytes()
        with open_connections(server.address, sizes.connections):
            held = server.resident_bytes() - before
    return {"idle_kib": held / sizes.connections / 1024}


def idle_readers(folder: Path, sizes: Sizes) -> Figures:
    """One outstanding beside very many log readers that wait for a topic on which nothing comes, and without them."""
    count = sizes.single
    config = folder / "gateway.toml"
    config.write_text(SILENCE)
    with gateway(folder / "data", "--config", str(config)) as server:
        send(server.address, "queue://commits", count, outstanding=1)
        without = send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]
        with waiting_readers(server.address, sizes.readers):
            beside = send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]
        without = mean((without, send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]))
    return {"p50_beside_readers": beside, "p50_without_readers": without}


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
