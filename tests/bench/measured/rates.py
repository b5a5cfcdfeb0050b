"""Message rates and latencies: the limits, queues, fan-out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from amqp_ext.addresses.address import queue_topic
from amqp_ext.codec import Described, encode
from amqp_ext.message.sections import PROPERTIES
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.bench import limits
from tests.bench.crowds import consume, subscribe
from tests.bench.filled import Published, numbered, publish_into
from tests.bench.generator.client import percentile
from tests.bench.measured.sizes import Figures, Sizes
from tests.bench.processes import FROM_BEGINNING, MEGABYTE, Load, ServerProcess, gateway, recv, send


def sqlite(folder: Path, sizes: Sizes) -> Figures:
    """Raw SQLite: the gateway's rows written and read without the gateway."""
    written = folder / "written.db"
    return {"sqlite-write": limits.write_rate(written, sizes.bulk), "sqlite-read": limits.read_rate(written)}


def container(_folder: Path, sizes: Sizes) -> Figures:
    """The rate at which the Container-style queue accepts the same load."""
    with ServerProcess("tests.bench.baseline") as server:
        return {"container": send(server.address, "bench", sizes.container)["rate"]}


EXCLUSIVE = '[vpn.default.queue.bench]\nexclusive = "wait"\n'
"""A queue that a consumer can rewind."""


def queue(folder: Path, sizes: Sizes) -> Figures:
    """Publish to a queue and consume from it; after a restart, with empty caches, replay it in both ways."""
    count, data = sizes.bulk, folder / "data"
    figures = _published_and_consumed(gateway(data, EXCLUSIVE), count)
    with gateway(data, EXCLUSIVE) as server:
        log = recv(server.address, "log://>", count, filters=FROM_BEGINNING)
        rewound = recv(server.address, "queue://bench?replay-start=beginning", count)
    return figures | {"replay-log": log["rate"], "replay-endpoint": rewound["rate"]}


def before(folder: Path, sizes: Sizes) -> Figures:
    """Publish and consume as ``queue`` does, with another checkout's gateway; the figures begin with `before-`."""
    if sizes.before is None:
        raise ValueError("there is no other checkout to measure")
    found = _published_and_consumed(gateway(folder / "data", EXCLUSIVE, checkout=sizes.before), sizes.bulk)
    return {f"before-{name}": value for name, value in found.items()}


WINDOW = 1_000_000
"""The number of ids that a queue remembers."""


def dedup(folder: Path, sizes: Sizes) -> Figures:
    """Publish messages with ids to a queue without deduplication, and to one whose window is full of other ids."""
    tables = f"[vpn.default.queue.plain]\n[vpn.default.queue.once]\ndedup_window = {WINDOW}\n"
    with gateway(folder / "data", tables) as server:
        send(server.address, "queue://once", WINDOW, named=True)
        # Messages of the newest route go to the end of an index, which is faster: neither queue is to have that route.
        send(server.address, "queue://plain", 1)
        send(server.address, "queue://last", 1)
        return {
            name: send(server.address, f"queue://{queue}", sizes.bulk, named=True)["rate"]
            for name, queue in (("publish-plain", "plain"), ("publish-dedup", "once"))
        }


DELAY_MS = 3_600_000
DUE_MS = 3_000


def delayed(folder: Path, sizes: Sizes) -> Figures:
    """
    Very many delayed messages: the rate of publishing them and of undelayed ones, their memory, how late due messages
    are delivered while another publisher is at work, and the time of a start with them.
    """
    data, due = folder / "data", sizes.windowed // 2
    with gateway(data) as server:
        # Warm up: the first messages of a process are slower.
        send(server.address, "queue://warm", sizes.bulk)
        figures = {"undelayed": send(server.address, "queue://calm", sizes.bulk)["rate"]}
        before = server.resident_bytes()
        figures["delayed"] = send(server.address, "queue://later", sizes.delayed, delay_ms=DELAY_MS)["rate"]
        figures["delayed-memory"] = max(server.resident_bytes() - before, MEGABYTE) / MEGABYTE
        consumer = Load("receive", server.address, "queue://due", due, timed=True).attached()
        with Load("send", server.address, "queue://busy", 100 * sizes.bulk, outstanding=100):
            send(server.address, "queue://due", due, delay_ms=DUE_MS, outstanding=100)
            figures["due-p99"] = consumer.result()["p99_ms"] - DUE_MS
    with gateway(data) as server:
        return figures | {"delayed-start": server.ready_seconds}


def many_routes(folder: Path, sizes: Sizes) -> Figures:
    """Consuming a queue of one topic, and one that is subscribed to everything while each topic has its own queue."""
    each = {f"own{n}": Queue(subscriptions=(f"bench/{n}",)) for n in range(sizes.routes)}
    settings = Vpn(queues={"all": Queue(subscriptions=(">",)), "one": Queue(), **each})
    # One message in each publication, as from many publishers: neighbours are of different topics.
    many = (
        (f"bench/{number % sizes.routes}", contents, bare)
        for number, (_, contents, bare) in enumerate(numbered("", 0, sizes.bulk, run=1))
    )
    one = numbered(queue_topic("one"), 0, sizes.bulk)
    publish_into(folder / "data", chain(one, many), settings)
    with gateway(folder / "data") as server:
        # Warm up: the first messages of a process are slower.
        send(server.address, "queue://warm", sizes.bulk // 4)
        recv(server.address, "queue://warm", sizes.bulk // 4)
        return {
            "one-route": recv(server.address, "queue://one", sizes.bulk)["rate"],
            "many-routes": recv(server.address, "queue://all", sizes.bulk)["rate"],
        }


def by_key(folder: Path, sizes: Sizes) -> Figures:
    """Fifty consumers of a queue: without keys; with 100,000 groups in turn; with 200 partitions of these groups."""
    queues = {
        "ungrouped": Queue(),
        "groups": Queue(message_groups=True),
        "partitions": Queue(partitions=200),
    }
    count = sizes.bulk
    messages = (one for name in queues for one in in_groups(name, count, GROUPS))
    publish_into(folder / "data", messages, Vpn(queues=queues))
    with gateway(folder / "data") as server:
        # Warm up: the first messages of a process are slower.
        send(server.address, "queue://warm", count // 4)
        recv(server.address, "queue://warm", count // 4)
        return {
            name: consume(
                server.address, f"queue://{name}", CREW, count, GROUPS if name != "ungrouped" else 0
            )
            for name in queues
        }


def in_groups(name: str, count: int, groups: int) -> Iterator[Published]:
    """Messages for a queue, numbered from 0; message n is in group n modulo ``groups``."""
    number = 0
    for topic, contents, bare in numbered(queue_topic(name), 0, count):
        yield topic, [_grouped(one, bare, (number + k) % groups) for k, one in enumerate(contents)], bare
        number += len(contents)


def _grouped(message: bytes, bare: int, group: int) -> bytes:
    properties = encode(Described(PROPERTIES, [*[None] * 10, f"group-{group}"]))
    return message[:bare] + properties + message[bare:]


def _published_and_consumed(started: ServerProcess, count: int) -> Figures:
    with started as server:
        publish = charged(server, "publish", count, lambda: send(server.address, "queue://bench", count))
        consume = charged(server, "consume", count, lambda: recv(server.address, "queue://bench", count))
    return publish | consume


def charged(server: ServerProcess, name: str, count: int, run: Callable[[], dict[str, Any]]) -> Figures:
    """The rate that ``run`` reports, and the server's processor time for each message in microseconds."""
    before = server.cpu_seconds()
    rate = run()["rate"]
    return {name: rate, f"{name}-cpu": (server.cpu_seconds() - before) / count * 1e6}


CREW = 50
"""The number of consumers of one queue."""
GROUPS = 100_000
"""The number of groups of a queue's messages."""
FAN = 10
"""The number of queues on one topic."""
SUBSCRIPTIONS = 100
"""The number of durable subscriptions on one topic."""


def fan_out(folder: Path, sizes: Sizes) -> Figures:
    """One topic into one queue, into ten, into a hundred durable subscriptions; the last queue gets all messages."""
    count = sizes.fanned
    queues = {"fan": ["one"], **{f"fan{n}": ["ten"] for n in range(FAN)}}
    tables = (f"[vpn.default.queue.{name}]\nsubscriptions = {topics}\n" for name, topics in queues.items())
    with gateway(folder / "data", "".join(tables)) as server:
        subscribe(server.address, "topic://hundred", SUBSCRIPTIONS)
        # Warm up: the first messages of a process are slower.
        send(server.address, "topic://one", count)
        recv(server.address, "queue://fan", count)
        # Before and after: the speed of a virtual machine changes from minute to minute.
        one = send(server.address, "topic://one", count)["rate"]
        ten = send(server.address, "topic://ten", count)["rate"]
        hundred = send(server.address, "topic://hundred", count)["rate"]
        one = mean((one, send(server.address, "topic://one", count)["rate"]))
        recv(server.address, f"queue://fan{FAN - 1}", count)
    return {"fan-out-1": one, "fan-out-10": ten, "fan-out-100": hundred}


def wide_fan(folder: Path, sizes: Sizes) -> Figures:
    """Latency with one message outstanding, on a topic with very many durable subscriptions and on one with one."""
    count = sizes.single
    with gateway(folder / "data") as server:
        subscribe(server.address, "topic://many", sizes.subscribers)
        subscribe(server.address, "topic://one", 1, "one")
        send(server.address, "topic://one", count, outstanding=1)
        one = send(server.address, "topic://one", count, outstanding=1)["p50_ms"]
        many = send(server.address, "topic://many", count, outstanding=1)["p50_ms"]
        one = mean((one, send(server.address, "topic://one", count, outstanding=1)["p50_ms"]))
    return {"fan-out-p50": many, "narrow-p50": one}


OUTSTANDING = (100, 1000)


def latency(folder: Path, sizes: Sizes) -> Figures:
    """Time from send to ``accepted`` with 1, 100 and 1,000 outstanding; from publish to receipt with 1 outstanding.

    Raw commits are timed right before and after the single messages they are compared with: disks have moods.
    """
    with gateway(folder / "data") as server:
        commits = limits.commit_latencies(folder / "before.db", sizes.single // 2)
        single = send(server.address, "queue://single", sizes.single, outstanding=1)
        commits += limits.commit_latencies(folder / "after.db", sizes.single // 2)
        figures = {
            **_percentiles("sync", single),
            "commit-p50": percentile(commits, 0.5),
            "commit-p99": percentile(commits, 0.99),
        }
        for outstanding in OUTSTANDING:
            windowed = send(server.address, "queue://windowed", sizes.windowed, outstanding=outstanding)
            figures |= _percentiles(f"{outstanding}", windowed)
        consumer = Load("receive", server.address, "queue://through", sizes.single, timed=True)
        consumer.attached()
        send(server.address, "queue://through", sizes.single, outstanding=1)
        return figures | _percentiles("through", consumer.result())


def _percentiles(name: str, result: dict[str, Any]) -> Figures:
    return {f"{name}-p50": result["p50_ms"], f"{name}-p99": result["p99_ms"]}
