"""
How many messages a second, and how long they are on their way: the generator, the limits, queues, fans of them,
history over HTTP.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import mean
from urllib.parse import urlsplit

import httpx

from amqp_ext.addresses.address import queue_topic
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.bench import limits
from tests.bench.crowds import subscribe
from tests.bench.filled import numbered, publish_into
from tests.bench.generator.client import percentile
from tests.bench.generator.links import TransferBlock
from tests.bench.measured.sizes import Figures, Sizes
from tests.bench.processes import Load, LoadFailed, ServerProcess, gateway, recv, send
from tests.support.running import PLAIN_HTTP


def generator(_folder: Path, sizes: Sizes) -> Figures:
    """The load generator against a peer that does nothing, and the octets of its messages alone."""
    with ServerProcess("tests.bench.generator.null_peer") as peer:
        return {
            "generator_send": send(peer.address, "null", 2 * sizes.bulk)["rate"],
            "generator_recv": recv(peer.address, "null", 2 * sizes.bulk)["rate"],
            "generator_single_p50": send(peer.address, "null", sizes.single, outstanding=1)["p50_ms"],
            "loopback": limits.loopback_rate(2 * sizes.bulk, TransferBlock(256).stride),
        }


def sqlite(folder: Path, sizes: Sizes) -> Figures:
    """Raw SQLite: the gateway's rows without the gateway."""
    written = folder / "written.db"
    return {"sqlite_write": limits.write_rate(written, sizes.bulk), "sqlite_read": limits.read_rate(written)}


def container(_folder: Path, sizes: Sizes) -> Figures:
    """The Container-style queue under the same load."""
    with ServerProcess("tests.bench.baseline") as server:
        return {
            "container_publish": send(server.address, "bench", sizes.container)["rate"],
            "container_consume": recv(server.address, "bench", sizes.container)["rate"],
        }


def queue(folder: Path, sizes: Sizes) -> Figures:
    """Publish to one queue, consume it; after a restart, with nothing in memory, replay it in both ways."""
    count, data, options = sizes.bulk, folder / "data", _exclusive_queue(folder)
    figures = _published_and_consumed(gateway(data, *options), count)
    with gateway(data, *options) as server:
        log = charged(
            server,
            "replay_log",
            lambda: recv(server.address, "log://>", count, "--start", "beginning")["rate"],
            count,
        )
        rewound = "queue://bench?replay-start=beginning"
        endpoint = charged(
            server, "replay_endpoint", lambda: recv(server.address, rewound, count)["rate"], count
        )
    return figures | log | endpoint


def before(folder: Path, sizes: Sizes) -> Figures:
    """Publish and consume as ``queue`` does, with the gateway of another checkout; its figures begin with `before_`."""
    if sizes.before is None:
        raise ValueError("there is no other checkout to measure")
    server = gateway(folder / "data", *_exclusive_queue(folder), checkout=sizes.before)
    found = _published_and_consumed(server, sizes.bulk)
    return {f"before_{name}": value for name, value in found.items()}


def many_routes(folder: Path, sizes: Sizes) -> Figures:
    """An endpoint that is subscribed to everything, beside one for each topic, and a queue of one topic alone."""
    each = {f"own{n}": Queue(subscriptions=(f"bench/{n}",)) for n in range(sizes.routes)}
    settings = Vpn(queues={"all": Queue(subscriptions=(">",)), "one": Queue(), **each})
    # One message each time, as they come from many publishers: no two neighbours are of the same topic.
    many = (
        (f"bench/{number % sizes.routes}", contents, bare)
        for number, (_, contents, bare) in enumerate(numbered("", 0, sizes.bulk, run=1))
    )
    one = numbered(queue_topic("one"), 0, sizes.bulk)
    publish_into(folder / "data", chain(one, many), settings)
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://warm", sizes.bulk // 4)
        recv(server.address, "queue://warm", sizes.bulk // 4)
        return {
            "one_route": recv(server.address, "queue://one", sizes.bulk)["rate"],
            "many_routes": recv(server.address, "queue://all", sizes.bulk)["rate"],
        }


def _exclusive_queue(folder: Path) -> tuple[str, str]:
    """A gateway's options for a queue that a consumer can rewind."""
    config = folder / "gateway.toml"
    config.write_text('[vpn.default.queue.bench]\nexclusive = "wait"\n')
    return "--config", str(config)


def _published_and_consumed(started: ServerProcess, count: int) -> Figures:
    with started as server:
        publish = charged(
            server, "publish", lambda: send(server.address, "queue://bench", count)["rate"], count
        )
        consume = charged(
            server, "consume", lambda: recv(server.address, "queue://bench", count)["rate"], count
        )
    return publish | consume


def charged(server: ServerProcess, name: str, run: Callable[[], float], count: int) -> Figures:
    """The rate that ``run`` returns, and the server's processor time a message in microseconds."""
    before = server.cpu_seconds()
    rate = run()
    return {name: rate, f"{name}_cpu_us": (server.cpu_seconds() - before) / count * 1e6}


FAN = 10
"""Queues on one topic."""
SUBSCRIPTIONS = 100
"""Durable subscriptions on one topic."""


def fan_out(folder: Path, sizes: Sizes) -> Figures:
    """One topic into a queue, into ten, into a hundred durable subscriptions; the last queue has all of it."""
    count = sizes.fanned
    config = folder / "gateway.toml"
    queues = {"fan": ["one"], **{f"fan{n}": ["ten"] for n in range(FAN)}}
    config.write_text(
        "".join(f"[vpn.default.queue.{name}]\nsubscriptions = {topics}\n" for name, topics in queues.items())
    )
    with gateway(folder / "data", "--config", str(config)) as server:
        subscribe(server.address, "topic://hundred", SUBSCRIPTIONS)
        # The first of a process are slower than those that follow.
        send(server.address, "topic://one", count)
        recv(server.address, "queue://fan", count)
        # Before and after: a machine with other guests is not the same from one minute to the next.
        one = send(server.address, "topic://one", count)["rate"]
        ten = send(server.address, "topic://ten", count)["rate"]
        hundred = send(server.address, "topic://hundred", count)["rate"]
        one = mean((one, send(server.address, "topic://one", count)["rate"]))
        recv(server.address, f"queue://fan{FAN - 1}", count)
    return {"fan_out_1": one, "fan_out_10": ten, "fan_out_100": hundred}


def wide_fan(folder: Path, sizes: Sizes) -> Figures:
    """One outstanding: on a topic with very many durable subscriptions, and on one with one."""
    count = sizes.single
    with gateway(folder / "data") as server:
        subscribe(server.address, "topic://many", sizes.subscribers)
        subscribe(server.address, "topic://one", 1, "one")
        send(server.address, "topic://one", count, outstanding=1)
        one = send(server.address, "topic://one", count, outstanding=1)["p50_ms"]
        many = send(server.address, "topic://many", count, outstanding=1)["p50_ms"]
        one = mean((one, send(server.address, "topic://one", count, outstanding=1)["p50_ms"]))
    return {"wide_fan_p50": many, "narrow_fan_p50": one}


PIECE = 256 * 1024


def history(folder: Path, sizes: Sizes) -> Figures:
    """The whole log, read as a browser reads it; and the longest that a probe of health waited meanwhile."""
    publish_into(folder / "data", numbered("bench/history", 0, sizes.bulk))
    with gateway(folder / "data") as server:
        url = server.admin
        httpx.get(f"{url}/healthz", **PLAIN_HTTP)  # which loads what serves HTTP
        figures = charged(server, "sse_history", lambda: _read(url, sizes.bulk), sizes.bulk)
        return figures | _probed(url, sizes.bulk)


def _probed(url: str, count: int) -> Figures:
    reading = threading.Thread(target=_read, args=(url, count))
    waits: list[float] = []
    with httpx.Client(base_url=url, **PLAIN_HTTP) as client:
        reading.start()
        while reading.is_alive():
            began = time.monotonic()
            client.get("/healthz")
            waits.append(time.monotonic() - began)
    waits.sort()
    return {"sse_probe_p99": waits[int(len(waits) * 0.99)] * 1_000 if waits else 0.0}


def _read(url: str, count: int) -> float:
    """Messages a second."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(
            b"GET /v1/log?from=beginning&until=now HTTP/1.1\r\nHost: %b\r\nAccept: text/event-stream\r\n\r\n"
            % where.netloc.encode()
        )
        began = time.monotonic()
        buffer = bytearray(PIECE)
        seen, last = 0, b""
        while not last.endswith(b"\r\n0\r\n\r\n"):
            size = connection.recv_into(buffer)
            if not size:
                raise LoadFailed("the gateway closed the connection")
            seen += buffer.count(b'\ndata: {"offset":', 0, size)
            last = (last + bytes(buffer[max(size - 7, 0) : size]))[-7:]
        taken = time.monotonic() - began
    # One that lies across two pieces is not counted.
    if seen < count * 0.99:
        raise LoadFailed(f"{seen} of {count} messages came")
    return count / taken


OUTSTANDING = (100, 1000)


def latency(folder: Path, sizes: Sizes) -> Figures:
    """Send to ``accepted`` with 1, 100 and 1,000 outstanding; publish to receipt with 1 outstanding.

    Raw commits are timed right before and after the single messages they are compared with: disks have moods.
    """
    with gateway(folder / "data") as server:
        commits = limits.commit_latencies(folder / "before.db", sizes.single // 2)
        single = send(server.address, "queue://single", sizes.single, outstanding=1)
        commits += limits.commit_latencies(folder / "after.db", sizes.single // 2)
        figures = {
            "single_p50": single["p50_ms"],
            "single_p99": single["p99_ms"],
            "sqlite_commit_p50": percentile(commits, 0.5),
            "sqlite_commit_p99": percentile(commits, 0.99),
        }
        for outstanding in OUTSTANDING:
            windowed = send(server.address, "queue://windowed", sizes.windowed, outstanding=outstanding)
            figures |= {f"{outstanding}_p50": windowed["p50_ms"], f"{outstanding}_p99": windowed["p99_ms"]}
        consumer = Load(
            "recv", server.address, "queue://through", "--count", sizes.single, "--timed"
        ).attached()
        send(server.address, "queue://through", sizes.single, outstanding=1)
        through = consumer.result()
    return figures | {"through_p50": through["p50_ms"], "through_p99": through["p99_ms"]}
